"""LLVM IR as text: what is written, what is not written twice, and that LLVM reads it."""

from __future__ import annotations

import ctypes

import pytest
from step_kernels import unique

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.machine import native

INT64, FLOAT, BOOL = ir.IntType(64), ir.FloatType(), ir.IntType(1)


def new_function(result: ir.Type, *args: ir.Type, name: str = "f") -> tuple[ir.Module, ir.Function, ir.IRBuilder]:
    module = ir.Module(name)
    function = ir.Function(module, ir.FunctionType(result, args), name)
    return module, function, ir.IRBuilder(function.append_basic_block("entry"))


def test_text_of_a_function() -> None:
    module, function, b = new_function(FLOAT, FLOAT, ir.PointerType())
    function.attributes.add("nounwind")
    x, pointer = function.args
    b.store(b.fadd(x, ir.Literal(FLOAT, "0x3ff0000000000000")), pointer, align=4)
    b.ret(b.load(pointer, FLOAT, align=4))
    assert str(module) == (
        'define float @"f"(float %a0, ptr %a1) nounwind {\n'
        "entry.0:\n"
        "  %v1 = fadd float %a0, 0x3ff0000000000000\n"
        "  store float %v1, ptr %a1, align 4\n"
        "  %v2 = load float, ptr %a1, align 4\n"
        "  ret float %v2\n"
        "}\n"
    )


def test_constants() -> None:
    lanes = ir.VectorType(INT64, 3)
    assert str(INT64(-4)) == "i64 -4"
    assert str(ir.Constant(lanes, [0, 1, 2])) == "<3 x i64> <i64 0, i64 1, i64 2>"
    assert str(ir.Constant(ir.VectorType(BOOL, 2), [1, 0])) == "<2 x i1> <i1 true, i1 false>"
    assert str(ir.Constant(lanes, ir.Undefined)) == "<3 x i64> poison"
    assert str(ir.splat(INT64, "7", 3)) == "<3 x i64> splat (i64 7)"
    assert lanes == ir.VectorType(ir.IntType(64), 3) != ir.VectorType(INT64, 4)


def test_what_was_computed_is_not_computed_again() -> None:
    _, function, b = new_function(INT64, INT64, INT64)
    x, y = function.args
    assert b.add(x, y) is b.add(x, y)
    assert b.add(x, y) is not b.add(x, y, flags=["nsw"])
    assert b.icmp_signed("<", x, y) is not b.icmp_unsigned("<", x, y)


def test_a_scalar_is_spread_once() -> None:
    _, function, b = new_function(FLOAT, FLOAT)
    spread = b.spread(function.args[0], 4)
    assert b.spread(function.args[0], 4) is spread and spread.type == ir.VectorType(FLOAT, 4)
    assert b.block.lines == [
        "  %v1 = insertelement <4 x float> poison, float %a0, i32 0",
        "  %v2 = shufflevector <4 x float> %v1, <4 x float> poison, <4 x i32> zeroinitializer",
    ]
    assert ir.vector_of(FLOAT, 4) is ir.vector_of(ir.FloatType(), 4) is not ir.vector_of(INT64, 4)


def test_words_are_read_from_their_places() -> None:
    _, function, b = new_function(INT64, ir.PointerType())
    number, other = b.load_words(function.args[0], [(3, FLOAT), (0, INT64)])
    assert (number.type, other.type) == (FLOAT, INT64)
    (address,) = b.load_entries(function.args[0], [other])
    assert address.type == ir.PointerType()
    b.ret(other)
    text = function.definition()
    assert "getelementptr i64, ptr %a0, i64 3\n  %v2 = load float" in text
    assert f"getelementptr i64, ptr %a0, i64 {other.text}\n  {address.text} = load ptr" in text


def test_what_memory_held_is_read_again() -> None:
    _, function, b = new_function(INT64, ir.PointerType())
    (pointer,) = function.args
    assert b.load(pointer, INT64) is not b.load(pointer, INT64)


def test_only_blocks_above_are_looked_through() -> None:
    _, function, b = new_function(INT64, INT64, BOOL)
    x, condition = function.args
    before = b.mul(x, x)
    with b.if_else(condition) as (then, otherwise):
        with then:
            assert b.mul(x, x) is before
            inside = b.add(x, x)
        with otherwise:
            assert b.add(x, x) is not inside
    assert b.add(x, x) is not inside
    assert b.mul(x, x) is before


def test_a_loop_that_may_not_run_leaves_nothing_behind() -> None:
    _, function, b = new_function(INT64, INT64, BOOL)
    x, condition = function.args
    loop, done = b.append_basic_block("loop"), b.append_basic_block("done")
    b.cbranch(condition, loop, done)
    b.position_at_end(loop)
    inside = b.add(x, x)
    b.cbranch(condition, loop, done)
    b.position_at_end(done)
    assert b.add(x, x) is not inside


def test_a_branch_to_a_block_that_has_begun_is_refused() -> None:
    _, function, b = new_function(INT64, INT64, BOOL)
    x, condition = function.args
    first, second, last = (b.append_basic_block() for _ in range(3))
    b.cbranch(condition, first, second)
    b.position_at_end(first)
    b.branch(last)
    b.position_at_end(last)
    b.add(x, x)
    b.position_at_end(second)
    with pytest.raises(AssertionError, match="late branch"):
        b.branch(last)


def test_llvm_reads_all_of_it() -> None:
    name = unique("NAME")[0]
    module, function, b = new_function(INT64, INT64, name=name)
    (x,) = function.args
    cell = b.alloca(INT64)
    b.store(x, cell).set_metadata("nontemporal", module.add_metadata([ir.IntType(32)(1)]))
    with b.if_then(b.icmp_signed(">", x, INT64(10)), likely=False):
        b.store(b.sub(b.neg(x), b.not_(x)), cell)
    table = ir.GlobalVariable(module, ir.ArrayType(INT64, 2), "table")
    table.initializer, table.global_constant, table.linkage = ir.Constant(table.value_type, [5, 6]), True, "internal"
    b.fence("seq_cst")
    count = ir.Function(module, ir.FunctionType(INT64, [INT64]), "llvm.ctpop.i64")
    bits = b.call(count, [x])
    b.ret(b.add(b.add(b.load(cell, INT64), b.load(b.gep(table, [INT64(1)], INT64), INT64)), bits))
    assert "!prof !1" in str(module)
    address = native.compile_module(str(module), [name])[name]
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)
    assert (call(7), call(11)) == (7 + 6 + 3, 1 + 6 + 3)


def test_a_product_is_contracted_where_both_flags_say_so() -> None:
    module, function, b = new_function(FLOAT, FLOAT, FLOAT, FLOAT)
    module.has_fma = True
    x, y, z = function.args
    product = b.fmul(x, y, flags=("contract",))
    assert b.fadd(z, product) is b.fadd(z, b.fmul(x, y))
    total, rest = b.fadd(z, product, flags=("contract",)), b.fsub(z, product, flags=("contract",))
    b.ret(b.fadd(total, rest))
    text = str(module)
    assert f"{total.text} = call float @\"llvm.fma.f32\"(float %a0, float %a1, float %a2)" in text
    assert text.count("call") == 2 and text.count("fmul") == 1
    assert "contract" not in text
    module.has_fma = False
    assert b.fadd(z, product, flags=("contract",)) is b.fadd(z, product)
