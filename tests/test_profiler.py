"""Profiles of real runs: events, tables, traces, pages, findings and the command that profiles a script."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import journal, recording
from jitgrad.cli import main
from jitgrad.profiler import findings
from jitgrad.profiler.events import BACKWARD, COMPILE, FORWARD, WORK, Event
from jitgrad.profiler.findings import find
from jitgrad.profiler.limits import Limits, machine_limits
from jitgrad.profiler.profile_table import profile_table
from jitgrad.profiler.ranking import BY, exclusive, rank
from jitgrad.profiler.surroundings import Surroundings
from jitgrad.profiler.timeline import timeline_of_runs
from jitgrad.profiler.trace_event import trace_events


def loss(w: Any, x: Any) -> Any:
    return np.sum(np.tanh(x @ w) ** 2)


W, X = np.full((4, 2), 0.5), np.arange(12.0).reshape(3, 4)


@pytest.fixture
def profiled() -> jg.Profile:
    """A profile of the first call of a gradient and of two more."""
    step = jg.compile(jg.value_and_grad(loss))
    with jg.profile() as prof:
        for _ in range(3):
            step(W, X)
    return prof


def kinds(prof: jg.Profile) -> list[str]:
    return [event.kind for event in prof.events]


def test_a_run_is_seen_whole(profiled: jg.Profile) -> None:
    found = kinds(profiled)
    assert found.count("call") == found.count("native") == 3
    assert found.count("trace") == found.count("simplify") == 1
    assert found.count("kernel") % 3 == found.count("blas") % 3 == 0 and "kernel" in found and "blas" in found


def test_events_nest_and_are_in_order(profiled: jg.Profile) -> None:
    events = profiled.events
    assert [e.start for e in events] == sorted(e.start for e in events)
    for number, event in enumerate(events):
        if event.parent is not None:
            around = events[event.parent]
            assert event.parent < number and around.start <= event.start and event.end <= around.end
        else:
            assert event.kind == "call"
    assert sum(exclusive(events)) == sum(e.duration for e in events if e.parent is None)


def test_kernels_know_their_lines_phases_bytes_and_operations(profiled: jg.Profile) -> None:
    work = [e for e in profiled.events if e.kind in WORK]
    assert {e.phase for e in work} >= {FORWARD, BACKWARD} or {e.phase for e in work} >= {"forward+backward", BACKWARD}
    for e in work:
        assert e.nbytes_read > 0 and e.nbytes_written > 0 and e.flops > 0 and e.scope is not None
        assert e.lines and all("test_profiler.py:" in line for line in e.lines)
    product = next(e for e in work if e.kind == "blas")
    assert product.flops == 2 * 3 * 4 * 2 and product.nbytes_read == X.nbytes + W.nbytes


def test_the_times_of_kernels_add_up_to_the_call() -> None:
    f = jg.compile(jg.value_and_grad(lambda x: np.sum(np.exp(np.sin(x)) * x)))
    x = np.linspace(0, 1, 1_000_000)
    f(x)
    with jg.profile() as prof:
        for _ in range(9):
            f(x)
    shares = [
        sum(k.duration for k in prof.events if k.kind == "kernel" and prof.events[k.parent or 0].parent == number)
        / call.duration
        for number, call in enumerate(prof.events)
        if call.kind == "call"
    ]
    assert len(shares) == 9 and 0.9 < max(shares) <= 1  # other processes stretch some calls


def test_nothing_is_kept_outside_the_block(profiled: jg.Profile) -> None:
    count = len(profiled.events)
    jg.compile(loss)(W, X)
    assert len(profiled.events) == count and not recording.sinks


def test_results_are_the_same_bits() -> None:
    step = jg.compile(jg.value_and_grad(loss))
    plain = step(W, X)
    with jg.profile():
        recorded = step(W, X)
    assert plain[0].tobytes() == recorded[0].tobytes() and plain[1].tobytes() == recorded[1].tobytes()


def test_profiles_nest_and_end_with_exceptions() -> None:
    f = jg.compile(loss)
    with pytest.raises(ZeroDivisionError), jg.profile() as outer:
        f(W, X)
        with jg.profile() as inner:
            f(W, X)
        1 / 0  # noqa: B018
    assert kinds(outer).count("call") == 2 and kinds(inner).count("call") == 1
    assert not recording.sinks
    with outer:
        f(W, X)
    assert kinds(outer).count("call") == 3
    with outer, pytest.raises(RuntimeError, match="runs already"):
        outer.__enter__()


def test_several_threads() -> None:
    f = jg.compile(loss)
    f(W, X)
    with jg.profile() as prof:
        threads = [threading.Thread(target=lambda: [f(W, X) for _ in range(20)]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    calls = [e for e in prof.events if e.kind == "call"]
    assert len(calls) == 60 and 1 <= len({e.thread for e in calls}) <= 3
    for e in prof.events:
        assert e.parent is None or prof.events[e.parent].thread == e.thread


def test_calls_of_machine_code_are_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes the first, second, fourth, ... of them; the journal holds the others, in small stretches here."""
    monkeypatch.setattr("jitgrad.journal._WORDS", 100)
    step = jg.compile(jg.value_and_grad(loss), name="step")
    expected = step(W, X)
    seen: list[int] = []
    with jg.profile() as outer:
        for _ in range(40):
            got = step(W, X)
            assert got[0].tobytes() == expected[0].tobytes() and got[1].tobytes() == expected[1].tobytes()
        with jg.profile() as inner:
            step(W, X)
            seen.append(kinds(inner).count("call"))
            step(W, X)
    calls = [e for e in outer.events if e.kind == "call"]
    assert len(calls) == 42 and {e.name for e in calls} == {"loss"} and {e.parent for e in calls} == {None}
    assert seen == [1] and kinds(inner).count("call") == 2
    journals = [source for *_, source in outer._records if isinstance(source, journal.Journal)]
    assert len(journals) > 5 and sum(len(list(j.written())) for j in journals) > 30
    work = [e for e in outer.events if e.kind in WORK]
    assert len(work) % 42 == 0 and all(e.duration >= 0 and e.lines for e in work)
    assert {outer.events[outer.events[e.parent or 0].parent or 0].kind for e in work} == {"call"}
    assert journal.latest is None


