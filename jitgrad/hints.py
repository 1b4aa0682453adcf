"""What to do where code wants the value of a traced tensor: the last line of the errors that operators raises."""

from __future__ import annotations

BRANCH = (
    "use jg.cond(condition, f, g) for if, jg.while_loop for while, np.where(condition, a, b) element by element; or "
    "make what decides a static argument (static_argnames)"
)
ARRAY = (
    "use jitgrad.numpy, which has the same names (jitgrad.numpy.array([a, b]), asarray(x)), a @ x in place "
    "of a.dot(x), or jg.py_func"
)
TABLE = "jitgrad.numpy.asarray(table)[i] in place of table[i]; a table that is an argument is indexed as it is"
LISTED = (
    "make an array of a list of traced values first: np.stack([a, b]), np.concatenate, np.column_stack (also for r_ "
    "and c_) or jitgrad.numpy.array([a, b]); for what NumPy does item by item, jg.py_func"
)
COUNT = (
    "make the argument static (static_argnames) where it says how long an array is; start + step * np.arange(n) has "
    "traced bounds, and so has np.linspace"
)
DRAW = (
    "jg.random_normal(shape, mean, deviation) and jg.random_uniform take traced values and draw anew at each call; or "
    "draw before the call, and pass the numbers as an argument"
)
EXTREME = "np.maximum(a, b) and np.minimum(a, b) in place of max and min, np.max(x) of an array, np.sort for sorted"
MASK = "np.compress(mask, a, axis=0) or jitgrad.numpy.asarray(a)[mask] in place of a[mask] for an array a of NumPy"
KNOWN_ARRAY = (
    "np.asarray of a tensor whose values are known gives an array that is read-only: np.array(x) gives a copy to write "
    "to, and x[...] = y writes to the tensor"
)
ZEROS = "np.zeros_like(x) of a traced x, jitgrad.numpy.zeros or, in a graph, jg.constant(np.zeros(shape))"
FILLED = f"make the array with {ZEROS}: an array of NumPy cannot hold traced values"
SCIPY = (
    "use jitgrad.scipy, which has functions of linalg, stats, signal, integrate, fft and special under SciPy's names "
    "(jitgrad.scipy.linalg.solve_triangular), or jg.py_func"
)
SHUFFLE = (
    "one permutation would be kept for all calls: pass it as an argument (x[permutation]), or shuffle before the call"
)
AT = (
    "x[i] = np.{name}(x[i], values) where no position comes twice; else one update after another: jg.scan over "
    "positions and values, with x as the state"
)
REPEAT = "np.asarray([a, b]) * n multiplies; make the argument static (static_argnames) to repeat a list"
INDEX = (
    "jitgrad.numpy.asarray(table)[i] in place of table[i] for a list, jg.fori_loop in place of a loop over range(n), "
    "or make the argument static (static_argnames; of a dataclass the field, field(metadata={'static': True}))"
)
FLOAT = (
    "use NumPy's functions in place of math's (np.sin for math.sin), keep the value as an array, return it from the "
    "function, or make the argument static (static_argnames)"
)
INT = (
    "x.astype(int) truncates as int() does, and gives an array; or return the value from the function, or make the "
    "argument static (static_argnames)"
)
SCALAR = "keep the value as an array, return it from the function, or make the argument static (static_argnames)"
