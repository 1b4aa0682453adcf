"""The driver's entries from Python, as LLVM IR text: `enter` for machine code that holds the GIL, and `run_steps`, a
builtin over it.
"""

from __future__ import annotations

from jitgrad.compiler.driver.pool_layout import ENSURE, RUNNING, at


def builtin_ir() -> str:
    """`jitgrad_run_steps(self, args, nargs)`: reads six integers and enters; and `jitgrad_enter` itself."""
    names = ("table", "steps", "nsteps", "times", "threads", "release")
    reads = "\n".join(_read_integer(k, name) for k, name in enumerate(names))
    failed = "\n".join(f"  %any{k + 1} = or i1 %any{k}, %bad_{name}" for k, name in enumerate(names))
    return f"""
{_PYTHON}
{_enter()}
@usage = internal constant [{len(_USAGE) + 1} x i8] c"{_USAGE}\\00"

define ptr @jitgrad_run_steps(ptr %self, ptr %args, i64 %nargs) #0 {{
entry:
  %complete = icmp eq i64 %nargs, {len(names)}
  br i1 %complete, label %read, label %usage
usage:
  %type = load ptr, ptr @PyExc_TypeError
  call void @PyErr_SetString(ptr %type, ptr @usage)
  ret ptr null
read:
{reads}
  %any0 = or i1 false, false
{failed}
  br i1 %any{len(names)}, label %suspect, label %sound
suspect:
  %error = call ptr @PyErr_Occurred()
  %raised = icmp ne ptr %error, null
  br i1 %raised, label %fail, label %sound
sound:
  %table = inttoptr i64 %v_table to ptr
  %steps = inttoptr i64 %v_steps to ptr
  %times = inttoptr i64 %v_times to ptr
  %state = call i32 @jitgrad_enter(ptr %table, ptr %steps, i64 %v_nsteps, ptr %times, i64 %v_threads, i64 %v_release)
  %broken = icmp ne i32 %state, 0
  br i1 %broken, label %fail, label %done
done:
  %true = call ptr @PyBool_FromLong(i64 1)
  ret ptr %true
fail:
  ret ptr null
}}
"""


def _enter() -> str:
    """`jitgrad_enter(table, steps, nsteps, times, threads, release)`: starts missing workers, gives up the GIL if
    asked, and runs; 0, or -1 with an exception set: that of a signal which came in a loop.
    """
    return f"""
define i32 @jitgrad_enter(ptr %table, ptr %steps, i64 %nsteps, ptr %times, i64 %threads, i64 %release) #0 {{
entry:
  %limit = trunc i64 %threads to i32
  %others = sub i32 %limit, 1
  %running = load atomic i32, ptr {at(RUNNING)} monotonic, align 4
  %lacking = icmp sgt i32 %others, %running
  br i1 %lacking, label %start, label %run
start:
  %ensure = load ptr, ptr {at(ENSURE)}
  %wanted = call ptr @PyLong_FromLongLong(i64 %threads)
  %lost = icmp eq ptr %wanted, null
  br i1 %lost, label %fail, label %ask
ask:
  %result = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %ensure, ptr %wanted, ptr null)
  call void @Py_DecRef(ptr %wanted)
  %broken = icmp eq ptr %result, null
  br i1 %broken, label %fail, label %started
started:
  call void @Py_DecRef(ptr %result)
  br label %run
run:
  %long = icmp ne i64 %release, 0
  br i1 %long, label %free, label %held
held:
  call void @jitgrad_run(ptr %table, ptr %steps, i64 %nsteps, ptr %times, i32 %limit)
  br label %ended
free:
  %state = call ptr @PyEval_SaveThread()
  call void @jitgrad_run(ptr %table, ptr %steps, i64 %nsteps, ptr %times, i32 %limit)
  call void @PyEval_RestoreThread(ptr %state)
  br label %ended
ended:
  %raised = call ptr @PyErr_Occurred()
  %stopped = icmp ne ptr %raised, null
  %answer = select i1 %stopped, i32 -1, i32 0
  ret i32 %answer
fail:
  ret i32 -1
}}
"""


_USAGE = "run_steps(table, steps, nsteps, times, threads, release): six integers"

_PYTHON = """
@PyExc_TypeError = external global ptr
declare i64 @PyLong_AsLongLong(ptr) #0
declare ptr @PyLong_FromLongLong(i64) #0
declare ptr @PyBool_FromLong(i64) #0
declare ptr @PyErr_Occurred() #0
declare void @PyErr_SetString(ptr, ptr) #0
declare ptr @PyEval_SaveThread() #0
declare void @PyEval_RestoreThread(ptr) #0
declare ptr @PyObject_CallFunctionObjArgs(ptr, ...) #0
declare void @Py_DecRef(ptr) #0
"""


def _read_integer(k: int, name: str) -> str:
    return f"""  %a_{name} = getelementptr ptr, ptr %args, i64 {k}
  %o_{name} = load ptr, ptr %a_{name}
  %v_{name} = call i64 @PyLong_AsLongLong(ptr %o_{name})
  %bad_{name} = icmp eq i64 %v_{name}, -1"""