def test_a_profile_that_is_full_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitgrad.journal._WORDS", 100)
    monkeypatch.setattr("jitgrad.journal.MOST_WORDS", 300)
    step = jg.compile(jg.value_and_grad(loss))
    with jg.profile() as prof:
        for _ in range(200):
            step(W, X)
    assert 10 < kinds(prof).count("call") < 100 and "the profile is full" in prof.findings[0]
    with jg.profile() as again:
        step(W, X)
    assert kinds(again).count("call") == 1 and not any("is full" in text for text in again.findings)
    monkeypatch.setattr(sys.modules["jitgrad.profiler.profile"], "MOST_RECORDS", 5)
    with jg.profile() as short:
        step.interpret(W, X)
    assert len(short.events) <= 5 and "the profile is full" in short.findings[0]


def test_a_call_that_raises_is_written_down_too() -> None:
    pick = jg.compile(lambda x, k: np.take(x, k) * 2.0)
    x, good, bad = np.arange(5.0), np.array([1, 2]), np.array([1, 7])
    for _ in range(3):
        pick(x, good)
    with jg.profile() as prof:
        for k in (good, good, good, bad, good, bad):
            with contextlib.suppress(IndexError):
                pick(x, k)
    assert kinds(prof).count("call") == 6


def numpy_events(prof: jg.Profile) -> list[Event]:
    found = [e for e in prof.events if e.kind == "numpy"]
    for e in found:
        assert e.shares[0].line.startswith("test_profiler.py:") and e.parent is not None
        assert e.nbytes_read > 0 and e.nbytes_written > 0
        assert any(e.name in finding and "ran in NumPy" in finding for finding in prof.findings)
    return found


