"""The examples do what they promise: the digits are learnt, the Greeks are right, NIST's digits are found."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.spec import spec_of

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> ModuleType:
    """An example as a module."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


def test_digits_are_learnt(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    digits = example("digits")
    x, x_test, labels, labels_test = digits.load()
    assert len(x) % digits.BATCH != 0 and len(x) + len(x_test) == 1797
    before = digits.train_step.cache_info()
    p = digits.train(x, labels)
    after = digits.train_step.cache_info()
    assert np.mean(digits.predict(p, x_test) == labels_test) >= 0.97
    assert after.traces - before.traces == 2, "the last batch is smaller"
    assert "epoch  40" in capsys.readouterr().out


def test_a_smaller_batch_compiles_nothing() -> None:
    pytest.importorskip("sklearn")
    digits = example("digits")
    p, x, labels = digits.example_args()
    step = jg.compile(digits.step.fn)
    step(p, x, labels)
    compiles = step.cache_info().compiles
    step(p, x[:67], labels[:67])
    assert step.cache_info().compiles == compiles


def test_the_digits_step_fused() -> None:
    pytest.importorskip("sklearn")
    digits = example("digits")
    comparison = jg.compare(digits.step, *digits.example_args(), repeat=3)
    assert comparison.merged.work.launches == 1 and comparison.merged.work.numpy_calls == 0
    assert comparison.separate.work.launches == 2
    assert max(row.difference or 0 for row in comparison.rows) < 1e-5


def test_greeks_are_those_of_the_closed_forms() -> None:
    greeks = example("greeks")
    options = greeks.market(10_000)
    found = greeks.greeks(*options)
    for name, exact in greeks.closed_forms(*options).items():
        np.testing.assert_allclose(found[name], exact, rtol=1e-11, atol=1e-13 * np.max(np.abs(exact)), err_msg=name)


@pytest.mark.parametrize("start", [0, 1], ids=["far", "near"])
@pytest.mark.parametrize("number", range(4))
def test_certified_digits(number: int, start: int) -> None:
    nist = example("nist")
    problem = nist.PROBLEMS[number]
    b, _ = nist.fit(problem, np.array(problem.starts[start]))
    assert nist.matching_digits(b, problem.certified) >= 10


def test_the_gradient_of_the_end_point_is_that_of_the_sensitivity_equations() -> None:
    ode = example("ode")
    value, gradient = ode.gradient(ode.PARAMETERS)
    expected, sensitivities = ode.by_sensitivities(ode.PARAMETERS)
    assert value == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(gradient, sensitivities, rtol=1e-8)


def test_characters_are_learnt() -> None:
    losses, _ = example("characters").train(60, units=16, steps=12, batch=8)
    assert losses[0] > 3.8 and np.mean(losses[-10:]) < 3.0


@pytest.mark.quick
def test_nist_data_give_the_certified_sum_of_squares() -> None:
    for problem in example("nist_data").PROBLEMS:
        assert problem.x.shape == problem.y.shape
        rss = np.sum((problem.y - problem.model(problem.certified, problem.x)) ** 2)
        assert rss == pytest.approx(problem.certified_rss, rel=1e-9)


def test_words_are_learnt_the_same_compiled_and_not() -> None:
    words = example("words")
    corpus = words.load()
    assert corpus.counts.sum() == 807 and corpus.pairs.shape[1] == 2
    (losses, vectors), (plain, same) = (words.train(corpus, compiled, steps=200) for compiled in (True, False))
    np.testing.assert_allclose(losses, plain, rtol=1e-9)
    np.testing.assert_allclose(vectors, same, rtol=1e-9, atol=1e-12)
    assert np.mean(losses[-37:]) < 0.85 * np.mean(losses[:37])


@pytest.mark.quick
def test_word_tables_change_by_rows() -> None:
    words = example("words")
    with jg.Graph().as_default():
        model = words.build(words.load())
        feeds = {model.pairs: np.zeros((words.BATCH, 2), int)}
        ((stage, arrays),) = jg.Session().stages(model.update, feeds)
        program = stage.program([spec_of(array) for array in arrays])
        made = [ins.op.name for ins in program.instructions]
        assert made.count("scatter_variable") == 2 and "scatter_take" not in made
