"""Virtual environments of the peers: `python -m benchmarks.environments` makes those that are missing.

They lie in JITGRAD_BENCHMARK_ENVIRONMENTS, otherwise in the user's cache directory. Each is made with the Python that
the peer's newest release asks for, where one is found, else with this one; `--python` names another. `--pip` has
arguments for pip. Of torch exactly the version below is installed: the index has builds for graphics cards of several
gigabytes under others, and `--pip "--index-url https://download.pytorch.org/whl/cpu"` finds the build for processors.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "JITGRAD_BENCHMARK_ENVIRONMENTS"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What pip installs for a peer, and the Python it is installed for."""

    python: str
    requirements: tuple[str, ...]


RECIPES = {
    "jax": Recipe("3.12", ("jax>=0.10", "scipy")),
    "torch": Recipe("3.11", ("torch==2.13.0", "numpy")),
    "pytensor": Recipe("3.12", ("pytensor>=3", "numba")),
}


def directory() -> Path:
    """Where the environments lie."""
    import platformdirs

    given = os.environ.get(VARIABLE)
    return Path(given) if given else platformdirs.user_cache_path("jitgrad") / "benchmarks"


def interpreter_of(framework: str) -> Path | None:
    """The Python that has the framework: this one for jitgrad, None where a peer's is missing."""
    if framework not in RECIPES:
        return Path(sys.executable)
    python = directory() / framework / "bin" / "python"
    return python if python.exists() else None


def find_python(version: str) -> str:
    """An interpreter of that version, from PATH or pyenv; this one where there is none."""
    for candidate in _candidates(version):
        try:
            found = subprocess.run([candidate, "-c", _ASK], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue
        if found.strip() == version:
            return candidate
    return sys.executable


_ASK = "import sys; print('%d.%d' % sys.version_info[:2])"


def _candidates(version: str) -> Iterator[str]:
    yield sys.executable
    yield f"python{version}"
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from sorted(str(path) for path in versions.glob(f"{version}.*/bin/python"))


def make(framework: str, python: str, pip: Sequence[str]) -> None:
    """Make a peer's environment; CalledProcessError if that fails, and nothing is left behind."""
    place = directory() / framework
    install = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *pip]
    try:
        subprocess.run([python, "-m", "venv", str(place)], check=True)
        subprocess.run([*install, *RECIPES[framework].requirements], check=True)
    except subprocess.CalledProcessError:
        shutil.rmtree(place, ignore_errors=True)
        raise


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.environments", description=__doc__)
    parser.add_argument("peers", nargs="*", metavar="peer", help="jax, torch, pytensor (default: all)")
    parser.add_argument("--python", help="interpreter to make them with")
    parser.add_argument("--pip", default="", help="more arguments for pip install, as one string")
    options = parser.parse_args(arguments)
    if unknown := set(options.peers) - set(RECIPES):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    for peer in options.peers or RECIPES:
        if interpreter_of(peer) is None:
            make(peer, options.python or find_python(RECIPES[peer].python), shlex.split(options.pip))
        print(f"{peer}: {interpreter_of(peer)}")


if __name__ == "__main__":
    main()