def test_interpreted_ops_are_events_with_reasons() -> None:
    f = jg.compile(lambda x: np.sort(x))
    with jg.profile() as prof:
        f(np.arange(50.0))
    assert [e.name for e in numpy_events(prof)] == ["sort"]
    assert len(prof.programs()) == 1


def test_interpreted_runs_are_events() -> None:
    f = jg.compile(lambda x: np.tanh(np.exp(x)))
    with jg.profile() as prof:
        f.interpret(np.arange(5.0))
    assert [e.name for e in numpy_events(prof)] == ["exp", "tanh"] and kinds(prof)[0] == "call"
    assert any("the run was interpreted" in finding for finding in prof.findings)


def test_sessions_and_py_func_are_events() -> None:
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, [3], name="x")
        y = jg.py_func(np.sort, [x], np.float64)
        with jg.Session() as session, jg.profile() as prof:
            session.run(y, {x: np.array([3.0, 1.0, 2.0])})
    assert kinds(prof)[0] == "call" and prof.events[0].name == "session"
    [event] = numpy_events(prof)
    assert event.name == "py_func" and event.nbytes_read == event.nbytes_written == 24 and event.dtype == "float64"


def test_reading_a_table_inside_the_block_leaves_no_events() -> None:
    f = jg.compile(loss)
    machine_limits.cache_clear()
    with jg.profile() as prof:
        f(W, X)
        prof.table()
        f(W, X)
    assert kinds(prof).count("call") == 2


def test_looks_into_the_cache_say_what_they_found(tmp_path: Path) -> None:
    with jg.config(cache_dir=str(tmp_path)), jg.profile() as prof:
        jg.compile(lambda x: np.tanh(x) * 0.771)(X)
        jg.compile(lambda x: np.tanh(x) * 0.771)(X)
    plans = [e.facts for e in prof.events if e.kind == "cache" and e.name.startswith("plan of")]
    assert plans == [{"hit": False}, {"hit": True}]
    assert all(e.facts["hit"] in (True, False) for e in prof.events if e.kind == "cache")


# -- loops ---------------------------------------------------------------------------------------------------


def powers(x: Any) -> Any:
    """A scan of 40 steps, and what becomes of its items."""
    return np.sum(jg.scan(lambda c, _: (np.tanh(c * 1.1), c), x, np.zeros(40))[1] ** 2)


def test_a_loop_in_machine_code_is_one_event_with_its_steps() -> None:
    """Its ops are those of its body, where the tables look for their part of the time; operations count every step."""
    step = jg.compile(powers, name="powers")
    with jg.profile() as prof:
        for _ in range(5):
            step(np.linspace(0.0, 1.0, 8))
    loops = [e for e in prof.events if e.kind == "loop"]
    assert len(loops) == 5 and all("scan of 40 steps" in e.name for e in loops)
    assert all(prof.events[e.parent or 0].kind == "native" and e.phase == FORWARD for e in loops)
    assert all("tanh" in {share.op for share in e.shares} and e.flops >= 40 * 2 * 8 for e in loops)
    assert "tanh" in prof.table("op") and "scan of 40 steps" in prof.table()


def test_a_while_loop_tells_how_many_steps_it_took() -> None:
    """Its gradient, too: as many on the way back."""

    def doubled(x: Any) -> Any:
        return jg.while_loop(lambda s: np.sum(s) < 1000.0, lambda s: s * 2.0, x)

    step, back = jg.compile(doubled), jg.compile(jg.grad(lambda x: np.sum(doubled(x))))
    for fn in (step, back):
        with jg.profile() as prof:
            fn(np.ones(4))
        loops = [e for e in prof.events if e.kind == "loop"]
        assert loops and {e.facts["steps of the latest run"] for e in loops} == {8}
        assert "steps of the latest run" in json.dumps(trace_events(prof.events))


