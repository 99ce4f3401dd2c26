"""What FedAvg, Exact-Fun, FATS and SISA share: softmax regression by stochastic gradient descent,
rounds, who takes part.

A head is (dim + 1, classes) in float32 and its last row the intercept, so features come with their
constant column (`with_constant`). Laws: `descend` is a function of its arguments, bit for bit on
one machine, and changes none of them; scores that differ by a constant in all classes give the same
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from expunge.errors import InputError
from expunge.exact.threads import one_blas_thread
from expunge_experiments.engine import MessageEngine, State, Worker
from expunge_experiments.message import Array, ArrayMessage
from expunge_experiments.pool import ClientSamples, Pool
from expunge_experiments.systems.linear import LinearSystem

Float32 = NDArray[np.float32]

# Rows looked at together: 64 x 1281 float32 stay in the cache between the two products that read
# them
_ROWS = 64
_NOTHING = np.float32(
    1e-30
)  # shares below count as 0: on subnormal numbers products would take many times as long


def with_constant(features: Array) -> Float32:
    """Features (n, dim) in float32 with a last column of ones, contiguous."""
    rows = np.empty((len(features), features.shape[1] + 1), dtype=np.float32)
    rows[:, :-1] = features
    rows[:, -1] = 1.0
    return rows


def zero_head(dim: int, classes: int) -> Float32:
    """The head that knows nothing: where training starts, and what an emptied federation has."""
    return np.zeros((dim + 1, classes), dtype=np.float32)


def predicted(weights: Array, features: Array) -> NDArray[np.int64]:
    """The class of the highest score for each row of features without the constant column; the
    first, where two are equal.
    """
    scores = np.asarray(features, dtype=np.float32) @ weights[:-1] + weights[-1]
    best: NDArray[np.int64] = np.argmax(scores, axis=1).astype(np.int64)
    return best


def descend(
    weights: Array,
    features: Float32,
    labels: Array,
    *,
    epochs: int,
    batch: int,
    rate: float,
    draw: np.random.Generator,
) -> Float32:
    """The head after `epochs` passes of minibatch SGD on the mean cross-entropy, from `weights`.

    Each pass goes through the rows in a fresh order that `draw` makes, `batch` at a time (the last
    batch may be smaller). With `batch` below 1, or not below the number of rows, a pass is one step
    on all rows and draws nothing.
    """
    whole = batch <= 0 or batch >= len(labels)
    batches = (
        repeat(None, epochs) if whole else cut(len(labels), epochs=epochs, batch=batch, draw=draw)
    )
    return follow(weights, features, labels, batches, rate)


def cut(count: int, *, epochs: int, batch: int, draw: np.random.Generator) -> Iterator[Array]:
    """The batches of some passes over `count` places: each pass in a fresh order, `batch` places at
    a time (0: all of them).
    """
    for _ in range(epochs):
        order = draw.permutation(count)
        yield from (
            (order[start : start + batch] for start in range(0, count, batch))
            if batch > 0
            else (order,)
        )


def follow(
    weights: Array, features: Float32, labels: Array, batches: Iterable[Array | None], rate: float
) -> Float32:
    """The head after one step of SGD on the mean cross-entropy of each batch of rows in turn (None:
    of all rows).

    A batch without rows is passed over.
    """
    if features.ndim != 2 or features.shape[1] != len(weights) or labels.shape != (len(features),):
        raise InputError(
            f"a head of {len(weights)} rows cannot learn from features of shape {features.shape} "
            f"with {len(labels)} labels: "
            "give features with their constant column, and one label for each row"
        )
    turned = np.array(
        weights.T, dtype=np.float32, order="C"
    )  # (classes, dim + 1): products along the long side are fast
    gathered = np.empty((min(_ROWS, len(labels)), features.shape[1]), dtype=np.float32)
    with one_blas_thread():
        for rows in batches:
            if len(labels if rows is None else rows):
                _step(turned, features, labels, rows, rate=rate, gathered=gathered)
    return np.ascontiguousarray(turned.T)


def _step(
    turned: Float32,
    features: Float32,
    labels: Array,
    rows: Array | None,
    *,
    rate: float,
    gathered: Float32,
) -> None:
    """One step on these rows (on all of them: None), in place.

    `gathered` is room for a few rows.
    """
    count = len(labels) if rows is None else len(rows)
    few = count <= _ROWS
    change = turned if few else np.zeros_like(turned)
    for start in range(0, count, _ROWS):
        if rows is None:
            part, wanted = features[start : start + _ROWS], labels[start : start + _ROWS]
        else:
            chosen = rows[start : start + _ROWS]
            part = np.take(
                features, chosen, axis=0, out=gathered[: len(chosen)], mode="clip"
            )  # "raise" would copy twice
            wanted = labels[chosen]
        scores = blas.sgemm(1.0, part.T, turned.T, trans_a=1).T
        scores -= scores.max(axis=0)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=0)
        scores *= scores > _NOTHING
        scores[wanted, np.arange(len(wanted))] -= 1.0
        blas.sgemm(-rate / count, part.T, scores.T, beta=1.0, c=change.T, overwrite_c=1)
    if not few:
        turned += change


# -- systems ---------------------------------------------------------------------------------------


_TURNS = 0x6772_01  # what random numbers are for, so that no two uses share a stream
LOCAL, MULTISET, BATCH = 0x6772_02, 0x6772_03, 0x6772_04


def require_counts(settings: Any, **least: int) -> None:
    """Refuse settings of which one of these is not a whole number of at least so much."""
    for name, bound in least.items():
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < bound:
            raise InputError(f"{name} must be a whole number of at least {bound}, and is {value!r}")


def turns(seed: int, round_: int, clients: int) -> NDArray[np.int64]:
    """All clients in the random order of a round.

    A function of its arguments: the data have no say in it.
    """
    return np.random.default_rng([seed, _TURNS, round_]).permutation(clients)


def mean_of(models: Sequence[Array], sizes: Sequence[int]) -> NDArray[np.float64]:
    """The mean of heads, weighted by sizes, summed in float64 in the order given."""
    total = np.zeros(models[0].shape)
    for model, size in zip(models, sizes, strict=True):
        total += size * model.astype(np.float64)
    return total / sum(sizes)


class GradientWorker(Worker):
    """A client that learns by SGD from the samples it retains."""

    def __init__(
        self, client: int, samples: ClientSamples, *, settings: Any, seed: int, classes: int
    ) -> None:
        super().__init__(client, samples)
        self.settings = settings
        self.seed = seed
        self.classes = classes

    @cached_property
    def rows(self) -> Float32:
        """All its samples' features with their constant column, retained or not."""
        return with_constant(self.samples.features)

    @property
    def places(self) -> NDArray[np.int64]:
        """Where in its samples those are that it retains."""
        return np.flatnonzero(self.retained)

    def answer(self, message: ArrayMessage) -> ArrayMessage:
        """How many samples are retained after "add" and "forget"; the head after "train"."""
        if message.task in ("add", "forget"):
            return ArrayMessage("retained", {"count": int(self.retained.sum())})
        if message.task == "train":
            return ArrayMessage("trained", {}, {"weights": self.train(message)})
        raise InputError(
            f"client {self.client} of a gradient system does not know the task {message.task!r:.60}"
        )

    def train(self, message: ArrayMessage) -> Float32:
        """The local head, from the head that the message has."""
        raise NotImplementedError


