"""Names of operations and placeholders: which there are, as patterns say that the code spells out."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitgrad.sources import checked_name
from jitgrad.trace import as_name, leaf_names

_TEXTS = st.text("ab_./-[]' \"1é²٣\n\u0300", max_size=8) | st.text(max_size=8)

pytestmark = pytest.mark.quick


@settings(deadline=None)
@given(_TEXTS)
def test_a_path_becomes_words_with_bars_between(path: str) -> None:
    assert as_name(path) == (re.sub(r"\W+", "_", path).strip("_") or "x")


@settings(deadline=None)
@given(_TEXTS)
def test_names_of_operations_are_made_of_words_and_four_signs(name: str) -> None:
    if re.fullmatch(r"[\w.\-/]+", name):
        assert checked_name(name) == name
    else:
        with pytest.raises(ValueError, match="cannot be the name of an operation"):
            checked_name(name)


def test_leaves_are_named_by_their_parameters() -> None:
    args = ({"w": [1, 2], "a]b": 3}, 4, 5)
    names = leaf_names(["params", "x"], args, {"key": {"of": 6}})
    assert names == ["params['a]b']", "params['w'][0]", "params['w'][1]", "x", "args[2]", "key['of']"]
