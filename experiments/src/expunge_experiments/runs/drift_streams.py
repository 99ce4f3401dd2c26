"""What `drift` runs: samples with a prescribed condition number, streams of single requests, and the followers of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge import Spec, Statistics, solve
from expunge.errors import InputError, NotAGramError
from expunge.solvers.floating import FloatWoodburySolver, relative_deviation
from expunge_experiments.grids import fitting_grid
from expunge_experiments.letter import Array

if TYPE_CHECKING:
    from expunge_experiments.datasets.catalogue import Library

SOURCES = ("spectrum", "real")
PATTERNS = ("alternating", "long runs")
_CLASSES = 10
_FLOAT32_BITS = 24
_ROOM_BITS = 8  # by which weights may grow along a stream


@dataclass(frozen=True)
class Samples:
    """Features and labels, how many are retained at first, and how many at least."""

    features: Array
    labels: Array
    classes: int
    start: int
    least: int


def samples_of(key: Mapping[str, Any], library: Library) -> Samples:
    """Real features (some columns of a dataset), or normal ones whose covariance has eigenvalues from 1 to 1 / condition.

    Alternating requests keep about as many samples as in the beginning; long runs leave fewer than there are features. Features
    are rounded to as many bits as float32 holds of the largest, so that every arithmetic begins with the same numbers.
    """
    dim, draw = key["dim"], np.random.default_rng([key["seed"], 0x6472])
    runs = key["pattern"] == "long runs"
    start = 3 * dim if runs else 10 * dim
    total = start if runs else start + 2 * dim
    least = dim // 2 if runs else start - 1
    if key["source"] == "spectrum":
        scales = np.geomspace(1.0, key["condition"] ** -0.5, dim)
        basis = np.linalg.qr(draw.standard_normal((dim, dim)))[0]
        features = (draw.standard_normal((total, dim)) * scales) @ basis.T
        return Samples(_rounded(features), draw.integers(0, _CLASSES, total), _CLASSES, start, least)
    dataset = library.load(key["dataset"])
    if dataset.dim < dim or len(dataset.train_labels) < total:
        raise InputError(f"{dataset.name} has too few columns or samples for dim = {dim}, which needs {total} samples")
    chosen = draw.choice(len(dataset.train_labels), total, replace=False)
    columns = draw.choice(dataset.dim, dim, replace=False)
    features = dataset.train_features[chosen][:, np.sort(columns)]
    return Samples(_rounded(features), dataset.train_labels[chosen], dataset.classes, start, least)


def _rounded(features: Array) -> Array:
    bits = _FLOAT32_BITS - int(np.frexp(np.abs(features).max())[1])
    return np.asarray(np.ldexp(np.rint(np.ldexp(features.astype(np.float64), bits)), -bits).astype(np.float32))


def spec_for(condition: float, samples: Samples) -> Spec:
    """With gamma such that the largest eigenvalue of S in the beginning is `condition` times gamma.

    Heads are published with as many bits as there is room for: the rounding of the reference must not hide small drifts.
    """
    rows = np.column_stack([samples.features[: samples.start].astype(np.float64), np.ones(samples.start)])
    largest = float(np.linalg.norm(rows, 2)) ** 2
    labels = tuple(range(samples.classes))
    grid = fitting_grid(samples.features)
    spec = Spec(dim=samples.features.shape[1], labels=labels, gamma=largest / condition, publication_bits=30, grid=grid)
    first = slice(0, samples.start)
    weights = solve(Statistics.of(spec, samples.features[first], samples.labels[first], lost_columns="accept")).weights
    room = 53 - _ROOM_BITS - int(np.frexp(np.abs(weights).max())[1])
    return spec.with_publication_bits(room)


def condition_of(spec: Spec, features: Array) -> float:
    """Of S + gamma I, from singular values in float64."""
    rows = np.column_stack([features.astype(np.float64), np.ones(len(features))])
    values = np.zeros(spec.width)
    found = np.linalg.svd(rows, compute_uv=False)
    values[: len(found)] = np.square(found)
    return float((values.max() + spec.gamma) / (values.min() + spec.gamma))


def requests_of(key: Mapping[str, Any], samples: Samples) -> Iterator[tuple[int, bool]]:
    """Single requests: the number of a sample, and whether it is added or deleted."""
    draw = np.random.default_rng([key["seed"], 0x7265])
    retained, spare = list(range(samples.start)), list(range(samples.start, len(samples.labels)))
    add = False
    for request in range(key["requests"]):
        if key["pattern"] == "alternating":
            add = request % 2 == 1
        elif len(retained) <= samples.least:
            add = True
        elif not spare:
            add = False
        source, target = (spare, retained) if add else (retained, spare)
        number = source.pop(int(draw.integers(len(source))))
        target.append(number)
        yield number, add


@dataclass
class Follower:
    """Float Variant B along a stream, with or without a periodic reset; what happened to it.

    It is `lost` at the request at which even a reset found no positive definite matrix, or its head is no longer finite.
    """

    dtype: str
    period: int
    solver: FloatWoodburySolver = field(init=False)
    deviations: list[float | None] = field(default_factory=list)
    resets: list[int] = field(default_factory=list)  # the requests at which the downdate was infeasible
    lost: int | None = None

    def begin(self, spec: Spec, features: Array, labels: Array) -> None:
        """Start from a fresh solve of the first samples, so that only the stream counts."""
        self.solver = FloatWoodburySolver(spec, self.dtype)
        message = self.solver.message(features, labels)
        self.solver.gram += message.r.T @ message.r
        self.solver.moment += message.moment
        self._reset(0)

    def take(self, request: int, features: Array, labels: Array, *, add: bool) -> None:
        """One request, numbered from 1."""
        if self.lost is not None:
            return
        before = self.solver.resets
        try:
            with np.errstate(all="ignore"):
                self.solver.apply(self.solver.message(features, labels), 1 if add else -1)
        except NotAGramError:
            self.lost = request
            return
        if self.solver.resets > before:
            self.resets.append(request)
        if self.period and request % self.period == 0:
            self._reset(request)

    def _reset(self, request: int) -> None:
        try:
            self.solver.reset()
        except NotAGramError:
            self.lost = request

    def check(self, request: int, exact: Array) -> None:
        """Note the deviation from the exact head."""
        deviation = None
        if self.lost is None and np.isfinite(self.solver.weights).all():
            deviation = relative_deviation(self.solver.weights, exact)
        elif self.lost is None:
            self.lost = request
        self.deviations.append(deviation)

    def as_dict(self) -> dict[str, Any]:
        """For results."""
        return {"deviations": self.deviations, "resets": self.resets, "lost": self.lost}
