"""Machine code of our own products by the names of their functions: from disk, or compiled quickly and then well, like
a kernel; what the functions do is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from jitgrad.compiler import native
from jitgrad.compiler.cache import KernelCache, cache_key, compile_cached, kernel_cache
from jitgrad.config import config, get_num_threads

_addresses: dict[str, int] = {}


def product_address(
    stub: str,
    text: Callable[[str], str],
    tiles: Sequence[str] = (),
    tiles_text: Callable[[str], str] | None = None,
) -> int:
    """The address of the function ``stub``, of the module that ``text`` gives for it.

    It may call the functions ``tiles``, of the module that ``tiles_text`` gives: loops on registers, which quick code
    would keep in memory. They are compiled well before the first run, which takes 20 ms and saves it four fifths.
    """
    found = _addresses.get(stub)
    if found is None:
        if tiles_text is not None:
            made = compile_cached(f"{stub}_tiles", partial(tiles_text, stub), tiles)
            for name in tiles:
                native.add_symbol(name, made[name])
        code = kernel_cache().get(cache_key(stub), [stub])
        found = _addresses[stub] = code[stub] if code is not None else _compiled(stub, text(stub))
    return found


def _compiled(stub: str, text: str) -> int:
    from jitgrad.compiler.machine import improve
    from jitgrad.compiler.tiers import Task

    if not config.quick_start or get_num_threads() == 1:
        return compile_cached(stub, lambda: text, [stub])[stub]
    quick = f"{stub}_quick"
    address = native.compile_module(text.replace(stub, quick), [quick], quickly=True)[quick]
    improve([Task(text, partial(_improved, stub, address, kernel_cache()))])
    return address


def _improved(stub: str, old: int, kept: KernelCache, object_code: bytes) -> tuple[int, int]:
    """Load and keep good code in place of quick code; both addresses."""
    code = native.load_object(object_code, [stub])
    kept.put(cache_key(stub), code)
    return old, code[stub]
