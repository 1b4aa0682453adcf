"""Clustering: which instructions of a program run together as one native call."""
