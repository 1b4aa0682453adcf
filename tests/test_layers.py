"""The shape of the package, read from its source: who imports whom, what is loaded, what is documented."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jitgrad

pytestmark = pytest.mark.quick

ROOT = Path(jitgrad.__file__).parent

# From the bottom up: a module imports from its own layer and from those above it in this list. A package
# stands for all in it.
LAYERS = (
    (
        "records", "collecting", "errors", "conditions", "config", "spec", "pytree", "keys", "forking",
        "journal", "recording", "progress", "eagerness", "streams", "once", "threefry", "blas_library", "lapack",
        "bare", "error_states", "normal_tail",
    ),
    ("opdef",),
    (
        "sources", "given", "hints", "advice", "askers", "constant_values", "refusals", "operators", "dispatch",
        "inference", "operations", "graph_scopes", "graph", "scopes", "program", "again", "pieces", "rebinding",
        "views", "inlining",
    ),
    ("ops", "fresh", "operator_lines", "listing", "interpreter", "nonfinite", "restoring"),
    (
        "aggregation", "gradient_rules", "gradient_walk", "gradients", "masks", "reachability", "seeds", "shifts",
        "side_by_side", "tangents",
    ),
    ("sparse",),
    ("compiler",),
    ("cluster_calls", "copying", "executable", "following", "step_lines"),
    ("outlook",),
    (
        "batching",
        "batching_rules",
        "building",
        "call_reading",
        "calls",
        "compiled",
        "constancy",
        "contents",
        "control",
        "custom",
        "cutting",
        "differentiation",
        "extent_formulas",
        "foreseeing",
        "frozen_draws",
        "run_stages",
        "graph_hessians",
        "known",
        "models",
        "preventing",
        "python_calls",
        "registering",
        "running",
        "seen",
        "session",
        "statics",
        "steady",
        "trace",
        "transforms",
    ),
    ("eager",),
    ("", "__main__", "cli", "convolution", "draws", "either", "lifting", "losses", "minimizing", "nn", "numpy",
        "optimize", "pooling", "profiler", "scipy", "testing", "windows",
    ),
)

# The parts of the compiler, in the same order.
COMPILER = (
    "llvmir", "vecmath", "loopir", "emission", "machine", "fusing", "products", "driver", "calling", "eager_code",
    "bodies", "rules", "clustering", "lowering", "freezing",
)

# The loop IR with the meaning of all that it calls.
LOOP_IR = tuple(f"compiler.loopir.{name}" for name in ("nests", "routines", "running", "scalar_ops"))

# Imports inside a function that go up, so that what is above is loaded when it is first needed.
LAZY = {
    ("dispatch", "ops.common"),
    ("askers", "numpy"),
    ("askers", "scipy"),
    ("operations", "session"),
    ("ops.state", "eager.tensor"),
    ("scopes", "eager.pending"),
    ("eagerness", "eager.checking"),
    ("eagerness", "eager.timing"),
    ("calls", "eager.compiled_calls"),
    ("calls", "eager.tensor"),
    ("custom", "eager.custom_calls"),
    ("eager.tensor", "numpy"),
    ("ops.slices", "eager.tensor"),
    ("ops.slices", "control.deferred"),
    ("operators", "control.deferred"),
    ("gradient_rules", "control.deferred"),
    ("ops.rows", "compiler.rows"),
    ("lapack", "compiler.cholesky"),
    ("lapack", "compiler.columns"),
    ("lapack", "compiler.library_triangles"),
    ("lapack", "compiler.lu"),
    ("lapack", "compiler.triangles"),
    ("cluster_calls", "control.ops"),
    ("compiler.explain", "profiler.drawing"),
    ("compiler.explain", "profiler.planned_picture"),
}

# The op families that may use another family's helpers, beside ops.common.
FAMILIES = {
    "along_rows": {"gathering"},
    "assignment": {"along_rows", "chosen", "gathering", "indexing", "slicing", "updating"},
    "conversion": {"ufunc"},
    "diagonals": {"slicing"},
    "einsum": {"contraction"},
    "elementwise": {"ufunc"},
    "gathering": {"rows"},
    "indexing": {"along_rows", "chosen", "gathering", "slicing", "updating"},
    "joining": {"holding", "slicing"},
    "accumulation": {"axes"},
    "orthogonal": {"linalg"},
    "products": {"accumulation", "axes"},
    "reduction": {"accumulation", "axes"},
    "padding": {"slicing"},
    "running": {"axes", "gathering", "products", "ufunc"},
    "samples": {"slicing"},
    "selected_functions": {"selections"},
    "selections": {"indexing"},
    "signals": {"slicing", "sliding"},
    "sorting": {"gathering", "ordering"},
    "statistics": {"axes", "slicing"},
    "slices": {"rows", "standing"},
    "state": {"rows", "standing"},
    "updating": {"gathering"},
}


def modules() -> dict[str, Path]:
    """Module name without the leading ``jitgrad.`` → file."""
    paths = sorted(ROOT.rglob("*.py"))
    return {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").rstrip("."): p for p in paths}


MODULES = modules()


def tree_of(name: str) -> ast.Module:
    """The source of a module."""
    return ast.parse(MODULES[name].read_text())


@functools.cache
def imports(name: str) -> tuple[tuple[str, bool], ...]:
    """Modules of jitgrad that a module imports, and whether it does so when it is loaded; read once for all tests."""
    return tuple(_imports_in(tree_of(name)))


def _imports_in(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    inside = {id(node) for fn in ast.walk(tree) if isinstance(fn, ast.FunctionDef) for node in ast.walk(fn)}
    unread = {
        id(node)
        for check in ast.walk(tree)
        if isinstance(check, ast.If) and "TYPE_CHECKING" in ast.dump(check.test)
        for node in ast.walk(check)
    }
    for node in ast.walk(tree):
        if id(node) in unread:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jitgrad":
            base = (node.module or "").partition(".")[2]
            for alias in node.names:
                full = f"{base}.{alias.name}".lstrip(".")
                yield (full if full in MODULES else base), id(node) not in inside
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "jitgrad":
                    yield alias.name.partition(".")[2], id(node) not in inside


def layer(name: str) -> int:
    """The number of a module's layer."""
    head = name.split(".")[0]
    found = [number for number, names in enumerate(LAYERS) if head in names]
    assert found, f"module {name} is in no layer: enter it in LAYERS"
    return found[0]


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down(name: str) -> None:
    """No module imports from a layer above its own."""
    up = [other for other, _ in imports(name) if layer(other) > layer(name) and (name, other) not in LAZY]
    assert not up, f"{name} imports {up}, which stand above it"


