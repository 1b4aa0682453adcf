"""Types of LLVM IR, each with its text; no values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jitgrad.compiler.llvmir.values import Constant


class Type:
    """A type; two of the same text are one."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, value: Any) -> Constant:
        from jitgrad.compiler.llvmir.values import Constant

        return Constant(self, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Type) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    @property
    def suffix(self) -> str:
        """How the names of intrinsics say it: i64, f32, v16f32."""
        return {"float": "f32", "double": "f64"}.get(self.text, self.text)


class IntType(Type):
    """Integers of so many bits."""

    __slots__ = ("width",)

    def __init__(self, width: int) -> None:
        super().__init__(f"i{width}")
        self.width = width


class FloatType(Type):
    """float32."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("float")


class DoubleType(Type):
    """float64."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("double")


class PointerType(Type):
    """An address."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("ptr")


class VoidType(Type):
    """What a function without a result returns."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("void")


class VectorType(Type):
    """So many lanes of an element."""

    __slots__ = ("count", "element")

    def __init__(self, element: Type, count: int) -> None:
        super().__init__(f"<{count} x {element.text}>")
        self.element = element
        self.count = count

    @property
    def suffix(self) -> str:
        """How the names of intrinsics say it."""
        return f"v{self.count}{self.element.suffix}"


_vectors: dict[tuple[str, int], VectorType] = {}


def vector_of(element: Type, count: int) -> VectorType:
    """So many lanes of an element: made once, for a kernel asks for the same few again and again."""
    key = element.text, count
    known = _vectors.get(key)
    if known is None:
        known = _vectors[key] = VectorType(element, count)
    return known


class ArrayType(Type):
    """So many elements in memory."""

    __slots__ = ("count", "element")

    def __init__(self, element: Type, count: int) -> None:
        super().__init__(f"[{count} x {element.text}]")
        self.element = element
        self.count = count


class FunctionType(Type):
    """A function's result and arguments."""

    __slots__ = ("args", "return_type")

    def __init__(self, return_type: Type, args: Sequence[Type]) -> None:
        super().__init__(f"{return_type.text} ({', '.join(a.text for a in args)})")
        self.return_type = return_type
        self.args = tuple(args)
