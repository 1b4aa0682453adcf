"""Known calls in other processes, whose strings have other hashes and whose code lies elsewhere: a function is found
there, and not where something that it reads has changed; what it gives is right, and has the same bits where it was
found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent

MODEL = """
import math
from functools import partial, wraps
from typing import NamedTuple
import numpy as np
import jitgrad as jg
from jitgrad import nn
import known_helper
from known_helper import helped, power as exponent
from known_parts.deep import LEVEL

X, Y = np.linspace(0.1, 1.0, 7), np.linspace(-1.0, 1.0, 7)
rate, pair, text, names = {rate}, (1, ({pair}, "a")), "a" * {text}, ("be", "c" * {names})
scale = np.float64({scale})
kind = np.dtype({kind!r})
def code(v): return np.sum(np.sin(v) * {code})
def inner(v): return (lambda w: w - {inner})(v)
def nested(v):
    def step(w):
        return [w * k for k in range({nested})]
    return sum(step(v))
def of_global(v): return v * rate
def of_tuple(v): return v * pair[1][0] + len(pair)
def of_text(v): return v * len(text)
def of_names(v): return sum(v * len(name) for name in names)
def of_scale(v): return v * scale
def of_kind(v): return v.astype(kind) / 3
def default(v, k={default}): return v * k
def keyword(v, *, k={keyword}): return v * k
def by_module(v): return known_helper.helped(v) + 1
def by_name(v): return helped(v) ** exponent
def deeper(v): return v + known_helper.deeper(v)
def constant(v): return v * known_helper.CONSTANT
def imported(v):
    import known_helper as m
    from known_parts import deep
    return v * m.CONSTANT - deep.LEVEL
def level(v): return v * LEVEL
def inside(v): return known_helper.inside(v)
def not_loaded(v): return known_helper.not_loaded(v)
def closure(k):
    return lambda v: v * k + k
def decorated(k):
    def decorator(fn):
        @wraps(fn)
        def call(*args): return fn(*args) * k
        return call
    return decorator
@decorated({decorated})
def wrapped(v): return np.tanh(v)
def recursive(v, depth={recursive}): return v if depth == 0 else np.sin(recursive(v, depth - 1))
def switch(v, w): return np.where(v > {switch}, v, w)
def operator(v): return (v {operator} 2.5) * 1.5
def by_ufunc(v): return np.{ufunc}(v)
ufunc = np.{ufunc}
def alias(v): return ufunc(v)
by_math = math.{math}
def of_math(v): return v * by_math(0.5)
def order(v): return np.cumsum(np.sort(v)[::{order}])
def looped(v):
    def step(total, value): return np.tanh(total + value * {looped}), total
    return jg.scan(step, v[0], v)
def turned(v): return jg.while_loop(lambda s: s[0] < {turned}, lambda s: (s[0] + 1, np.cos(s[1])), (0, v))[1]
def chosen(v): return jg.cond(v[0] > {chosen}, np.sin, np.cos, v)
@jg.custom_gradient
def own(v): return np.sum(v * v), lambda g: g * v * {own}
@jg.compile
def compiled(v): return v * {compiled}
def calling(v): return compiled(v) + 1
def keys(v):
    return {{"b": v * 2, "a": [v + 1, (np.sum(v), "t" * {keys})]}}
def asked(v):
    parts = {{"a": v, "bc": v}}
    return sum(part * len(name) for name, part in parts.items() if name in {{"a", "{asked}", "d", "e"}})
def of_each(parts): return parts["x"] * {of_each} + parts["y"][0]
def caught(v):
    try:
        return v @ np.ones(3)
    except ValueError:
        return v @ np.ones(7) * {caught}
def general(v, **options): return v + options.get("a", 0) - 2 * options.get("b", 0)
def of_sets(v): return [v * len(name) for name in {{"alpha", "be", "c"}} if name != "c" * {of_sets}]
def small(v): return np.arange(7.0) * v + {small}
def net(v): return nn.relu(v - {net})
def raised(v): return v ** {raised}

CASES = dict(
    code=(code, X), inner=(inner, X), nested=(nested, X), of_global=(of_global, X), of_tuple=(of_tuple, X),
    of_text=(of_text, X), of_names=(of_names, X), of_scale=(of_scale, X), of_kind=(of_kind, X), default=(default, X),
    keyword=(keyword, X), by_module=(by_module, X), by_name=(by_name, X), deeper=(deeper, X), constant=(constant, X),
    imported=(imported, X), level=(level, X), inside=(inside, X), not_loaded=(not_loaded, X),
    closure=(closure({closure}), X), wrapped=(wrapped, X), recursive=(recursive, X), switch=(switch, X, Y),
    operator=(operator, X), ufunc=(by_ufunc, X), alias=(alias, X), math=(of_math, X), order=(order, X),
    looped=(looped, X), turned=(turned, X), chosen=(chosen, X), own=(jg.grad(own), X), compiled=(calling, X),
    keys=(keys, X), asked=(asked, X), of_each=(of_each, dict(y=[X], x=Y)), caught=(caught, X), of_sets=(of_sets, X),
    small=(small, X), net=(net, X), raised=(raised, X), gradient=(jg.grad(lambda v: np.sum(v ** {gradient})), X),
    both=(jg.value_and_grad(lambda v: np.sum(v * {both})), X),
    hessian=(jg.hessian(lambda v: np.sum(v ** {hessian})), X),
    which=(jg.grad(lambda v, w: np.sum(v * w * w), argnums={which}), X, Y),
    vector=(lambda v: jg.map(lambda w: w * {vector}, v), X), partly=(partial(default, k={partly}), X),
    dtype=(lambda v: v / 3, X.astype({dtype!r})), shape=(lambda v: v + v.shape[0], X[:{shape}]),
    number=(lambda v, n: v * n, X, {number}),
)
STATIC = dict(static_value=(general, (X,), dict(a={static_value})), static_name=(general, (X,), dict({static_name}=2)))
"""

HELPER = """
from known_parts import again, deep
from known_parts.deep import lowest
import numpy as np
CONSTANT, power = {constant}, {by_name}
def helped(v): return np.cos(v) * {by_module}
def deeper(v): return deep.lowest(v)
def inside(v):
    from known_parts import again
    return again.same(v)
