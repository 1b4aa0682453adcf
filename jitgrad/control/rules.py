"""Gradient rules of the control ops."""

from __future__ import annotations

from collections.abc import Mapping

from jitgrad.opdef import Vjp

BY_OP: Mapping[str, Vjp] = {}
