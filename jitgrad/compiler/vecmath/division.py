"""Quotients by a divisor that others have, too, of float64 in registers of 64 bytes; other divisions are the divider's.

Intel's divider takes 16 cycles for eight quotients, and no other begins meanwhile. A reciprocal takes 5 cycles of
arithmetic, and with it each quotient 4, between which other instructions find room. After Markstein (1990): the
reciprocal of the divisor's significand is as near as a number of this precision can be, and one step by the remainder,
which is exact, rounds as division does. So the bits are those of division, with two exceptions: a denormal quotient is
rounded twice, and a power of two over a number whose bits are all ones is one unit too small, by which its error is
0.5 + 2**-53 units.
"""

from __future__ import annotations

from jitgrad.compiler.vecmath.lanes import (
    Real,
    by_registers,
    exponent,
    fma,
    near_reciprocal,
    significand,
    times_power_of_two,
)


def quotient(x: Real, y: Real) -> Real:
    """x / y; what is made of y alone is written once for all quotients by y."""
    if not (x.lanes.is_double and x.lanes.has_scaling and x.lanes.builder.module.divides_slowly):
        return x / y
    return by_registers(_quotient, x, y)


def _quotient(x: Real, y: Real) -> Real:
    part, divisor = significand(x), significand(y)
    inverse = _inverse(divisor)
    near = part * inverse
    return times_power_of_two(fma(fma(-near, divisor, part), inverse, near), exponent(x) - exponent(y))


def _inverse(y: Real) -> Real:
    """1 / y for 1 <= |y| < 2, to half a unit and 2**-31 of one: within 2**-14, then 2**-42 of it, then rounded."""
    value = near_reciprocal(y)
    error = fma(-y, value, 1.0)
    value = fma(value, fma(error, error, error), value)
    return fma(value, fma(-y, value, 1.0), value)