def test_the_ops_of_an_interpreted_loop_lie_within_it() -> None:
    """And the loop's own time is what is left: the table adds up to the call."""
    step = jg.compile(powers)
    with jg.profile() as prof:
        step.interpret(np.linspace(0.0, 1.0, 8))
    [loop] = [k for k, e in enumerate(prof.events) if e.name == "scan"]
    inside = [e for e in prof.events if e.parent == loop]
    assert sum(e.name == "tanh" for e in inside) == 40
    call = next(e for e in prof.events if e.kind == "call")
    assert sum(row.seconds for row in rank(prof.events, "kernel")) <= call.duration * 1e-9


def test_pictures_show_bodies_in_their_loops() -> None:
    explained = jg.compile(jg.grad(powers)).explain(np.linspace(0.0, 1.0, 8))
    assert explained.svg.count(">body</text>") == 2 and "scan of 40 steps" in explained.svg
    assert len(outer_pictures(explained.svg)) == 1
    choice = jg.compile(lambda x: jg.cond(x[0] > 0, lambda: np.exp(x), lambda: x)).explain(np.ones(3))
    assert ">branch 0</text>" in choice.svg and ">branch 1</text>" in choice.svg


# -- tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", BY)
def test_tables(profiled: jg.Profile, by: str) -> None:
    lines = profiled.table(by).splitlines()
    assert lines[0].startswith(by) and "of memory" in lines[0] and len(lines) > 2
    rows = rank(profiled.events, by)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert [row.seconds for row in rows] == sorted((row.seconds for row in rows), reverse=True)


def test_unlike_kernels_have_rows_of_their_own() -> None:
    step, other = jg.compile(lambda x: np.tanh(x) * 2, name="step"), jg.compile(lambda x: np.tanh(x) * 3, name="other")
    with jg.profile() as prof:
        step(X)
        other(X)
        jg.compile(lambda x: np.tanh(x) * 4)(X)
        jg.compile(lambda x: np.tanh(x) * 5)(X)
    names = [row.name for row in rank(prof.events, "kernel")]
    assert len(names) == 4 and {"step: kernel 0: tanh and 1 more", "other: kernel 0: tanh and 1 more"} < set(names)


def test_a_table_of_no_such_thing(profiled: jg.Profile) -> None:
    with pytest.raises(ValueError, match=r"by must be one of kernel, op, line, scope, phase, got 'colour'"):
        profiled.table("colour")


def test_a_short_table_says_what_it_leaves_out(profiled: jg.Profile) -> None:
    count = len(rank(profiled.events, "op"))
    assert f"and {count - 1} more" in profiled.table("op", most=1)


def test_a_table_is_plain_and_a_terminal_shows_colours(profiled: jg.Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert str(profiled) == profiled.table()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert "\x1b[" not in profiled.table()
    shown = str(profiled)
    assert "\x1b[1m" in shown and len(shown.splitlines()) == len(profiled.table().splitlines()) - 1  # no rule
    for row in rank(profiled.events, "kernel"):
        assert row.name in shown


def test_an_empty_profile() -> None:
    with jg.profile() as prof:
        pass
    assert prof.events == () and len(prof.table().splitlines()) == 2
    assert "Nothing ran" in page_of(prof)


def test_no_product_is_faster_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the limit was measured on a busy machine, the run's own fastest product is it, and the table says so."""
    monkeypatch.setattr("jitgrad.profiler.limits.machine_limits", lambda threads: Limits(1e10, 1e9, 1e9))
    product = Event("blas", "matmul", 0, 1000, 1, FORWARD, flops=5000, nbytes_read=8, dtype="float64")
    slower = replace(product, name="other", flops=2500)
    text = profile_table([product, slower], "kernel", 9)
    assert "100%" in text and " 50%" in text
    assert "float64 products of this run reached 5 GFLOP/s, which is taken for the limit: 1 were measured" in text
    assert "taken for the limit" not in profile_table([replace(product, flops=500)], "kernel", 9)


# -- traces --------------------------------------------------------------------------------------------------

# What the Trace Event Format asks of each kind of event: names of fields and their types.
FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "M": {"name": (str,), "args": (dict,)},
    "X": {"name": (str,), "cat": (str,), "ts": (int, float), "dur": (int, float), "args": (dict,)},
    "s": {"name": (str,), "cat": (str,), "ts": (int, float), "id": (int,)},
    "f": {"name": (str,), "cat": (str,), "ts": (int, float), "id": (int,), "bp": (str,)},
}


