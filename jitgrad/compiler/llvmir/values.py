"""Values of LLVM IR: constants, and what instructions leave; each has a type and the text that stands for it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jitgrad.compiler.llvmir.types import ArrayType, IntType, PointerType, Type, VectorType, vector_of

if TYPE_CHECKING:
    from jitgrad.compiler.llvmir.module import Block

_BOOL = IntType(1)


class Value:
    """Something an instruction may take: its type, and the text that stands for it."""

    __slots__ = ("text", "type")

    def __init__(self, type_: Type, text: str) -> None:
        self.type: Any = type_
        self.text = text

    def __str__(self) -> str:
        return f"{self.type.text} {self.text}"


class Product(Value):
    """A product that may be contracted with a sum it is part of."""

    __slots__ = ("factors",)

    def __init__(self, value: Value, factors: tuple[Value, Value]) -> None:
        super().__init__(value.type, value.text)
        self.factors = factors


class Joined(Value):
    """Vectors of one type side by side, which need not be taken out of it again."""

    __slots__ = ("parts",)

    def __init__(self, value: Value, parts: tuple[Value, ...]) -> None:
        super().__init__(value.type, value.text)
        self.parts = parts


class _UndefinedType:
    """The value of a constant that nothing reads."""


Undefined = _UndefinedType()


class Constant(Value):
    """A constant: an int, a bool, a sequence of them for a vector or an array, None for zeros, or Undefined."""

    __slots__ = ()

    def __init__(self, type_: Type, value: Any) -> None:
        super().__init__(type_, _constant_text(type_, value))


class Literal(Constant):
    """A constant given as LLVM writes it."""

    __slots__ = ()

    def __init__(self, type_: Type, text: str) -> None:
        Value.__init__(self, type_, text)


def splat(element: Type, text: str, lanes: int) -> Constant:
    """A constant in all lanes. Spelling out every lane makes the text several times longer to read."""
    return Literal(vector_of(element, lanes), f"splat ({element.text} {text})")


def _constant_text(type_: Type, value: Any) -> str:
    if value is Undefined:
        return "poison"
    if value is None:
        return "zeroinitializer"
    if isinstance(type_, VectorType | ArrayType):
        inside = _list_text(type_.element, tuple(value))
        return f"<{inside}>" if isinstance(type_, VectorType) else f"[{inside}]"
    if type_ == _BOOL:
        return "true" if value else "false"
    return str(int(value))


@lru_cache(maxsize=1024)
def _list_text(element: Type, values: tuple[Any, ...]) -> str:
    return ", ".join(f"{element.text} {_constant_text(element, value)}" for value in values)


class Phi(Value):
    """A value that depends on where control came from."""

    __slots__ = ("_incoming",)

    def __init__(self, type_: Type, text: str) -> None:
        super().__init__(type_, text)
        self._incoming: list[str] = []

    def add_incoming(self, value: Value, block: Block) -> None:
        """Its value when control came from a block."""
        self._incoming.append(f"[ {value.text}, %{block.name} ]")

    def line(self) -> str:
        """The instruction."""
        return f"  {self.text} = phi {self.type.text} {', '.join(self._incoming)}"


class Cell(Value):
    """The address of a place on the stack."""

    __slots__ = ("allocated_type",)

    def __init__(self, type_: Type, text: str) -> None:
        super().__init__(PointerType(), text)
        self.allocated_type: Any = type_
