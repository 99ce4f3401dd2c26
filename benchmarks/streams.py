"""Random streams of changes: every head against retraining on an independently kept ledger.

`python -m benchmarks.streams NAME ...` runs the cases whose names begin so; each is seeded by its
name, so that a run can go on where another one stopped. What is compared is digests and kinds of
refusals, never times. The first difference ends the run with the case and the request.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from flint import fmpq, fmpq_mat
from numpy.typing import NDArray

import expunge
from benchmarks.data import FILE, Data, load
from benchmarks.measure import Row
from expunge.errors import ExpungeError, ImpossibleDeletionError
from expunge.exact.threads import one_blas_thread
from expunge.ridge.encoding import integer_rows
from expunge.solvers import stream
from expunge.solvers.system import is_well_conditioned

Array = NDArray[Any]
Solver = expunge.CholeskySolver | expunge.WoodburySolver

_FOREIGN = 0.04  # of the requests also try to delete a sample that may never have been added
_MOST_GROUP = 32
_ORACLE_WIDTH = 7  # up to here every head is also compared with the rational solution
_WANTED = 10_000

_REAL = {
    "cifar": FILE,
    "digits": "digits_by_writer_efficientnet_lite0.npz",
    "tweets": "tweets_by_user_mpnet.npz",
    "loans": "loans_by_bank.npz",
}
_SPECTRA = ("plain", "duplicates", "twins", "rare", "dead", "close", "decaying", "mixed scales")


class Difference(Exception):  # noqa: N818 - it is no error of the product's
    """A head or a refusal that is not that of retraining."""


@dataclass(frozen=True)
class Case:
    """A stream: where the features come from, how wide they are, and what is solved."""

    name: str
    source: str
    dim: int
    requests: int
    variant: type[Solver]
    targets: str = "classes"
    columns: int = 3
    gamma: float = 1.0
    above: float | None = None  # instead: bits above what the rule accepts for all samples
    grid: expunge.Grid = expunge.Grid()  # noqa: RUF009 - immutable
    bits: int = 40
    samples: int = 3000

    def spec(self, features: Array) -> expunge.Spec:
        """The spec, with a gamma that all of these samples together may have."""
        common: dict[str, Any] = {
            "dim": self.dim,
            "grid": self.grid,
            "publication_bits": self.bits,
        }
        if self.targets == "real":
            common |= {"outputs": self.columns, "label_grid": expunge.Grid(2, 30)}
            common["intercept"] = self.columns > 1
        else:
            common["labels"] = tuple(range(self.columns))
        spec = expunge.Spec(gamma=self.gamma, **common)
        if self.above is None:
            return spec
        return spec.with_gamma(_smallest_gamma(spec, features) * 2.0**self.above)


def _smallest_gamma(spec: expunge.Spec, features: Array) -> float:
    """About the smallest gamma that the conditioning rule accepts for all of these samples."""
    whole = expunge.Statistics.of(spec, features, _targets(spec, features), lost_columns="accept")
    trace = sum(whole.diagonal())
    gamma = 2.0**-60
    while not is_well_conditioned(spec.with_gamma(gamma), trace):
        gamma *= 1.05
    return gamma


@cache
def _real(source: str) -> tuple[Array, Array]:
    """Features and labels of a data set; synthetic ones of the same kind where it is missing."""
    path = Path(os.environ.get("EXPUNGE_DATA") or ".") / _REAL[source]
    if not path.exists():
        data = load()
        return data.features[:, :99] if source == "loans" else data.features, data.labels
    with np.load(path) as content:
        features = content["train_features"][:20_000].astype(np.float32)
        scale = content["scale"] if "scale" in content.files else np.ones(1)
        features = np.multiply(features, scale.astype(np.float32))
        return features, content["train_labels"][:20_000].astype(int)


def _synthetic(spectrum: str, count: int, dim: int, draw: np.random.Generator) -> Array:
    features = draw.standard_normal((count, dim))
    if spectrum == "duplicates":
        features = np.repeat(features[: count // 5 + 1], 6, axis=0)[:count]
    if spectrum == "twins":
        features[:, 1] = features[:, 0]
        features[:, -1] = -features[:, dim // 2]
    if spectrum == "rare":
        features *= draw.random(features.shape) < 0.01 + 0.3 * draw.random(dim) ** 3
    if spectrum == "dead":
        features[:, ::2] = 0.0
    if spectrum == "close":
        features[:, 0] *= 1e-3
        features[:, 1] = features[:, 2] + 1e-5 * features[:, 1]
    if spectrum == "decaying":
        turn, _ = np.linalg.qr(draw.standard_normal((dim, dim)))
        features = (features * np.logspace(0, -7, dim)) @ turn
    if spectrum == "mixed scales":
        features *= np.logspace(-6, 1, dim)
    return np.clip(features, -60.0, 60.0)


def _samples(case: Case, draw: np.random.Generator) -> tuple[Array, Array | None]:
    if case.source in _REAL:
        features, labels = _real(case.source)
        rows = draw.permutation(len(features))[: case.samples]
        columns = np.sort(draw.permutation(features.shape[1])[: case.dim])
        return features[np.ix_(rows, columns)], labels[rows]
    return _synthetic(case.source, case.samples, case.dim, draw), None


def _targets(spec: expunge.Spec, features: Array) -> Array:
    return np.zeros((len(features), spec.columns))


def _labels(case: Case, known: Array | None, draw: np.random.Generator) -> Array:
    if case.targets == "real":
        size = 10.0 ** draw.uniform(-3, 2)
        return draw.normal(0.0, size, (case.samples, case.columns))
    if case.targets == "soft":
        return draw.dirichlet(np.ones(case.columns), case.samples)
    classes = draw.integers(0, 1 << 30, case.samples) if known is None else known
    return np.asarray(classes % case.columns)


def _outcome(ask: Callable[[], expunge.Head]) -> str:
    """The digest, or the kind of refusal."""
    try:
        return ask().digest
    except ExpungeError as refusal:
        return type(refusal).__name__


def _is_refused(delete: Callable[[], None]) -> bool:
    try:
        delete()
    except ImpossibleDeletionError:
        return True
    return False


class Stream:
    """A solver, and beside it a ledger and the live samples, which know nothing of it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.chance = random.Random(case.name)  # noqa: S311 - repeatable, not secret
        draw = np.random.default_rng(self.chance.getrandbits(64))
        self.features, known = _samples(case, draw)
        self.labels = _labels(case, known, draw)
        self.spec = case.spec(self.features)
        self.live = np.arange(case.samples) < case.samples * 2 // 3
        self.ledger = self._statistics(np.flatnonzero(self.live))
        self.solver = case.variant(self.spec, self.ledger)
        self.counts: Counter[str] = Counter()
        self.is_expected = False  # that the next head is moved row by row

    def _statistics(self, chosen: Array) -> expunge.Statistics:
        return expunge.Statistics.of(
            self.spec, self.features[chosen], self.labels[chosen], lost_columns="accept"
        )

    def run(self) -> None:
        """All requests, with all comparisons; raises Difference at the first one."""
        _outcome(self.solver.head)
        for request in range(1, self.case.requests + 1):
            self._change()
            if self.chance.random() < _FOREIGN:
                self._foreign()
            self._compare(request)
        self._compare_rows()

    def _change(self) -> None:
        size = 1 if self.chance.random() < 0.8 else self.chance.randint(1, _MOST_GROUP)
        kept = self.live.mean()
        is_deletion = self.chance.random() < (0.9 if kept > 0.8 else 0.1 if kept < 0.2 else 0.6)
        pool = np.flatnonzero(self.live == is_deletion).tolist()
        chosen = np.array(self.chance.sample(pool, min(size, len(pool))))
        rows = integer_rows(self.spec, self.features[chosen], self.labels[chosen])
        part = self._statistics(chosen)
        if is_deletion:
            self.solver.delete_rows(rows)
            self.ledger = self.ledger - part
        else:
            self.solver.add_rows(rows)
            self.ledger = self.ledger + part
        self.live[chosen] = not is_deletion
        self.is_expected &= len(chosen) <= min(_MOST_GROUP, stream.room_for(self.spec.width))
        self.counts["rows"] += len(chosen)
        self.counts["deletions" if is_deletion else "additions"] += 1

    def _foreign(self) -> None:
        """Try to delete what may never have been added: refused on both sides or on neither."""
        self.is_expected = False
        place = self.chance.randrange(len(self.features))
        factor = self.chance.choice([1.0, 1.001, 0.9, 3.0, 30.0])
        limit = 0.99 * self.spec.grid.limit
        features = np.clip(self.features[[place]].astype(np.float64) * factor, -limit, limit)
        labels = self.labels[[place]]
        gone = expunge.Statistics.of(self.spec, features, labels, lost_columns="accept")
        other = expunge.CholeskySolver(self.spec, self.ledger)
        refused = _is_refused(partial(self.solver.delete, features, labels))
        if refused != _is_refused(partial(other.delete_statistics, gone)):
            raise Difference(f"{self.case.name}: a deletion is refused on one side only")
        self.counts["refused deletions"] += refused
        if not refused:
            if _outcome(self.solver.head) != _outcome(lambda: expunge.solve(self.ledger - gone)):
                raise Difference(f"{self.case.name}: after the deletion of a foreign sample")
            self.solver.add(features, labels, lost_columns="accept")

    def _compare(self, request: int) -> None:
        found = _outcome(self.solver.head)
        if found != _outcome(lambda: expunge.solve(self.ledger)):
            raise Difference(f"{self.case.name}: request {request}")
        self.counts["heads"] += 1
        if found.isalpha():
            self.counts["refused heads"] += 1
            return
        self._count_path(self.solver.head())
        if self.spec.width <= _ORACLE_WIDTH:
            if not np.array_equal(self.solver.head().integers, rational_head(self.ledger)):
                raise Difference(f"{self.case.name}: request {request}, rational solution")
            self.counts["rational"] += 1

    def _count_path(self, head: expunge.Head) -> None:
        """A head was undecided if it was refined though the one before was moved row by row, and
        the change was one of few rows.
        """
        diagnostics = head.diagnostics
        is_moved = diagnostics is not None and diagnostics.contraction == 0.0
        is_decided = diagnostics is not None and diagnostics.refinement_steps == 0
        self.counts["moved"] += is_moved and is_decided
        self.counts["undecided"] += self.is_expected and not (is_moved and is_decided)
        self.counts["undecided by a stream"] += self.is_expected and not is_moved
        self.is_expected = is_moved

    def _compare_rows(self) -> None:
        retained = self._statistics(np.flatnonzero(self.live))
        if self.solver.statistics != retained or _outcome(self.solver.head) != _outcome(
            lambda: expunge.solve(retained)
        ):
            raise Difference(f"{self.case.name}: the rows themselves")
        self.counts["from rows"] += 1


