"""The command line: info, profile, compare, explain and cache; it prints what the library finds."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jitgrad
from jitgrad.compiled import Compiled
from jitgrad.config import config, get_num_threads
from jitgrad.errors import JitgradError
from jitgrad.profiler import compare
from jitgrad.profiler.limits import machine_limits
from jitgrad.profiler.ranking import BY
from jitgrad.profiler.scripts import refusal, run_script, write_results
from jitgrad.profiler.tables import bytes_text

STAGES = ("program", "clusters", "fusion", "memory", "kernels", "llvm")
_PACKAGES = ("numpy", "scipy", "numba", "llvmlite", "optree", "platformdirs", "threadpoolctl")


class UsageError(Exception):
    """The command line asks for something that is not there."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    The exit status: 0, or that of a profiled script; 1 when the cache holds damaged files, 2 for a wrong command line.
    """
    options = _parser().parse_args(arguments)
    try:
        for line in options.run(options):
            print(line)
    except (UsageError, JitgradError) as error:
        print(f"jitgrad {options.command}: {error}", file=sys.stderr)
        return 2
    return int(getattr(options, "status", 0))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("jitgrad", description="Fused gradients of NumPy code.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run, text, add in _COMMANDS:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        add(made)
    return parser


def _add_compare(parser: argparse.ArgumentParser) -> None:
    _add_function(parser)
    parser.add_argument("--repeat", type=int, metavar="N", help="calls of each (default: as many as take two seconds)")
    parser.add_argument("--html", metavar="PATH", help="write a page, too")


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", metavar="script.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="args", help="the script's own arguments")
    parser.add_argument("--by", choices=BY, default="kernel", help="what the table's rows are (default: kernel)")
    parser.add_argument("--out", metavar="FOLDER", default=".", help="where trace and page go (default: here)")


def _add_explain(parser: argparse.ArgumentParser) -> None:
    _add_function(parser)
    parser.add_argument("--svg", metavar="PATH", help="write a picture, too")
    parser.add_argument("--stage", choices=STAGES, help="one stage only (default: all but llvm)")
    parser.add_argument("--separate", action="store_true", help="gradients in clusters of their own")


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "clear", "verify"), nargs="?", default="list")


def _add_function(parser: argparse.ArgumentParser) -> None:
    text = "a function, called with the module's example_args: a tuple, or a function that returns one"
    parser.add_argument("function", metavar="file.py:function", help=text)


# -- info ----------------------------------------------------------------------------------------------------


def _info(options: argparse.Namespace) -> Iterator[str]:
    facts = [
        ("jitgrad", jitgrad.__version__),
        ("python", f"{platform.python_version()} on {platform.platform()}"),
    ]
    facts += [(name, _version(name)) for name in _PACKAGES]
    facts += [("processor", _processor()), ("threads", f"{get_num_threads()} of {os.cpu_count()} processors")]
    facts += [("BLAS", library) for library in _blas_libraries()]
    facts += [("cache", _cache_text()), *_limits()]
    for name, value in facts:
        yield f"{name:<13} {value}"


def _limits() -> Iterator[tuple[str, str]]:
    limits = machine_limits(get_num_threads())
    yield "memory", f"{limits.bytes_per_second / 1e9:.3g} GB/s"
    yield "products", f"{limits.float32_flops / 1e9:.3g} GFLOP/s float32, {limits.float64_flops / 1e9:.3g} float64"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    import llvmlite.binding

    from jitgrad.compiler.machine.compilation import vector_bytes

    return f"{llvmlite.binding.get_host_cpu_name()}, vectors of {8 * vector_bytes()} bits"


def _blas_libraries() -> Iterator[str]:
    from threadpoolctl import threadpool_info

    for found in threadpool_info():
        if found["user_api"] == "blas":
            name = f"{found['internal_api']} {found['version']}"
            yield f"{name}, {found['num_threads']} threads, {found['filepath']}"


def _cache_text() -> str:
    from jitgrad.compiler.machine.cache import kernel_cache

    directory = kernel_cache().directory
    if directory is None:
        return "not used: no directory that can be trusted and written to" if config.cache else "switched off"
    entries = kernel_cache().entries()
    plans = sum(e.is_plan for e in entries)
    size = bytes_text(sum(e.nbytes for e in entries))
    return f"{directory}: {len(entries) - plans} kernels, {plans} plans, {size}"


# -- profile -------------------------------------------------------------------------------------------------


def _profile(options: argparse.Namespace) -> Iterator[str]:
    from jitgrad.profiler.profile_table import shown_table

    path = Path(options.script)
    if not path.is_file():
        raise UsageError(f"{path} is not a file")
    reason = refusal(Path(options.out))
    if reason is not None:
        raise UsageError(f"{reason}: nothing was run")
    outcome = run_script(path, options.arguments)
    options.status = outcome.status
    yield shown_table(outcome.profile.events, options.by)
    yield from (f"note: {finding}" for finding in outcome.profile.findings)
    yield from write_results(outcome.profile, path.stem, Path(options.out))


# -- compare and explain -------------------------------------------------------------------------------------


def _compare(options: argparse.Namespace) -> Iterator[str]:
    fn, args = load_function(options.function)
    if options.repeat is not None and options.repeat < 1:
        raise UsageError(f"--repeat must be at least 1, got {options.repeat}")
    comparison = compare(fn, *args, repeat=options.repeat)
    yield str(comparison)
    if options.html is not None:
        yield _written(options.html, comparison.save_html)


def _explain(options: argparse.Namespace) -> Iterator[str]:
    fn, args = load_function(options.function)
    compiled = fn if isinstance(fn, Compiled) else jitgrad.compile(fn)
    if options.separate:
        compiled = jitgrad.compile(compiled.fn, separate_compiled_gradients=True)
    explanation = compiled.explain(*args)
    yield explanation.text if options.stage is None else getattr(explanation, options.stage)
    if options.svg is not None:
        yield _written(options.svg, lambda path: Path(path).write_text(explanation.svg, encoding="utf-8"))


def _written(path: str, save: Callable[[str], object]) -> str:
    """What is said of a file that was written; UsageError where it cannot be."""
    try:
        save(path)
    except OSError as error:
        raise UsageError(f"could not write {path}: {os.strerror(error.errno or 0)}") from None
    return f"written to {path}"


def load_function(place: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function named by ``file.py:function``, and the module's example_args; UsageError without them."""
    path, _, name = place.rpartition(":")
    if not path or not name:
        raise UsageError(f"expected file.py:function, got {place!r}")
    module = _load_module(Path(path))
    fn = getattr(module, name, None)
    if not callable(fn):
        raise UsageError(f"{path} has no function {name!r}")
    args = getattr(module, "example_args", None)
    if args is None:
        raise UsageError(f"{path} has no example_args: the arguments to call {name} with, as a tuple or a function")
    args = args() if callable(args) else args
    if not isinstance(args, tuple):
        raise UsageError(f"example_args of {path} must be a tuple or return one, got {type(args).__name__}")
    return fn, args


