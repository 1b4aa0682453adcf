"""LLVM IR, written as text: types, values, blocks, and a builder with one method per instruction. It knows neither
kernels nor dtypes, and checks nothing: LLVM does, when it reads the text.

The names are those of llvmlite.ir, of which this is the part that the emitters need. An instruction is one string, so
it takes a fifth of the time, and one without effects that was written before, in this block or in one that dominates
it, is not written again.
"""

from jitgrad.compiler.llvmir.builder import IRBuilder
from jitgrad.compiler.llvmir.module import Block, Function, GlobalVariable, Module
from jitgrad.compiler.llvmir.types import (
    ArrayType,
    DoubleType,
    FloatType,
    FunctionType,
    IntType,
    PointerType,
    Type,
    VectorType,
    VoidType,
    vector_of,
)
from jitgrad.compiler.llvmir.values import Cell, Constant, Joined, Literal, Phi, Undefined, Value, splat

__all__ = [
    "ArrayType",
    "Block",
    "Cell",
    "Constant",
    "DoubleType",
    "FloatType",
    "Function",
    "FunctionType",
    "GlobalVariable",
    "IRBuilder",
    "IntType",
    "Joined",
    "Literal",
    "Module",
    "Phi",
    "PointerType",
    "Type",
    "Undefined",
    "Value",
    "VectorType",
    "VoidType",
    "splat",
    "vector_of",
]
