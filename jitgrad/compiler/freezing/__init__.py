"""Freezing: plans as plain tuples, how they are kept, found again, carried to other shapes and bound."""