def rational_head(ledger: expunge.Statistics) -> Array:
    """The published integers by FLINT: the rational solution, rounded."""
    spec = ledger.spec
    scale = Fraction(1, 1 << spec.grid.fraction_bits)
    label_scale = scale / (1 << spec.label_grid.fraction_bits)
    gram, moment = _integers(ledger.gram), _integers(ledger.moment)
    left, right = fmpq_mat(spec.width, spec.width), fmpq_mat(spec.width, spec.columns)
    entries = iter(gram)
    for row in range(spec.width):
        for column in range(row, spec.width):
            value = next(entries) * scale * scale
            value += spec.exact_gamma if row == column else 0
            left[row, column] = left[column, row] = fmpq(value.numerator, value.denominator)
        for column in range(spec.columns):
            value = moment[row * spec.columns + column] * label_scale
            right[row, column] = fmpq(value.numerator, value.denominator)
    solution, places = left.solve(right), Fraction(1 << spec.publication_bits)
    return np.array(
        [
            [
                round(Fraction(int(entry.p), int(entry.q)) * places)
                for entry in (solution[row, column] for column in range(spec.columns))
            ]
            for row in range(spec.width)
        ],
        dtype=np.int64,
    )


def _integers(wide: Array) -> list[int]:
    """128-bit two's complement limbs, the least significant first, as Python integers."""
    low, high = wide.reshape(2, -1)
    pairs = zip(low.tolist(), high.view(np.int64).tolist(), strict=True)
    return [(upper << 64) + lower for lower, upper in pairs]


