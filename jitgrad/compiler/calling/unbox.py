"""Checks the arguments of a call in machine code and notes their addresses; anything unusual is left to
Python.

`unbox(spec, table, a0, a1, ...)` looks at every argument once: does it fit its pattern (patterns.py)? Then the address
of its numbers goes into the slot of the table. At the first argument that does not fit, the answer is False, without
an exception, and the caller takes the slow road, which says what is wrong. Output arrays are arguments too; for them
`writeable` is asked for. What containers hold is not kept alive, so patterns here are those of leaves.

Five arrays of two dimensions take 0.09 us (Zen 4, CPython 3.11).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from jitgrad.compiler.calling.patterns import Array, Number, Words, pack_patterns
from jitgrad.compiler.machine import capi
from jitgrad.compiler.machine.cache import compile_cached
from jitgrad.compiler.products.product_code import Module
from jitgrad.records import NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DOC = "unbox(spec, table, *arguments): False at the first argument that does not fit the spec."


def pack_arguments(arguments: Sequence[Array | Number]) -> Spec:
    """The spec of a call. ValueError for dtypes that machine code does not take."""
    words = words_of(arguments)
    return Spec(np.array(words.words, np.int64), tuple(words.objects))


def words_of(arguments: Sequence[Array | Number]) -> Words:
    """The words of a spec; extents in them may be symbols."""
    words = Words()
    words.add(len(arguments))
    pack_patterns(words, arguments)
    return words


class Spec(NamedTuple):
    """Memory for `unbox`: a count, then a node per argument; and the objects that it points at."""

    words: NDArray[np.int64]
    objects: tuple[object, ...]

    @property
    def address(self) -> int:
        """Where the words lie."""
        return int(self.words.ctypes.data)


@lru_cache(maxsize=1)
def unboxer() -> Callable[..., bool]:
    """The builtin `unbox(spec_address, table_address, *arguments) -> bool`."""
    capi.register_symbols()
    code = compile_cached("unbox", _unbox_text, ["jitgrad_unbox"])
    return capi.builtin("unbox", code["jitgrad_unbox"], _DOC)


def unbox_modules() -> dict[str, Module]:
    """The module of `unboxer`, where the process has not got it."""
    return {} if unboxer.cache_info().currsize else {"unbox": (_unbox_text, False)}


def _unbox_text() -> str:
    from jitgrad.compiler.calling.match import match_ir

    return f"{match_ir()}{_UNBOX}\nattributes #0 = {{ nounwind }}\n"


_UNBOX = """
declare ptr @PyBool_FromLong(i64) #0

define ptr @jitgrad_unbox(ptr %self, ptr %args, i64 %nargs) #0 {
entry:
  %enough = icmp sgt i64 %nargs, 1
  br i1 %enough, label %open, label %no
open:
  %object0 = load ptr, ptr %args
  %spec_word = call i64 @PyLong_AsLongLong(ptr %object0)
  %at1 = getelementptr ptr, ptr %args, i64 1
  %object1 = load ptr, ptr %at1
  %table_word = call i64 @PyLong_AsLongLong(ptr %object1)
  %spec_ok = icmp sgt i64 %spec_word, 0
  %table_ok = icmp sgt i64 %table_word, 0
  %both = and i1 %spec_ok, %table_ok
  br i1 %both, label %count, label %clear
count:
  %spec = inttoptr i64 %spec_word to ptr
  %table = inttoptr i64 %table_word to ptr
  %n = load i64, ptr %spec
  %given = sub i64 %nargs, 2
  %all = icmp eq i64 %n, %given
  br i1 %all, label %start, label %no
start:
  %first = getelementptr i64, ptr %spec, i64 1
  %rest = getelementptr ptr, ptr %args, i64 2
  br label %head
head:
  %k = phi i64 [ 0, %start ], [ %k1, %argument ]
  %node = phi ptr [ %first, %start ], [ %after, %argument ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %argument, label %yes
argument:
  %at = getelementptr ptr, ptr %rest, i64 %k
  %object = load ptr, ptr %at
  %after = call ptr @match(ptr %node, ptr %object, ptr %table, ptr null)
  %fits = icmp ne ptr %after, null
  %k1 = add i64 %k, 1
  br i1 %fits, label %head, label %no
clear:
  call void @PyErr_Clear()
  br label %no
yes:
  %true = call ptr @PyBool_FromLong(i64 1)
  ret ptr %true
no:
  %false = call ptr @PyBool_FromLong(i64 0)
  ret ptr %false
}
"""
