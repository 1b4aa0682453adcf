"""Modules, functions and basic blocks of LLVM IR as text; how instructions are written is the builder's business."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jitgrad.compiler.llvmir.types import FunctionType, PointerType, Type
from jitgrad.compiler.llvmir.values import Value


class Module:
    """Functions and variables by name; ``has_fma`` says that the processor adds a product with one rounding,
    ``has_avx512`` that it has AVX-512, whose instructions for powers of two others have not, ``divides_slowly`` that
    its divider takes longer than multiply-adds that divide, and ``has_few_buffers`` that each of its cores waits for a
    dozen lines of memory at a time, whoever asks for them.

    ``shared_bytes``: what is long and needed often is a function of its own, which works on a register of so many
    bytes; 0: it is written out in each place. ``has_parts``: such functions are modules of their own, which
    ``parts`` gives by their names; None where they are in this one.
    """

    def __init__(
        self,
        name: str,
        has_fma: bool = False,
        shared_bytes: int = 0,
        has_avx512: bool = False,
        has_parts: bool = False,
        divides_slowly: bool = False,
        has_few_buffers: bool = False,
    ) -> None:
        self.name = name
        self.has_fma = has_fma
        self.has_avx512 = has_avx512
        self.divides_slowly = divides_slowly
        self.has_few_buffers = has_few_buffers
        self.shared_bytes = shared_bytes
        self.parts: dict[str, Callable[[], Module]] | None = {} if has_parts else None
        self.functions: dict[str, Function] = {}
        self.variables: dict[str, GlobalVariable] = {}
        self._metadata: list[str] = []

    def add_metadata(self, operands: Sequence[Value]) -> str:
        """The name of a metadata node."""
        return self.add_node(", ".join(map(str, operands)))

    def add_node(self, inside: str) -> str:
        """The name of a metadata node, given as text."""
        if inside not in self._metadata:
            self._metadata.append(inside)
        return f"!{self._metadata.index(inside)}"

    def __str__(self) -> str:
        nodes = [f"!{number} = !{{{text}}}" for number, text in enumerate(self._metadata)]
        variables = [variable.definition() for variable in self.variables.values()]
        functions = [function.definition() for function in self.functions.values()]
        return "\n".join((*variables, *functions, *nodes, ""))


class GlobalVariable(Value):
    """A variable of a module; its text is its address."""

    __slots__ = ("global_constant", "initializer", "linkage", "value_type")

    def __init__(self, module: Module, type_: Type, name: str) -> None:
        super().__init__(PointerType(), f'@"{name}"')
        self.value_type = type_
        self.initializer: Value | None = None
        self.global_constant = False
        self.linkage = ""
        module.variables[name] = self

    def definition(self) -> str:
        """The line that defines it."""
        kind = "constant" if self.global_constant else "global"
        return f"{self.text} = {self.linkage} {kind} {self.initializer}"


class Line:
    """An instruction without a value, to which metadata may be added."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def set_metadata(self, kind: str, node: str) -> None:
        """Add a metadata node of a kind."""
        self.text += f", !{kind} {node}"

    def __call__(self) -> str:
        return self.text


class Block:
    """A basic block: its lines, and what its instructions computed, by their text."""

    def __init__(self, function: Function, name: str) -> None:
        self.function = function
        self.name = name
        self.lines: list[str | Callable[[], str]] = []
        self.known: dict[str, Value] = {}
        self.dominator: Block | None = None
        self.is_terminated = False
        self._is_reached = False

    def reach(self, source: Block) -> None:
        """Note a branch to here. All branches but those from within come before the first instruction."""
        dominator = _common(self.dominator, source) if self._is_reached else source
        assert self.dominator in (None, dominator) or not self.lines, f"a late branch to {self.name}"
        self.dominator, self._is_reached = dominator, True

    def text(self) -> str:
        """Its label and lines."""
        lines = [line if isinstance(line, str) else line() for line in self.lines]
        return "\n".join([f"{self.name}:", *lines])


def _common(first: Block | None, second: Block | None) -> Block | None:
    """The nearest block that dominates both."""
    above: set[int] = set()
    while first is not None:
        above.add(id(first))
        first = first.dominator
    while second is not None and id(second) not in above:
        second = second.dominator
    return second


class Function(Value):
    """A function of a module: declared, or defined once it has blocks."""

    def __init__(self, module: Module, type_: FunctionType, name: str) -> None:
        super().__init__(PointerType(), f'@"{name}"')
        self.module = module
        self.name = name
        self.function_type = type_
        self.args = [Value(a, f"%a{number}") for number, a in enumerate(type_.args)]
        self.blocks: list[Block] = []
        self.attributes: set[str] = set()
        self.linkage = ""
        self.computed: set[str] = set()
        """The texts of what some block computes."""
        self._values = 0
        module.functions[name] = self

    def append_basic_block(self, name: str = "block") -> Block:
        """A new block at the end."""
        block = Block(self, f"{name}.{len(self.blocks)}")
        self.blocks.append(block)
        return block

    def new_name(self) -> str:
        """A name that no value has."""
        self._values += 1
        return f"%v{self._values}"

    def definition(self) -> str:
        """The text of the whole function."""
        result, attributes = self.function_type.return_type.text, " ".join(sorted(self.attributes))
        if not self.blocks:
            return f"declare {result} {self.text}({', '.join(a.text for a in self.function_type.args)}) {attributes}"
        linkage = f"{self.linkage} " if self.linkage else ""
        head = f"define {linkage}{result} {self.text}({', '.join(map(str, self.args))}) {attributes} {{"
        return "\n".join((head, *(block.text() for block in self.blocks), "}"))
