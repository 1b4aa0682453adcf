"""Graph functions: called as one operation, inlined where a program is made, differentiated as functions again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.spec import spec_of

Fn = Callable[..., Any]
X = np.linspace(-1, 1.5, 6)
ATTRS = ("_XlaCompile", "_XlaScope", "_XlaSeparateCompiledGradients")


def run(fetches: Any, feeds: dict[Any, Any]) -> Any:
    """Values in the graph of the feeds, compiled and equal to interpreted ones."""
    session = jg.Session(next(iter(feeds)).graph)
    got = session.run(fetches, feeds)
    runner, arrays = session.prepared(fetches, feeds)
    expected = dict(zip(runner.fetches, runner.interpret(arrays), strict=True))
    for t, value in zip(fetches if isinstance(fetches, list) else [fetches], got if isinstance(got, list) else [got],
                        strict=True):  # fmt: skip
        if t in expected:
            np.testing.assert_allclose(value, expected[t], rtol=1e-11, atol=1e-12)
    return got


def clusters(fetches: Any, feeds: dict[Any, Any]) -> list[tuple[str, list[str]]]:
    """Scope and ops of each cluster of a run, in order."""
    found = []
    for stage, arrays in jg.Session(next(iter(feeds)).graph).stages(fetches, feeds):
        for compiled in stage.executable(arrays).explanation.compiled:
            for c in compiled.clustering.clusters:
                ops = [compiled.program.instructions[n].op.name for n in c.instructions]
                found.append((c.scope, [name for name in ops if name != "constant"]))
    return found


def program_of(fetches: list[Any], feeds: dict[Any, Any]) -> Any:
    """The program of a run with one stage."""
    ((stage, arrays),) = jg.Session(next(iter(feeds)).graph).stages(fetches, feeds)
    return stage.program([spec_of(a) for a in arrays])


@pytest.fixture
def x() -> Any:
    """A placeholder of six numbers in a graph of its own, which is the default one."""
    with jg.Graph().as_default():
        yield jg.placeholder(np.float64, (6,), name="x")


# -- definitions -------------------------------------------------------------------------------------------------------


def test_a_call_is_one_operation(x: Any) -> None:
    @jg.function
    def wave(a: Any, b: Any) -> Any:
        return np.sin(a) * b

    before = len(x.graph.operations)
    y = wave(x, x)
    assert len(x.graph.operations) == before + 1
    assert y.op.type == "wave" and list(y.op.inputs) == [x, x]
    assert list(x.graph.functions) == ["wave"]
    assert [op.type for op in x.graph.functions["wave"].operations][-2:] == ["sin", "multiply"]
    np.testing.assert_allclose(run(y, {x: X}), np.sin(X) * X)


def test_inlined_instructions_are_named_after_the_call(x: Any) -> None:
    @jg.function
    def wave(a: Any) -> Any:
        return np.sin(a) + 1

    with jg.name_scope("part"):
        y = wave(x)
    names = [ins.origin.name for ins in program_of([y], {x: X}).instructions]
    assert "part/wave/sin" in names
    assert not {"wave", "call"} & {ins.op.name for ins in program_of([y], {x: X}).instructions}


def test_one_definition_per_dtypes_and_known_shapes(x: Any) -> None:
    traced = []

    @jg.function(func_name="twice")
    def fn(a: Any) -> Any:
        traced.append(a.shape)
        return a + a

    other = jg.placeholder(np.float32, (None,))
    assert fn(x).op.type == fn(x * 2).op.type == "twice"
    assert fn(other).op.type == "twice_1" and fn(other * 3).op.type == "twice_1"
    assert traced == [(6,), (None,)]
    assert list(x.graph.functions) == ["twice", "twice_1"]
    with jg.Graph().as_default() as second:
        fn(jg.placeholder(np.float64, (6,)))
    assert list(second.functions) == ["twice"] and len(traced) == 3


@pytest.mark.parametrize("name", ["add", "where", "constant", "identity", "add_n", "scatter_take", "matmul", "square"])
def test_names_of_ops_are_names_of_functions(x: Any, name: str) -> None:
    fn = jg.function(lambda a: 3 * a * a, func_name=name)
    y = fn(x)
    assert y.op.type in (name, f"{name}_1") and x.graph.functions[y.op.type].name == y.op.type
    (dx,) = jg.gradients([y + fn(y)], [x])
    np.testing.assert_allclose(run([y, dx], {x: X})[1], 6 * X + 108 * X**3)


def test_trees_in_and_out(x: Any) -> None:
    @jg.function
    def fn(d: dict[str, Any], pair: Any, *, scale: float, mode: str = "up") -> Any:
        assert mode == "down"
        return {"sum": d["a"] + pair[0], "both": (scale * pair[1], None)}

    got = fn({"a": x}, (x, np.arange(6.0)), scale=3.0, mode="down")
    assert got["both"][1] is None
    total, scaled = run([got["sum"], got["both"][0]], {x: X})
    np.testing.assert_allclose(total, 2 * X)
    np.testing.assert_allclose(scaled, 3 * np.arange(6.0))


def test_two_outputs_are_two_arrays(x: Any) -> None:
    @jg.function(compiled=True)
    def fn(a: Any) -> Any:
        y = a * 2
        return y, y, a, 7.0

    y, again, same, seven = run(list(fn(x)), {x: X})
    y[:] = 0
    np.testing.assert_allclose(again, 2 * X)
    same[:] = 0
    assert seven == 7.0 and X[0] == -1


def test_python_numbers_stay_weak(x: Any) -> None:
    small = jg.placeholder(np.float32, ())

    @jg.function
    def fn(a: Any, k: Any) -> Any:
        return a * k, k

    y, k = fn(small, 2.0)
    assert y.dtype == np.float32 and (small * k).dtype == np.float32


def test_no_results_give_the_operation(x: Any) -> None:
    seen = []

    @jg.function
    def log(a: Any) -> None:
        jg.py_func(lambda v: seen.append(v.sum()) or np.float64(0), [a], np.float64)

    op = log(x)
    assert isinstance(op, jg.Operation) and op.type == "log"
    jg.Session(x.graph).run(op, {x: X})
    with jg.control_dependencies([op]):
        y = x + 1
    jg.Session(x.graph).run(y, {x: X})
    assert seen == [pytest.approx(X.sum())] * 2
    nothing = jg.function(lambda a: None, func_name="nothing")(x)
    assert nothing.outputs == () and jg.Session(x.graph).run(nothing, {x: X}) is None


def test_a_method(x: Any) -> None:
    class Layer:
        def __init__(self, w: float) -> None:
            self.w = w

        @jg.function
        def apply(self, a: Any) -> Any:
            return a * self.w

    one, two = Layer(2.0), Layer(3.0)
    np.testing.assert_allclose(run([one.apply(x), two.apply(x)], {x: X}), [2 * X, 3 * X])
    assert list(x.graph.functions) == ["apply", "apply_1"]


@pytest.mark.parametrize("rank_known", [True, False])
def test_one_definition_serves_all_shapes(rank_known: bool) -> None:
    with jg.Graph().as_default() as graph:
        x = jg.placeholder(np.float64, (None,) if rank_known else None)

        @jg.function(compiled=True)
        def fn(a: Any) -> Any:
            return np.tanh(a) * a

        (dx,) = jg.gradients([fn(x)], [x])
    for n in (3, 5, 0):
        a = np.linspace(0, 1, n)
        np.testing.assert_allclose(run(dx, {x: a}), np.tanh(a) + a * (1 - np.tanh(a) ** 2))
    assert list(graph.functions) == ["fn", "fn_grad"]


def test_outputs_and_captures_can_be_fed(x: Any) -> None:
    c = x * 3
    fn = jg.function(lambda a: (a * c, a + c), func_name="fn")
    p, q = fn(x)
    total = p + q
    np.testing.assert_allclose(run(total, {x: X, p: np.ones(6)}), 1 + 4 * X)
    np.testing.assert_allclose(run(total, {x: X, c: np.zeros(6)}), X)


# -- scopes ------------------------------------------------------------------------------------------------------------


def attrs_of(thing: Any) -> tuple[Any, ...]:
    """Its compilation attributes; None for one that it has not."""
    return tuple(thing.attrs.get(key) for key in ATTRS)


def test_operations_inside_carry_no_scope(x: Any) -> None:
    @jg.function(compiled=True)
    def inner(a: Any) -> Any:
        with jg.jit_scope():
            return np.exp(a)

    @jg.function(compiled=True)
    def outer(a: Any) -> Any:
        return jg.cond(a[0] > 0, lambda: np.sin(a), lambda: a) * 2

    with jg.jit_scope():
        y = inner(x) + outer(x)
        with jg.jit_scope(compile_ops=False):
            z = inner(x)
    for name in ("inner", "outer"):
        definition = x.graph.functions[name]
        assert all(attrs_of(op) == (None, None, None) for op in definition.graph.operations)
        assert attrs_of(definition) == (True, "jit_scope_0", False)
    assert attrs_of(z.op) == attrs_of(y.op.inputs[0].op) == (True, "jit_scope_0", False)
    with jg.jit_scope():
        assert attrs_of((x + 1).op)[1] == "jit_scope_1"


def test_scope_is_that_of_the_first_call(x: Any) -> None:
    inside, outside = (jg.function(np.square, func_name=name, compiled=True) for name in ("inside", "outside"))
    outside(x)
    with jg.jit_scope():
        first = inside(x)
        assert attrs_of(outside(x).op) == (True, "function_outside", False)
    assert attrs_of(inside(first).op) == (True, "jit_scope_0", False)
    assert x.graph.functions["outside"].get_attr("_XlaScope") == "function_outside"
    with pytest.raises(LookupError, match="colour"):
        x.graph.functions["outside"].get_attr("colour")


def test_a_function_that_says_nothing_goes_with_its_call(x: Any) -> None:
    fn = jg.function(np.square, func_name="fn")
    assert attrs_of(fn(x).op) == (None, None, None)
    with jg.jit_scope(separate_compiled_gradients=True):
        y = fn(x)
        assert attrs_of(y.op) == (True, "jit_scope_0", True)
    assert attrs_of(x.graph.functions["fn"]) == (None, None, None)
    assert clusters([y], {x: X}) == [("jit_scope_0", ["square"])]


def test_a_function_that_is_not_compiled_cuts_its_scope(x: Any) -> None:
    apart = jg.function(lambda a: np.sin(a) + 1, func_name="apart", compiled=False)
    whole = jg.function(lambda a: np.cos(apart(a)), func_name="whole", compiled=True)
    with jg.jit_scope():
        y = np.exp(apart(np.exp(x)))
    z = whole(x)
    assert clusters([y], {x: X}) == [("jit_scope_0", ["exp"])] * 2
    assert clusters([z], {x: X}) == [("function_whole", ["cos"])]
    np.testing.assert_allclose(run(z, {x: X}), np.cos(np.sin(X) + 1))


def test_flag_of_the_function_wins(x: Any) -> None:
    fn = jg.function(np.square, func_name="fn", separate_compiled_gradients=True)
    with jg.jit_scope():
        y = fn(x) * 2
    (dx,) = jg.gradients([y], [x], name="GA")
    assert attrs_of(y.op)[2] is False and attrs_of(dx.op) == (True, "jit_scope_0_grad_GA", True)


@pytest.mark.parametrize("noinline", [False, True])
@pytest.mark.parametrize("is_separate", [False, True])
@pytest.mark.parametrize("in_scope", [False, True])
def test_scopes_of_gradient_calls(x: Any, is_separate: bool, in_scope: bool, noinline: bool) -> None:
    @jg.function(compiled=True, noinline=noinline, separate_compiled_gradients=is_separate)
    def mulop(a: Any, b: Any) -> Any:
        return a * b

    with jg.jit_scope(in_scope) if in_scope else jg.name_scope("plain"):
        r = mulop(x, x)
    (g,) = jg.gradients(r, x, name="GA")
    (h,) = jg.gradients(g, x, name="GB")
    scope = "jit_scope_0" if in_scope else "function_mulop"
    first = scope + "_grad_GA" * is_separate
    grad_op = g.op.inputs[0].op
    assert grad_op.type == "mulop_grad" and grad_op.original_op is r.op
    assert grad_op.name.startswith("GA/") and attrs_of(grad_op) == (True, first, is_separate)
    assert attrs_of(g.op) == (True, first, is_separate)
    second = next(op for op in x.graph.operations if op.type == "mulop_grad_grad")
    assert attrs_of(second) == (True, first + "_grad_GB" * is_separate, is_separate)
    np.testing.assert_allclose(run([r, g, h], {x: X}), [X * X, 2 * X, np.full(6, 2.0)])


# -- launches ----------------------------------------------------------------------------------------------------------


def test_launches(x: Any) -> None:
    def graph_of(name: str, **options: Any) -> tuple[list[Any], list[tuple[str, list[str]]]]:
        fn = jg.function(lambda a: np.tanh(a) * a, func_name="fn", compiled=True, **options)
        with jg.jit_scope():
            y = fn(x) + np.sin(x)
        (dx,) = jg.gradients([y], [x], name=name)
        return [y, dx], clusters([y, dx], {x: X})

    merged, found = graph_of("G")
    assert len(found) == 1 and {"tanh", "sin"} <= set(found[0][1])
    separate, found = graph_of("GA", separate_compiled_gradients=True)
    assert sorted({scope for scope, _ in found}) == ["jit_scope_1", "jit_scope_1_grad_GA"]
    kept, found = graph_of("GB", noinline=True)
    assert all("tanh" not in ops for _, ops in found)
    for fetches in (merged, separate, kept):
        y, dx = run(fetches, {x: X})
        t = np.tanh(X)
        np.testing.assert_allclose(y, t * X + np.sin(X))
        np.testing.assert_allclose(dx, t + X * (1 - t * t) + np.cos(X))


def test_a_body_that_partly_qualifies_is_compiled_in_parts(x: Any) -> None:
    """What cannot be compiled runs between the parts, not the whole body in the interpreter."""

    @jg.function(compiled=True)
    def fn(a: Any) -> Any:
        return np.exp(np.sort(np.tile(np.tanh(a) * a, 8)))

    y = fn(x)
    (dx,) = jg.gradients([y], [x])
    found = clusters([y, dx], {x: X})
    assert {scope for scope, _ in found} == {"function_fn"} and len(found) >= 2
    kinds = {op for _, ops in found for op in ops}
    assert {"tanh", "exp"} <= kinds and "sort" not in kinds
    got, slope = run([y, dx], {x: X})
    t = np.tanh(X)
    np.testing.assert_allclose(got, np.exp(np.sort(np.tile(t * X, 8))))
    np.testing.assert_allclose(slope, 8 * np.exp(t * X) * (t + X * (1 - t * t)))


def test_noinline_is_a_region_of_its_own(x: Any) -> None:
    fn = jg.function(lambda a: np.tanh(a) * a, func_name="fn", noinline=True)
    with jg.jit_scope():
        y = fn(x + 1) * 2
    program = program_of([y], {x: X})
    (call,) = [ins for ins in program.instructions if ins.op.name == "call"]
    body = call.params["body"]
    assert [ins.op.name for ins in body.instructions] == ["tanh", "multiply"]
    assert {ins.origin.scope for ins in body.instructions} == {"jit_scope_0"}
    assert {ins.origin.name for ins in body.instructions} == {"fn/tanh", "fn/multiply"}


@pytest.mark.parametrize("compiled", [None, True, False])
@pytest.mark.parametrize(("separate", "noinline", "in_scope"), list(itertools.product([False, True], repeat=3)))
def test_matrix(x: Any, compiled: bool | None, separate: bool, noinline: bool, in_scope: bool) -> None:
    c = x * 0.5
    w = jg.Variable(np.array(1.25))

    @jg.function(compiled=compiled, separate_compiled_gradients=separate, noinline=noinline)
    def inner(a: Any) -> Any:
        return np.sin(a) * c

    @jg.function(compiled=compiled, separate_compiled_gradients=separate, noinline=noinline)
    def outer(a: Any, unused: Any) -> Any:
        return inner(a) * a * w, np.exp(a)

    with jg.jit_scope(in_scope):
        p, q = outer(x, x)
        y = p + q * x
    first = jg.gradients([y], [x, w], name="GA")
    (second,) = jg.gradients([first[0]], [x], name="GB")
    got = run([y, *first, second], {x: X})
    s, k, e = np.sin(X), np.cos(X), np.exp(X)
    half = 0.5 * 1.25  # y = half x² sin x + x exp x
    expected = [
        half * X**2 * s + X * e,
        half * (2 * X * s + X**2 * k) + (1 + X) * e,
        np.sum(0.5 * X**2 * s),
        half * (2 * s + 4 * X * k - X**2 * s) + (2 + X) * e,
    ]
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


# -- gradients ---------------------------------------------------------------------------------------------------------


def test_unused_integer_and_captured_arguments(x: Any) -> None:
    c, n = x * 2, jg.constant(np.arange(6))

    @jg.function
    def fn(a: Any, unused: Any, k: Any) -> Any:
        return a * c + k, k + 1

    other = x + 0
    y, more = fn(x, other, n)
    assert more.dtype == n.dtype
    dx, dc, dother, dn = jg.gradients([y], [x, c, other, n])
    assert dn is None
    got = run([dx, dc, dother], {x: X})
    np.testing.assert_allclose(got, [4 * X, X, np.zeros(6)])
    assert jg.gradients([more], [x]) == [None]


def test_second_order_is_a_function_again(x: Any) -> None:
    fn = jg.function(lambda a: a**4, func_name="fn")
    y = fn(x)
    found = [y]
    for order in range(3):
        found += jg.gradients([found[-1]], [x])
        assert found[-1].op.type == "fn" + "_grad" * (order + 1)
    np.testing.assert_allclose(run(found, {x: X}), [X**4, 4 * X**3, 12 * X**2, 24 * X])


def test_python_grad_func_comes_first(x: Any) -> None:
    seen = []

    def slope(op: Any, *grads: Any) -> Any:
        seen.append((op.type, len(op.inputs), len(grads)))
        return grads[0] * op.inputs[0] * 10, None

    fn = jg.function(lambda a, b: (a * b, a + 1), func_name="fn", python_grad_func=slope)
    b = x * 0 + 2
    y, _ = fn(x, b)
    dx, db = jg.gradients([y], [x, b])
    (h,) = jg.gradients([dx], [x])
    assert seen == [("fn", 2, 2)] and db is None
    np.testing.assert_allclose(run([y, dx, h], {x: X}), [2 * X, 10 * X, np.full(6, 10.0)])


@pytest.mark.parametrize("is_function", [False, True])
def test_grad_func_takes_inputs_and_gradients(x: Any, is_function: bool) -> None:
    def slopes(a: Any, b: Any, g: Any) -> Any:
        return g * b, -g

    grad_func = jg.function(slopes, func_name="slopes") if is_function else slopes
    fn = jg.function(lambda a, b: a * b, func_name="fn", grad_func=grad_func)
    b = jg.placeholder(np.float64, (6,))
    y = fn(x, b)
    dx, db = jg.gradients([y], [x, b])
    assert dx.op.type == ("slopes" if is_function else "fn_grad")
    (second,) = jg.gradients([dx], [b])
    np.testing.assert_allclose(run([dx, db, second], {x: X, b: X + 1}), [X + 1, -np.ones(6), np.ones(6)])


def test_two_gradients_are_one_too_many() -> None:
    with pytest.raises(ValueError, match=r"'fn'.*grad_func and python_grad_func"):
        jg.function(lambda a: a, func_name="fn", grad_func=lambda a, g: g, python_grad_func=lambda op, g: g)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("compiled", "yes"), ("compiled", 3), ("separate_compiled_gradients", 3), ("noinline", "x"), ("noinline", None),
        ("func_name", 3), ("grad_func", 3), ("python_grad_func", "rule"),
    ],
)  # fmt: skip
def test_options_are_checked(option: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{option} must be .*, got {value!r}"):
        jg.function(lambda a: a, **{option: value})


def test_a_gradient_of_the_wrong_count(x: Any) -> None:
    fn = jg.function(lambda a, b: a * b, func_name="fn", python_grad_func=lambda op, g: [g] * 3)
    with pytest.raises(ValueError, match="function 'fn' gave 3 gradients for 2 arguments"):
        jg.gradients([fn(x, x)], [x])


def test_an_op_without_a_rule_is_named(x: Any) -> None:
    fn = jg.function(lambda a: np.reshape(jg.py_func(np.copy, [a], np.float64), (6,)), func_name="fn")
    with pytest.raises(jg.GradientError, match="py_func"):
        jg.gradients([fn(x)], [x])


def test_outputs_without_a_cotangent_add_nothing(x: Any) -> None:
    """The derivative of an output that no y depends on is infinite; zero times that is not computed."""
    fn = jg.function(lambda a: (a * 3, np.sqrt(a)), func_name="fn", compiled=True)
    y, _ = fn(x)
    (dx,) = jg.gradients([y], [x])
    np.testing.assert_array_equal(run(dx, {x: np.zeros(6)}), np.full(6, 3.0))
    assert "sqrt" not in {ins.op.name for ins in program_of([dx], {x: X}).instructions}


def test_rows_stay_rows() -> None:
    with jg.Graph().as_default():
        table, ids = jg.placeholder(np.float64, (50, 3)), jg.constant(np.array([4, 4, 7]))
        fn = jg.function(lambda t, i: np.square(jg.gather(t, i)), func_name="look_up")
        (g,) = jg.gradients([fn(table, ids)], [table])
        assert isinstance(g, jg.IndexedSlices) and g.values.op.type == "look_up_grad"
        (second,) = jg.gradients([g.values * 2], [table])
        (h,) = jg.gradients([np.square(g)], [table])
        a = np.ones((50, 3)) * 0.5
        slices, dense, twice = jg.Session(table.graph).run([g, jg.identity(second), h], {table: a})
    assert slices.values.shape == (3, 3) and slices.indices.tolist() == [4, 4, 7]
    assert dense[4].tolist() == [8] * 3 and dense[7].tolist() == [4] * 3 and not dense[5].any()
    np.testing.assert_allclose(twice[4], 2 * (2 * 2 * 0.5) * 4)  # of (4 a)²
    assert list(table.graph.functions)[:2] == ["look_up", "look_up_grad"]


def test_slices_as_cotangents(x: Any) -> None:
    fn = jg.function(np.square, func_name="fn")
    seed = jg.IndexedSlices(jg.constant(np.array([2.0])), jg.constant(np.array([3])), (6,))
    (dx,) = jg.gradients([fn(x)], [x], grad_ys=[seed])
    expected = np.zeros(6)
    expected[3] = 4 * X[3]
    np.testing.assert_allclose(run(dx, {x: X}), expected)
    ruled = jg.function(lambda a: a * 1, func_name="ruled", python_grad_func=lambda op, g: seed)
    (dx,) = jg.gradients([ruled(x)], [x])
    np.testing.assert_allclose(np.asarray(jg.Session(x.graph).run(jg.identity(dx), {x: X})), [0, 0, 0, 2, 0, 0])


@pytest.mark.parametrize("noinline", [False, True])
def test_hessians_go_through_the_body(x: Any, noinline: bool) -> None:
    inner = jg.function(lambda a: a**3 + np.arange(6.0), func_name="inner", noinline=noinline)
    fn = jg.function(lambda a: np.sum(inner(a)) * a[0], func_name="fn", compiled=True, noinline=noinline)
    (h,) = jg.hessians([fn(x)], [x])
    made = {op.type for op in x.graph.operations}
    assert not made & {"batched_fn_grad", "batched_fn_grad_grad", "batched_inner_grad"}
    expected = np.diag(6 * X * X[0])
    expected[0] += 3 * X**2
    expected[:, 0] += 3 * X**2
    np.testing.assert_allclose(run(h, {x: X}), expected, atol=1e-13)
    if not noinline:
        assert len(clusters([h], {x: X})) == 1


# -- nesting -----------------------------------------------------------------------------------------------------------


def test_recursion_is_refused(x: Any) -> None:
    @jg.function
    def one(a: Any) -> Any:
        return two(a)

    @jg.function
    def two(a: Any) -> Any:
        return one(a) + 1

    with pytest.raises(RecursionError, match="function 'one' calls itself") as error:
        one(x)
    assert isinstance(error.value, jg.RecursiveFunctionError) and "while_loop" in str(error.value)
    assert not x.graph.functions

    @jg.function
    def halves(a: Any) -> Any:  # each call of other shapes, so it ends
        return a.sum() if a.shape[0] == 1 else halves(a[: a.shape[0] // 2] + a[a.shape[0] // 2 :])

    np.testing.assert_allclose(run(halves(x[:4]), {x: X}), X[:4].sum())


def test_recursion_through_ever_larger_shapes_is_refused(x: Any) -> None:
    @jg.function
    def grows(a: Any) -> Any:
        return grows(np.concatenate([a, a]))

    with pytest.raises(jg.RecursiveFunctionError, match=r"(?s)function 'grows' calls itself with ever other.*while_lo"):
        grows(x)
    assert not x.graph.functions

    def endless(depth: int) -> int:
        return endless(depth + 1)

    with pytest.raises(RecursionError) as other:  # of the user's own
        jg.function(lambda a: a * endless(0))(x)
    assert not isinstance(other.value, jg.RecursiveFunctionError)


def test_nested_functions_and_bodies(x: Any) -> None:
    cube = jg.function(lambda a: a**3, func_name="cube")

    @jg.function
    def poly(a: Any) -> Any:
        total = jg.fori_loop(0, 3, lambda i, s: s + cube(a), np.zeros(6))
        return jg.cond(a[0] < 0, lambda: cube(total), lambda: total)

    y = poly(x)
    dx, = jg.gradients([y], [x])
    z = jg.cond(x[0] < 0, lambda: cube(x), lambda: x)
    (dz,) = jg.gradients([z], [x])
    got = run([y, dx, z, dz], {x: X})
    np.testing.assert_allclose(got, [27 * X**9, 243 * X**8, X**3, 3 * X**2], atol=1e-12)
    assert [name for name in x.graph.functions if name.startswith("cube")] == ["cube", "cube_grad"]


def test_what_a_definition_reads_is_read_where_it_is_called(x: Any) -> None:
    c = x * 2

    @jg.function
    def scaled(a: Any) -> Any:
        return a * c

    outer = jg.function(lambda a: scaled(a) + scaled(a), func_name="outer")
    y, z = outer(x), scaled(x)
    dc, = jg.gradients([y + z], [c])
    np.testing.assert_allclose(run([y, z, dc], {x: X}), [4 * X * X, 2 * X * X, 3 * X])


# -- state -------------------------------------------------------------------------------------------------------------


def counting(seen: list[float]) -> Fn:
    """A function that notes its calls."""

    def note(v: Any) -> Any:
        seen.append(float(v.sum()))
        return v * 2

    return note


@pytest.mark.parametrize("noinline", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_stateful_bodies_run_each_time(x: Any, compiled: bool, noinline: bool) -> None:
    seen: list[float] = []

    @jg.function(compiled=compiled, noinline=noinline)
    def fn(a: Any) -> Any:
        jg.py_func(counting(seen), [a], np.float64)  # needed by nothing
        return np.sin(a)

    y, z = fn(x), fn(x)
    (dx,) = jg.gradients([y + z], [x])
    np.testing.assert_allclose(jg.Session(x.graph).run([y + z, dx], {x: X}), [2 * np.sin(X), 2 * np.cos(X)])
    assert len(seen) == 2


def test_a_gradient_does_not_run_the_state_again(x: Any) -> None:
    rng = np.random.default_rng(0)
    made = []

    def draw(v: Any) -> Any:
        made.append(rng.random(v.shape))
        return made[-1]

    @jg.function(compiled=True)
    def dropout(a: Any) -> Any:
        mask = np.reshape(jg.py_func(draw, [np.zeros(6)], np.float64), (6,))
        return a * mask * a

    y = dropout(x)
    (dx,) = jg.gradients([y], [x])
    (h,) = jg.gradients([dx], [x])
    got = jg.Session(x.graph).run([y, dx, h], {x: X})
    assert len(made) == 1
    np.testing.assert_allclose(got, [X * X * made[0], 2 * X * made[0], 2 * made[0]])


@pytest.mark.parametrize("noinline", [False, True])
def test_each_call_draws_and_its_gradient_does_not(x: Any, noinline: bool) -> None:
    @jg.function(compiled=True, noinline=noinline)
    def noisy(a: Any) -> Any:
        return a * a * jg.random_uniform((6,), 1.0, 2.0), np.zeros(6) + jg.random_normal((6,), seed=1)

    y, z = noisy(x)[0], noisy(x)[0]
    (dx,) = jg.gradients([y], [x])
    (h,) = jg.gradients([dx], [x])
    y, z, dx, h = jg.Session(x.graph).run([y, z, dx, h], {x: X})
    assert not np.allclose(y, z)
    np.testing.assert_allclose(dx * X, 2 * y)
    np.testing.assert_allclose(h * X**2, 2 * y, atol=1e-15)


def test_functions_that_draw_are_part_of_the_loops_that_call_them(x: Any) -> None:
    """Also where they call one another, or draw in loops of their own."""
    inner = jg.function(lambda a: a * jg.random_uniform((6,), 1.0, 2.0), func_name="inner")
    outer = jg.function(lambda a: jg.fori_loop(0, 2, lambda i, s: s * jg.random_uniform((), 1.0, 2.0), inner(a)))
    for fn in (inner, outer):
        rows = jg.scan(lambda c, _, fn=fn: (fn(c), fn(x)), x, None, 3)
        (dx,) = jg.gradients([np.sum(rows[0])], [x])
        (alone,) = jg.gradients([np.sum(fn(x))], [x])
        last, ys, dx, alone = jg.Session(x.graph).run([*rows, dx, alone], {x: X})
        np.testing.assert_allclose(dx * X, last)
        assert len(np.unique(ys[:, -1])) == 3 and np.all(alone >= 1)


def test_state_inside_a_branch_is_not_merged(x: Any) -> None:
    seen: list[float] = []

    @jg.function
    def fn(a: Any) -> Any:
        return jg.cond(a[0] < 0, lambda: np.reshape(jg.py_func(counting(seen), [a], np.float64), (6,)), lambda: a)

    y = fn(x) + fn(x)
    np.testing.assert_allclose(jg.Session(x.graph).run(y, {x: X}), 4 * X)
    assert len(seen) == 2


def test_variables_are_read_at_each_call(x: Any) -> None:
    v = jg.Variable(np.array(2.0))
    fn = jg.function(lambda a: a * v, func_name="fn")
    before = fn(x)
    with jg.control_dependencies([before]):
        changed = v.assign_add(1.0)
    with jg.control_dependencies([changed]):
        after = fn(x)
    dv, = jg.gradients([before], [v])
    got = jg.Session(x.graph).run([before, after, dv], {x: X})
    np.testing.assert_allclose(got[0], 2 * X)
    np.testing.assert_allclose(got[1], 3 * X)
    assert got[2] == pytest.approx(X.sum())


def test_assignment_in_a_body_is_refused(x: Any) -> None:
    v = jg.Variable(np.zeros(6))
    with pytest.raises(jg.UnsupportedOpError, match="is assigned inside the body"):
        jg.function(lambda a: v.assign(a), func_name="fn")(x)


def test_control_dependencies_hold_for_all_of_a_body(x: Any) -> None:
    seen: list[str] = []

    def note(name: str) -> Fn:
        return lambda v: seen.append(name) or v

    @jg.function
    def fn(a: Any) -> Any:
        return jg.py_func(note("inside"), [a * 1], np.float64)

    first = jg.py_func(note("before"), [x], np.float64)
    with jg.control_dependencies([first]):
        y = fn(x)
    with jg.control_dependencies([y]):
        z = jg.py_func(note("after"), [x], np.float64)
    jg.Session(x.graph).run(z, {x: X})
    assert seen == ["before", "inside", "after"]


# -- outside of graphs -------------------------------------------------------------------------------------------------


def test_values_run() -> None:
    fn = jg.function(lambda a, b: (np.sin(a) * b, b), func_name="fn")
    quick = jg.function(lambda a, b: (np.sin(a) * b, b), func_name="quick", compiled=True)
    for f in (fn, quick):
        y, b = f(X, 2.0)
        np.testing.assert_allclose(y, 2 * np.sin(X))
        assert type(y) is np.ndarray and b == 2.0


@pytest.mark.parametrize("compiled", [None, True])
def test_tapes(compiled: bool | None) -> None:
    fn = jg.function(np.square, func_name="fn", compiled=compiled)
    ruled = jg.function(lambda a: a * 3, func_name="ruled", compiled=compiled,
                        python_grad_func=lambda op, g: 10 * g * op.inputs[0])  # fmt: skip
    given = jg.function(lambda a: a * 3, func_name="given", compiled=compiled, grad_func=lambda a, g: 7 * g)
    x = jg.asarray(X)
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        ys = [np.sum(f(x)) for f in (fn, ruled, given)]
    got = [tape.gradient(y, [x])[0].numpy() for y in ys]
    np.testing.assert_allclose(got, [2 * X, 10 * X, np.full(6, 7.0)])


def test_inside_compiled_functions() -> None:
    fn = jg.function(lambda a: np.tanh(a) * a, func_name="fn", compiled=True, separate_compiled_gradients=True)
    ruled = jg.function(lambda a: a * 3, func_name="ruled", python_grad_func=lambda op, g: 10 * g * op.inputs[0])

    @jg.compile
    def loss(a: Any) -> Any:
        return np.sum(fn(a) + ruled(a))

    t = np.tanh(X)
    value, slope = jg.compile(jg.value_and_grad(loss))(X)
    assert value == pytest.approx(np.sum(t * X + 3 * X))
    np.testing.assert_allclose(slope, t + X * (1 - t * t) + 10 * X)
    np.testing.assert_allclose(np.diag(jg.hessian(lambda a: np.sum(ruled(a)))(X)), np.full(6, 10.0))
    assert "call" not in loss.explain(X).program


# -- random programs ---------------------------------------------------------------------------------------------------

_STEPS: list[Fn] = [
    lambda a, b: np.tanh(a * b), lambda a, b: np.sin(a) + b / 2, lambda a, b: np.tanh(b) - a / 2,
    lambda a, b: np.cos(a.mean()) * b, lambda a, b: np.where(a > 0.05, a, b), lambda a, b: a[::-1] * np.cos(b),
    lambda a, b: a / (1 + b * b), lambda a, b: np.sin(jg.gather(a, np.array([1, 1, 0, 3, 4, 2])) + b),
]  # fmt: skip


def random_part(rng: np.random.Generator, depth: int, seen: list[Any]) -> Fn:
    """A random function of two tensors; some of its parts are functions again, others read a tensor from outside."""
    steps = [_STEPS[int(k)] for k in rng.integers(0, len(_STEPS), int(rng.integers(1, 4)))]
    if depth:
        steps.insert(int(rng.integers(0, len(steps) + 1)), random_part(rng, depth - 1, seen))
    captured = seen[0] if rng.random() < 0.5 else None

    def part(a: Any, b: Any) -> Any:
        for step in steps:
            a, b = b, step(a, b)
        return b if captured is None else b * captured

    how = {
        "compiled": [None, True, False][int(rng.integers(3))],
        "separate_compiled_gradients": [None, True][int(rng.integers(2))],
        "noinline": bool(rng.random() < 0.3),
    }
    return jg.function(part, func_name=f"part_{depth}", **how) if seen[1] else part


@pytest.mark.parametrize("seed", range(16))
def test_random_programs_of_functions(seed: int) -> None:
    """With functions and without: the same values and gradients to order 2."""
    found = []
    for with_functions in (False, True):
        rng = np.random.default_rng(seed)
        with jg.Graph().as_default():
            x, y = (jg.placeholder(np.float64, (None if seed % 3 == 0 else 6,)) for _ in range(2))
            parts = [random_part(rng, int(rng.integers(0, 2)), [np.cos(x), with_functions]) for _ in range(3)]
            with jg.jit_scope(separate_compiled_gradients=bool(seed % 2)):
                out = parts[0](x, y) + parts[1](y, x)
            out = parts[2](out, parts[0](y, out))
            first = jg.gradients([out], [x, y])
            second = jg.gradients([g for g in first if g is not None], [x, y])
            fetches = [t if t is not None else x * 0 for t in (out, *first, *second)]
            found.append(run([jg.identity(t) for t in fetches], {x: X, y: X[::-1] + 0.3}))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("noinline", [False, True])
def test_a_stateful_function_in_another_runs_each_time(x: Any, noinline: bool) -> None:
    seen: list[float] = []

    @jg.function(noinline=noinline)
    def inner(a: Any) -> Any:
        jg.py_func(counting(seen), [a], np.float64)
        return np.sin(a)

    @jg.function(noinline=noinline)
    def outer(a: Any) -> Any:
        inner(a)  # needed by nothing but for its state
        return inner(a) * 2

    np.testing.assert_allclose(jg.Session(x.graph).run(outer(x), {x: X}), 2 * np.sin(X))
    assert len(seen) == 2


@pytest.mark.parametrize("given", [(1.0,), (1.0, None, None)])
def test_python_grad_func_gives_a_gradient_for_each_input(x: Any, given: tuple[Any, ...]) -> None:
    fn = jg.function(lambda a, b: a * b, func_name="fn", python_grad_func=lambda op, g: [g if v else v for v in given])
    with pytest.raises(ValueError, match=rf"(?s){len(given)} .*2"):
        jg.gradients(fn(x, x), [x])