class GradientSystem(LinearSystem):
    """The server: knows how many samples each client has, from the clients' own answers, and never
    sees one.
    """

    dtype = np.float32

    def __init__(self, pool: Pool, engine: MessageEngine | None, settings: Any, seed: int) -> None:
        super().__init__(pool, engine, settings, seed)
        self._sizes: NDArray[np.int64] = np.zeros(pool.clients, dtype=np.int64)

    def _zero(self) -> Float32:
        return zero_head(self.pool.dim, self.pool.classes)

    def _say(self, task: str, numbers: Array) -> dict[int, ArrayMessage]:
        """Let clients "add" or "forget" these samples; their answers.

        No client is asked if there are none.
        """
        if not len(numbers):
            return {}
        answers = dict(self.tell(task, numbers))
        for client, message in answers.items():
            self._sizes[client] = message.settings["count"]
        return answers

    def _locals(self, round_: int, clients: Sequence[int], start: Float32) -> list[Array]:
        """The heads of these clients after training in this round from this start; one exchange."""
        message = ArrayMessage("train", {"round": round_}, {"weights": start})
        return [
            answer.arrays["weights"]
            for answer in self.engine.ask([(client, message) for client in clients])
        ]

    def _state(self) -> State:
        return {"sizes": self._sizes}

    def _restore(self, state: Mapping[str, Array]) -> None:
        self._sizes = np.array(state["sizes"], dtype=np.int64)
