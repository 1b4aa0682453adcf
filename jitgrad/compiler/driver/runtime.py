"""Runs the steps of an executable: one call from Python, then machine code only; what a step computes is not
its business.

    kernel:  void kernel(ptr table, ptr block, i64 lo, i64 hi, i64 chunk, i64 worker, i32 threads)
    table    addresses of the buffers of this call, eight bytes each
    block    the constants of one step: slots of the table, extents, strides, scalars, eight bytes each
    lo, hi   the part of the parallel extent to do; chunk is its number
    worker   number of the running thread, 0 for the caller: an index into per-thread scratch
    threads  how many threads the run may use: for steps that run other steps or share tasks out; kernels leave it
             out, which the C calling conventions allow

Two Zen 4 cores: a call of `run_steps` takes 63 ns, 28 more if it gives up the GIL, which pays for runs that
last longer than other threads should wait (a thread that takes the GIL meanwhile may keep it for
milliseconds). A step costs 2.9 ns, a chunk of a step 4 ns. A parallel region costs 0.15 to 0.3 us while the
workers still spin (50 us after their last work), so two threads gain from 2 us of work on (1.24 us become
1.0, 4.5 become 2.5, 16 become 8.3); Numba's layer takes 2 us. Once they sleep, waking them takes the caller 7
us, and they begin 20 us later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jitgrad.compiler.driver.pool_layout import MAX_WORKERS, STEP_WORDS
from jitgrad.compiler.driver.threads import ThreadPool
from jitgrad.compiler.machine import capi, native
from jitgrad.compiler.machine.cache import compile_cached
from jitgrad.compiler.machine.early import begin_early
from jitgrad.compiler.products.product_code import Module
from jitgrad.once import Once
from jitgrad.records import NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MAX_WORKERS", "Runtime", "StepRecord", "pack_steps", "runtime"]

SPIN = 2000
SHARED = ("run_parallel", "run_tried")
"""The driver's functions that the code of control ops calls."""
_DOC = "run_steps(table, steps, nsteps, times, threads, release): six integers, addresses and counts; True."


class StepRecord(NamedTuple):
    """One step as the driver reads it: addresses of function and block, extent, and in how many chunks it is
    cut.
    """

    function: int
    block: int
    extent: int = 1
    nchunks: int = 1


def pack_steps(steps: Sequence[tuple[int, int, int, int]]) -> NDArray[np.int64]:
    """The step records as memory for the driver, shape (len(steps), 8); it must outlive the calls that use
    it.
    """
    packed = np.zeros((len(steps), STEP_WORDS), np.int64)
    if steps:
        packed[:, :4] = steps
    return packed


class Runtime(NamedTuple):
    """The loaded driver. `run_steps` is a builtin; `enter_address` is the driver's entry for machine code that holds
    the GIL, `run_address` for code that does not.
    """

    code: native.NativeCode
    pool: ThreadPool
    run_steps: Callable[[int, int, int, int, int, int], bool]
    run_address: int
    enter_address: int


@Once
def runtime() -> Runtime:
    """The driver of this process, compiled or taken from the cache at its first use."""
    begin_early()
    return load_runtime("driver", _driver_text)


def runtime_modules() -> dict[str, Module]:
    """The modules of `runtime`, where the process has not got it."""
    return {} if runtime.made else {"driver": (_driver_text, False)}


def _driver_text() -> str:
    from jitgrad.compiler.driver.steps import driver_ir
    from jitgrad.compiler.driver.system import host_platform

    return driver_ir(host_platform(), SPIN)


def load_runtime(name: str, text: Callable[[], str], prefix: str = "jitgrad") -> Runtime:
    """Load a driver module, whose functions have names with `prefix`, and make its pool, without workers.

    ``text`` gives its IR when the module ``name`` is not in the cache.
    """
    capi.register_symbols()
    exported = ("run", "enter", "run_steps", "worker", "stop", "reset", "pool", *SHARED)
    code = compile_cached(name, text, [f"{prefix}_{function}" for function in exported])
    functions = {function: code[f"{prefix}_{function}"] for function in exported}
    builtin = capi.builtin("run_steps", functions["run_steps"], _DOC)
    return Runtime(code, ThreadPool(functions), builtin, functions["run"], functions["enter"])
