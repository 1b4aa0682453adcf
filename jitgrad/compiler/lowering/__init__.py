"""Lowering: fusion groups become kernels of the loop IR."""
