"""Where the functions of BLAS and LAPACK lie in this process; what is done with them is decided elsewhere.

NumPy has loaded a BLAS library already, mostly OpenBLAS: looking up a function in it takes 0.1 ms, and the products are
those of the interpreter to the bit. Otherwise the addresses come from SciPy's C interfaces (`scipy.linalg.cython_blas`
and `cython_lapack`), which load a second library: 25 ms, with scipy itself.

OpenBLAS built for 32-bit integers and for 64-bit ones is called alike: integers are passed by reference, in cells of
eight bytes, and on the little-endian machines that there are code for, the first four are the number itself.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

# How builds of OpenBLAS decorate their names: what stands in front of a name, and what behind it.
_DECORATIONS = (("scipy_", "64_"), ("", "64_"), ("scipy_", ""), ("", ""))


@cache
def blas_address(name: str) -> int:
    """The address of a BLAS function such as `sgemm`, with the arguments of Fortran, in this process."""
    return _address_of(name, "cython_blas")


@cache
def lapack_address(name: str) -> int:
    """The address of a LAPACK function such as `dgetrf`, with the arguments of Fortran, in this process."""
    return _address_of(name, "cython_lapack")


def _address_of(name: str, interface: str) -> int:
    found = _in_numpy()
    return found(f"{name}_") if found is not None else capsule_address(_scipys(interface).__pyx_capi__[name])


@cache
def set_threads_address() -> int:
    """`void openblas_set_num_threads(int)` of the library, or 0 where it is not OpenBLAS."""
    return _openblas_function("openblas_set_num_threads")


@cache
def get_threads_address() -> int:
    """`int openblas_get_num_threads(void)` of the library, or 0 where it is not OpenBLAS."""
    return _openblas_function("openblas_get_num_threads")


def _openblas_function(name: str) -> int:
    found = _in_numpy() or _finder(_scipys("cython_blas").__file__, (name,))
    return found(name) if found is not None else 0


@lru_cache(maxsize=1)
def _in_numpy() -> Callable[[str], int] | None:
    """Addresses in the OpenBLAS that NumPy has loaded; None where it has another library."""
    module = importlib.import_module("numpy._core._multiarray_umath")
    needed = ("openblas_set_num_threads", "openblas_get_num_threads", "sgemm_", "dgemm_", "sgemv_", "dgemv_")
    return _finder(module.__file__, needed)


def _finder(file: str | None, needed: tuple[str, ...]) -> Callable[[str], int] | None:
    """Addresses in the libraries that a loaded extension module is linked to; None if a needed name is not there."""
    if file is None:
        return None
    try:
        library = ctypes.CDLL(file)
    except OSError:
        return None
    for before, behind in _DECORATIONS:
        if all(hasattr(library, before + name + behind) for name in needed):
            return lambda name: _address(getattr(library, before + name + behind))
    return None


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


# -- SciPy's interface -------------------------------------------------------------------------------------------------


def capsule_address(capsule: Any) -> int:
    """The pointer that a PyCapsule holds, whatever its name."""
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.argtypes, get_name.restype = [ctypes.py_object], ctypes.c_char_p
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.argtypes, get_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    return int(get_pointer(capsule, get_name(capsule)))


@cache
def _scipys(interface: str) -> Any:
    """SciPy's module of pointers, `cython_blas` or `cython_lapack`, without importing the package around it (2 ms
    instead of 115) if that works.
    """
    if "scipy.linalg" not in sys.modules:
        module = _load_alone(f"scipy.linalg.{interface}")
        if module is not None:
            return module
    return importlib.import_module(f"scipy.linalg.{interface}")


def _load_alone(name: str) -> ModuleType | None:
    """The extension module `name` by its file. The import system is left as if it had never been loaded."""
    package = importlib.util.find_spec("scipy")
    folders = list(package.submodule_search_locations or ()) if package else []
    stem = name.rpartition(".")[2]
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        for file in (os.path.join(folder, "linalg", stem + suffix) for folder in folders):
            if os.path.exists(file):
                return _execute(name, file)
    return None


def _execute(name: str, file: str) -> ModuleType | None:
    import scipy  # noqa: F401  (its libraries have to be found first)

    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        return None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:
        return None
    finally:
        sys.modules.pop(name, None)  # a later import gives the same module, and sets it in its package
    return module
