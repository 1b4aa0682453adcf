"""Calls from Python: arguments are matched and unboxed and results are made in machine code."""
