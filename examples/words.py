"""Learns vectors for the words of seven sonnets by Shakespeare (18, 29, 30, 55, 73, 116 and 130): skip-grams with
negative sampling (Mikolov et al., arXiv:1310.4546), in a graph.

A word's vector is to tell its neighbours from words drawn at random, which the graph draws anew in each run. A step
looks up a few hundred rows of two tables; their gradients are IndexedSlices, and only these rows change. The graph runs
with its operations compiled and without, and gives the same numbers.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import jitgrad as jg

Array = np.ndarray[Any, np.dtype[Any]]

TEXT = Path(__file__).parent / "data" / "sonnets.txt"
WINDOW, DIMENSIONS, NEGATIVE, BATCH = 3, 32, 5, 128
RATE, EPOCHS, SEED = 6.0, 40, 7


# -- the text --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corpus:
    """The words by their numbers, how often each occurs, and pairs (word, neighbour) as two columns."""

    words: list[str]
    counts: Array
    pairs: Array


def load() -> Corpus:
    """The sonnets as words, and each word with those up to WINDOW places away."""
    text = re.findall(r"[a-z']+", TEXT.read_text().lower())
    words, numbers, counts = np.unique(text, return_inverse=True, return_counts=True)
    pairs = [
        (numbers[at], numbers[near])
        for at in range(len(numbers))
        for near in range(max(0, at - WINDOW), min(len(numbers), at + WINDOW + 1))
        if near != at
    ]
    return Corpus(words.tolist(), counts, np.array(pairs))


# -- the model -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """What a run is fed and what it gives: the loss of a batch, and the operation that changes the rows."""

    pairs: jg.Tensor
    loss: jg.Tensor
    update: jg.Operation
    vectors: jg.Variable


def build(corpus: Corpus, compiled: bool = True) -> Model:
    """The model in the default graph: two tables, the loss, and a step down its gradient."""
    jg.set_random_seed(SEED)
    rng = np.random.default_rng(SEED)
    size = (len(corpus.words), DIMENSIONS)
    vectors = jg.Variable(rng.normal(0, 0.1, size), name="vectors")
    contexts = jg.Variable(rng.normal(0, 0.1, size), name="contexts")
    weights = corpus.counts**0.75
    upto = np.cumsum(weights / weights.sum())
    pairs = jg.placeholder(np.int64, (BATCH, 2), name="pairs")
    with jg.jit_scope(compiled):
        words, near = pairs[:, 0], pairs[:, 1]
        drawn = jg.random_uniform((BATCH, NEGATIVE, 1)) > upto
        others = np.sum(drawn.astype(np.int64), axis=2)
        v = jg.gather(vectors, words)
        right = np.sum(v * jg.gather(contexts, near), axis=1)
        wrong = np.sum(v[:, None, :] * jg.gather(contexts, others), axis=2)
        loss = np.mean(jg.nn.softplus(-right) + np.sum(jg.nn.softplus(wrong), axis=1))
        slopes = jg.gradients(loss, [vectors, contexts])
        changes = [jg.IndexedSlices(RATE * slope.values, slope.indices) for slope in slopes]
    steps = [table.scatter_sub(change) for table, change in zip((vectors, contexts), changes, strict=True)]
    return Model(pairs, loss, jg.group(*steps), vectors)


def train(corpus: Corpus, compiled: bool = True, steps: int | None = None) -> tuple[list[float], Array]:
    """The loss of each batch, and the vectors at the end. Every epoch has the pairs in another order."""
    with jg.Graph().as_default():
        model, session = build(corpus, compiled), jg.Session()
    rng, losses = np.random.default_rng(SEED), []
    per_epoch = len(corpus.pairs) // BATCH
    for step in range(EPOCHS * per_epoch if steps is None else steps):
        if step % per_epoch == 0:
            order = rng.permutation(len(corpus.pairs))
        at = BATCH * (step % per_epoch)
        batch = corpus.pairs[order[at : at + BATCH]]
        loss, _ = session.run([model.loss, model.update], {model.pairs: batch})
        losses.append(float(loss))
    return losses, model.vectors.numpy()


def neighbours(corpus: Corpus, vectors: Array, word: str, count: int = 4) -> list[str]:
    """The words whose vectors have the smallest angles to that of ``word``."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    closeness = unit @ unit[corpus.words.index(word)]
    return [corpus.words[k] for k in np.argsort(-closeness)[1 : count + 1]]


def main() -> None:
    """Train compiled and not, compare, and show some neighbours."""
    corpus = load()
    print(f"{corpus.counts.sum()} words, {len(corpus.words)} different ones, {len(corpus.pairs)} pairs")
    runs = []
    for compiled in (True, False):
        start = time.perf_counter()
        losses, vectors = train(corpus, compiled)
        runs.append((losses, vectors))
        took, epoch = time.perf_counter() - start, len(losses) // EPOCHS
        means = [np.mean(losses[k : k + epoch]) for k in range(0, len(losses), epoch)]
        print(f"{'compiled' if compiled else 'NumPy':9} {took:5.1f} s   loss by epoch: ", end="")
        print(" ".join(f"{mean:.3f}" for mean in means[:: EPOCHS // 6]), f"{means[-1]:.3f}")
    print(f"largest difference of the vectors: {np.max(abs(runs[0][1] - runs[1][1])):.1e}")
    for word in ("love", "death", "eyes", "summer's"):
        print(f"{word:9} {', '.join(neighbours(corpus, runs[0][1], word))}")


if __name__ == "__main__":
    main()
