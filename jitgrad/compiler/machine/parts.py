"""Functions of analysis that quick code of kernels calls: which are loaded, and which have been begun because a program
will need them. What they compute is vecmath's, and which kernel calls which is found when it is written.

A sine in float64 takes 9 ms to compile, of which the arithmetic of huge arguments is most, and the stages before the
first text of a kernel leave the other processors idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler import vecmath
from jitgrad.compiler.emission.scalar_values import element_type
from jitgrad.compiler.machine import ahead, native
from jitgrad.spec import DType

_loaded: set[str] = set()
_texts: dict[str, str] = {}  # of those that were begun
_called: dict[str, tuple[str, ...]] = {}


def begin_functions(module: ir.Module, names: Iterable[str], dtype: DType) -> None:
    """Have functions by NumPy's names compiled by other threads, for the registers of an empty module of quick code."""
    type_ = ir.VectorType(element_type(dtype), module.shared_bytes // dtype.itemsize)
    function = ir.Function(module, ir.FunctionType(type_, [type_] * 2), "")
    builder = ir.IRBuilder(function.append_basic_block())
    for name in names:
        vecmath.emit(builder, name, function.args[: vecmath.ARITY[name]])
    begin_parts(module)


def begin_parts(module: ir.Module) -> tuple[str, ...]:
    """Have the functions that a module calls, and those that they call, compiled by other threads; their names, each
    after what it calls.
    """
    names: list[str] = []
    for part, write in (module.parts or {}).items():
        if part not in _loaded and part not in _texts:
            made = write()
            _texts[part] = str(made)
            ahead.begin(modules_of([part]))
            _called[part] = begin_parts(made)
        names += [*_called[part], part]
    return tuple(dict.fromkeys(names))


def modules_of(names: Iterable[str]) -> dict[str, tuple[Callable[[], str], bool]]:
    """The modules of functions that are not loaded, as `ahead` takes them."""
    return {name: (partial(str, _texts[name]), True) for name in names if name in _texts}


def load_part(name: str, object_code: bytes) -> None:
    """Make a function known to the loader."""
    native.add_symbol(name, native.load_object(object_code, [name])[name])
    _loaded.add(name)
    del _texts[name]
