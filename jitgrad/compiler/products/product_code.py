"""Machine code of our own products by the names of their functions: from disk, or compiled quickly and then well, like
a kernel; what the functions do is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from jitgrad.compiler.machine import native
from jitgrad.compiler.machine.cache import KernelCache, cache_key, compile_cached, kernel_cache
from jitgrad.config import config, get_num_threads

Module = tuple[Callable[[], str], bool]

# Names of functions are here, not beside their texts, which a process that finds their code on disk does not load.
MATMUL_STUBS = {"float32": "jitgrad_matmul_f32", "float64": "jitgrad_matmul_f64"}
GUARD_STUBS = ("jitgrad_blas_enter", "jitgrad_blas_leave")
RESET_STUB = "jitgrad_blas_reset"
PACK_STUBS = {"float32": "jitgrad_pack_f32", "float64": "jitgrad_pack_f64"}
SHARED_STUBS = {"float32": "jitgrad_shared_f32", "float64": "jitgrad_shared_f64"}
UNPACKED_STUBS = {"float32": "jitgrad_unpacked_f32", "float64": "jitgrad_unpacked_f64"}
SUFFIXES = {"float32": "f32", "float64": "f64"}

_addresses: dict[str, int] = {}


def tile_names(suffix: str) -> tuple[str, ...]:
    """The functions that make tiles of a product: whole ones, low and narrow ones."""
    return tuple(f"jitgrad_tile_{suffix}_{form}" for form in ("whole", "low", "narrow"))


def unpacked_name(suffix: str) -> str:
    """The function that makes a tile of a product with a transposed A as it lies."""
    return f"jitgrad_tile_{suffix}_unpacked"


def convolution_tile_names(suffix: str, form: str) -> tuple[str, ...]:
    """The functions that make tiles of a convolution, one register wide and several."""
    return tuple(f"jitgrad_{form}_tile_{suffix}_{width}" for width in ("one", "wide"))


def product_address(
    stub: str,
    text: Callable[[str], str],
    tiles: Sequence[str] = (),
    tiles_text: Callable[[str], str] | None = None,
    quick_text: Callable[[str], str] | None = None,
) -> int:
    """The address of the function ``stub``, of the module that ``text`` gives for it; what ``quick_text`` gives, if
    anything, is compiled quickly in its place: shorter code of the same bits.

    It may call the functions ``tiles``, of the module that ``tiles_text`` gives: loops on registers, which quick code
    would keep in memory. They are compiled well before the first run, which takes 12 to 18 ms and saves it four fifths;
    `begin_modules` does that while the stages are at work.
    """
    found = _addresses.get(stub)
    if found is None:
        if tiles_text is not None:
            made = compile_cached(f"{stub}_tiles", partial(tiles_text, stub), tiles)
            for name in tiles:
                native.add_symbol(name, made[name])
        code = kernel_cache().get(cache_key(stub), [stub])
        found = _addresses[stub] = code[stub] if code is not None else _compiled(stub, text, quick_text or text)
    return found


def code_modules(
    stub: str,
    text: Callable[[str], str],
    tiles_text: Callable[[str], str] | None = None,
    quick_text: Callable[[str], str] | None = None,
) -> dict[str, Module]:
    """The modules that `product_address` will need, where they are neither in memory nor on disk."""
    modules: dict[str, Module] = {}
    if stub in _addresses:
        return modules
    if tiles_text is not None:
        modules[f"{stub}_tiles"] = partial(tiles_text, stub), False
    if config.quick_start:
        if not kernel_cache().has(cache_key(stub)):
            modules[_quick(stub)] = partial(_quick_text, stub, quick_text or text), True
    else:
        modules[stub] = partial(text, stub), False
    return modules


def begin_modules(modules: Mapping[str, Module]) -> None:
    """Begin to compile modules, by name what gives their text and whether quickly, that `compile_cached` would not
    find; with one thread, nothing.
    """
    from jitgrad.compiler.machine import ahead

    if get_num_threads() > 1:
        cache = kernel_cache()
        ahead.begin({name: module for name, module in modules.items() if not cache.has(cache_key(name))})


def _compiled(stub: str, text: Callable[[str], str], quick_text: Callable[[str], str]) -> int:
    from jitgrad.compiler.machine import ahead
    from jitgrad.compiler.machine.compilation import improve
    from jitgrad.compiler.machine.tiers import Task

    if not config.quick_start:
        return compile_cached(stub, partial(text, stub), [stub])[stub]
    quick = _quick(stub)
    object_code = ahead.take(quick, partial(_quick_text, stub, quick_text), quickly=True)
    address = native.load_object(object_code, [quick])[quick]
    improve([Task(partial(text, stub), partial(_improved, stub, address, kernel_cache()))])
    return address


def _quick(stub: str) -> str:
    return f"{stub}_quick"


def _quick_text(stub: str, text: Callable[[str], str]) -> str:
    return text(stub).replace(stub, _quick(stub))


def _improved(stub: str, old: int, kept: KernelCache, object_code: bytes) -> tuple[int, int]:
    """Load and keep good code in place of quick code; both addresses."""
    code = native.load_object(object_code, [stub])
    kept.put(cache_key(stub), code)
    return old, code[stub]
