"""Timing: eager operations as events of a profile, while one is open; it computes nothing."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np

from jitgrad import pytree, recording
from jitgrad.dispatch import full_name
from jitgrad.eager.recorder import OwnRules
from jitgrad.eager.tensor import EagerTensor, run
from jitgrad.eagerness import no_collecting
from jitgrad.records import NamedTuple
from jitgrad.sources import user_source
from jitgrad.spec import TensorSpec


class EagerRun(NamedTuple):
    """What a profile keeps of an eager operation: the user's line, and the specs of what it read and made."""

    place: Any
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def run_timed(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call, made now, of which profiles are told. What tells them by itself (the program of a gradient, op by op; a
    compiled function) is only run.
    """
    with no_collecting():
        return run(fn, args, kwargs) if isinstance(fn, OwnRules) else timed(_name(fn), run, fn, args, kwargs)


def timed(name: str, compute: Callable[..., Any], *args: Any) -> Any:
    """What ``compute(*args)`` gives, as an event of that name."""
    start = perf_counter_ns()
    made = compute(*args)
    end = perf_counter_ns()
    recording.record("numpy", name, start, end, EagerRun(user_source(), _specs(args), _specs(made)))
    return made


def _name(fn: Callable[..., Any]) -> str:
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, np.ufunc):
        return f"{owner.__name__}.{fn.__name__}"
    return full_name(fn).removeprefix("numpy.") if hasattr(fn, "__name__") else repr(fn)


def _specs(tree: Any) -> tuple[TensorSpec, ...]:
    leaves = pytree.flatten(tree)[0]
    return tuple([TensorSpec(x.shape, x.dtype) for x in leaves if isinstance(x, EagerTensor | np.ndarray)])
