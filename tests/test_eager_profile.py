"""Profiles of eager operations: forward and backward, also where machine code has taken them before."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.eagerness import local


def run(x: Any) -> Any:
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = np.sum(np.sin(x) * x) + x[1] + x[np.array([0, 2])].sum()
    return tape.gradient(y, x)


def test_eager_operations_are_events_with_lines_and_bytes() -> None:
    x = jg.asarray(np.arange(8.0))
    expected = run(x)
    with jg.profile() as prof:
        found = run(x)
    run(x)
    names = Counter(e.name for e in prof.events if e.kind == "numpy")
    assert names["sin"] == 1 and names["getitem"] == 2 and names["sum"] == 2 and names["cos"] == 1
    assert np.array_equal(found, expected)
    (sine,) = [e for e in prof.events if e.name == "sin"]
    assert sine.phase == "forward" and sine.nbytes_read == sine.nbytes_written == 64
    assert sine.lines[0].startswith("test_eager_profile.py:")
    assert local.collector is None


def test_profiles_nest_and_look_beside_debug_nans_and_scopes() -> None:
    x = jg.asarray(np.arange(8.0))
    with jg.profile() as outer:
        with jg.profile() as inner:
            np.exp(x)
        with jg.config(debug_nans=True):
            np.tanh(x)
            with pytest.raises(jg.errors.NonFiniteError):
                np.log(x)
        with jg.jit_scope():
            y = x * 2.0 + 1.0
        assert np.array_equal(y.numpy(), np.arange(8.0) * 2.0 + 1.0)
        np.arctan(x)
    with jg.config(debug_nans=True), jg.profile() as looked:
        np.cosh(x)
    assert local.collector is None
    assert [e.name for e in inner.events] == ["exp"] and [e.name for e in looked.events] == ["cosh"]
    assert {"exp", "tanh", "log", "arctan"} <= {e.name for e in outer.events}
    assert "multiply" not in {e.name for e in outer.events if e.kind == "numpy"}
