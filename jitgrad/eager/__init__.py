"""Eager mode: tensors with values, and tapes that record what is done with them; programs are made elsewhere."""

from jitgrad.eager import methods as methods
