"""Eager operations as LLVM IR text: NumPy computes, tensors are made, tapes are told, without Python between."""