_KINDS: tuple[dict[str, Any], ...] = (
    {"targets": "classes", "columns": 10, "gamma": 1.0},
    {"targets": "soft", "columns": 4, "gamma": 0.03, "bits": 30},
    {"targets": "real", "columns": 1, "above": 8.0},
    {"targets": "real", "columns": 3, "gamma": 1e3, "grid": expunge.Grid(1, 14)},
    {"targets": "classes", "columns": 2, "above": 0.0, "grid": expunge.Grid(2, 30)},
    {"targets": "real", "columns": 2, "above": 14.0, "bits": 20},
    {"targets": "classes", "columns": 3, "above": -0.6},
)
_FULL = (("cifar", 1280, 1.0), ("tweets", 768, 1.0), ("digits", 1280, 10.0))


def cases() -> Iterator[Case]:
    """All streams: real features at several widths, nasty spectra, and small rational ones."""
    for letter, variant in (("B", expunge.WoodburySolver), ("A", expunge.CholeskySolver)):
        for source in _REAL:
            dims = (49, 120, 255, 300, 399, 200, 80)
            if source == "loans":
                dims = (98, 60, 97, 30, 80, 95, 50)
            for dim, kind in zip(dims, _KINDS, strict=True):
                wider = {"grid": expunge.Grid(2, 32)} if source == "loans" else {}
                yield Case(f"{source} {dim} {letter}", source, dim, 160, variant, **kind | wider)
        for spectrum in _SPECTRA:
            for dim, kind in zip((20, 47, 64, 90, 128, 33, 40), _KINDS, strict=True):
                name = f"{spectrum} {dim} {letter}"
                yield Case(name, spectrum, dim, 90, variant, samples=600, **kind)
            for dim, kind in ((3, _KINDS[0]), (6, _KINDS[2]), (5, _KINDS[5])):
                name = f"rational {spectrum} {dim} {letter}"
                yield Case(name, spectrum, dim, 80, variant, samples=150, **kind)
        for source, dim, gamma in _FULL:
            name = f"full {source} {letter}"
            yield Case(name, source, dim, 170, variant, columns=10, gamma=gamma, samples=11_000)


