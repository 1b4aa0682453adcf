"""Virtual environments of the peers: `python -m benchmarks.environments` makes those that are missing.

They lie in JITGRAD_BENCHMARK_ENVIRONMENTS, otherwise in the user's cache directory. `--python` names the
interpreter to make them with, `--pip` arguments for pip (an index with CPU builds of torch, for one).
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "JITGRAD_BENCHMARK_ENVIRONMENTS"
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "jax": ("jax>=0.10", "scipy"),
    "torch": ("torch==2.13.0", "numpy"),
    "pytensor": ("pytensor>=3", "numba"),
}


def directory() -> Path:
    """Where the environments lie."""
    import platformdirs

    given = os.environ.get(VARIABLE)
    return Path(given) if given else platformdirs.user_cache_path("jitgrad") / "benchmarks"


def interpreter_of(framework: str) -> Path | None:
    """The Python that has the framework: this one for jitgrad, None where a peer's is missing."""
    if framework not in REQUIREMENTS:
        return Path(sys.executable)
    python = directory() / framework / "bin" / "python"
    return python if python.exists() else None


def make(framework: str, python: str, pip: Sequence[str]) -> None:
    """Make a peer's environment; CalledProcessError if that fails, and nothing is left behind."""
    place = directory() / framework
    install = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *pip]
    try:
        subprocess.run([python, "-m", "venv", str(place)], check=True)
        subprocess.run([*install, *REQUIREMENTS[framework]], check=True)
    except subprocess.CalledProcessError:
        shutil.rmtree(place, ignore_errors=True)
        raise


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.environments", description=__doc__)
    parser.add_argument("peers", nargs="*", metavar="peer", help="jax, torch, pytensor (default: all)")
    parser.add_argument("--python", default=sys.executable, help="interpreter to make them with")
    parser.add_argument("--pip", default="", help="more arguments for pip install, as one string")
    options = parser.parse_args(arguments)
    if unknown := set(options.peers) - set(REQUIREMENTS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    for peer in options.peers or REQUIREMENTS:
        if interpreter_of(peer) is None:
            make(peer, options.python, shlex.split(options.pip))
        print(f"{peer}: {interpreter_of(peer)}")


if __name__ == "__main__":
    main()