def test_loading_needs_no_cycle() -> None:
    """The modules can be ordered so that each is loaded after those that it imports when it is loaded."""
    waits = {name: {other for other, at_load in imports(name) if at_load and other != name} for name in MODULES}
    for name, others in waits.items():
        others -= {other for other in others if name.startswith(f"{other}.") or other == ""}
    while waits:
        free = [name for name, others in waits.items() if not others & waits.keys()]
        assert free, f"a cycle among {sorted(waits)}"
        for name in free:
            del waits[name]


def test_parts_of_the_compiler_import_down() -> None:
    """A package of the compiler imports from itself and from those before it in COMPILER."""
    packages = {name.split(".")[1] for name in MODULES if name.startswith("compiler.") and name.count(".") == 2}
    assert packages == set(COMPILER)
    ranks = {f"compiler.{package}": rank for rank, package in enumerate(COMPILER)}
    for name in MODULES:
        rank = ranks.get(".".join(name.split(".")[:2]), len(COMPILER))
        up = [other for other, _ in imports(name) if ranks.get(".".join(other.split(".")[:2]), 0) > rank]
        assert not up, f"{name} imports {up}, which stand above it"


def test_op_families_are_apart() -> None:
    """A family of ops imports ops.common, and what FAMILIES says."""
    for name in MODULES:
        package, _, family = name.partition(".")
        if package == "ops" and family:
            used = {other.partition(".")[2] for other, _ in imports(name) if other.startswith("ops.")}
            assert used <= {"common"} | FAMILIES.get(family, set()), f"ops.{family} imports {used}"


