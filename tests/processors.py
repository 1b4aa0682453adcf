"""What tests need of the processor that they run on."""

from __future__ import annotations

import pytest

from jitgrad.compiler.products.registers import kinds

needs_registers = pytest.mark.skipif(not kinds(), reason="steps of our own need registers of 32 bytes")
