"""Simplification of instructions that run programs: branches, loops, calls; the pipeline is in simplify.py."""
