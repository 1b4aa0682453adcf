"""The builder: writes instructions at the end of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from jitgrad.compiler.llvmir.module import Block, Function, Line, Module
from jitgrad.compiler.llvmir.types import FunctionType, IntType, PointerType, Type, VectorType, vector_of
from jitgrad.compiler.llvmir.values import Cell, Constant, Phi, Product, Value

_BOOL, _POINTER = IntType(1), PointerType()
_RELATIONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_WEIGHTS = {True: '!"branch_weights", i32 99, i32 1', False: '!"branch_weights", i32 1, i32 99'}

_Write = Callable[..., Value]


def _binary(opcode: str) -> _Write:
    def write(self: IRBuilder, x: Value, y: Value, flags: Sequence[str] = ()) -> Value:
        marks = " ".join(("", *flags)) if flags else ""
        return self._pure(x.type, f"{opcode}{marks} {x.type.text} {x.text}, {y.text}")

    return write


def _conversion(opcode: str) -> _Write:
    def write(self: IRBuilder, x: Value, type_: Type) -> Value:
        return self._pure(type_, f"{opcode} {x.type.text} {x.text} to {type_.text}")

    return write


class IRBuilder:
    """Writes instructions; those without effects only where their value is not known yet."""

    def __init__(self, block: Block) -> None:
        self.block = block

    @property
    def function(self) -> Function:
        """The function that is being written."""
        return self.block.function

    @property
    def module(self) -> Module:
        """Its module."""
        return self.block.function.module

    def append_basic_block(self, name: str = "block") -> Block:
        """A new block at the end of the function."""
        return self.function.append_basic_block(name)

    @contextmanager
    def goto_entry_block(self) -> Iterator[None]:
        """What is written inside comes first of all in the function."""
        block, entry = self.block, self.function.blocks[0]
        written, entry.lines = entry.lines, []
        self.block = entry
        yield
        entry.lines += written
        self.block = block

    def position_at_end(self, block: Block) -> None:
        """Go on in another block."""
        self.block = block

    def _pure(self, type_: Type, text: str) -> Value:
        block = self.block
        computed = block.function.computed
        if text in computed:
            above: Block | None = block
            while above is not None:
                known = above.known.get(text)
                if known is not None:
                    return known
                above = above.dominator
        computed.add(text)
        name = block.function.new_name()
        value = block.known[text] = Value(type_, name)
        block.lines.append(f"  {name} = {text}")
        return value

    def _write(self, type_: Type, text: str) -> Value:
        name = self.block.function.new_name()
        self.block.lines.append(f"  {name} = {text}")
        return Value(type_, name)

    # -- arithmetic ------------------------------------------------------------------------------------------

    add, sub, mul = _binary("add"), _binary("sub"), _binary("mul")
    sdiv, udiv, srem, urem = _binary("sdiv"), _binary("udiv"), _binary("srem"), _binary("urem")
    and_, or_, xor = _binary("and"), _binary("or"), _binary("xor")
    shl, lshr, ashr = _binary("shl"), _binary("lshr"), _binary("ashr")
    fdiv, frem = _binary("fdiv"), _binary("frem")
    _fadd, _fsub, _fmul = _binary("fadd"), _binary("fsub"), _binary("fmul")
    trunc, zext, sext, bitcast = (_conversion(name) for name in ("trunc", "zext", "sext", "bitcast"))
    fptrunc, fpext, fptosi, fptoui = (_conversion(name) for name in ("fptrunc", "fpext", "fptosi", "fptoui"))
    sitofp, uitofp, ptrtoint, inttoptr = (_conversion(n) for n in ("sitofp", "uitofp", "ptrtoint", "inttoptr"))

    def fmul(self, x: Value, y: Value, flags: Sequence[str] = ()) -> Value:
        """x * y. The flag "contract" allows that a sum with the same flag rounds once, here and not by LLVM, so that
        every way to compile the module gives the same bits.
        """
        product = self._fmul(x, y)
        return Product(product, (x, y)) if "contract" in flags else product

    def fadd(self, x: Value, y: Value, flags: Sequence[str] = ()) -> Value:
        """x + y."""
        if "contract" in flags and self.module.has_fma:
            for product, other in ((x, y), (y, x)):
                if isinstance(product, Product):
                    return self._fma(*product.factors, other)
        return self._fadd(x, y)

    def fsub(self, x: Value, y: Value, flags: Sequence[str] = ()) -> Value:
        """x - y."""
        if "contract" in flags and self.module.has_fma and isinstance(y, Product):
            return self._fma(self.fneg(y.factors[0]), y.factors[1], x)
        return self._fsub(x, y)

    def _fma(self, x: Value, y: Value, z: Value) -> Value:
        name = f"llvm.fma.{x.type.suffix}"
        function = self.module.functions.get(name) or Function(self.module, FunctionType(x.type, [x.type] * 3), name)
        return self.call(function, [x, y, z])

    def fneg(self, x: Value) -> Value:
        """-x."""
        return self._pure(x.type, f"fneg {x}")

    def neg(self, x: Value) -> Value:
        """-x of integers."""
        return self._pure(x.type, f"sub {x.type.text} {_same(x.type, 0)}, {x.text}")

    def not_(self, x: Value) -> Value:
        """All bits the other way."""
        return self._pure(x.type, f"xor {x}, {_same(x.type, -1)}")

    def icmp_signed(self, relation: str, x: Value, y: Value) -> Value:
        """Comparison of signed integers."""
        return self._integers("s", relation, x, y)

    def icmp_unsigned(self, relation: str, x: Value, y: Value) -> Value:
        """Comparison of unsigned integers."""
        return self._integers("u", relation, x, y)

    def _integers(self, sign: str, relation: str, x: Value, y: Value) -> Value:
        name = _RELATIONS[relation]
        return self._compare("icmp", name if name in ("eq", "ne") else sign + name, x, y)

    def fcmp_ordered(self, relation: str, x: Value, y: Value) -> Value:
        """Comparison of floats, false where one is NaN; or "ord"."""
        return self._compare("fcmp", "o" + _RELATIONS[relation] if relation in _RELATIONS else relation, x, y)

    def fcmp_unordered(self, relation: str, x: Value, y: Value) -> Value:
        """Comparison of floats, true where one is NaN; or "uno"."""
        return self._compare("fcmp", "u" + _RELATIONS[relation] if relation in _RELATIONS else relation, x, y)

    def _compare(self, opcode: str, condition: str, x: Value, y: Value) -> Value:
        type_ = vector_of(_BOOL, x.type.count) if isinstance(x.type, VectorType) else _BOOL
        return self._pure(type_, f"{opcode} {condition} {x.type.text} {x.text}, {y.text}")

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """One of two values, lane by lane where the condition has lanes."""
        return self._pure(yes.type, f"select {condition}, {yes}, {no}")

    def freeze(self, x: Value) -> Value:
        """x; LLVM forgets where it comes from."""
        return self._pure(x.type, f"freeze {x}")

    # -- vectors ---------------------------------------------------------------------------------------------

    def insert_element(self, vector: Value, value: Value, place: Value) -> Value:
        """The vector with one lane replaced."""
        return self._pure(vector.type, f"insertelement {vector}, {value}, {place}")

    def extract_element(self, vector: Value, place: Value) -> Value:
        """A lane."""
        assert isinstance(vector.type, VectorType)
        return self._pure(vector.type.element, f"extractelement {vector}, {place}")

    def shuffle_vector(self, first: Value, second: Value, picks: Value) -> Value:
        """Lanes of two vectors by number."""
        assert isinstance(first.type, VectorType)
        assert isinstance(picks.type, VectorType)
        type_ = vector_of(first.type.element, picks.type.count)
        return self._pure(type_, f"shufflevector {first}, {second}, {picks}")

    def spread(self, value: Value, count: int) -> Value:
        """A scalar in so many lanes."""
        type_ = vector_of(value.type, count)
        single = self._pure(type_, f"insertelement {type_.text} poison, {value}, i32 0")
        nothing, zeros = f"{type_.text} poison", f"<{count} x i32> zeroinitializer"
        return self._pure(type_, f"shufflevector {single}, {nothing}, {zeros}")

    # -- memory ----------------------------------------------------------------------------------------------

    def alloca(self, type_: Type) -> Cell:
        """A place on the stack."""
        cell = Cell(type_, self.function.new_name())
        self.block.lines.append(f"  {cell.text} = alloca {type_.text}")
        return cell

    def gep(self, pointer: Value, indices: Sequence[Value], source_etype: Type) -> Value:
        """An address, or a vector of them where an index is a vector, from indices of elements of a type."""
        type_: Type = _POINTER
        for index in indices:
            if isinstance(index.type, VectorType):
                type_ = vector_of(_POINTER, index.type.count)
        return self._pure(type_, f"getelementptr {source_etype.text}, {pointer}, {', '.join(map(str, indices))}")

    def load_words(self, pointer: Value, words: Iterable[tuple[int, Type]]) -> list[Value]:
        """What lies at an address of words of 64 bits, by their numbers. There are many: no table of known values is
        asked.
        """
        new_name, lines, base = self.function.new_name, self.block.lines, pointer.text
        loaded = []
        for number, type_ in words:
            place, name = new_name(), new_name()
            lines.append(f"  {place} = getelementptr i64, ptr {base}, i64 {number}")
            lines.append(f"  {name} = load {type_.text}, ptr {place}")
            loaded.append(Value(type_, name))
        return loaded

    def load_entries(self, table: Value, numbers: Iterable[Value]) -> list[Value]:
        """The addresses that a table has in its places of these numbers."""
        new_name, lines, base = self.function.new_name, self.block.lines, table.text
        loaded = []
        for number in numbers:
            place, name = new_name(), new_name()
            lines.append(f"  {place} = getelementptr i64, ptr {base}, i64 {number.text}")
            lines.append(f"  {name} = load ptr, ptr {place}")
            loaded.append(Value(_POINTER, name))
        return loaded

    def load(self, pointer: Value, typ: Type, align: int | None = None) -> Value:
        """What lies at an address."""
        return self._write(typ, f"load {typ.text}, {pointer}{_aligned(align)}")

    def store(self, value: Value, pointer: Value, align: int | None = None) -> Line:
        """Put a value at an address."""
        line = Line(f"  store {value}, {pointer}{_aligned(align)}")
        self.block.lines.append(line)
        return line

    def fence(self, ordering: str) -> None:
        """Order memory accesses."""
        self.block.lines.append(f"  fence {ordering}")

    # -- control ---------------------------------------------------------------------------------------------

    def call(self, function: Function, args: Sequence[Value]) -> Value:
        """Call a function; intrinsics that do not touch memory are instructions without effects."""
        result = function.function_type.return_type
        text = f"call {result.text} {function.text}({', '.join(map(str, args))})"
        if result.text == "void":
            self.block.lines.append(f"  {text}")
            return Value(result, "")
        is_pure = function.name.startswith("llvm.") and not function.name.startswith("llvm.masked.")
        return self._pure(result, text) if is_pure else self._write(result, text)

    def phi(self, type_: Type) -> Phi:
        """A value that depends on where control comes from; before all other instructions of a block."""
        phi = Phi(type_, self.function.new_name())
        self.block.lines.append(phi.line)
        return phi

    def branch(self, target: Block) -> None:
        """Go to a block."""
        self._leave(f"br label %{target.name}", target)

    def cbranch(self, condition: Value, yes: Block, no: Block, likely: bool | None = None) -> None:
        """Go to one of two blocks; ``likely`` says whether it is mostly the first."""
        mark = ""
        if likely is not None:
            mark = f", !prof {self.module.add_node(_WEIGHTS[likely])}"
        self._leave(f"br {condition}, label %{yes.name}, label %{no.name}{mark}", yes, no)

    def ret(self, value: Value) -> None:
        """Return a value."""
        self._leave(f"ret {value}")

    def ret_void(self) -> None:
        """Return."""
        self._leave("ret void")

    def _leave(self, text: str, *targets: Block) -> None:
        self.block.lines.append(f"  {text}")
        self.block.is_terminated = True
        for target in targets:
            target.reach(self.block)

    @contextmanager
    def if_then(self, condition: Value, likely: bool | None = None) -> Iterator[Block]:
        """What is written inside runs where the condition holds; the builder is left behind it."""
        then, after = self.append_basic_block("then"), self.append_basic_block("after")
        self.cbranch(condition, then, after, likely)
        self.position_at_end(then)
        yield after
        if not self.block.is_terminated:
            self.branch(after)
        self.position_at_end(after)

    @contextmanager
    def if_else(self, condition: Value, likely: bool | None = None) -> Iterator[tuple[_Arm, _Arm]]:
        """Two contexts to write what runs where the condition holds and where not; the builder is left behind both."""
        then, otherwise, after = (self.append_basic_block(name) for name in ("then", "else", "after"))
        self.cbranch(condition, then, otherwise, likely)
        yield _Arm(self, then, after), _Arm(self, otherwise, after)
        self.position_at_end(after)


class _Arm:
    """One side of an alternative, as a context."""

    def __init__(self, builder: IRBuilder, block: Block, after: Block) -> None:
        self._builder = builder
        self._block = block
        self._after = after

    def __enter__(self) -> Block:
        self._builder.position_at_end(self._block)
        return self._block

    def __exit__(self, *error: object) -> None:
        if not self._builder.block.is_terminated:
            self._builder.branch(self._after)


def _aligned(align: int | None) -> str:
    return "" if align is None else f", align {align}"


def _same(type_: Type, value: int) -> str:
    """An integer as a constant of a type, in all lanes when there are any."""
    if isinstance(type_, VectorType):
        return f"splat ({type_.element.text} {Constant(type_.element, value).text})"
    return Constant(type_, value).text
