"""Known calls: a function that another process has traced runs from what is kept on disk, and does what it would do;
one that might do something else each time is traced.
"""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special  # noqa: F401  what is not loaded is not read

import jitgrad as jg
from jitgrad import calls, nn, pytree
from jitgrad.compiler.freezing.keeping import keep_now
from jitgrad.compiler.machine.cache import kernel_cache
from jitgrad.constancy import constancy_of
from jitgrad.contents import contents_of
from jitgrad.errors import CompileError, JitgradError
from jitgrad.gradient_rules import registered_rules

Fn = Callable[..., Any]
rate, rates, box = 0.5, [0.5], {"rate": 0.5}
x, y = np.linspace(0.1, 1.0, 7), np.linspace(-1.0, 1.0, 7)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The functions that were traced, with a folder of their own for what is kept."""
    found: list[str] = []
    trace = calls.trace

    def noted(fn: Fn, *args: Any) -> Any:
        found.append(getattr(fn, "__name__", type(fn).__name__))
        return trace(fn, *args)

    monkeypatch.setattr(calls, "trace", noted)
    with jg.config(verify=False, cache=True, cache_dir=str(tmp_path)):
        yield found
        keep_now()


def _again(make: Callable[[], Fn], *args: Any, **kwargs: Any) -> tuple[Any, Any, Fn]:
    """What a function gives when it is called first, and once what it did is on disk; and the function that did."""
    first = jg.compile(make())(*args, **kwargs)
    keep_now()
    other = jg.compile(make())
    return first, other(*args, **kwargs), other


def _equal(a: Any, b: Any) -> None:
    (leaves, structure), (others, other_structure) = pytree.flatten(a), pytree.flatten(b)
    assert structure == other_structure
    for one, other in zip(leaves, others, strict=True):
        assert type(one) is type(other)
        np.testing.assert_array_equal(one, other)


def _helped(values: Any, power: int = 3) -> Any:
    return np.sum(np.sin(values) ** power)


def _of_shape(values: Any) -> Any:
    n = values.shape[0]
    text = f"{n} values"
    return values * n / len(text), n


def _imported(values: Any) -> Any:
    from scipy.special import expit

    return np.mean(expit(values)) + nn.logsumexp(values)


def _looped(values: Any) -> Any:
    def step(total: Any, value: Any) -> Any:
        return np.tanh(total + value), total

    return jg.scan(step, values[0], values)


CONSTANT: dict[str, Callable[[], Fn]] = {
    "items": lambda: lambda v: sum(part * len(name) for name, part in {"a": v, "bc": v}.items() if name in {"a", "bc"}),
    "jitgrad.numpy": lambda: lambda v: jg.numpy.sum(v) + jg.numpy.ones(3),
    "global": lambda: lambda v: np.sum(v * rate),
    "helper": lambda: lambda v: _helped(v) + _helped(v, power=2),
    "shape": lambda: _of_shape,
    "import": lambda: _imported,
    "loop": lambda: _looped,
    "gradient": lambda: jg.grad(_helped),
    "value and gradient": lambda: jg.value_and_grad(_helped),
    "hessian": lambda: jg.hessian(_helped),
    "partial": lambda: partial(_helped, power=4),
    "compiled inside": lambda: lambda v: jg.grad(jg.compile(_helped))(v),
    "made": lambda: lambda v: v * np.arange(7.0),
    "caught": lambda: _caught,
}


def _caught(values: Any) -> Any:
    try:
        return values @ np.ones(3)
    except ValueError:
        return values @ np.ones(7)


@pytest.mark.parametrize("name", CONSTANT)
def test_a_constant_function_is_not_traced_again(name: str, traced: list[str]) -> None:
    first, second, other = _again(CONSTANT[name], x)
    assert len(traced) == 1
    _equal(first, second)
    _equal(other.interpret(x), jg.compile(CONSTANT[name]()).interpret(x))


def _identity(values: Any) -> Any:
    return np.sum(np.linalg.inv(np.eye(120) * (2.0 + values[0]) + np.tri(120)), axis=0) @ np.tri(120, k=3)


def test_long_constants_of_few_runs_need_no_trace(traced: list[str]) -> None:
    """Each has 115 KB, more than is written element by element."""
    first, second, other = _again(lambda: _identity, x)
    assert traced == ["_identity"]
    _equal(first, second)
    _equal(other.interpret(x), jg.compile(_identity).interpret(x))


def _counting() -> Fn:
    counted: list[int] = []

    def f(values: Any) -> Any:
        counted.append(1)
        return values * len(counted)

    return f


def _writing(values: Any) -> Any:
    global rate
    rate = 0.5
    return values * rate


class Model:
    """An object that may change."""

    rate = 0.5

    def __call__(self, values: Any) -> Any:
        return values * self.rate


def _drawn_by_numpy(values: Any) -> Any:
    import jitgrad.numpy as jnp

    return values * jnp.random.rand()


def _branching(values: Any, is_deep: bool = False) -> Any:
    if is_deep:
        import no_such_module as module  # type: ignore[import-not-found]

        return module
    return values * 2


INCONSTANT: dict[str, Callable[[], Fn]] = {
    "handed on": lambda: lambda v: v * jg.numpy.random.rand(),
    "handed on by an import": lambda: _drawn_by_numpy,
    "handed on by SciPy": lambda: lambda v: v * jg.scipy.stats.norm.rvs(),
    "read by NumPy": lambda: lambda v: v + len(jg.numpy.geterr()),
    "set": lambda: lambda v: [v * len(name) for name in {"alpha", "be", "c"}],
    "set of keys": lambda: lambda v: [v + len(name) for name in {"a": v, "b": v}.keys() & {"a": 1}.keys()],
    "not loaded": lambda: _branching,
    "seed": lambda: lambda v: v + (jg.default_graph().seed or 0),
    "list": lambda: lambda v: v * rates[0],
    "dict": lambda: lambda v: v * box["rate"],
    "closure": _counting,
    "writes": lambda: _writing,
    "object": Model,
    "method": lambda: Model().__call__,
    "print": lambda: lambda v: print("traced") or v + 1,  # type: ignore[func-returns-value]
    "random": lambda: lambda v: v * np.random.rand(),
    "array": lambda: lambda v: v * y,
    "drawn": lambda: lambda v: v + jg.random_normal(v.shape),
    "class": lambda: lambda v: type("C", (), {"n": 2}).n * v,
}


@pytest.mark.filterwarnings("ignore:.*draws from numpy.random:UserWarning")
@pytest.mark.parametrize("name", INCONSTANT)
def test_a_function_that_may_do_something_else_is_traced(name: str, traced: list[str]) -> None:
    _again(INCONSTANT[name], x)
    assert len(traced) == 2


def test_results_keep_their_structure(traced: list[str]) -> None:
    def make() -> Fn:
        return lambda v, w: {"b": (v + w, None, 3), "a": [np.sum(v), "text", 1.5], "none": None}

    first, second, _ = _again(make, x, y)
    assert len(traced) == 1
    _equal(first, second)
    assert list(second) == ["b", "a", "none"]
    assert second["a"][1:] == ["text", 1.5]


def test_what_differs_is_told_apart(traced: list[str]) -> None:
    def f(v: Any, n: Any = 2) -> Any:
        return v * n

    one = jg.compile(f, static_argnames="n")
    others: list[Any] = [x[:5], x.astype(np.float32), 2.0, 2, np.float64(2.0)]
    asked: list[Any] = [((x,), {"n": n}) for n in (3, 3.0, True)] + [((other,), {}) for other in (x, *others)]
    for args, kwargs in asked:
        expected = one(*args, **kwargs)
        keep_now()
        traced.clear()
        got = jg.compile(f, static_argnames="n")(*args, **kwargs)
        assert traced == []
        _equal(expected, got)
        np.testing.assert_array_equal(got, f(*args, **kwargs))
        assert got.dtype == np.asarray(f(*args, **kwargs)).dtype


def test_static_arguments_are_told_by_their_names(traced: list[str]) -> None:
    def f(v: Any, **options: Any) -> Any:
        return v + options.get("a", 0) - options.get("b", 0)

    for name in ("a", "b"):
        got = jg.compile(f, static_argnames=("a", "b"))(x, **{name: 1})
        keep_now()
        np.testing.assert_array_equal(got, f(x, **{name: 1}))


def test_options_are_told_apart(traced: list[str]) -> None:
    for _ in range(2):
        for separate in (False, True):
            jg.compile(_helped, separate_compiled_gradients=separate)(x)
            keep_now()
    assert len(traced) == 2


def test_a_changed_global_is_another_function(traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    make = CONSTANT["global"]
    _, _, known = _again(make, x)
    monkeypatch.setitem(globals(), "rate", 0.25)
    np.testing.assert_allclose(jg.compile(make())(x), np.sum(x) / 4)
    np.testing.assert_allclose(known(x), np.sum(x) / 2)  # compiled when it was a half
    assert len(traced) == 2
    with pytest.raises(JitgradError, match="not what it was at its first call"):
        known.interpret(x)


def _module(k: float, **names: Any) -> Any:
    made = types.ModuleType("made")
    vars(made).update(k=k, **names)
    exec("def f(v): return v * k\ndef both(v): return f(v) + g(v) * k", vars(made))
    return made


def test_equal_names_of_different_modules_are_told_apart() -> None:
    """Where one function reads its ``k`` is part of what it does."""

    def text(first: float, second: float, is_shared: bool) -> Any:
        inner = _module(second)
        outer = _module(first)
        outer.g = outer.f if is_shared else inner.f
        return contents_of(constancy_of(outer.both), (outer.both,))

    assert text(1.0, 2.0, False) == text(1.0, 2.0, False)
    texts = [text(1.0, 2.0, False), text(2.0, 1.0, False), text(1.0, 1.0, False), text(1.0, 1.0, True)]
    assert len(set(map(repr, texts))) == 4


def test_code_counts_and_not_where_it_stands() -> None:
    def text(source: str) -> Any:
        space: dict[str, Any] = {"np": np}
        exec(source, space)
        return contents_of(constancy_of(space["f"]), (space["f"],))

    sources = ["lambda v: v * 2", "lambda v: v * 2.0", "lambda v: v * True", "lambda v, k=1: v * 2",
               "lambda v, *, k=1: v * 2", "lambda v: (lambda w: w * 2)(v)", "lambda v: (lambda w: w * 3)(v)",
               "lambda v: np.sin(v)", "lambda v: np.cos(v)", "lambda w: w * 2", "lambda v: v * 0.0",
               "lambda v: v * -0.0", "lambda v: v in {'a', 'b'}", "lambda v: v in {'a', 'c'}"]  # fmt: skip
    texts = [repr(text(f"f = {source}")) for source in sources]
    assert len(set(texts)) == len(sources)
    assert [repr(text(f"\n\n\nf = {source}")) for source in sources] == texts


def _made(source: str, **names: Any) -> Fn:
    """The function ``f`` that a text defines."""
    space: dict[str, Any] = {"np": np, "jg": jg, **names}
    exec(source, space)
    made: Fn = space["f"]
    return made


ATTRIBUTES = {
    "of a function": "def g(v): return v\ng.scale = {k}\ndef f(v): return v * g.scale",
    "set later": """
