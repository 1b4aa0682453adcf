"""Modules that are compiled ahead: the same code, once, errors where it is taken, forks, and what begins it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import numpy as jnp
from jitgrad.compiler import ahead, blas, native, product_code
from jitgrad.compiler.machine import vector_bytes
from jitgrad.compiler.tiers import improver
from jitgrad.config import config

_OURS = pytest.mark.skipif(vector_bytes() < 64, reason="products are left to BLAS")


def _text(name: str, number: int = 3) -> str:
    return f"define double @{name}(double %x) {{ %y = fmul double %x, {number}.0 \n ret double %y }}"


@pytest.fixture
def held() -> Iterator[threading.Lock]:
    """The thread waits as long as this is locked."""
    with ahead._busy:
        yield ahead._busy
    while any(thread.name == "jitgrad-ahead" for thread in threading.enumerate()):
        pass


@pytest.mark.parametrize("quickly", [True, False])
def test_code_is_that_of_the_text_whoever_compiles_it(quickly: bool) -> None:
    alone = native.compile_to_object(_text("f"), quickly=quickly)
    asked: list[int] = []

    def text() -> str:
        asked.append(threading.get_ident())
        return _text("f")

    ahead.begin({"f": (text, quickly)})
    while not asked:
        pass
    assert ahead.take("f", text, quickly) == alone
    assert asked != [threading.get_ident()]
    assert ahead.take("f", text, quickly) == alone  # nothing is begun any more
    assert len(asked) == 2


@pytest.mark.usefixtures("held")
def test_what_the_thread_has_not_begun_is_compiled_by_who_takes_it() -> None:
    asked: list[int] = []

    def text() -> str:
        asked.append(threading.get_ident())
        return _text("g")

    ahead.begin({"g": (text, False)})
    assert ahead.take("g", text) == native.compile_to_object(_text("g"))
    assert asked == [threading.get_ident()]


def test_who_waits_compiles_others() -> None:
    begun, go_on, asked = threading.Event(), threading.Event(), []

    def slow() -> str:
        begun.set()
        assert go_on.wait(60)
        return _text("slow")

    def other() -> str:
        asked.append(threading.get_ident())
        go_on.set()
        return _text("other")

    ahead.begin({"slow": (slow, False), "other": (other, False)})
    assert begun.wait(60)
    ahead.take("slow", slow)
    assert asked == [threading.get_ident()]
    assert ahead.take("other", other) == native.compile_to_object(_text("other"))
    assert len(asked) == 1


def test_errors_of_the_thread_are_raised_where_the_code_is_taken() -> None:
    ahead.begin({"bad": (lambda: "define nonsense", False)})
    while not ahead._tasks["bad"].done.is_set():
        pass
    with pytest.raises(RuntimeError, match="expected"):
        ahead.take("bad", lambda: _text("bad"))
    assert ahead.take("bad", lambda: _text("bad")) == native.compile_to_object(_text("bad"))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_compiles_what_the_parent_had_begun() -> None:
    go_on, begun = threading.Event(), threading.Event()

    def text() -> str:
        begun.set()
        assert go_on.wait(60)
        return _text("h")

    task = ahead._Task(text, False)
    ahead._tasks["h"] = task
    taker = threading.Thread(target=lambda: task.is_mine() and task.do(ahead._compiled_here))
    taker.start()
    assert begun.wait(60)
    child = os.fork()
    if child == 0:
        go_on.set()
        made = ahead.take("h", text)
        os._exit(0 if made == native.compile_to_object(_text("h")) else 1)
    go_on.set()
    taker.join()
    assert os.waitpid(child, 0)[1] == 0
    ahead.take("h", text)


@_OURS
@pytest.mark.parametrize("quick", [True, False])
def test_products_are_begun_by_the_stages_and_only_where_none_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    begun: list[str] = []
    begin = ahead.begin
    monkeypatch.setattr(ahead, "begin", lambda modules: begun.extend(modules) or begin(modules))
    x, w = np.ones((256, 512), np.float32), np.full((512, 512), 0.5, np.float32)
    stub = "jitgrad_multiply_f32"
    for factor, names in ((2.0, [f"{stub}_tiles", f"{stub}_quick" if quick else stub]), (3.0, [])):
        monkeypatch.setattr(product_code, "_addresses", {})
        with config(num_threads=2, cache_dir=str(tmp_path), quick_start=quick):
            result = jg.compile(lambda x, w, factor=factor: jnp.sum(x @ w) * factor)(x, w)
        assert float(result) == factor * 256 * 512 * 256
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
    monkeypatch.setattr(ahead, "begin", lambda modules: begun.update(modules) or begin(modules))
    monkeypatch.setattr(product_code, "_addresses", {})
    for cached in (blas.stub_address, blas._guards):
        cached.cache_clear()
    x, y = np.ones(a, np.float32), np.ones(b, np.float32)
    with config(num_threads=2, cache_dir=str(tmp_path), quick_start=True):
        jg.compile(lambda x, y: np.tanh(x @ y))(x, y)
    assert begun == names
    assert not ahead._tasks
    improver.wait()