def test_compiler_knows_no_ops() -> None:
    """The compiler knows kinds of kernels, programs and specs; the loop IR knows neither ops nor tensors."""
    for name in MODULES:
        if name.split(".")[0] == "compiler":
            heads = {other.split(".")[0] for other, _ in imports(name)}
            assert not heads & {"ops", "operators", "dispatch", "gradients"}, f"{name} imports {heads}"
    loop_ir = {other for name in LOOP_IR for other, _ in imports(name)}
    assert loop_ir <= {*LOOP_IR, "records", "spec", "threefry"}


def test_jitgrad_imports_no_code_generator(capsys: pytest.CaptureFixture[str]) -> None:
    """`import jitgrad` loads neither numba, llvmlite nor scipy, nor what few scripts ask for; how long it takes beside
    NumPy is printed.
    """
    code = """
import json, sys, time
t0 = time.perf_counter(); import numpy; t1 = time.perf_counter(); import jitgrad; t2 = time.perf_counter()
heavy = {"numba", "llvmlite", "scipy", "optree", "platformdirs", "threadpoolctl"}
heavy = sorted(heavy & {m.split(".")[0] for m in sys.modules})
later = {"profiler", "optimize", "nn", "eager", "session", "control.functions", "control.graph_functions"}
heavy += sorted({*(f"jitgrad.{name}" for name in later), "pathlib", "string", "numpy.typing"} & set(sys.modules))
print(json.dumps([heavy, t1 - t0, t2 - t1]))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    heavy, numpy_seconds, seconds = json.loads(run.stdout)
    with capsys.disabled():
        print(f"\nimport jitgrad: {1000 * seconds:.0f} ms after NumPy's {1000 * numpy_seconds:.0f} ms")
    assert heavy == []


def test_what_only_factors_and_solves_loads_no_loops() -> None:
    code = "import sys, jitgrad.scipy.linalg; assert 'jitgrad.control.functions' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT.parent)


def test_all_ops_are_known_whatever_was_loaded() -> None:
    """Some are defined in modules that are loaded when they are used; an op is found by its name without that."""
    code = (
        "import importlib, pkgutil, jitgrad\n"
        "from jitgrad.opdef import definitions, find\n"
        "find('read_element')\n"
        "known = {op.name for op in definitions()}\n"
        "for module in pkgutil.walk_packages(jitgrad.__path__, 'jitgrad.'):\n"
        "    if not module.name.endswith('__main__'): importlib.import_module(module.name)\n"
        "assert {op.name for op in definitions()} == known, {op.name for op in definitions()} - known\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT.parent)


def test_names_that_are_loaded_later_are_those_that_a_type_checker_sees() -> None:
    """And no module has such a name: it would stand in the name's place once it is imported."""
    tree = tree_of("")
    [checked] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {}
    for node in checked.body:
        assert isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names:
            seen[alias.asname or alias.name] = getattr(importlib.import_module(node.module), alias.name)
    later = {*jitgrad._MODULE_OF, *jitgrad._OTHER_NAMES, *jitgrad._MODULES} - {*jitgrad._OTHER_NAMES.values()}
    assert {*seen} == later - {"profiler"}
    assert all(getattr(jitgrad, name) is found for name, found in seen.items())
    assert not (later - {*jitgrad._MODULES}) & MODULES.keys()


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    """Each module has a docstring, and each public class, function and method."""
    tree = tree_of(name)
    assert ast.get_docstring(tree), f"module {name} has no docstring"
    missing = [where for where, node in public_definitions(tree) if not ast.get_docstring(node)]
    assert not missing, f"{name}: no docstring for {missing}"


Definition = ast.ClassDef | ast.FunctionDef


def public_definitions(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Classes and functions of a module, and methods of its public classes, without a leading underscore."""
    for child in node.body:
        if isinstance(child, Definition) and not child.name.startswith("_") and not is_overload(child):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from public_definitions(child, f"{child.name}.")


def is_overload(node: Definition) -> bool:
    """Whether it only gives a type, or the setter of a property."""
    names = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(name == "overload" or name.endswith(".setter") for name in names)


@pytest.mark.parametrize("name", jitgrad.__all__)
def test_public_names_are_documented(name: str) -> None:
    """What `jitgrad` exports has a docstring."""
    assert getattr(jitgrad, name).__doc__
