"""Tests verify every stage, compile kernels once, and keep them beside pytest's own cache, not in the user's."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("JITGRAD_VERIFY", "1")
os.environ.setdefault("JITGRAD_QUICK_START", "0")
os.environ.setdefault("JITGRAD_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "kernels"))


# Test modules after each of whose tests nothing eager is left alive; after the others it is looked once.
LEAVE_NOTHING = {
    "test_eager", "test_eager_native", "test_items", "test_optimize", "test_tapes", "test_tapes_in_graphs",
    "test_training", "test_variables",
}  # fmt: skip


def pytest_collection_finish() -> None:
    """What lives as long as the session, the tests themselves before all, is no more looked at, tests after tests:
    half a million objects, which take longer than most tests whenever the living are counted or the dead collected.
    """
    gc.collect()
    gc.freeze()


def _is_looked_at(module: Any) -> bool:
    return module.__name__.rpartition(".")[2] in LEAVE_NOTHING


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left_of_modules(request: pytest.FixtureRequest) -> Iterator[None]:
    from tests.leaks import left_since, living

    before = set(living())
    yield
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.module is request.module and item.funcargs:
            item.funcargs.clear()  # what fixtures gave the last test, which pytest holds until then
    left = left_since(before)
    assert not left, f"alive after the module: {dict(left)}"


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test no output is held that was not before, and in some modules no tensor, tape, Variable or scope
    either, nor is there an arena that a call has not given back.
    """
    from tests.leaks import buffers, left_in_buffers, left_since, living

    is_looked_at = _is_looked_at(request.module)
    before, held = set(living()) if is_looked_at else set(), buffers()
    yield
    left = left_since(before) if is_looked_at else {}
    assert not left, f"alive after the test: {dict(left)}"
    more = left_in_buffers(held)
    assert more <= 0, f"{more} bytes of outputs are held after the test"


@pytest.fixture(params=["machine code", "python"])
def machine_code_or_python(request: pytest.FixtureRequest) -> Iterator[None]:
    """Eager tensors take calls in machine code, and then in Python alone."""
    import jitgrad as jg
    from jitgrad.eager import native

    native.place()
    placed = {name: vars(jg.EagerTensor)[name] for name in native.definitions}
    if request.param == "python":
        for name, fn in native.definitions.items():
            setattr(jg.EagerTensor, name, fn)
    try:
        yield
    finally:
        for name, fn in placed.items():
            setattr(jg.EagerTensor, name, fn)