def _load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


# -- cache ---------------------------------------------------------------------------------------------------


def _cache(options: argparse.Namespace) -> Iterator[str]:
    from jitgrad.compiler.machine.cache import kernel_cache

    cache = kernel_cache()
    if cache.directory is None:
        yield f"the cache is {_cache_text()}"
    elif options.action == "clear":
        yield f"{cache.clear()} files deleted from {cache.directory}"
    elif options.action == "verify":
        damaged = cache.verify()
        options.status = int(bool(damaged))
        yield from (f"damaged: {key}" for key in damaged)
        yield f"{len(cache.entries())} files in {cache.directory}, {len(damaged)} damaged"
    else:
        yield from (f"{entry.key}  {bytes_text(entry.nbytes)}" for entry in cache.entries())
        yield _cache_text()


_Add = Callable[[argparse.ArgumentParser], None]
_COMMANDS: tuple[tuple[str, Callable[[argparse.Namespace], Iterator[str]], str, _Add], ...] = (
    ("info", _info, "versions, processor, threads, BLAS libraries and the cache directory", lambda parser: None),
    ("compare", _compare, "a call interpreted, fused with separate gradients and fused merged", _add_compare),
    ("profile", _profile, "run a script and tell where its time went: a table, a trace and a page", _add_profile),
    ("explain", _explain, "what the compiler makes of a call", _add_explain),
    ("cache", _cache, "the machine code on disk", _add_cache),
)