def g(v): return v
if {k} > 2: g.scale = {k}
def f(v):
    try: return v * g.scale
    except AttributeError: return v * 2""",
    "of a compiled function": "g = jg.compile(lambda v: v)\ng.scale = {k}\ndef f(v): return v * g.scale",
    "of a function of NumPy's": "np.sum.scale = {k}\ndef f(v): return v * np.sum.scale",
    "of a function of ours": "jg.grad.scale = {k}\ndef f(v): return v * jg.grad.scale",
    "by a text": "def g(v): return v\ng._k = 'a' * {k}\ndef f(v): return v * len('{{0._k}}'.format(g))",
    "of the globals": "k = {k}\ndef g(v): return v\ndef f(v): return v * g.__globals__['k']",
    "of a generator": "k = {k}\ndef f(v): return v * (i for i in ()).gi_frame.f_globals['k']",
    "of a dtype": "d = np.dtype('f8', metadata=dict(k={k}))\ndef f(v): return v * d.metadata['k']",
    "a count": "g = jg.compile(lambda v: v)\n[g(np.ones(n)) for n in range({k})]\n"
               "def f(v): return v * g.cache_info().traces",
    "a wrapped function": "def g(v): return v\ng.__wrapped__ = lambda v: v * {k}\ndef f(v): return g.__wrapped__(v)",
}  # fmt: skip


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_that_may_change_are_not_known(
    name: str, traced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    for fn in (np.sum, jg.grad):
        monkeypatch.setattr(fn, "scale", None, raising=False)  # put back afterwards
    for k in (2, 3):
        f = _made(ATTRIBUTES[name].format(k=k))
        np.testing.assert_array_equal(jg.compile(f)(x), f(x))
        keep_now()


IMPORTED = {
    "by a function inside": "def f(v):\n import known_names as m\n return (lambda w: w * m.k)(v)",
    "and handed on": "def g(m, v): return v * m.k\ndef f(v):\n import known_names as m\n return g(m, v)",
    "as a part": "def g(m, v): return v * m.k\ndef f(v):\n from known_names import part\n return g(part, v)",
    "one of the globals, handed on": "import known_names as n\ndef g(m, v): return v * m.k\ndef f(v): return g(n, v)",
    "one by name": "import known_names as n\ndef g(v, m): return v * m.k\ndef f(v): return g(v, m=n)",
    "a part of it": "def g(m, v): return v * m.part.k\ndef f(v):\n import known_names as m\n return g(m, v)",
}


@pytest.mark.parametrize("name", IMPORTED)
def test_all_that_a_module_is_asked_for_counts(
    name: str, traced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    module: Any = types.ModuleType("known_names")
    monkeypatch.setitem(sys.modules, "known_names", module)
    for k in (2.0, 2.0, 3.0):
        module.k, module.part = k, types.ModuleType("part")
        module.part.k = k
        np.testing.assert_array_equal(jg.compile(_made(IMPORTED[name]))(x), x * k)
        keep_now()
    assert len(traced) == 2


def test_a_function_of_ours_that_is_replaced_counts(traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def f(v: Any) -> Any:
        return jg.nn.relu(v) * 2

    _again(lambda: f, x)
    assert len(traced) == 1
    monkeypatch.setattr(nn, "relu", np.negative)
    np.testing.assert_array_equal(jg.compile(f)(x), -x * 2)


def test_builtins_of_the_globals_count(traced: list[str]) -> None:
    for other in (abs, np.negative):
        f = _made("def f(v): return abs(v) * 1.5", __builtins__={"abs": other})
        np.testing.assert_array_equal(jg.compile(f)(x), other(x) * 1.5)
        keep_now()


def test_what_belongs_to_the_process_is_not_known(traced: list[str]) -> None:
    get_num_threads = jg.get_num_threads
    for f in (lambda v: v * jg.get_num_threads(), lambda v: v * get_num_threads()):
        for n in (1, 2):
            with jg.config(num_threads=n):
                np.testing.assert_array_equal(jg.compile(f)(x), x * n)
            keep_now()


def test_a_seed_that_is_set_is_set_each_time(traced: list[str]) -> None:
    def f(v: Any) -> Any:
        jg.set_random_seed(1)
        return v * 2

    _again(lambda: f, x)
    assert len(traced) == 2


def test_arrays_are_not_held(traced: list[str]) -> None:
    for n in range(2):
        f, values = jg.compile(_helped), x.copy()
        held = weakref.ref(values)
        f(values)
        keep_now()
        del values
        gc.collect()
        assert len(traced) == 1, n
        assert held() is None, n


def test_what_is_kept_can_be_looked_at(traced: list[str]) -> None:
    first, _, other = _again(lambda: jg.value_and_grad(_helped), x)
    assert len(traced) == 1
    text = other.explain(x).text
    assert "test_known.py" in text
    assert len(traced) == 2
    assert text == jg.compile(jg.value_and_grad(_helped)).explain(x).text
    _equal(first, other(x))


def test_lines_are_those_of_the_call(traced: list[str]) -> None:
    """Not of whoever looks at what was not traced."""
    _again(lambda: jg.value_and_grad(_helped), x)
    programs = []
    for is_kept in (True, False):
        with jg.config(cache=is_kept):
            f = jg.compile(jg.value_and_grad(_helped))
            f(x)
        programs.append(f.explain(x).program)
    assert len(traced) == 3
    assert programs[0] == programs[1]


def test_a_known_function_is_freed_with_its_last_reference(traced: list[str]) -> None:
    _, _, f = _again(lambda: _helped, x)
    calls_of = weakref.ref(f._calls)
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            f(x)
        del f
        assert calls_of() is None
    finally:
        gc.enable()
    assert len(traced) == 1


def test_what_waits_to_be_kept_holds_no_function(traced: list[str]) -> None:
    f = jg.compile(lambda v: np.sum(v))
    f(x)
    calls_of = weakref.ref(f._calls)
    del f
    gc.collect()
    assert calls_of() is None


def test_calls_go_on_as_for_others(traced: list[str]) -> None:
    _, _, other = _again(lambda: jg.value_and_grad(_helped), x)
    for n in (7, 7, 7, 8, 9, 10, 11, 7):
        values = np.linspace(0.1, 1.0, n)
        value, gradient = other(values)
        np.testing.assert_allclose(value, np.sum(np.sin(values) ** 3))
        np.testing.assert_allclose(gradient, 3 * np.sin(values) ** 2 * np.cos(values))


def test_a_tape_sees_a_function_that_was_known(traced: list[str]) -> None:
    _, _, other = _again(lambda: _helped, x)
    assert len(traced) == 1
    with jg.GradientTape() as tape:
        values = jg.Variable(x)
        tape.watch(values)
        loss = other(values)
    np.testing.assert_allclose(tape.gradient(loss, values), 3 * np.sin(x) ** 2 * np.cos(x))


def test_an_error_names_the_line_of_a_function_that_was_known(traced: list[str]) -> None:
    def f(a: Any) -> Any:
        return np.linalg.cholesky(a) * 2

    _, _, other = _again(lambda: f, np.eye(3))
    assert len(traced) == 1
    with pytest.raises(np.linalg.LinAlgError, match=r"test_known\.py"):
        other(-np.eye(3))


def test_rules_of_the_user_count(traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    make = CONSTANT["gradient"]
    _again(make, x)
    monkeypatch.setitem(registered_rules, "sin", lambda op, g: g * 0)
    np.testing.assert_array_equal(jg.compile(make())(x), np.zeros(7))


def test_what_is_damaged_is_made_again(traced: list[str], tmp_path: Path) -> None:
    first, _, _ = _again(lambda: _helped, x)
    for file in tmp_path.glob("*.plan"):
        file.write_bytes(file.read_bytes()[:-3])
    _equal(first, jg.compile(_helped)(x))
    assert len(traced) == 2


def test_with_verify_a_function_is_traced_and_compared(traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _again(lambda: _helped, x)
    with jg.config(verify=True):
        jg.compile(_helped)(x)
        assert len(traced) == 2
        monkeypatch.setattr("jitgrad.known.plan_key", lambda program: "another")
        with pytest.raises(CompileError, match="is not what it does"):
            jg.compile(_helped)(x)


def test_nothing_is_kept_where_the_cache_is_off(traced: list[str]) -> None:
    with jg.config(cache=False):
        _again(lambda: _helped, x)
    assert len(traced) == 2
    assert not kernel_cache().entries()


LENGTHS = (100, 101, 203, 307, 411, 509, 1, 0, 64, 3)


def _rows(a: Any, b: Any) -> Any:
    return np.sum(np.tanh(a * b[:, None]) ** 2) / len(LENGTHS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_calls_with_other_shapes_are_known(traced: list[str], dtype: Any) -> None:
    """Those that were traced, those that followed from others and those that a formula gave; the same bits."""
    arguments = []
    for n in LENGTHS:
        a, b = (np.sin(np.arange(n * k, dtype=dtype).reshape(shape)) for k, shape in ((10, (n, 10)), (2, (n, 2))))
        arguments.append((a[:, ::2], b[:, 1]))
    arguments[2][0][5, 3], arguments[3][1][7], arguments[4][1][0] = np.nan, np.inf, -0.0
    f = jg.compile(jg.value_and_grad(_rows, argnums=(0, 1)))
    expected = [f(*args) for args in arguments]
    keep_now()
    assert 0 < len(traced) < 2 * len(LENGTHS)
    traced.clear()
    for threads in (1, 2):
        with jg.config(num_threads=threads):
            g = jg.compile(jg.value_and_grad(_rows, argnums=(0, 1)))
            for args, result in zip(arguments, expected, strict=True):
                _equal(g(*args), result)
            assert g.cache_info().compiles == 0
    assert traced == []
    for args, (value, gradients) in zip(arguments, expected, strict=True):
        right, slopes = f.interpret(*args)
        np.testing.assert_allclose(value, right, rtol=1e-5)
        for found, slope in zip(gradients, slopes, strict=True):
            np.testing.assert_allclose(found, slope, rtol=1e-4, atol=1e-6)


def test_a_shape_that_is_not_known_follows_nothing_wrong(traced: list[str]) -> None:
    f = jg.compile(jg.value_and_grad(_helped))
    for n in (70, 80, 90):
        f(np.linspace(0.1, 1.0, n))
    keep_now()
    traced.clear()
    g = jg.compile(jg.value_and_grad(_helped))
    for n in (70, 75, 80, 85, 95, 90, 105, 115, 80):
        values = np.linspace(0.1, 1.0, n)
        value, gradient = g(values)
        np.testing.assert_allclose(value, np.sum(np.sin(values) ** 3))
        np.testing.assert_allclose(gradient, 3 * np.sin(values) ** 2 * np.cos(values))
    assert traced


def _checked_in_turns(make: Callable[[], Fn], change: Callable[[bool], None]) -> None:
    """Shapes of one function, half of them after something that it reads has changed, are told apart later."""
    change(False)
    for _ in range(2):
        f = jg.compile(make())
        for n in (100, 110, 120, 130, 140, 150):
            change(n % 20 > 0)
            np.testing.assert_array_equal(f(np.ones(n)), make()(np.ones(n)))
        keep_now()
    for n in (150, 140, 130, 120, 110, 100):
        for is_other in (False, True):
            change(is_other)
            np.testing.assert_array_equal(jg.compile(make())(np.ones(n)), make()(np.ones(n)))


def test_what_changes_between_shapes_is_told_apart(traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def change(is_other: bool) -> None:
        monkeypatch.setitem(globals(), "rate", 0.25 if is_other else 0.5)

    _checked_in_turns(lambda: lambda v: v * rate, change)


def test_an_attribute_that_is_set_between_shapes_counts(traced: list[str]) -> None:
    space: dict[str, Any] = {"np": np}
    source = """
def g(v): return v
def f(v):
    try: return v * g.scale
    except AttributeError: return v * 2"""
    exec(source, space)

    def change(is_other: bool) -> None:
        vars(space["g"]).clear()
        if is_other:
            space["g"].scale = 3

    _checked_in_turns(lambda: space["f"], change)


def test_what_is_replaced_between_shapes_counts(traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of ours; and a name that an imported module did not have."""
    relu = nn.relu
    _checked_in_turns(
        lambda: lambda v: jg.nn.relu(v) * 2,
        lambda is_other: monkeypatch.setattr(nn, "relu", np.negative if is_other else relu),
    )
    module: Any = types.ModuleType("known_names")
    monkeypatch.setitem(sys.modules, "known_names", module)

    def change(is_other: bool) -> None:
        vars(module).pop("k", None)
        if is_other:
            module.k = 3.0

    source = "def f(v):\n import known_names as m\n try: return v * m.k\n except AttributeError: return v * 2.0"
    made = _made(source)
    _checked_in_turns(lambda: made, change)
