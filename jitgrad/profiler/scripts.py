"""Running a script under the profiler: what it printed and how it ended stay as they were; it draws nothing itself."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from jitgrad.profiler.profile import Profile
from jitgrad.records import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """The profile of a script, and the exit status that it would have had alone."""

    profile: Profile
    status: int


def run_script(path: Path, arguments: Sequence[str]) -> Outcome:
    """Run a file as ``python path arguments...`` would, profiled. An exception's traceback goes to standard error."""
    profile = Profile()
    old_arguments, old_path = sys.argv, sys.path[:]
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with profile:
            status = _status(lambda: runpy.run_path(str(path), run_name="__main__"), str(path))
    finally:
        sys.argv, sys.path[:] = old_arguments, old_path
    return Outcome(profile, status)


def _status(run: Callable[[], object], path: str) -> int:
    try:
        run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BaseException as error:
        traceback.print_exception(error.with_traceback(_own_frames(error.__traceback__, path)))
        return 1
    return 0


def _own_frames(trace: TracebackType | None, path: str) -> TracebackType | None:
    """The part of a traceback that begins in the script, without those who ran it; None where that cannot be parsed."""
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    return trace


def refusal(folder: Path) -> str | None:
    """Why nothing can be written to a folder, as far as it can be told beforehand; None if it can."""
    if not folder.exists():
        return f"the folder {folder} does not exist"
    if not folder.is_dir():
        return f"{folder} is no folder"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"the folder {folder} cannot be written to"


def write_results(profile: Profile, name: str, folder: Path) -> Iterator[str]:
    """Write ``name.trace.json`` and ``name.profile.html``; a sentence for each, also where it could not be written."""
    for suffix, save in ((".trace.json", profile.save_trace), (".profile.html", profile.save_html)):
        path = folder / f"{name}{suffix}"
        try:
            save(path)
        except OSError as error:
            yield f"could not write {path}: {os.strerror(error.errno or 0)}"
        else:
            yield f"written to {path}"
