"""Emission: kernels of the loop IR become LLVM functions on vectors of lanes."""
