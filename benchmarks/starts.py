"""What the first call takes in a new process with a warm cache, by phase: ``python -m benchmarks.starts [row ...]``.

Each figure is the least of several processes, in milliseconds of processor time, from after ``import jitgrad`` (and the
making of the arguments) to the first result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

ROWS = ("gelu_1e3", "logistic", "rosenbrock", "mlp_32", "layer_norm")
PHASES = ("flatten", "trace", "slice", "import", "stamp", "key", "load", "bind", "run")
REPEAT = 7

_CODE = """
import json, sys, time
import jitgrad as jg
from benchmarks.workloads import WORKLOADS
row = sys.argv[1]
workload = WORKLOADS[row]
arrays = workload.make(1.0)
time.sleep(0.5)  # threads of BLAS that made the arguments wait busily for more, and processor time is counted
f = jg.compile(jg.value_and_grad(workload.losses["numpy"], workload.argnums, has_aux=workload.has_aux))
loaded = set(sys.modules)
times = [time.process_time()]
def done(): times.append(time.process_time())
if len(sys.argv) > 2:
    f(*arrays)
    sys.exit()
call = f._calls._take_apart(arrays, {}); done()
traced = f._calls._trace(call, call.leaves, None); done()
from jitgrad.running import Runner
[stage] = [step.stage for step in Runner(traced.outputs, traced.feeds, traced.effects, "main")._steps]
program = stage.program([t.spec for t in stage.feeds]); done()
import jitgrad.executable as executable; done()
from jitgrad.compiler.freezing import plans
from jitgrad.compiler.freezing.plankey import plan_key
from jitgrad.compiler.machine.stamp import stamp
stamp(); done()
key = plan_key(program); done()
found = plans.find_plan(key); done()
bound = plans.bind_frozen(program, *found); done()
made = executable.make_executable(program)
made(call.arrays); done()
heavy = sorted({"numba", "llvmlite", "scipy"} & {name.split(".")[0] for name in set(sys.modules) - loaded})
print(json.dumps([[1000 * (b - a) for a, b in zip(times, times[1:])], heavy]))
"""


def measure(row: str) -> tuple[list[float], list[str]]:
    """Milliseconds of each phase, and the heavy packages that were loaded."""
    command = [sys.executable, "-c", _CODE, row]
    subprocess.run([*command, "warm"], check=True)
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(REPEAT)]
    times, heavy = min(runs, key=lambda run: sum(run[0]))
    return times, heavy


def main(rows: list[str]) -> None:
    """Print the table."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"{'ms':<12}" + "".join(f"{phase:>9}" for phase in (*PHASES, "total")))
    for row in rows:
        times, heavy = measure(row)
        print(f"{row:<12}" + "".join(f"{ms:9.2f}" for ms in (*times, sum(times))), *heavy)


if __name__ == "__main__":
    main(sys.argv[1:] or list(ROWS))
