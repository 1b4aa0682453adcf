"""The table of simplification rules: op or kernel kind → rules, tried in order; the rules are next door."""

from __future__ import annotations

import functools

from jitgrad.compiler.rewriter import Rule
from jitgrad.compiler.rules import (
    algebra,
    convolutions,
    folding,
    gathers,
    logic,
    matrices,
    moves,
    orders,
    products,
    signs,
    special_functions,
    sums,
)
from jitgrad.opdef import Control, Elementwise, Interpreted, OpDef, Reduce, Scatter, Shaped, Update, View

BY_OP: dict[str, tuple[Rule, ...]] = {
    "add": (algebra.plus_zero, signs.plus_negative),
    "subtract": (algebra.minus_zero, signs.minus_negative),
    "multiply": (
        algebra.times_one,
        signs.times_minus_one,
        signs.product_of_negatives,
        signs.sign_out_of_product,
    ),
    "divide": (
        algebra.over_one,
        signs.over_minus_one,
        signs.product_of_negatives,
        algebra.over_power_of_two,
        signs.sign_out_of_product,
    ),
    "negative": (signs.double_negative, signs.negative_of_scaled),
    "square": (signs.even_of_negative, signs.square_of_absolute),
    "absolute": (signs.even_of_negative, algebra.idempotent),
    "power": (algebra.power_of_integer,),
    "logaddexp": (algebra.log_of_one_and_exponential,),
    "maximum": (algebra.extreme_of_same,),
    "minimum": (algebra.extreme_of_same,),
    "fmax": (algebra.extreme_of_same,),
    "fmin": (algebra.extreme_of_same,),
    "equal": (logic.integer_equals_itself,),
    "logical_and": (logic.of_same, logic.infinite_number),
    "logical_or": (logic.of_same,),
    "bitwise_and": (logic.of_same, logic.infinite_number),
    "bitwise_or": (logic.of_same,),
    "logical_not": (logic.double_not, logic.not_of_comparison),
    "where": (
        logic.choice_of_same,
        logic.choice_by_constant,
        logic.choice_by_negation,
        logic.choice_within_choice,
    ),
    "add_n": (
        moves.windows_side_by_side,
        algebra.short_sum,
        algebra.sum_of_sums_with_zero,
        algebra.zeros_of_sum,
        algebra.long_sum,
    ),
    "astype": (algebra.same_dtype, algebra.cast_of_cast),
    "broadcast_to": (
        moves.same_shape,
        moves.broadcast_of_broadcast,
        moves.broadcast_adds_units,
        moves.broadcast_of_units,
    ),
    "transpose": (
        moves.same_order,
        moves.transpose_of_transpose,
        moves.transpose_moves_units,
        products.transposed_product,
    ),
    "expand_dims": (moves.units_only,),
    "squeeze": (moves.units_only,),
    "flip": (moves.flip_nothing, moves.flip_of_flip),
    "getslice": (moves.slice_all,),
    "pad": (moves.pad_nothing,),
    "unslice": (moves.window_of_known_shape, moves.window_of_all),
    "concatenate": (moves.single_part, moves.many_parts),
    "stack": (moves.many_parts,),
    "matmul": (products.transposed_factor,),
    "convolve_windows": (convolutions.windows_as_products,),
    "convolve_filters": (convolutions.filters_as_products,),
    "solve": (matrices.solve_by_column, matrices.solve_by_factors),
    "solve_triangular": (matrices.solve_by_column, matrices.solve_by_rows, matrices.scale_after_solving),
    "solve_turned": (matrices.scale_after_solving,),
    "lu_solve": (matrices.scale_after_solving,),
    "eigh": (matrices.decomposed_in_double,),
    "svd": (matrices.decomposed_in_double,),
    "qr": (matrices.decomposed_in_double,),
    "pinv": (matrices.inverse_by_singular_values,),
    "inv": (matrices.inverse_by_factors,),
    "det": (matrices.determinant_by_factors,),
    "slogdet": (matrices.determinant_by_factors,),
    "eigvalsh": (matrices.values_with_vectors, matrices.decomposed_in_double),
    "svdvals": (matrices.values_with_vectors, matrices.decomposed_in_double),
    "take_along_axis": (gathers.gather_before_computing,),
    "sort": (orders.sorted_by_order,),
    "argsort": (orders.order_by_counting,),
    "ndtr": (special_functions.in_double, special_functions.normal_distribution),
    "log_ndtr": (special_functions.in_double, special_functions.log_of_normal_distribution),
    "normal_excess": (special_functions.in_double, special_functions.excess_of_normal_tail),
    "xlogy": (special_functions.product_with_log,),
    "xlog1py": (special_functions.product_with_log,),
}

BY_KIND: dict[type, tuple[Rule, ...]] = {
    View: (moves.same_shape, moves.view_of_view, moves.view_as_reshape, moves.view_of_reduction),
    Reduce: (sums.reduce_nothing, sums.reduce_of_broadcast, sums.reduce_all_of_copies, sums.reduce_of_reduce),
    Scatter: (moves.scatter_into_constant,),
    Update: (moves.update_of_update,),
    Shaped: (moves.shape_made_explicit,),
    Elementwise: (moves.broadcast_after_computing, moves.copies_after_computing, moves.view_after_computing),
}

@functools.lru_cache(maxsize=4096)
def rules_of(op: OpDef) -> tuple[Rule, ...]:
    """The rules for an op, in the order in which they are tried; none for ops with state.

    Constants are folded first, but for reductions: the sum of a splat is a splat, not a small array; loops are not run,
    nor is what runs in the interpreter.
    """
    if op.stateful:
        return ()
    if isinstance(op.kind, Interpreted):
        return BY_OP.get(op.name, ())
    if isinstance(op.kind, Elementwise) and op.kind.scalar == "identity":
        return (algebra.identity,)
    if isinstance(op.kind, Control):
        from jitgrad.compiler.rules.control import BY_FORM  # loaded for programs that have such, with many modules

        return BY_FORM[op.kind.form]
    rules = (*BY_OP.get(op.name, ()), *BY_KIND.get(type(op.kind), ()))
    return (*rules, *folding.RULES) if isinstance(op.kind, Reduce) else (*folding.RULES, *rules)


__all__ = ["BY_KIND", "BY_OP", "rules_of"]
