"""Modules that are compiled ahead: the same code, once, errors where it is taken, forks, and what begins it."""

from __future__ import annotations

import gc
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import numpy as jnp
from jitgrad.compiler import stages
from jitgrad.compiler.freezing import records
from jitgrad.compiler.machine import ahead, kernels, native, parts
from jitgrad.compiler.machine.compilation import vector_bytes
from jitgrad.compiler.machine.tiers import improver
from jitgrad.compiler.products import blas, product_code
from jitgrad.config import config

_OURS = pytest.mark.skipif(vector_bytes() < 32, reason="products are left to BLAS")


def _text(name: str, number: int = 3) -> str:
    return f"define double @{name}(double %x) {{ %y = fmul double %x, {number}.0 \n ret double %y }}"


def _products(names: Iterable[str]) -> list[str]:
    """The names that are none of kernels, nor of functions that these call, nor of the code around all calls."""
    return [name for name in names if not re.match(r"jitgrad(_[0-9a-f]{32}|\.)|driver$|early$|unbox$", name)]


def _wait_for_workers() -> None:
    while any(thread.name == "jitgrad-ahead" for thread in threading.enumerate()):
        pass


@pytest.fixture
def held() -> Iterator[None]:
    """Threads wait."""
    with ExitStack() as stack:
        for lock in ahead._busy:
            stack.enter_context(lock)
        yield
    _wait_for_workers()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The thread that compiled each text."""
    found: dict[str, int] = {}

    def noting(compile_text: Callable[[str, bool], bytes]) -> Callable[[str, bool], bytes]:
        def noted(text: str, quickly: bool) -> bytes:
            found[text] = threading.get_ident()
            return compile_text(text, quickly)

        return noted

    monkeypatch.setattr(ahead, "_compiled_beside", noting(ahead._compiled_beside))
    monkeypatch.setattr(ahead, "_compiled_here", noting(ahead._compiled_here))
    return found


@pytest.mark.parametrize("quickly", [True, False])
def test_code_is_that_of_the_text_whoever_compiles_it(quickly: bool, workers: dict[str, int]) -> None:
    text, here = _text("f"), threading.get_ident()
    alone = native.compile_to_object(text, quickly=quickly)
    ahead.begin({"f": (lambda: text, quickly)})
    while text not in workers:
        pass
    assert ahead.take("f", lambda: text, quickly) == alone
    assert workers.pop(text) != here
    assert ahead.take("f", lambda: text, quickly) == alone  # nothing is begun any more
    assert workers.pop(text) == here


@pytest.mark.usefixtures("held")
def test_what_the_thread_has_not_begun_is_compiled_by_who_takes_it(workers: dict[str, int]) -> None:
    text = _text("g")
    ahead.begin({"g": (lambda: text, False)})
    assert ahead.take("g", lambda: "nonsense") == native.compile_to_object(text)
    assert workers == {text: threading.get_ident()}


def test_who_waits_compiles_others(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, here = threading.Event(), threading.Event(), []
    compile_here = ahead._compiled_here

    def slowly(text: str, quickly: bool) -> bytes:
        begun.set()
        assert go_on.wait(60)
        return compile_here(text, quickly)

    def noted(text: str, quickly: bool) -> bytes:
        here.append(text)
        go_on.set()
        return compile_here(text, quickly)

    monkeypatch.setattr(ahead, "_compiled_beside", slowly)
    monkeypatch.setattr(ahead, "_compiled_here", noted)
    slow, other = _text("slow"), _text("few")
    ahead.begin({"slow": (lambda: slow, False), "other": (lambda: other, False)})
    assert begun.wait(60)
    ahead.take("slow", lambda: slow)
    assert here == [other]
    assert ahead.take("other", lambda: other) == native.compile_to_object(other)
    assert here == [other]


def test_object_code_does_not_depend_on_threads_or_order() -> None:
    before = set(ahead._tasks)
    texts = {f"f{n}": _text(f"f{n}", n) for n in range(1, 12)}
    alone = [native.compile_to_object(text) for text in texts.values()]
    modules = {name: (partial(str, text), False) for name, text in texts.items()}
    for threads in (1, 3):
        with config(num_threads=threads):
            assert ahead.compile_all(modules) == alone
            assert ahead.compile_all(dict(reversed(modules.items()))) == alone[::-1]
    assert ahead.compile_all({}) == []
    assert not ahead._tasks.keys() - before


def test_the_first_error_of_several_modules_is_raised_and_none_is_left() -> None:
    before = set(ahead._tasks)
    texts = {"good": _text("good"), "f": "define void @f() { call second_name }", "g": "define third_name" + 99 * " "}
    modules = {name: (partial(str, text), True) for name, text in texts.items()}
    with config(num_threads=2), pytest.raises(RuntimeError, match="second_name"):
        ahead.compile_all(modules)
    assert not ahead._tasks.keys() - before


def test_the_longest_module_is_begun_first() -> None:
    lengths = {"short": (5, False), "long": (20, False), "quick": (21, True), "longer": (18, False)}
    modules = {name: (partial(str, n * " "), quickly) for name, (n, quickly) in lengths.items()}
    with config(num_threads=1):
        ahead.begin(modules)
        begun = [ahead._longest() for _ in range(4)]
    assert [len(task.text) for task in begun if task is not None] == [20, 18, 21, 5]
    ahead._tasks.clear()


def test_errors_of_the_thread_are_raised_where_the_code_is_taken() -> None:
    ahead.begin({"bad": (lambda: "define nonsense", False)})
    while not ahead._tasks["bad"].done.is_set():
        pass
    with pytest.raises(RuntimeError, match="expected"):
        ahead.take("bad", lambda: _text("bad"))
    assert ahead.take("bad", lambda: _text("bad")) == native.compile_to_object(_text("bad"))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_compiles_what_the_parent_had_begun() -> None:
    go_on, begun, text = threading.Event(), threading.Event(), _text("h")

    def compile_slowly(text: str, quickly: bool) -> bytes:
        begun.set()
        assert go_on.wait(60)
        return ahead._compiled_here(text, quickly)

    _wait_for_workers()  # one that lingers would begin the task
    task = ahead._Task(text, False)
    ahead._tasks["h"] = task
    taker = threading.Thread(target=lambda: ahead._is_mine(task) and task.do(compile_slowly))
    taker.start()
    assert begun.wait(60)
    child = os.fork()
    if child == 0:
        made = ahead.take("h", lambda: "nonsense")
        os._exit(0 if made == native.compile_to_object(text) else 1)
    go_on.set()
    taker.join()
    assert os.waitpid(child, 0)[1] == 0
    ahead.take("h", lambda: text)


@_OURS
@pytest.mark.parametrize("quick", [True, False])
def test_products_are_begun_by_the_stages_and_only_where_none_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    begun: list[str] = []
    begin = ahead.begin
    monkeypatch.setattr(ahead, "begin", lambda modules: begun.extend(_products(modules)) or begin(modules))
    x, w = np.ones((128, 512), np.float32), np.full((512, 512), 0.5, np.float32)
    stub = "jitgrad_multiply_f32"
    monkeypatch.setattr(product_code, "_entered", set())
    called = ["jitgrad_tiles_f32_first", "jitgrad_packing_f32"]
    wanted = [*called, f"{stub}_quick"] if quick else ["jitgrad_tiles_f32", stub]
    for factor, names in ((2.0, wanted), (3.0, [])):
        monkeypatch.setattr(product_code, "_addresses", {})
        with config(num_threads=2, cache_dir=str(tmp_path), quick_start=quick):
            result = jg.compile(lambda x, w, factor=factor: jnp.sum(x @ w) * factor)(x, w)
        assert float(result) == factor * 128 * 512 * 256
        improver.wait()
        assert begun == names
        assert not ahead._tasks
        begun.clear()
    monkeypatch.setattr(product_code, "_addresses", {})
    with config(num_threads=1, cache_dir=str(tmp_path / "other"), quick_start=quick):
        jg.compile(lambda x, w: jnp.sum(x @ w) * 5.0)(x, w)
    assert not begun


@pytest.mark.parametrize(
    ("a", "b", "names"),
    [
        ((70, 30), (30, 40), {"blas_f32", "blas_guard"}),
        pytest.param((2000, 64), (64,), {"jitgrad_dots_f32_quick"}, marks=_OURS),
        pytest.param((4000,), (4000, 64), {"jitgrad_combine_f32_quick", "jitgrad_sum_parts_f32_quick"}, marks=_OURS),
    ],
)
def test_all_modules_of_a_product_are_begun_and_all_of_them_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, a: tuple[int, ...], b: tuple[int, ...], names: set[str]
) -> None:
    begun: set[str] = set()
    begin = ahead.begin
    monkeypatch.setattr(ahead, "begin", lambda modules: begun.update(_products(modules)) or begin(modules))
    monkeypatch.setattr(product_code, "_addresses", {})
    monkeypatch.setattr(blas._guards, "made", [])
    for cached in (blas._functions, blas.stub_address):
        cached.cache_clear()
    x, y = np.ones(a, np.float32), np.ones(b, np.float32)
    with config(num_threads=2, cache_dir=str(tmp_path), quick_start=True):
        jg.compile(lambda x, y: np.tanh(x @ y))(x, y)
    assert begun == names
    assert not _products(ahead._tasks)
    improver.wait()


def test_functions_and_kernels_are_begun_while_the_stages_are_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    begin, nodes, lower, take = ahead.begin, stages.build_nodes, stages.lower_group, ahead.compile_all
    simplify = stages.simplify_and_watch
    monkeypatch.setattr(ahead, "begin", lambda modules: happened.extend(modules) or begin(modules))
    monkeypatch.setattr(stages, "simplify_and_watch", lambda *args: happened.append("simplify") or simplify(*args))
    monkeypatch.setattr(stages, "build_nodes", lambda *args: happened.append("nodes") or nodes(*args))
    monkeypatch.setattr(stages, "lower_group", lambda *args: happened.append("lower") or lower(*args))
    monkeypatch.setattr(ahead, "compile_all", lambda modules: happened.append("taken") or take(modules))
    monkeypatch.setattr(parts, "_loaded", set())
    monkeypatch.setattr(parts, "_texts", {})
    monkeypatch.setattr(kernels, "_addresses", {})  # any function with such a sum has one kernel of the two
    x = np.linspace(0.0, 1.0, 1000)
    with config(num_threads=2, cache_dir=str(tmp_path), quick_start=True):
        jg.compile(lambda x: np.sum(np.arccosh(1.0 + np.power(np.arctan(x), 3.0))))(x)
    told = ["kernel" if re.fullmatch("jitgrad_[0-9a-f]{32}_quick", name) else name for name in happened]
    told = [name for name in told[: told.index("taken")] if name not in ("driver", "unbox")]  # of any first call
    functions, stage = told[: told.index("simplify")], told[told.index("nodes") :]
    assert set(told[len(functions) : told.index("nodes")]) == {"simplify"}
    assert sorted(name.partition(".v")[0] for name in functions) == ["jitgrad.arccosh", "jitgrad.arctan"]
    assert stage[:4] == ["nodes", "lower", "kernel", "lower"]
    assert not parts._texts
    improver.wait()


def test_records_of_steps_of_loops_live_as_long_as_their_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Good code takes the place of quick code in records that are alive: those of a loop's body among them."""
    watched: list[weakref.ref[Any]] = []
    monkeypatch.setattr(records, "watchers", [lambda steps: watched.append(weakref.ref(steps))])
    w, x = np.eye(70) / 2, np.ones(70)
    with config(num_threads=2, cache_dir=str(tmp_path), quick_start=True):
        f = jg.compile(lambda w, x: jg.fori_loop(0, 3, lambda i, c: np.tanh(w @ c), x))
        f(w, x)
    gc.collect()
    assert len(watched) == 2
    assert all(reference() is not None for reference in watched)
    improver.wait()
    np.testing.assert_allclose(f(w, x), f.interpret(w, x), 1e-12)
