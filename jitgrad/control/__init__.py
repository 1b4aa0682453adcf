"""Control flow: ops that run sub-programs by condition or repetition, their gradients, and the functions that
build them.
"""
