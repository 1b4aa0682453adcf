"""jitgrad's public names, and nothing else: NumPy functions differentiated, and their whole gradients fused."""

from jitgrad.building import colocate_with, control_dependencies, device, name_scope
from jitgrad.building import tie as tuple
from jitgrad.custom import custom_gradient, not_differentiable, prevent_gradient, py_func, register_gradient
from jitgrad.errors import (
    CompileError,
    DTypeError,
    GradientError,
    JitgradError,
    LeakedTracerError,
    NonFiniteError,
    ShapeError,
    TracedValueError,
    UnsupportedOpError,
)
from jitgrad.gradients import gradients
from jitgrad.graph import Graph, Operation, Tensor, default_graph
from jitgrad.ops.creation import constant, identity, placeholder
from jitgrad.ops.state import Variable, group
from jitgrad.scopes import jit_scope
from jitgrad.session import Session
from jitgrad.transforms import (
    compile,
    grad,
    hessian,
    hvp,
    jacfwd,
    jacobian,
    jacrev,
    jvp,
    stop_gradient,
    value_and_grad,
    vjp,
)

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "DTypeError",
    "GradientError",
    "Graph",
    "JitgradError",
    "LeakedTracerError",
    "NonFiniteError",
    "Operation",
    "Session",
    "ShapeError",
    "Tensor",
    "TracedValueError",
    "UnsupportedOpError",
    "Variable",
    "colocate_with",
    "compile",
    "constant",
    "control_dependencies",
    "custom_gradient",
    "default_graph",
    "device",
    "grad",
    "gradients",
    "group",
    "hessian",
    "hvp",
    "identity",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit_scope",
    "jvp",
    "name_scope",
    "not_differentiable",
    "placeholder",
    "prevent_gradient",
    "py_func",
    "register_gradient",
    "stop_gradient",
    "tuple",
    "value_and_grad",
    "vjp",
]