@contextmanager
def folds_ahead(*, narrow: bool) -> Iterator[None]:
    """Streams of narrow features, too, fold in the background."""
    before = stream.BACKGROUND_WIDTH
    stream.BACKGROUND_WIDTH = 1 if narrow else before
    try:
        yield
    finally:
        stream.BACKGROUND_WIDTH = before


def run(names: list[str]) -> Counter[str]:
    """The cases whose names begin with one of these, or all; shows progress."""
    chosen = [case for case in cases() if not names or case.name.startswith(tuple(names))]
    total: Counter[str] = Counter()
    for place, case in enumerate(chosen, 1):
        start = time.perf_counter()
        checked = Stream(case)
        with folds_ahead(narrow=place % 2 == 0):
            checked.run()
        counts = checked.counts
        total.update(counts)
        sys.stderr.write(
            f"  {place}/{len(chosen)} {case.name}: {counts['heads']} heads, "
            f"{counts['moved']} moved, {counts['undecided']} undecided, "
            f"{counts['refused heads']} refused; {total['heads']} in all, "
            f"{time.perf_counter() - start:.0f} s\n"
        )
    return total


def report(_: Data) -> tuple[str, list[Row]]:
    """What `make bench` prints; a difference ends it."""
    with one_blas_thread():
        counts = run([])
    text = f"## Random streams\n\n{summary(counts)}\n"
    row = Row(
        "requests in random streams, each with the digest of retraining",
        "wanted",
        counts["heads"] / 1000.0,
        _WANTED / 1000.0,
        "no fewer, none different",
        holds=counts["heads"] >= _WANTED,
        unit="thousand",
    )
    return text, [row]


def summary(counts: Counter[str]) -> str:
    """What was compared, in words."""
    return (
        f"{counts['heads']:,} requests ({counts['additions']:,} additions and "
        f"{counts['deletions']:,} deletions, of {counts['rows']:,} rows) on the four data sets and "
        "on spectra with duplicates, twin, dead, rare and nearly collinear features and conditions "
        "up to the rule's limit; both variants, one and two digits, classes, soft labels and real "
        "targets. After every request the digest, or the kind of refusal, is that of `solve` of a "
        f"ledger kept beside; {counts['from rows']} times, at the end of every stream, it and the "
        f"statistics are those of the rows themselves; {counts['rational']:,} heads are the rational "
        "solution, rounded. "
        f"{counts['moved']:,} heads were moved row by row; {counts['undecided']:,} after "
        f"few changed rows were undecided, of which {counts['undecided by a stream']} went the exact "
        f"way; {counts['refused heads']} were refused on both sides. "
        f"{counts['refused deletions']} deletions of samples that were never added were refused, "
        "and the same ones by statistics. Differences: 0."
    )


if __name__ == "__main__":
    with one_blas_thread():
        print(summary(run(sys.argv[1:])))
