"""Outlook: what a function is known to do for other shapes, and how its programs are bound. Whether that is known is
found out elsewhere (foreseeing.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from jitgrad.compiler.freezing.foretelling import CountedNumbers, Foretold
from jitgrad.compiler.likeness import UnlikeError
from jitgrad.executable import Executable


class Outlook:
    """What a function does for other shapes, where that is known: extents up to ``exact`` are part of their pattern,
    ``numbers`` gives the numbers of constants that follow from the others, by operation, as `CountedNumbers`; and how
    its programs are bound, once one was.
    """

    def __init__(self, exact: int, numbers: CountedNumbers) -> None:
        self.exact = exact
        self.numbers = numbers
        self.foretold: Foretold | None = None

    def tell(self, known: Executable, numbers: Sequence[int]) -> Foretold | None:
        """How programs like that of an executable, whose instructions are operations of these numbers, are bound."""
        likeness = known.likeness
        if self.foretold is None and likeness is not None and likeness.template.exact == self.exact:
            with contextlib.suppress(UnlikeError, KeyError):
                self.foretold = Foretold(likeness, partial(_by_instruction, self.numbers, numbers))
        return self.foretold


def _by_instruction(
    counted: CountedNumbers, numbers: Sequence[int], extents: Mapping[int, Any]
) -> Mapping[int, Any]:  # fmt: skip
    found = counted(extents)
    return {k: found[n] for k, n in enumerate(numbers) if n in found}
