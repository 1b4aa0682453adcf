"""Benchmarks: workloads, and how they are measured; run with `python -m benchmarks`."""