def not_loaded(v):
    from known_parts import late
    return late.same(v)
"""

DEEP = "LEVEL = {level}\ndef lowest(v): return v * {deeper}\n"
AGAIN = "from known_parts.deep import lowest\ndef same(v): return lowest(v) - {inside}\n"
LATE = "def same(v): return v - {not_loaded}\n"
FILES = {
    "known_model": MODEL, "known_helper": HELPER, "known_parts/__init__": "", "known_parts/deep": DEEP,
    "known_parts/again": AGAIN, "known_parts/late": LATE,
}  # fmt: skip

DRIVER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import jitgrad as jg
import known_model as model
from jitgrad import calls, pytree

traced, trace = [], calls.trace
def noted(*given):
    traced.append(1)
    return trace(*given)
calls.trace = noted

def run(f, args, kwargs):
    del traced[:]
    got = pytree.flatten(f(*args, **kwargs))[0]
    was_traced = bool(traced)
    expected = pytree.flatten(f.interpret(*args, **kwargs))[0]
    for one, other in zip(got, expected, strict=True):
        assert type(one) is type(other) and getattr(one, "dtype", None) == getattr(other, "dtype", None), (one, other)
        if not isinstance(one, str):
            np.testing.assert_allclose(one, other, rtol=1e-6 if one.dtype == np.float32 else 1e-13)
    return was_traced, [one if isinstance(one, str) else one.tobytes().hex() for one in got]

found = {name: run(jg.compile(fn), args, {}) for name, (fn, *args) in model.CASES.items()}
for name, (fn, args, kwargs) in model.STATIC.items():
    found[name] = run(jg.compile(fn, static_argnames=("a", "b")), args, kwargs)
print(json.dumps(found))
"""

# What each case reads: as it was, and changed. Where two cases read the same, both are named by it.
PLACES: dict[str, tuple[Any, Any]] = {
    "rate": (0.5, 0.25), "pair": (2, 2.5), "text": (3, 4), "names": (1, 2), "scale": (0.5, 0.75),
    "kind": ("float32", "float64"), "code": (2, 2.5), "inner": (1, 2), "nested": (2, 3), "default": (2, 3),
    "keyword": (2, 3), "by_module": (2, 3), "by_name": (2, 3), "deeper": (2, 3), "constant": (2.0, 3.0),
    "level": (2, 3), "inside": (1, 2), "not_loaded": (1, 2), "closure": (2.0, 3.0), "decorated": (2, 3),
    "recursive": (1, 2), "switch": (0.5, 0.25), "operator": ("*", "-"), "ufunc": ("sin", "cos"), "math": ("sin", "cos"),
    "order": (1, -1), "looped": (1, 2), "turned": (2, 3), "chosen": (0.0, 0.5), "own": (2, 3), "compiled": (2, 3),
    "keys": (1, 2), "asked": ("bc", "x"), "of_each": (2, 3), "caught": (2, 3), "of_sets": (1, 2), "small": (1, 1.5),
    "net": (0.5, 0.2), "raised": (2, 3), "gradient": (2, 3), "both": (2, 3), "hessian": (2, 3), "which": (0, 1),
    "vector": (2, 3), "partly": (2, 3), "dtype": ("float64", "float32"), "shape": (7, 6), "number": (2, 2.5),
    "static_value": (3, 4), "static_name": ("a", "b"),
}  # fmt: skip
TRACED = {"of_sets", "not_loaded"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What three processes found: the first, the same again, and with all places changed."""
    cache = tmp_path_factory.mktemp("cache")
    return [_process(cache, tmp_path_factory.mktemp("code"), seed) for seed in range(3)]


def _process(cache: Path, folder: Path, seed: int) -> Any:
    """Whether each case was traced by a process, and what it gave; hashes and the folder of the code are its own."""
    values = {name: both[seed // 2] for name, both in PLACES.items()}
    (folder / "known_parts").mkdir()
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text("\n" * seed + text.format(**values))
    environment = os.environ | {
        "JITGRAD_CACHE_DIR": str(cache), "JITGRAD_CACHE": "1", "JITGRAD_VERIFY": "0", "JITGRAD_QUICK_START": "1",
        "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(seed + 1),
    }  # fmt: skip
    command = [sys.executable, "-c", DRIVER, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_first_process_traces_all(found: list[dict[str, Any]]) -> None:
    assert {name for name, (was_traced, _) in found[0].items() if not was_traced} == set()


def test_the_second_traces_what_may_do_something_else(found: list[dict[str, Any]]) -> None:
    assert {name for name, (was_traced, _) in found[1].items() if was_traced} == TRACED


def test_what_is_found_gives_the_same_bits(found: list[dict[str, Any]]) -> None:
    assert {name for name, (_, values) in found[1].items() if values != found[0][name][1]} == set()


def test_what_has_changed_is_traced_and_gives_something_else(found: list[dict[str, Any]]) -> None:
    """That it is right, each process has checked by the interpreter."""
    assert {name for name, (was_traced, _) in found[2].items() if not was_traced} == set()
    assert {name for name, (_, values) in found[2].items() if values == found[0][name][1]} == set()
