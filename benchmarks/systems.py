"""The gradient systems' inner loop, in numpy with scipy's BLAS, against the same loop in torch: the
faster one is what we use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import Data
from benchmarks.measure import Row, in_turns, progress
from expunge_experiments.systems.gradient import descend, with_constant, zero_head

_SAMPLES, _CLASSES, _EPOCHS, _RATE = 500, 10, 3, 0.01
_BATCHES = (16, 64, 0)


def _textbook(
    rows: NDArray[np.float32], labels: NDArray[np.int64], batch: int
) -> NDArray[np.float32]:
    """The loop as one would write it first, in numpy alone."""
    weights, draw = zero_head(rows.shape[1] - 1, _CLASSES), np.random.default_rng(0)
    for _ in range(_EPOCHS):
        order = draw.permutation(len(labels))
        for start in range(0, len(labels), batch or len(labels)):
            chosen = order[start : start + (batch or len(labels))]
            scores = rows[chosen] @ weights
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            shares[np.arange(len(chosen)), labels[chosen]] -= 1.0
            weights -= np.float32(_RATE / len(chosen)) * (rows[chosen].T @ shares)
    return weights


def _torch_loops(
    rows: NDArray[np.float32], labels: NDArray[np.int64]
) -> dict[str, Callable[[int], object]]:
    """The loop in torch on one thread, where more are slower: with gradients by hand, and by
    autograd and its optimizer.
    """
    torch: Any = import_module("torch")  # measured only where it is installed
    torch.set_num_threads(1)
    features, wanted = torch.from_numpy(rows), torch.from_numpy(labels)

    def by_hand(batch: int) -> object:
        weights = torch.zeros(rows.shape[1], _CLASSES)
        for _ in range(_EPOCHS):
            for chosen in torch.randperm(len(labels)).split(batch or len(labels)):
                part = features[chosen]
                shares = torch.softmax(part @ weights, 1)
                shares[torch.arange(len(chosen)), wanted[chosen]] -= 1.0
                weights.addmm_(part.T, shares, alpha=-_RATE / len(chosen))
        return weights

    def by_autograd(batch: int) -> object:
        weights = torch.zeros(rows.shape[1], _CLASSES, requires_grad=True)
        optimizer: Any = torch.optim.SGD([weights], lr=_RATE)
        for _ in range(_EPOCHS):
            for chosen in torch.randperm(len(labels)).split(batch or len(labels)):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(
                    features[chosen] @ weights, wanted[chosen]
                ).backward()
                optimizer.step()
        return weights

    return {"torch, gradients by hand": by_hand, "torch, autograd and SGD": by_autograd}


def report(data: Data) -> tuple[str, list[Row]]:
    """Local training of one client: 3 epochs on 500 samples."""
    rows, labels = with_constant(data.features[:_SAMPLES]), data.labels[:_SAMPLES]
    others: dict[str, Callable[[int], object]] = {
        "numpy, as one writes it first": lambda batch: _textbook(rows, labels, batch)
    }
    here = find_spec("torch") is not None
    if here:
        others |= _torch_loops(rows, labels)
    found = []
    for batch in _BATCHES:
        what = (
            f"{_EPOCHS} epochs of softmax SGD, 500 x 1,281, "
            f"{f'batches of {batch}' if batch else 'full batches'}"
        )

        def ours(batch: int = batch) -> object:
            draw = np.random.default_rng(0)
            start = zero_head(rows.shape[1] - 1, _CLASSES)
            return descend(start, rows, labels, epochs=_EPOCHS, batch=batch, rate=_RATE, draw=draw)

        for name, loop in others.items():
            progress(f"{what}: {name}")
            timings = in_turns(ours, partial(loop, batch), 5, 7)
            holds = timings[0] <= 1.1 * timings[1]
            found.append(Row(what, name, *timings, "not slower (within 10%)", holds, faster=True))
    measured = (
        f"torch {import_module('torch').__version__} was measured."
        if here
        else "torch is not installed here: not measured."
    )
    text = [
        "## Local training in the gradient systems\n",
        (
            "Every gradient system (FedAvg, FATS, Exact-Fun, SISA, FedCIO) trains with the same "
            "loop, so that no comparison is won"
        ),
        f"by a slow baseline. {measured}\n",
    ]
    return "\n".join(text), found
