"""jitgrad's public names, and nothing else: NumPy functions differentiated, their whole gradients fused."""

from jitgrad import nn as nn
from jitgrad import numpy as numpy
from jitgrad.aggregation import AggregationMethod
from jitgrad.building import colocate_with, control_dependencies, device, name_scope
from jitgrad.building import tie as tuple
from jitgrad.config import config, get_num_threads, set_num_threads
from jitgrad.custom import custom_gradient, not_differentiable, prevent_gradient, py_func, register_gradient
from jitgrad.errors import (
    CompileError,
    DTypeError,
    GradientError,
    IndexingError,
    JitgradError,
    LeakedTracerError,
    NonFiniteError,
    ReadOnlyError,
    ShapeError,
    TracedValueError,
    UnsupportedOpError,
)
from jitgrad.gradients import gradients
from jitgrad.graph import Graph, Operation, Tensor, default_graph
from jitgrad.ops.creation import constant, identity, placeholder
from jitgrad.ops.gathering import gather, unsorted_segment_sum
from jitgrad.ops.selection import add_n
from jitgrad.ops.state import Variable, group
from jitgrad.profiler import compare
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
    "AggregationMethod",
    "CompileError",
    "DTypeError",
    "GradientError",
    "Graph",
    "IndexingError",
    "JitgradError",
    "LeakedTracerError",
    "NonFiniteError",
    "Operation",
    "ReadOnlyError",
    "Session",
    "ShapeError",
    "Tensor",
    "TracedValueError",
    "UnsupportedOpError",
    "Variable",
    "add_n",
    "colocate_with",
    "compare",
    "compile",
    "config",
    "constant",
    "control_dependencies",
    "custom_gradient",
    "default_graph",
    "device",
    "gather",
    "get_num_threads",
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
    "nn",
    "not_differentiable",
    "numpy",
    "placeholder",
    "prevent_gradient",
    "py_func",
    "register_gradient",
    "set_num_threads",
    "stop_gradient",
    "tuple",
    "unsorted_segment_sum",
    "value_and_grad",
    "vjp",
]
