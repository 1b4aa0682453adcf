"""Loads ELF object code for x86-64 into this process, without LLVM; other formats and machines are not its business.

The object code of a kernel is a few sections and some dozen relocations. LLVM's own loader does no more with them, but
dlopen of its library takes 40 ms, longer than all else that a process does which finds its kernels on disk. Placing
one kernel takes 0.1 ms here. Whatever is not understood (another format, a relocation of another kind, an address out
of reach) is refused, and left to LLVM.

Memory is taken in chunks and never given back. Pages of code are written first and made executable afterwards; no page
is ever both writable and executable. Data that the code changes (the state of the thread pool) lies on pages of its
own, which a forked child has for itself. Relocations and their names are those of the System V psABI, "AMD64
Architecture Processor Supplement", section 4.4.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Callable
from functools import lru_cache

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_WORD = struct.Struct("<Q")

_IDENTITY = b"\x7fELF\x02\x01\x01"
_RELOCATABLE, _X86_64 = 1, 62
_PROGBITS, _SYMTAB, _RELA, _NOBITS = 1, 2, 4, 8
_WRITE, _ALLOC = 1, 2
_UNDEFINED, _ABSOLUTE, _RESERVED = 0, 0xFFF1, 0xFF00

_R_64, _R_PC32, _R_PLT32, _R_32, _R_32S, _R_PC64 = 1, 2, 4, 10, 11, 24
_R_GOT = (9, 41, 42)  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX

_PAGE = mmap.PAGESIZE
_CHUNK = 1 << 20
_FAILED = 2**64 - 1
_JUMP = b"\xff\x25\x00\x00\x00\x00"  # jmp *(the eight bytes behind it)
_STUB = 16

Resolve = Callable[[str], int]


class RefusedError(Exception):
    """Object code that this loader does not understand: another one may."""


def is_supported() -> bool:
    """Whether this machine runs what the loader loads."""
    return sys.platform == "linux" and os.uname().machine == "x86_64" and sys.maxsize > 2**32


def load_elf(code: bytes, resolve: Resolve) -> dict[str, int]:
    """Place object code in memory; the address of each function and variable that it exports.

    ``resolve`` gives the address of a name that the code does not define, 0 when there is none. RefusedError when the
    code is not as described above.
    """
    try:
        image = _Image(code)
        image.relocate(resolve)
    except (struct.error, IndexError, ValueError) as error:
        raise RefusedError(f"malformed object code: {error}") from None
    image.finish()
    return image.exported()


class _Image:
    """One object file: its sections get addresses, its relocations are applied, then its code becomes executable."""

    def __init__(self, code: bytes) -> None:
        self._code = code
        identity, kind, machine, *_, shoff, _, _, _, _, size, count, _ = _HEADER.unpack_from(code)
        if not identity.startswith(_IDENTITY) or (kind, machine) != (_RELOCATABLE, _X86_64):
            raise RefusedError("not relocatable ELF code for x86-64")
        if size != _SECTION.size:
            raise RefusedError(f"section headers of {size} bytes")
        self._sections = list(_SECTION.iter_unpack(code[shoff : shoff + size * count]))
        self._symbols = self._read_symbols()
        self._at: dict[int, int] = {}  # section → its offset in the image
        self._places: dict[tuple[int, str], int] = {}  # cells and jumps made for symbols that lie far away
        nbytes = self._lay(0, writable=False)
        self._spare = nbytes = -(-nbytes // 8) * 8
        nbytes += _STUB * sum(index == _UNDEFINED for *_, index, _, _ in self._symbols) * 2
        self._nbytes = -(-nbytes // _PAGE) * _PAGE
        total = self._lay(self._nbytes, writable=True)
        self._image = bytearray(total)
        self._base = _take(-(-total // _PAGE) * _PAGE)
        for number, offset in self._at.items():
            _, kind, _, _, begin, nbytes, *_ = self._sections[number]
            if kind == _PROGBITS:
                self._write(offset, code[begin : begin + nbytes])

    def _read_symbols(self) -> list[tuple[int, int, int, int, int, int]]:
        tables = [section for section in self._sections if section[1] == _SYMTAB]
        if len(tables) != 1:
            raise RefusedError("no symbol table, or several")
        begin, nbytes, self._strings = tables[0][4], tables[0][5], self._sections[tables[0][6]][4]
        return list(_SYMBOL.iter_unpack(self._code[begin : begin + nbytes]))

    def _lay(self, offset: int, writable: bool) -> int:
        """Give offsets to the sections of one kind of memory; where they end."""
        for number, (_, kind, flags, _, _, nbytes, _, _, alignment, _) in enumerate(self._sections):
            if flags & _ALLOC and kind in (_PROGBITS, _NOBITS) and bool(flags & _WRITE) == writable:
                alignment = max(1, alignment)
                if alignment > _PAGE:
                    raise RefusedError(f"a section aligned to {alignment} bytes")
                offset = -(-offset // alignment) * alignment
                self._at[number] = offset
                offset += nbytes
        return offset

    def _write(self, offset: int, data: bytes) -> None:
        self._image[offset : offset + len(data)] = data

    def _name(self, offset: int) -> str:
        begin = self._strings + offset
        return self._code[begin : self._code.index(b"\0", begin)].decode()

    # -- relocations ---------------------------------------------------------------------------------------------------

    def relocate(self, resolve: Resolve) -> None:
        """Write the addresses that the code refers to."""
        addresses: dict[int, int] = {}  # of symbols, each of which is mostly referred to several times
        for _, kind, _, _, begin, nbytes, _, target, _, _ in self._sections:
            if kind != _RELA or target not in self._at:
                continue
            section = self._at[target]
            for place, info, addend in _RELOCATION.iter_unpack(self._code[begin : begin + nbytes]):
                number = info >> 32
                if number not in addresses:
                    addresses[number] = self._address(number, resolve)
                self._apply(section + place, info & 0xFFFFFFFF, addresses[number], addend)

    def _address(self, number: int, resolve: Resolve) -> int:
        name, _, _, index, value, _ = self._symbols[number]
        if index in self._at:
            return self._base + self._at[index] + value
        if index == _ABSOLUTE:
            return value
        if index != _UNDEFINED:
            raise RefusedError(f"a symbol of section {index}, which is not loaded")
        if number == 0:
            return 0
        address = resolve(self._name(name))
        if not address:
            raise RefusedError(f"nothing has the name {self._name(name)}")
        return address

    def _apply(self, offset: int, kind: int, symbol: int, addend: int) -> None:
        here = self._base + offset
        if kind == _R_64:
            _WORD.pack_into(self._image, offset, (symbol + addend) & 0xFFFFFFFFFFFFFFFF)
        elif kind == _R_PC64:
            self._write(offset, (symbol + addend - here).to_bytes(8, "little", signed=True))
        elif kind == _R_PC32:
            self._write_32(offset, symbol + addend - here)
        elif kind == _R_PLT32:
            near = symbol if _is_near(symbol + addend - here) else self._placed(symbol, _JUMP)
            self._write_32(offset, near + addend - here)
        elif kind in _R_GOT:
            self._write_32(offset, self._placed(symbol, b"") + addend - here)
        elif kind == _R_32S:
            self._write_32(offset, symbol + addend)
        elif kind == _R_32 and 0 <= symbol + addend < 2**32:
            self._write(offset, (symbol + addend).to_bytes(4, "little"))
        else:
            raise RefusedError(f"a relocation of kind {kind}")

    def _write_32(self, offset: int, value: int) -> None:
        if not _is_near(value):
            raise RefusedError("an address out of reach")
        self._write(offset, value.to_bytes(4, "little", signed=True))

    def _placed(self, symbol: int, code: bytes) -> int:
        """The address of a cell that holds the symbol's address, with ``code`` in front of it."""
        key = (symbol, code.hex())
        if key not in self._places:
            if self._spare + _STUB > self._nbytes:
                raise RefusedError("no room for another jump")
            self._write(self._spare, code + symbol.to_bytes(8, "little"))
            self._places[key] = self._base + self._spare
            self._spare += _STUB
        return self._places[key]

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Bring all to its place, and make the pages of code executable and no longer writable."""
        ctypes.memmove(self._base, bytes(self._image), len(self._image))
        if self._nbytes and _libc().mprotect(self._base, self._nbytes, mmap.PROT_READ | mmap.PROT_EXEC):
            raise RefusedError("the system makes no memory executable")

    def exported(self) -> dict[str, int]:
        """Global symbols that the code defines."""
        return {
            self._name(name): self._base + self._at[index] + value
            for name, info, _, index, value, _ in self._symbols
            if info >> 4 and index in self._at
        }


def _is_near(distance: int) -> bool:
    return -(2**31) <= distance < 2**31


# -- memory ------------------------------------------------------------------------------------------------------------

_free = (0, 0)  # address and bytes of what is left of the last chunk


def _take(nbytes: int) -> int:
    """The address of whole pages, writable and zero; they are never given back: threads may run there to the end."""
    global _free
    if _free[1] < nbytes:
        size = max(nbytes, _CHUNK)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if address in (None, _FAILED):
            raise RefusedError("the system has no memory left")
        _free = (address, size)
    address, size = _free
    _free = (address + nbytes, size - nbytes)
    return address


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mmap.restype = ctypes.c_void_p
    return libc


def find_symbol(name: str) -> int:
    """The address of a function of this process, such as those of the C library; 0 when there is none."""
    function = getattr(_libc(), name, None)
    return 0 if function is None else int(ctypes.cast(function, ctypes.c_void_p).value or 0)
