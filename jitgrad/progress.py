"""Progress: a line on an interactive terminal about what a long compilation is doing; silent anywhere else."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import TextIO

PATIENCE = 2.0  # seconds before anything is shown
_EVERY = 0.25


latest = ("", "")
"""What was begun last, a stage and its object; recording says so."""


class watched:  # noqa: N801  used like a keyword
    """``with watched("compiling step"):`` shows after two seconds what is being done, until the block ends.

    Nothing is shown where ``stream`` (standard error) is no terminal, for which no thread is started, or where none is
    to be had.
    """

    def __init__(self, what: str, stream: TextIO | None = None, patience: float = PATIENCE) -> None:
        self._what = what
        self._stream = sys.stderr if stream is None else stream
        self._patience = patience
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._stream is not None and self._stream.isatty():
            thread = threading.Thread(target=self._watch, name="jitgrad-progress", daemon=True)
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._over.set()
            self._thread.join()

    def _watch(self) -> None:
        start = time.monotonic()
        if self._over.wait(self._patience):
            return
        while not self._over.wait(_EVERY):
            self._write(f"jitgrad: {self._what}: {' '.join(latest)}, {time.monotonic() - start:.0f} s")
        self._write("")

    def _write(self, line: str) -> None:
        """One line in place of the last; a terminal that is gone is no reason to fail."""
        try:
            self._stream.write(f"\r\x1b[K{line[:110]}")
            self._stream.flush()
        except (OSError, ValueError):
            self._over.set()
