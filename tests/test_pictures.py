"""Layouts and pictures: boxes that do not overlap, edges that point down, and large graphs that stay small."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.profiler.collapsing import collapse, inside
from jitgrad.profiler.drawing import draw
from jitgrad.profiler.layout import Size, lay_out
from jitgrad.profiler.page_pictures import picture_parts
from jitgrad.profiler.picture import Arrow, Body, Box, OpText, Picture, op_lines
from jitgrad.profiler.planned_picture import picture_of

pytestmark = pytest.mark.quick


def random_edges(count: int, seed: int) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    return [(rng.randrange(b), b) for b in range(1, count) for _ in range(rng.randrange(3))]


@pytest.mark.parametrize("seed", range(10))
def test_boxes_are_apart_and_edges_point_down(seed: int) -> None:
    rng = random.Random(seed)
    sizes = {k: Size(rng.uniform(10, 200), rng.uniform(10, 90)) for k in range(25)}
    edges = random_edges(25, seed)
    layout = lay_out(sizes, edges)
    for a, b in combinations(sizes, 2):
        (ax, ay), (bx, by) = layout.corners[a], layout.corners[b]
        apart = (
            ax + sizes[a].width <= bx or bx + sizes[b].width <= ax
            or ay + sizes[a].height <= by or by + sizes[b].height <= ay
        )  # fmt: skip
        assert apart, (a, b)
    for a, b in set(edges):
        assert layout.corners[a][1] + sizes[a].height < layout.corners[b][1]
        path = layout.paths[a, b]
        assert [y for _, y in path] == sorted(y for _, y in path)
    assert all(0 <= x <= layout.size.width and 0 <= y <= layout.size.height for x, y in layout.corners.values())


def test_a_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="cycle"):
        lay_out({k: Size(1, 1) for k in "abc"}, [("a", "b"), ("b", "c"), ("c", "b")])


def test_few_crossings() -> None:
    """Two chains side by side do not cross, in whatever order their boxes are given."""
    sizes = {k: Size(10, 10) for k in ("a0", "b0", "b1", "a1", "a2", "b2")}
    layout = lay_out(sizes, [("a0", "a1"), ("a1", "a2"), ("b0", "b1"), ("b1", "b2")])
    sides = {layout.corners[f"a{k}"][0] < layout.corners[f"b{k}"][0] for k in range(3)}
    assert len(sides) == 1


def chain(count: int, scope: str = "layer") -> Picture:
    ops = [OpText("add", "m.py:1", f"{scope}{k * 8 // count}/add_{k}", k % 2 == 0) for k in range(count)]
    boxes = tuple(Box(k, "kernel", f"kernel {k}", "jit_scope_0", (op,)) for k, op in enumerate(ops))
    return Picture(boxes, tuple(Arrow(k, k + 1, 8, "too large" if k == 3 else "") for k in range(count - 1)))


def test_a_small_picture_stays() -> None:
    assert collapse(chain(10)) == chain(10)


def test_a_large_picture_becomes_its_name_scopes() -> None:
    small = collapse(chain(400), most=20)
    assert [box.title for box in small.boxes] == [f"layer{k}" for k in range(8)]
    assert [(a.source, a.target, a.nbytes) for a in small.arrows] == [(50 * k, 50 * k + 50, 8) for k in range(7)]
    assert sum(len(box.ops) for box in small.boxes) == 400 and small.boxes[0].notes == ("50 kernels",)


def test_without_name_scopes_stretches_are_joined() -> None:
    flat = Picture(
        tuple(Box(k, "kernel", "kernel", None, (OpText("add", "m.py:1", f"add_{k}", False),)) for k in range(5000)),
        tuple(Arrow(k, k + 1, 8) for k in range(4999)),
    )
    small = collapse(flat, most=60)
    assert 25 <= len(small.boxes) <= 30 and all(a.source < a.target for a in small.arrows)


def test_many_equal_scopes_become_named_ranges() -> None:
    """200 layers of one kind, each a scope with two boxes: neighbours are joined, and named by their ends."""
    ops = [OpText("add", "m.py:1", f"layer_{k // 2}/add_{k % 2}", False) for k in range(400)]
    boxes = tuple(Box(k, "kernel", "kernel", "s", (op,)) for k, op in enumerate(ops))
    small = collapse(Picture(boxes, tuple(Arrow(k, k + 1, 8) for k in range(399))))
    assert 25 <= len(small.boxes) <= 30
    assert small.boxes[0].title == "layer_0 … layer_7" and small.boxes[-1].title.endswith(" … layer_199")
    assert sum(len(box.members) for box in small.boxes) == 400
    first = inside(Picture(boxes, tuple(Arrow(k, k + 1, 8) for k in range(399))), small.boxes[0])
    assert [box.key for box in first.boxes] == list(small.boxes[0].members)
    assert [(a.source, a.target) for a in first.arrows] == [(k, k + 1) for k in range(len(first.boxes) - 1)]


def test_inputs_that_became_one_do_not_fan_out() -> None:
    inputs = tuple(Box(k, "input", f"input {k}", None, ()) for k in range(100))
    ops = [OpText("add", f"m.py:{k}", "add", False) for k in range(100)]
    kernels = tuple(Box(100 + k, "kernel", "kernel", "s", (op,)) for k, op in enumerate(ops))
    arrows = tuple(Arrow(k, 100 + k, 8) for k in range(100)) + tuple(Arrow(100 + k, 101 + k, 4) for k in range(99))
    small = collapse(Picture(inputs + kernels, arrows))
    assert small.boxes[0].kind == "input" and len(small.boxes[0].members) == 100
    assert small.boxes[0].notes[-1] == f"read by {len(small.boxes) - 1} of the parts"
    assert all(arrow.source >= 100 for arrow in small.arrows)


def test_labels_are_apart_and_off_the_boxes() -> None:
    """Of arrows between many boxes; those without a place have none."""
    rng = random.Random(3)
    picture = Picture(
        tuple(Box(k, "kernel", f"kernel {k}", "s", ()) for k in range(30)),
        tuple(Arrow(a, b, 1024 * rng.randrange(1, 900)) for a, b in random_edges(30, 3)),
    )
    root = ElementTree.fromstring(draw(picture))
    space = "{http://www.w3.org/2000/svg}"
    labels, boxes = [], []
    for group in root.iter(f"{space}g"):
        if group.get("class") == "edge":
            labels += [
                (float(t.get("x") or 0), float(t.get("y") or 0) - 9, 6.7 * len(t.text or ""), 11.0)
                for t in group.iter(f"{space}text")
            ]
        elif (group.get("class") or "").startswith("kind"):
            x, y = map(float, re.findall(r"[-\d.]+", group.get("transform") or ""))
            rect = next(group.iter(f"{space}rect"))
            boxes.append((x, y, float(rect.get("width") or 0), float(rect.get("height") or 0)))
    assert len(labels) > 10 and len(boxes) == 30
    for number, one in enumerate(labels):
        for other in labels[:number] + boxes:
            assert not all(one[k] < other[k] + other[k + 2] and other[k] < one[k] + one[k + 2] for k in (0, 1))


def test_native_calls_of_one_scope_have_stripes() -> None:
    picture = chain(6)
    boxes = tuple(replace(box, group=f"cluster {box.key // 3}") for box in picture.boxes)
    text = draw(replace(picture, boxes=boxes))
    assert text.count("fill:var(--s0)") == text.count("fill:var(--s1)") == 3 + 1  # and the key
    assert "cluster 1" in text and "--s0)" not in draw(picture)


def test_parts_of_a_page_lead_to_pictures_of_what_they_hold() -> None:
    text = picture_parts(chain(400), "program-7")
    links = re.findall(r'href="#([\w-]+)"', text)
    assert links and sorted(links) == sorted(re.findall(r'<details id="([\w-]+)"', text))
    assert text.count('class="zoom"') == 1 + len(links)
    for k in range(400):
        assert f">kernel {k}</text>" in text


def test_a_drawing_is_xml_with_everything_on_it() -> None:
    text = draw(chain(6))
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    for word in ("kernel 5", "jit_scope_0", "m.py:1", "not one kernel: too large", "prefers-color-scheme: dark", "8 B"):
        assert word in text


def test_a_drawing_has_a_background_of_its_own() -> None:
    """Where it stands alone in a dark viewer, its light letters need dark paper behind them."""
    root = ElementTree.fromstring(draw(chain(3)))
    first = next(part for part in root if part.tag.endswith("rect"))
    assert first.get("style") == "fill:var(--paper)" and list(root).index(first) < 3
    whole = [float(x) for x in (root.get("viewBox") or "").split()]
    assert [float(first.get(name) or "nan") for name in ("x", "y", "width", "height")] == whole


def test_collapsing_keeps_notes() -> None:
    picture = chain(400)
    boxes = tuple(replace(box, notes=(f"note {box.key}",) if box.key < 60 else ()) for box in picture.boxes)
    small = collapse(replace(picture, boxes=boxes), most=20)
    assert small.boxes[0].notes == ("50 kernels", "note 0", "note 1", "note 2", "and 47 more such notes")
    assert len(small.boxes[1].notes) == 5 and small.boxes[2].notes == ("50 kernels",)


def test_a_picture_says_why_a_scope_was_cut() -> None:
    step = jg.compile(lambda x: np.tanh(np.sort(np.exp(x)) * np.exp(x)))
    picture = picture_of(*step.explain(np.arange(50.0)).compiled)
    said = [arrow.reason for arrow in picture.arrows] + [note for box in picture.boxes for note in box.notes]
    assert any("are not compiled together: a path between them goes through sort" in text for text in said)


def test_many_ops_are_counted() -> None:
    ops = [OpText("add" if k % 3 else f"op{k}", "m.py:1", f"n{k}", False) for k in range(60)]
    lines = list(op_lines(ops, 6))
    assert lines[0] == ("add ×40", "") and len(lines) == 6 and lines[-1] == ("… 16 more", "")
    assert list(op_lines(ops[:2], 6)) == [("op0", "m.py:1"), ("add", "m.py:1")]


def test_bodies_lie_within_their_boxes() -> None:
    """A loop's two programs are drawn in its box, one under the other, each with its name."""
    bodies = (Body("body", chain(3)), Body("condition", chain(2, "test")))
    loop = Box(0, "kernel", "while loop", "jit_scope_0", (), inner=bodies)
    after = Box(1, "output", "output 0", None, ())
    root = ElementTree.fromstring(draw(Picture((loop, after), (Arrow(0, 1, 8),))))
    space = "{http://www.w3.org/2000/svg}"
    box = next(g for g in root.iter(f"{space}g") if g.get("class") == "kind-kernel")
    texts = [t.text for t in box.iter(f"{space}text")]
    assert texts.index("body") < texts.index("kernel 2") < texts.index("condition") < len(texts)
    rects = [r for r in box.iter(f"{space}rect") if r.get("class") == "box"]
    assert len(rects) == 6
    assert all(float(rects[0].get("width") or 0) > float(r.get("width") or 0) for r in rects[1:])
    assert float(rects[0].get("height") or 0) > sum(float(r.get("height") or 0) for r in rects[1:])
