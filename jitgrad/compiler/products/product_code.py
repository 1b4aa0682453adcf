"""Machine code of our own products by the names of their functions: from disk, or compiled quickly and then well, like
a kernel; what the functions do is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

from jitgrad.compiler.machine import native
from jitgrad.compiler.machine.cache import KernelCache, cache_key, compile_cached, kernel_cache
from jitgrad.config import config, get_num_threads
from jitgrad.records import NamedTuple

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
_entered: set[str] = set()
"""The functions that code can call."""
_begun: set[tuple[KernelCache, str]] = set()
"""Modules of tiles that are made in the background, or have been, and where they are kept."""


def tile_names(suffix: str) -> tuple[str, ...]:
    """The functions that make tiles of a product: whole ones, low and narrow ones."""
    return tuple(f"jitgrad_tile_{suffix}_{form}" for form in ("whole", "low", "narrow"))


def unpacked_name(suffix: str) -> str:
    """The function that makes a tile of a product with a transposed A as it lies."""
    return f"jitgrad_tile_{suffix}_unpacked"


def packing_names(suffix: str) -> tuple[str, ...]:
    """The functions that copy tiles and pack rows of A and columns of B, as they lie or turned."""
    return f"jitgrad_copy_{suffix}", *(f"jitgrad_pack_{x}_{suffix}" for x in ("a", "a_turned", "b", "b_turned"))


def convolution_tile_names(suffix: str, form: str) -> tuple[str, ...]:
    """The functions that make tiles of a convolution, one register wide and several."""
    return tuple(f"jitgrad_{form}_tile_{suffix}_{width}" for width in ("one", "wide"))


class Functions(NamedTuple):
    """Code that all graphs share: the name of a module, what gives its text, its functions, and whether it is compiled
    quickly.
    """

    module: str
    text: Callable[[], str]
    names: tuple[str, ...]
    quickly: bool = False

    def code(self) -> native.NativeCode:
        """From memory, from disk, or compiled."""
        return _code_of(self)

    def modules(self) -> dict[str, Module]:
        """What `begin_modules` takes."""
        return {self.module: (self.text, self.quickly)}


@cache
def _code_of(functions: Functions) -> native.NativeCode:
    return compile_cached(functions.module, functions.text, functions.names, functions.quickly)


class Quick(NamedTuple):
    """What is compiled quickly in place of a product's code, for a first run: less code of the same bits; and what it
    calls, its tiles among them or others.
    """

    text: Callable[[str], str]
    called: tuple[Functions, ...] = ()


def product_address(
    stub: str, text: Callable[[str], str], tiles: Functions | None = None, quick: Quick | None = None
) -> int:
    """The address of the function ``stub``, of the module that ``text`` gives for it, or ``quick``.

    It may call ``tiles``, loops on registers whose sums quick code would keep in memory. They are compiled well before
    the first run, which takes 10 to 18 ms and saves it four fifths; `begin_modules` does that while the stages are at
    work.
    """
    found = _addresses.get(stub)
    if found is None:
        has_tiles = tiles is None or _load_tiles(tiles, quick)
        code = kernel_cache().get(cache_key(stub), [stub]) if has_tiles else None
        made = code[stub] if code is not None else _compiled(stub, text, None if has_tiles else tiles, quick)
        found = _addresses[stub] = made
    return found


def _load_tiles(tiles: Functions, quick: Quick | None) -> bool:
    """Load the tiles of good code; False where they are not on disk, and quick code does without them."""
    if not _does_without(tiles, quick):
        _enter(tiles, compile_cached(tiles.module, tiles.text, tiles.names))
        return True
    code = kernel_cache().get(cache_key(tiles.module), tiles.names)
    if code is not None:
        _enter(tiles, code)
    return code is not None


def _does_without(tiles: Functions, quick: Quick | None) -> bool:
    """Whether a first run has other tiles."""
    return config.quick_start and quick is not None and all(own.module != tiles.module for own in quick.called)


def _enter(functions: Functions, code: native.NativeCode) -> None:
    for name in functions.names:
        native.add_symbol(name, code[name])
    _entered.update(functions.names)


def code_modules(
    stub: str, text: Callable[[str], str], tiles: Functions | None = None, quick: Quick | None = None
) -> dict[str, Module]:
    """The modules that `product_address` will need, where they are neither in memory nor on disk."""
    modules: dict[str, Module] = {}
    if stub in _addresses:
        return modules
    known, is_made = set(_entered), kernel_cache().has(cache_key(stub))
    if tiles is not None:
        if not _does_without(tiles, quick) or kernel_cache().has(cache_key(tiles.module)):
            modules[tiles.module] = tiles.text, False
            known.update(tiles.names)
        else:
            is_made = False
    if not config.quick_start:
        modules[stub] = partial(text, stub), False
    elif not is_made:
        quick = quick or Quick(text)
        modules |= {own.module: (own.text, own.quickly) for own in quick.called if not known.issuperset(own.names)}
        modules[_quick(stub)] = partial(_quick_text, stub, quick.text), True
    return modules


def begin_modules(modules: Mapping[str, Module]) -> None:
    """Begin to compile modules, by name what gives their text and whether quickly, that `compile_cached` would not
    find; with one thread, nothing.
    """
    from jitgrad.compiler.machine import ahead

    if get_num_threads() > 1:
        cache = kernel_cache()
        ahead.begin({name: module for name, module in modules.items() if not cache.has(cache_key(name))})


def _compiled(stub: str, text: Callable[[str], str], missing: Functions | None, quick: Quick | None) -> int:
    """The address of code that is not on disk; ``missing`` tiles are made in the background, before the good code."""
    from jitgrad.compiler.machine import ahead
    from jitgrad.compiler.machine.compilation import improve
    from jitgrad.compiler.machine.tiers import Task

    if not config.quick_start:
        return compile_cached(stub, partial(text, stub), [stub])[stub]
    quick = quick or Quick(text)
    for own in quick.called:
        if not _entered.issuperset(own.names):
            _enter(own, native.load_object(ahead.take(own.module, own.text, own.quickly), own.names))
    object_code = ahead.take(_quick(stub), partial(_quick_text, stub, quick.text), quickly=True)
    address = native.load_object(object_code, [_quick(stub)])[_quick(stub)]
    kept = kernel_cache()
    if missing is not None and (kept, missing.module) not in _begun:
        _begun.add((kept, missing.module))
        improve([Task(missing.text, partial(_completed, missing, kept))])
    improve([Task(partial(text, stub), partial(_improved, stub, address, kept))])
    return address


def _quick(stub: str) -> str:
    return f"{stub}_quick"


def _quick_text(stub: str, text: Callable[[str], str]) -> str:
    return text(stub).replace(stub, _quick(stub))


def _completed(tiles: Functions, kept: KernelCache, object_code: bytes) -> tuple[int, int]:
    """Load and keep the tiles of good code; no record holds their addresses."""
    code = native.load_object(object_code, tiles.names)
    kept.put(cache_key(tiles.module), code)
    _enter(tiles, code)
    address = code[tiles.names[0]]
    return address, address


def _improved(stub: str, old: int, kept: KernelCache, object_code: bytes) -> tuple[int, int]:
    """Load and keep good code in place of quick code; both addresses."""
    code = native.load_object(object_code, [stub])
    kept.put(cache_key(stub), code)
    return old, code[stub]