def test_a_trace_follows_the_schema(profiled: jg.Profile, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    profiled.save_trace(path)
    trace = json.loads(path.read_text())
    assert set(trace) == {"traceEvents", "displayTimeUnit"} and trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        fields = FIELDS[event["ph"]] | {"pid": (int,), "tid": (int,)}
        assert all(isinstance(event[name], types) for name, types in fields.items()), event
        assert 0 <= event["tid"] < 2**32
        assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0
    begun = {e["id"] for e in trace["traceEvents"] if e["ph"] == "s"}
    ended = {e["id"] for e in trace["traceEvents"] if e["ph"] == "f"}
    assert begun == ended and begun
    assert sum(e["ph"] == "X" for e in trace["traceEvents"]) == len(profiled.events)


def test_an_arrow_joins_a_line_and_its_gradient() -> None:
    from jitgrad.profiler.events import Share

    def event(start: int, phase: str, is_gradient: bool) -> Event:
        shares = (Share("tanh", "model.py:3", is_gradient, 1.0),)
        return Event("kernel", "k", start, 10, 7, phase, shares=shares)

    made = trace_events([event(0, FORWARD, False), event(100, BACKWARD, True), event(200, BACKWARD, True)])
    arrows = [(e["ph"], e["ts"]) for e in made["traceEvents"] if e["ph"] in "sf"]
    assert arrows == [("s", 0.005), ("f", 0.105)]


# -- pages ---------------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Notes what a page would load, and tags left open."""

    void = ("meta", "br", "hr", "link", "img", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.void:
            self.open.append(tag)
        self.loads += [f"{tag} {key}" for key, to in attrs if key in ("src", "href", "data") and (to or "")[:1] != "#"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(prof: jg.Profile) -> str:
    from jitgrad.profiler.profile_page import profile_page

    return profile_page("title <of it>", prof.events, prof.findings, prof.programs())


def test_a_page_is_whole_and_needs_nothing(profiled: jg.Profile) -> None:
    text = page_of(profiled)
    reader = Reader()
    reader.feed(text)
    assert reader.open == [] and reader.loads == []
    assert "title &lt;of it&gt;" in text and "prefers-color-scheme: dark" in text and 'name="viewport"' in text
    for part in ("Where the time went", "When", "What was compiled", "matrix product"):
        assert part in text


def outer_pictures(text: str) -> list[ElementTree.Element]:
    """The SVG documents of a page; bars of a timeline are SVG within SVG."""
    found, depth, begin = [], 0, 0
    for tag in re.finditer(r"<svg\b|</svg>", text):
        if tag.group() == "<svg":
            begin = begin if depth else tag.start()
            depth += 1
        else:
            depth -= 1
            if not depth:
                found.append(ElementTree.fromstring(text[begin : tag.end()]))
    return found


def test_the_pictures_of_a_page_are_svg(profiled: jg.Profile, tmp_path: Path) -> None:
    """Two timelines, with the compilation and without, and one program."""
    profiled.save_html(tmp_path / "page.html")
    whole, runs, program = outer_pictures((tmp_path / "page.html").read_text())
    assert whole.get("class") == runs.get("class") == "times" and program.get("class") == "jg"
    kinds_of = [[bar[0].text.split(" ")[0] for bar in picture if bar.tag.endswith("svg")] for picture in (whole, runs)]
    assert "trace" in kinds_of[0] and not {"trace", "compile"} & set(kinds_of[1])
    assert kinds_of[0].count("call") == 3 and kinds_of[1].count("call") == 2
    for bar in (part for picture in (whole, runs) for part in picture if part.tag.endswith("svg")):
        x, width = (float((bar.get(name) or "").rstrip("%")) for name in ("x", "width"))
        assert 0 <= x <= 100 and width >= 0 and x + width <= 100.001


def test_time_that_is_left_out_takes_no_room() -> None:
    """A call that compiles between two that run: these two stand side by side."""
    events = [
        Event("call", "f", 0, 100, 1, "call"), Event("call", "f", 100, 10_000, 1, "call"),
        Event("compile", "f", 200, 9000, 1, COMPILE, parent=1), Event("call", "f", 10_100, 300, 1, "call"),
    ]  # fmt: skip
    [picture] = outer_pictures(timeline_of_runs(events))
    bars = [(bar.get("x"), bar.get("width")) for bar in picture if bar.tag.endswith("svg")]
    assert bars == [("0.000000%", "25.000000%"), ("25.000000%", "75.000000%")]
    assert timeline_of_runs(events[:1]) == "" and timeline_of_runs([events[1], replace(events[2], parent=0)]) == ""


# -- findings ------------------------------------------------------------------------------------------------


def test_findings_name_what_changed_and_what_took_long() -> None:
    step = jg.compile(loss, name="step")
    with jg.profile() as prof:
        for n in (3, 4, 5):
            step(W, np.ones((n, 4)))
    text = "\n".join(prof.findings)
    assert "loss at test_profiler.py:" in text and "was traced again 2 times, mostly for the call at test_pro" in text
    assert "argument x changed from f64[3,4] to f64[4,4]" in text


def test_functions_of_one_name_are_told_apart() -> None:
    """Two lambdas that are traced again, one of them twice: a sentence each."""
    f = jg.compile(lambda x: x * 2)
    g = jg.compile(lambda x: x * 3)
    with jg.profile() as prof:
        for n in (1, 2, 3):
            f(np.ones(n))
        for n in (1, 2):
            g(np.ones(n))
    said = [text for text in prof.findings if "was traced" in text]
    assert len(said) == 2 and "was traced again 2 times, mostly" in said[0] and "was traced once more, for" in said[1]


def test_compiling_that_takes_longer_than_all_runs_names_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "_LONG", 0.0)  # how long it takes is the machine's affair

    def many(x: Any) -> Any:
        for k in range(12):
            x = np.cumsum(np.sin(x * (1.5 + k)) + k)
        return x

    with jg.config(cache=False), jg.profile() as prof:
        jg.compile(many)(np.ones(77))
    text = "\n".join(prof.findings)
    assert "tracing and compiling took" in text
    assert "most of it for many at test_profiler.py:" in text and "called at test_profiler.py:" in text


def test_an_op_that_cuts_a_scope_is_named() -> None:
    f = jg.compile(lambda x: np.tanh(np.sort(np.exp(x)) * np.exp(x)))
    with jg.profile() as prof:
        f(np.arange(50.0))
    said = next(text for text in prof.findings if text.startswith("one scope became several native calls"))
    assert "sort" in said and "test_profiler.py:" in said


@pytest.mark.parametrize(
    ("milliseconds", "is_cached", "said"),
    [
        (60, True, ["tracing and compiling took 60 ms; all runs together 1 ms: call the function more often"]),
        (60, False, ["tracing and compiling took 60 ms; all runs together 1 ms: call the function more often, or keep "
                     "the cache on disk (JITGRAD_CACHE=1)"]),
        (40, False, []),
    ],
)  # fmt: skip
def test_compiling_is_named_when_it_took_long(milliseconds: int, is_cached: bool, said: list[str]) -> None:
    compiling = Event("compile", "step", 0, milliseconds * 1_000_000, 1, COMPILE)
    kernel = Event("kernel", "k", milliseconds * 1_000_000, 1_000_000, 1, FORWARD)
    assert list(find([], [compiling, kernel], Surroundings(1, 2, 0.0, is_cached))) == said


def test_an_oversubscribed_machine_is_named() -> None:
    """As it was when the block ended, whenever the findings are read."""
    with jg.config(num_threads=64), jg.profile() as prof:
        jg.compile(loss)(W, X)
    assert any("64 threads share" in finding for finding in prof.findings)
    assert any("4.0 processes want its 2" in finding for finding in find([], [], Surroundings(1, 2, 4.0, True)))


def test_denormals_are_named() -> None:
    f = jg.compile(lambda x: x * 0.5)
    with jg.profile() as prof:
        f(np.full(100, 1e-310))
    assert any("denormal" in finding for finding in prof.findings)


def test_a_copied_output_is_named() -> None:
    f = jg.compile(lambda x: (x + 1, np.ravel(x + 1)))
    with jg.profile() as prof:
        f(np.ones((2, 3)))
    assert any("is copied after the run" in finding for finding in prof.findings)


# -- the command ---------------------------------------------------------------------------------------------

SCRIPT = """
import sys
import numpy as np
import jitgrad as jg
print(jg.compile(jg.grad(lambda x: np.sum(x ** 3)))(np.arange(3.0)), sys.argv[1:], __name__)
{end}
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(SCRIPT.format(end=""))
    return path


def test_profile_of_a_script(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert main(["profile", "--out", str(out), str(script), "--epochs", "3"]) == 0
    printed = capsys.readouterr().out
    assert "[ 0.  3. 12.] ['--epochs', '3'] __main__" in printed and "of memory" in printed
    assert json.loads((out / "model.trace.json").read_text())["traceEvents"]
    assert "<svg" in (out / "model.profile.html").read_text()


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [("raise ValueError('no data')", 1, "ValueError: no data"), ("sys.exit(5)", 5, ""), ("sys.exit('bad')", 1, "bad")],
)
def test_a_script_that_fails_is_profiled_all_the_same(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], end: str, status: int, said: str
) -> None:
    script.write_text(SCRIPT.format(end=end))
    assert main(["profile", "--out", str(tmp_path), str(script)]) == status
    printed = capsys.readouterr()
    assert said in printed.err and "kernel" in printed.out
    assert (tmp_path / "model.profile.html").is_file()


@pytest.mark.parametrize(("name", "said"), [("missing", "does not exist"), ("file", "is no folder")])
def test_a_folder_that_cannot_be_written_is_named_before_the_script_runs(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    (tmp_path / "file").touch()
    assert main(["profile", "--out", str(tmp_path / name), str(script)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and f"{tmp_path / name} {said}: nothing was run" in printed.err


def test_a_read_only_folder_is_named_before_the_script_runs(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # as for a user who is not root
    assert main(["profile", "--out", str(tmp_path), str(script)]) == 2
    assert "cannot be written to: nothing was run" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_at_the_end_does_not_change_the_status(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.profile.html").mkdir()
    assert main(["profile", "--out", str(tmp_path), str(script)]) == 0
    assert "could not write" in capsys.readouterr().out


def test_a_traceback_begins_in_the_script(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text("def f():\n    raise ValueError('no data')\nf()\n")
    assert main(["profile", "--out", str(tmp_path), str(script)]) == 1
    text = capsys.readouterr().err
    assert text.count("File ") == 2 and "runpy" not in text and "model.py\", line 3" in text
    script.write_text("def f(:\n")
    assert main(["profile", "--out", str(tmp_path), str(script)]) == 1
    text = capsys.readouterr().err
    assert "SyntaxError" in text and "runpy" not in text and "model.py" in text


def test_a_script_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(tmp_path / "none.py")]) == 2
    assert "is not a file" in capsys.readouterr().err


def test_the_command_in_a_process_of_its_own(script: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jitgrad", "profile", "--out", str(tmp_path), str(script)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "written to" in done.stdout


# -- off -----------------------------------------------------------------------------------------------------


def test_recording_reaches_only_those_who_listen() -> None:
    found: list[recording.Record] = []
    with recording.span("kind", "unheard"):
        pass
    recording.add_sink(found.append)
    with recording.span("kind", "heard", 3):
        time.sleep(0)
    recording.remove_sink(found.append)
    with recording.span("kind", "unheard again"):
        pass
    assert [(r[0], r[1], r[5]) for r in found if r[0] != "journal"] == [("kind", "heard", 3)]
    with pytest.raises(ValueError, match="gets no records"):
        recording.remove_sink(found.append)
