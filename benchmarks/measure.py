"""Measuring a workload: sessions run in turns, so that noise of the machine meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.frameworks import OURS
from benchmarks.sessions import Session, WorkerError
from benchmarks.workload import Array, Workload

STARTED_AGAIN = ("jitgrad", "jax")  # a first call that is one sample says little of what users wait for
STARTS, STARTS_SECONDS = 3, 6.0
LIMITS = ("stream", "arithmetic", "products")
TOLERANCE = {"float32": 5e-4, "float64": 1e-9}


@dataclass(frozen=True)
class Options:
    """How to measure.

    Turns, seconds of a turn, seconds between turns (threads that wait for more work fall asleep), scale of the
    arguments, seconds until a worker is given up, and whether every workload gets new processes.
    """

    repeat: int = 10
    turn: float = 0.15
    pause: float = 0.02
    scale: float = 1.0
    timeout: float = 180.0
    fresh: bool = True


@dataclass
class Figures:
    """What one framework took for one workload, in seconds and bytes.

    ``turns`` has the samples of each turn, ``cpu`` what the processors spent on a call in each, all threads
    together, spinning ones too. ``start`` is the compile of something small before, ``firsts`` first calls, each in
    a process of its own with an empty cache, ``warms`` those of new processes that find machine code on disk,
    ``difference`` the largest one to the reference.
    """

    turns: list[list[float]] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    start: float | None = None
    import_seconds: float | None = None
    firsts: list[float] = field(default_factory=list)
    warms: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    difference: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    version: str | None = None

    @property
    def quartiles(self) -> tuple[float, float, float] | None:
        """Lower quartile, median, upper quartile of all samples."""
        if not self.turns:
            return None
        low, median, high = np.quantile(np.concatenate(self.turns), [0.25, 0.5, 0.75])
        return float(low), float(median), float(high)

    @property
    def median(self) -> float | None:
        """The median of all samples."""
        return self.quartiles[1] if self.quartiles else None

    @property
    def first(self) -> float | None:
        """The median of the first calls."""
        return median(self.firsts) if self.firsts else None

    @property
    def warm(self) -> float | None:
        """The median of the first calls that found machine code."""
        return median(self.warms) if self.warms else None


class Bench:
    """Measures workloads under a directory for arguments, results and caches."""

    def __init__(self, frameworks: Sequence[str], options: Options, directory: Path) -> None:
        self._frameworks = frameworks
        self._options = options
        self._directory = directory
        self._kept: dict[str, Session] = {}

    def measure(self, workload: Workload) -> tuple[dict[str, Figures], int]:
        """Figures by framework, and the least bytes that have to move."""
        arrays = workload.make(self._options.scale)
        data = self._directory / workload.name / "data"
        data.mkdir(parents=True)
        for k, array in enumerate(arrays):
            np.save(data / f"{k}.npy", array)
        figures = {name: Figures() for name in self._chosen(workload, arrays)}
        try:
            reference = self._reference(workload, data)
        except WorkerError as error:
            return {"interpreter": Figures(error=f"no reference: {error}")}, workload.least_bytes(arrays)
        sessions: dict[str, Session] = {}
        try:
            for name, found in figures.items():
                with _noting(found):
                    sessions[name] = self._open(name, workload, found)
                    self._first(sessions[name], workload, data, found)
                    if name not in LIMITS:
                        self._check(sessions[name], workload, reference, found)
            self._alternate(sessions, figures)
            for name, session in sessions.items():
                if figures[name].error is not None:
                    continue
                with _noting(figures[name]):
                    memory = session.ask("memory")
                    figures[name].peak_bytes = memory["peak"] - memory["level"]
                    figures[name].details = session.ask("describe")
        finally:
            self._close(sessions)
        if self._options.fresh:
            for name in STARTED_AGAIN:
                if name in figures and figures[name].error is None:
                    self._start_again(name, workload, data, figures[name])
        return figures, workload.least_bytes(arrays)

    def close(self) -> None:
        """End all processes that are left."""
        for session in self._kept.values():
            session.close()

    def _chosen(self, workload: Workload, arrays: Sequence[Array]) -> list[str]:
        """Limits of memory, arithmetic and, where there are large products, of BLAS; frameworks that have a loss."""
        limits = [name for name in LIMITS if name != "products" or workload.products(*arrays)]
        chosen = [name for name in self._frameworks if name in OURS or name in workload.losses]
        return (limits if self._options.fresh else []) + chosen

    # -- sessions ---------------------------------------------------------------------------------------------

    def _open(self, name: str, workload: Workload, found: Figures) -> Session:
        session = self._kept.get(name) or self._start(name, workload)
        if not self._options.fresh:
            self._kept[name] = session
        found.version = session.hello["version"]
        found.import_seconds = session.hello["import_seconds"]
        return session

    def _start(self, name: str, workload: Workload) -> Session:
        """PyTensor keeps its cache for the whole run: its own library takes Numba a minute to compile."""
        cache = self._directory if name == "pytensor" else self._directory / workload.name
        return Session(name, cache, self._options.timeout)

    def _close(self, sessions: dict[str, Session]) -> None:
        for session in sessions.values():
            if session not in self._kept.values():
                session.close()

    def _reference(self, workload: Workload, data: Path) -> list[Array]:
        """The results of the interpreter, in float64."""
        name = "interpreter"
        session = self._kept.get(name) or self._start(name, workload)
        if not self._options.fresh:
            self._kept[name] = session
        try:
            session.ask("load", workload=workload.name, path=str(data), cast=True)
            session.ask("first")
            return _results(session, data.parent / "reference.npz")
        finally:
            self._close({name: session})

    # -- figures ----------------------------------------------------------------------------------------------

    def _first(self, session: Session, workload: Workload, data: Path, found: Figures) -> None:
        if session.framework not in LIMITS and self._options.fresh:
            found.start = session.ask("prime")["seconds"]
        session.ask("load", workload=workload.name, path=str(data))
        found.firsts.append(session.ask("first")["seconds"])

    def _check(self, session: Session, workload: Workload, reference: list[Array], found: Figures) -> None:
        results = _results(session, self._directory / workload.name / f"{session.framework}.npz")
        found.difference = max(difference(a, b) for a, b in zip(results, reference, strict=True))
        tolerance = workload.tolerance or max(TOLERANCE[str(a.dtype)] for a in results)
        if not found.difference <= tolerance:
            raise WorkerError(f"differs by {found.difference:.1e} from the reference")

    def _alternate(self, sessions: dict[str, Session], figures: dict[str, Figures]) -> None:
        plans: dict[str, dict[str, int]] = {}
        for name in [name for name in sessions if figures[name].error is None]:
            with _noting(figures[name]):
                plans[name] = self._plan(sessions[name])
        names = list(plans)
        for turn in range(self._options.repeat):
            for k in range(len(names)):
                name = names[(k + turn) % len(names)]
                if figures[name].error is None:
                    with _noting(figures[name]):
                        answer = sessions[name].ask("run", **plans[name])
                        figures[name].turns.append(answer["seconds"])
                        figures[name].cpu.append(answer["cpu"])
                    time.sleep(self._options.pause)

    def _plan(self, session: Session) -> dict[str, int]:
        """Calls before a turn's first sample, samples, and calls of a sample: all for about a turn's time."""
        once = min(session.ask("run", warm=1, samples=3, inner=1)["seconds"])
        inner = max(1, int(2e-4 / once))
        samples = min(50, max(1, int(self._options.turn / (once * inner))))
        return {"warm": max(1, min(100, int(5e-3 / once))), "samples": samples, "inner": inner}

    def _start_again(self, name: str, workload: Workload, data: Path, found: Figures) -> None:
        """More first calls in processes of their own, as long as they do not take long; of jitgrad warm ones too."""
        with _noting(found):
            end = time.perf_counter() + STARTS_SECONDS
            while len(found.firsts) < STARTS and time.perf_counter() < end:
                cache = self._directory / workload.name / f"start{len(found.firsts)}"
                cache.mkdir(exist_ok=True)
                with closing(Session(name, cache, self._options.timeout)) as session:
                    self._first(session, workload, data, found)
            while name == "jitgrad" and len(found.warms) < STARTS:
                with closing(self._start(name, workload)) as session:
                    session.ask("load", workload=workload.name, path=str(data))
                    found.warms.append(session.ask("first")["seconds"])


@contextmanager
def _noting(found: Figures) -> Iterator[None]:
    """Keep what a worker complains about with its figures, and go on."""
    try:
        yield
    except WorkerError as error:
        found.error = str(error)


def _results(session: Session, path: Path) -> list[Array]:
    session.ask("results", path=str(path))
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


def difference(result: Array, reference: Array) -> float:
    """The largest difference, relative to the largest magnitude of the reference; infinite for other shapes."""
    if result.shape != reference.shape:
        return float("inf")
    largest = float(np.max(np.abs(reference), initial=0.0))
    distance = float(np.max(np.abs(result.astype(np.float64) - reference), initial=0.0))
    return distance / largest if largest else distance
