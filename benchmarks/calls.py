"""`python -m benchmarks.calls`: what the call of a compiled function costs, by the form of its arguments: jitgrad,
NumPy without anything around it, and the peers that are installed. All arrays have four elements: there is next to
nothing to compute.

Each framework runs in its own process; they are asked in turns. An answer is the best of five batches of calls, the
figure the median of the answers, in microseconds per call. JAX is not waited for between the calls of a batch.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.environments import interpreter_of

Form = Callable[["Frame"], Callable[[], Any] | None]
LEAVES = 100


class Frame:
    """What a framework brings: its own compile, array, and value_and_grad; None for what it does not have."""

    takes_trees = True
    takes_statics = True

    def __init__(self, module: Any) -> None:
        self.xp = module

    def array(self, values: np.ndarray[Any, Any]) -> Any:
        """An array as its users hold it."""
        return values

    def compile(self, fn: Callable[..., Any], static: tuple[str, ...] = ()) -> Callable[..., Any]:
        """The compiled function."""
        return fn

    def value_and_grad(self, fn: Callable[..., Any]) -> Callable[..., Any] | None:
        """The compiled value and gradient of a function of one array."""
        return None


class _Numpy(Frame):
    def __init__(self) -> None:
        super().__init__(np)


class _Jitgrad(Frame):
    def __init__(self) -> None:
        super().__init__(np)
        self._jg = importlib.import_module("jitgrad")
        entrance = importlib.import_module("jitgrad.compiler.calling.entrance")
        self._jg.compile(lambda x: x + 1)(np.ones(4))
        while entrance.is_coming():  # with an empty cache, the machine code that takes calls
            time.sleep(0.01)

    def compile(self, fn: Callable[..., Any], static: tuple[str, ...] = ()) -> Callable[..., Any]:
        made: Callable[..., Any] = self._jg.compile(fn, static_argnames=static)
        return made

    def value_and_grad(self, fn: Callable[..., Any]) -> Callable[..., Any] | None:
        return self.compile(self._jg.value_and_grad(fn))


class _Jax(Frame):
    def __init__(self) -> None:
        self._jax = importlib.import_module("jax")
        self._jax.config.update("jax_platforms", "cpu")
        self._jax.config.update("jax_enable_x64", True)
        super().__init__(self._jax.numpy)

    def array(self, values: np.ndarray[Any, Any]) -> Any:
        return self.xp.array(values)

    def compile(self, fn: Callable[..., Any], static: tuple[str, ...] = ()) -> Callable[..., Any]:
        made: Callable[..., Any] = self._jax.jit(fn, static_argnames=static)
        return made

    def value_and_grad(self, fn: Callable[..., Any]) -> Callable[..., Any] | None:
        return self.compile(self._jax.value_and_grad(fn))


class _Torch(Frame):
    def __init__(self) -> None:
        super().__init__(importlib.import_module("torch"))

    def array(self, values: np.ndarray[Any, Any]) -> Any:
        return self.xp.from_numpy(values)

    def compile(self, fn: Callable[..., Any], static: tuple[str, ...] = ()) -> Callable[..., Any]:
        made: Callable[..., Any] = self.xp.compile(fn)
        return made

    def value_and_grad(self, fn: Callable[..., Any]) -> Callable[..., Any] | None:
        return self.compile(self.xp.func.grad_and_value(fn))


class _PyTensor(Frame):
    takes_trees = takes_statics = False

    def __init__(self) -> None:
        self._pytensor = importlib.import_module("pytensor")
        super().__init__(importlib.import_module("pytensor.tensor"))

    def compile(self, fn: Callable[..., Any], static: tuple[str, ...] = ()) -> Callable[..., Any]:
        return self._deferred(lambda xs: fn(*xs))

    def value_and_grad(self, fn: Callable[..., Any]) -> Callable[..., Any] | None:
        return self._deferred(lambda xs: [(value := fn(*xs)), *self._pytensor.grad(value, list(xs))])

    def _deferred(self, outputs: Callable[[Sequence[Any]], Any]) -> Callable[..., Any]:
        """A function made at its first call, whose arguments tell how many inputs it has."""
        made: list[Callable[..., Any]] = []

        def call(*arrays: Any) -> Any:
            if not made:
                inputs = [self.xp.tensor(f"in{k}", dtype="float64", shape=a.shape) for k, a in enumerate(arrays)]
                result = outputs(inputs)
                compiled = self._pytensor.function(
                    inputs, list(result) if isinstance(result, tuple | list) else result, mode="NUMBA",
                    on_unused_input="ignore",
                )  # fmt: skip
                compiled.trust_input = True
                made.append(compiled)
            return made[0](*arrays)

        call.unwrapped = made  # type: ignore[attr-defined]
        return call


FRAMES: dict[str, Callable[[], Frame]] = {
    "NumPy": _Numpy, "jitgrad": _Jitgrad, "jax": _Jax, "torch": _Torch, "pytensor": _PyTensor,
}  # fmt: skip


def _arrays(n: int, outputs: int) -> Form:
    def form(frame: Frame) -> Callable[[], Any]:
        xs = [frame.array(np.full(4, float(k))) for k in range(n)]
        call = _warm(frame.compile(lambda *xs: xs[0] + 1 if outputs == 1 else tuple([x + 1 for x in xs])), xs)
        return lambda: call(*xs)

    return form


def _tree(outputs: int) -> Form:
    def form(frame: Frame) -> Callable[[], Any] | None:
        if not frame.takes_trees:
            return None
        tree = {f"layer{k}": frame.array(np.full(4, float(k))) for k in range(LEAVES)}
        one, all_of_it = (lambda t: t["layer0"] + 1), (lambda t: {name: x + 1 for name, x in t.items()})
        call = frame.compile(one if outputs == 1 else all_of_it)
        return lambda: call(tree)

    return form


def _tree_gradient(frame: Frame) -> Callable[[], Any] | None:
    tree = {f"layer{k}": frame.array(np.full(4, float(k))) for k in range(LEAVES)}
    call = frame.value_and_grad(lambda t: sum((x * x).sum() for x in t.values())) if frame.takes_trees else None
    return None if call is None else lambda: call(tree)


def _static(frame: Frame) -> Callable[[], Any] | None:
    if not frame.takes_statics:
        return None
    call, x = frame.compile(lambda x, n: x + n, ("n",)), frame.array(np.ones(4))
    return lambda: call(x, n=3)


def _named(frame: Frame) -> Callable[[], Any] | None:
    if not frame.takes_statics:
        return None
    call, x = frame.compile(lambda x, y: x + y), frame.array(np.ones(4))
    return lambda: call(x=x, y=x)


def _number(frame: Frame) -> Callable[[], Any] | None:
    if not frame.takes_statics:
        return None
    call, x = frame.compile(lambda x, y: x + y), frame.array(np.ones(4))
    return lambda: call(x, 2.5)


def _gradient(frame: Frame) -> Callable[[], Any] | None:
    call, x = frame.value_and_grad(lambda x: (x * x).sum()), frame.array(np.ones(4))
    return None if call is None else (lambda made: lambda: made(x))(_warm(call, [x]))


def _warm(call: Callable[..., Any], arguments: Sequence[Any]) -> Callable[..., Any]:
    """The function itself where the first call makes it."""
    call(*arguments)
    made: list[Callable[..., Any]] = getattr(call, "unwrapped", [])
    return made[0] if made else call


FORMS: dict[str, Form] = {
    **{f"{n} array{'s' * (n > 1)}, one result": _arrays(n, 1) for n in (1, 5, 10, 20)},
    **{f"{n} arrays, {n} results": _arrays(n, n) for n in (5, 20)},
    "value and gradient, one array": _gradient,
    "two arrays by name": _named,
    "an array and a float": _number,
    "an array and a static int": _static,
    f"dict of {LEAVES} arrays, one result": _tree(1),
    f"dict of {LEAVES} arrays, such a dict": _tree(LEAVES),
    f"value and gradient, dict of {LEAVES} arrays": _tree_gradient,
}


def serve(name: str) -> None:
    """Answer each name of a form on standard input with microseconds per call, null for a form it does not have."""
    frame = FRAMES[name]()
    calls: dict[str, Callable[[], Any] | None] = {}
    for line in sys.stdin:
        form = line.strip()
        if form not in calls:
            calls[form] = FORMS[form](frame)
            if (first := calls[form]) is not None:
                _batch(first, 50)
        call = calls[form]
        print(json.dumps(None if call is None else _microseconds(call)), flush=True)


def _microseconds(call: Callable[[], Any]) -> float:
    n = max(20, min(5_000, int(0.004 / _batch(call, 20))))
    best, loop = (min(_batch(fn, n) for _ in range(5)) for fn in (call, _nothing))
    return 1e6 * (best - loop)


def _batch(call: Callable[[], Any], n: int) -> float:
    start = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - start) / n


def _nothing() -> None:
    """What the loop costs, and a call of a Python function without arguments."""


@contextmanager
def worker(name: str) -> Iterator[Callable[[str], float | None]]:
    """A process of a framework, as a function from the name of a form to microseconds per call."""
    python = str(interpreter_of(name) if name in ("jax", "torch", "pytensor") else sys.executable)
    command = [python, "-m", "benchmarks.calls", "--serve", name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        into, out = process.stdin, process.stdout

        def ask(form: str) -> float | None:
            into.write(form + "\n")
            into.flush()
            answer: float | None = json.loads(out.readline())
            return answer

        yield ask
        into.close()


def measure(names: Sequence[str], repeat: int) -> dict[str, dict[str, float | None]]:
    """Medians per form and framework, in microseconds."""
    from contextlib import ExitStack

    found: dict[str, dict[str, float | None]] = {}
    with ExitStack() as stack:
        asks = {name: stack.enter_context(worker(name)) for name in names}
        for form in FORMS:
            rounds = [{name: ask(form) for name, ask in asks.items()} for _ in range(repeat)]
            found[form] = {name: _median([r[name] for r in rounds]) for name in names}
            print(f"{form}: done", file=sys.stderr)
    return found


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def table(found: dict[str, dict[str, float | None]], names: Sequence[str]) -> str:
    """The figures as a table in Markdown."""
    lines = [f"| call | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for form, figures in found.items():
        cells = ["-" if (value := figures[name]) is None else f"{value:.2f}" for name in names]
        lines.append(f"| {form} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.calls", description=__doc__)
    parser.add_argument("--serve", choices=FRAMES, help=argparse.SUPPRESS)
    parser.add_argument("--repeat", type=int, default=7, help="batches per form and framework")
    parser.add_argument("--only", default="", help="frameworks, with commas (default: all that are installed)")
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve)
        return
    wanted = options.only.split(",") if options.only else list(FRAMES)
    names = [n for n in wanted if n in ("NumPy", "jitgrad") or interpreter_of(n) is not None]
    print(table(measure(names, options.repeat), names))


if __name__ == "__main__":
    main()
