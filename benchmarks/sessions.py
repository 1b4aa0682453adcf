"""Worker processes, seen from the driver: a session starts one, sends commands and reads answers."""

from __future__ import annotations

import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.environments import interpreter_of

ROOT = Path(__file__).resolve().parent.parent


class WorkerError(RuntimeError):
    """A command failed, took too long, or the process ended."""


class Session:
    """A worker process with one framework, which keeps what it compiles under ``cache``.

    Raises WorkerError when the framework is missing or broken. Close it to end the process.
    """

    def __init__(self, framework: str, cache: Path, timeout: float) -> None:
        python = interpreter_of(framework)
        if python is None:
            raise WorkerError(f"no environment for {framework}: run python -m benchmarks.environments")
        self.framework = framework
        self._timeout = timeout
        self._errors = open(cache / f"{framework}.log", "w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(python), "-m", "benchmarks.worker", framework],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env=_environment(cache / framework),
        )
        self.hello = self._answer()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps({"do": do, **arguments}) + "\n").encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(f"{self.framework} has ended: {self._last_words()}") from None
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        stream = self._process.stdout
        assert stream is not None
        if not select.select([stream], [], [], self._timeout)[0]:
            self._process.kill()
            raise WorkerError(f"{self.framework}: no answer in {self._timeout:.0f} s")
        line = stream.readline()
        if not line:
            raise WorkerError(f"{self.framework} has ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.framework}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        return self._errors.read()[-500:].strip()


def _environment(cache: Path) -> dict[str, str]:
    """The environment of a worker: all processors for every thread pool, all caches in a place of its own. Bytecode of
    modules is kept, as users have it.
    """
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    threads = str(len(os.sched_getaffinity(0)))
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    caches = {
        "JITGRAD_CACHE_DIR": str(cache),
        "NUMBA_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "PYTENSOR_FLAGS": f"base_compiledir={cache}",
    }
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**given, **dict.fromkeys(pools, threads), **caches, "PYTHONPATH": str(ROOT)}
