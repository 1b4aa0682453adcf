"""Fusion: the computing instructions of a cluster as nodes, and which of them share a loop nest."""
