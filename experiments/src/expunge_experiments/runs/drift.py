"""drift: thousands of single requests, float Variant B against exact Variant B, at several
condition numbers.

Samples have a prescribed condition number; followers take the same stream of single requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge import Spec, Statistics, WoodburySolver, solve
from expunge.errors import InputError, NotAGramError
from expunge.solvers.float64 import FloatWoodburySolver, relative_deviation
from expunge_experiments.datasets.dataset import fitting_grid
from expunge_experiments.message import Array
from expunge_experiments.report.figures import BLACK, BLUE, VERMILLION, log_axis, panels
from expunge_experiments.report.tables import MISSING, scientific
from expunge_experiments.runs import base

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from expunge_experiments.datasets.catalogue import Library

SOURCES = ("spectrum", "real")
PATTERNS = ("alternating", "long runs")
_CLASSES = 10
_FLOAT32_BITS = 24
_ROOM_BITS = 8  # by which weights may grow along a stream


@dataclass(frozen=True)
class DriftSamples:
    """Features and labels, how many are retained at first, and how many at least."""

    features: Array
    labels: Array
    classes: int
    start: int
    least: int


def samples_of(key: Mapping[str, Any], library: Library) -> DriftSamples:
    """Real features (some columns of a dataset), or normal ones whose covariance has eigenvalues
    from 1 to 1 / condition.

    Alternating requests keep about as many samples as in the beginning; long runs leave fewer than
    there are features. Features are rounded to as many bits as float32 holds of the largest, so
    that every arithmetic begins with the same numbers.
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
        return DriftSamples(
            _rounded(features), draw.integers(0, _CLASSES, total), _CLASSES, start, least
        )
    dataset = library.load(key["dataset"])
    if dataset.dim < dim or len(dataset.train_labels) < total:
        raise InputError(
            f"{dataset.name} has too few columns or samples for dim = {dim}, which needs {total} "
            "samples"
        )
    chosen = draw.choice(len(dataset.train_labels), total, replace=False)
    columns = draw.choice(dataset.dim, dim, replace=False)
    features = dataset.train_features[chosen][:, np.sort(columns)]
    return DriftSamples(
        _rounded(features), dataset.train_labels[chosen], dataset.classes, start, least
    )


def _rounded(features: Array) -> Array:
    bits = _FLOAT32_BITS - int(np.frexp(np.abs(features).max())[1])
    return np.asarray(
        np.ldexp(np.rint(np.ldexp(features.astype(np.float64), bits)), -bits).astype(np.float32)
    )


def spec_for(condition: float, samples: DriftSamples) -> Spec:
    """With gamma such that the largest eigenvalue of S in the beginning is `condition` times gamma.

    Heads are published with as many bits as there is room for: the rounding of the reference must
    not hide small drifts.
    """
    rows = np.column_stack(
        [samples.features[: samples.start].astype(np.float64), np.ones(samples.start)]
    )
    largest = float(np.linalg.norm(rows, 2)) ** 2
    labels = tuple(range(samples.classes))
    grid = fitting_grid(samples.features)
    spec = Spec(
        dim=samples.features.shape[1],
        labels=labels,
        gamma=largest / condition,
        publication_bits=30,
        grid=grid,
    )
    first = slice(0, samples.start)
    weights = solve(
        Statistics.of(spec, samples.features[first], samples.labels[first], lost_columns="accept")
    ).weights
    room = 53 - _ROOM_BITS - int(np.frexp(np.abs(weights).max())[1])
    return spec.with_publication_bits(room)


def condition_of(spec: Spec, features: Array) -> float:
    """Of S + gamma I, from singular values in float64."""
    rows = np.column_stack([features.astype(np.float64), np.ones(len(features))])
    values = np.zeros(spec.width)
    singular = np.linalg.svd(rows, compute_uv=False)
    values[: len(singular)] = np.square(singular)
    return float((values.max() + spec.gamma) / (values.min() + spec.gamma))


def requests_of(key: Mapping[str, Any], samples: DriftSamples) -> Iterator[tuple[int, bool]]:
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

    It is `lost` at the request at which even a reset found no positive definite matrix, or its head
    is no longer finite.
    """

    dtype: str
    period: int
    solver: FloatWoodburySolver = field(init=False)
    deviations: list[float | None] = field(default_factory=list)
    resets: list[int] = field(
        default_factory=list
    )  # the requests at which the downdate was infeasible
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


# -- the experiment --------------------------------------------------------------------------------


SERIES = {
    "float64": "float64",
    "float64, periodic": "float64, periodic reset",
    "float32": "float32",
    "float32, periodic": "float32, periodic reset",
}
_ZERO = 1e-17  # below this the figure has a place for zero
_TICKS = (0.0, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 1.0)
_MOST_MARKS = 40  # resets that are marked in a panel; of more, some


@dataclass(frozen=True)
class DriftSettings:
    """The streams."""

    dataset: str = "cifar10"  # of the real features, by name
    dim: int = 128  # columns: drawn from the real features, or made
    conditions: tuple[float, ...] = (
        1e4,
        1e7,
        1e10,
    )  # largest eigenvalue of S, in the beginning, over gamma
    sources: tuple[str, ...] = (
        SOURCES  # "spectrum": normal features with eigenvalues from 1 to 1 / condition; "real"
    )
    patterns: tuple[str, ...] = (
        PATTERNS  # delete and add in turns; or delete until half of dim is left, and add all back
    )
    requests: int = 10000  # single deletions and additions
    every: int = 50  # requests after which heads are compared with retraining
    period: int = 1000  # requests after which the followers with a periodic reset are reset
    seed: int = 0  # of samples and streams

    def __post_init__(self) -> None:
        for name, choices in (("sources", SOURCES), ("patterns", PATTERNS)):
            unknown = set(getattr(self, name)) - set(choices)
            if unknown or not getattr(self, name):
                raise InputError(
                    f"{name} = {list(getattr(self, name))} must be some of {', '.join(choices)}"
                )
        if (
            self.dim < 4
            or self.requests < 1
            or self.period < 1
            or not 1 <= self.every <= self.requests
        ):
            raise InputError(
                "dim must be at least 4, requests and period at least 1, and every between 1 and "
                "requests"
            )
        if not self.conditions or not all(1.0 < condition <= 1e11 for condition in self.conditions):
            raise InputError(f"conditions = {list(self.conditions)} must lie between 1 and 1e11")


class Drift(base.Experiment[DriftSettings]):
    """Rounding errors that add up."""

    name = "drift"
    title = "Drift over many requests"
    question = (
        "How far does Variant B drift from the exact head over ten thousand single requests, in "
        "float32 and float64, at several condition numbers, and what do resets mend?"
    )
    paper = (
        "Numerical stability: Variant B can accumulate floating-point drift over long downdate "
        "sequences; fp64 reduces it, and resets to Variant A are a safeguard when the Cholesky "
        "factorization of I - U T U' fails or becomes ill-conditioned."
    )
    full = DriftSettings()
    quick = DriftSettings(requests=300, every=50, period=100, sources=("spectrum",))

    def cells(self, settings: DriftSettings) -> list[base.Cell]:
        """One for each source, pattern and condition number."""
        cells = []
        for source in settings.sources:
            for pattern in settings.patterns:
                for condition in settings.conditions:
                    names = ("dim", "requests", "every", "period", "seed")
                    key: dict[str, Any] = {
                        "source": source,
                        "pattern": pattern,
                        "condition": condition,
                    }
                    key |= {name: getattr(settings, name) for name in names}
                    if source == "real":
                        key["dataset"] = settings.dataset
                    cells.append(base.Cell(key, partial(_measure, key)))
        return cells

    def tables(self, _: DriftSettings, results: base.Results) -> list[base.Table]:
        """Deviations and resets."""
        return results.table(_table)

    def drawings(self, _: DriftSettings, results: base.Results) -> list[base.Drawing]:
        """Deviation over requests, for each source."""
        named = {"spectrum": "normal features with a prescribed spectrum", "real": "real features"}
        return [
            base.Drawing(
                f"drift-{source}",
                f"Relative deviation from the exact head over requests, {named[source]}. Rows: the "
                "kind of stream; columns: condition number. Dotted: with a periodic reset. "
                "Triangles: resets that happened because a downdate was infeasible. Cross: lost, "
                "for even a reset found no positive definite matrix. Exact Variant B is 0, by "
                "digest.",
                partial(_draw, results.where(source=source)),
            )
            for source in results.values("source")
        ]

    def findings(self, _: DriftSettings, results: base.Results) -> list[base.Finding]:
        """That the exact variant did not drift, and how far the others did."""
        if not results:
            return []
        checks = sum(len(done.result["checks"]) for done in results)
        requests = sum(done.key["requests"] for done in results)
        text = (
            f"Exact Variant B has the digest of retraining at all {checks:,} checks of "
            f"{len(results)} streams ({requests:,} "
            "requests): its deviation is 0 at every condition number."
        )
        findings = [
            base.Finding(
                text, all(done.result["equal"] == len(done.result["checks"]) for done in results)
            )
        ]
        for name in ("float64", "float32"):
            worst = [(_worst(done, name), done) for done in results]
            measured = [pair for pair in worst if pair[0] is not None]
            lost = [done for done in results if done.result["series"][name]["lost"] is not None]
            if measured:
                most, done = max(measured, key=lambda pair: pair[0] or 0.0)
                findings.append(
                    base.Finding(
                        f"{name} Variant B is off by up to {scientific(most)} ({_named(done)}); it "
                        f"was lost in {len(lost)} of {len(results)} streams."
                    )
                )
        worse = [done for done in results if _resets_hurt(done)]
        if worse:
            findings.append(
                base.Finding(
                    f"In {len(worse)} of {len(results)} streams float32 with a periodic reset "
                    "ends further off than without: a "
                    "reset solves from float sums, which were rounded at every request as well."
                )
            )
        return findings


def _resets_hurt(done: base.Done) -> bool:
    plain, periodic = (
        done.result["series"][name]["deviations"][-1] for name in ("float32", "float32, periodic")
    )
    return plain is not None and periodic is not None and bool(periodic > plain)


def _measure(key: Mapping[str, Any], library: Library, report: base.Report) -> Mapping[str, Any]:
    samples = samples_of(key, library)
    spec = spec_for(key["condition"], samples)
    features, labels, start = samples.features, samples.labels, samples.start
    exact = WoodburySolver(
        spec, Statistics.of(spec, features[:start], labels[:start], lost_columns="accept")
    )
    exact.head()
    followers = {
        name: Follower(name.split(",")[0], key["period"] if "periodic" in name else 0)
        for name in SERIES
    }
    for follower in followers.values():
        follower.begin(spec, features[:start], labels[:start])
    retained = np.zeros(len(labels), dtype=bool)
    retained[:start] = True
    checks: list[int] = []
    equal, fewest = 0, start

    def check(request: int) -> bool:
        report("requests", request, key["requests"])
        retrained = solve(
            Statistics.of(spec, features[retained], labels[retained], lost_columns="accept")
        )
        checks.append(request)
        for follower in followers.values():
            follower.check(request, retrained.weights)
        return exact.head().digest == retrained.digest

    equal += check(0)
    for request, (number, add) in enumerate(requests_of(key, samples), 1):
        sample = features[[number]], labels[[number]]
        retained[number] = add
        fewest = min(fewest, int(retained.sum()))
        (partial(exact.add, lost_columns="accept") if add else exact.delete)(*sample)
        for follower in followers.values():
            follower.take(request, *sample, add=add)
        if request % key["every"] == 0:
            equal += check(request)
    return {
        "gamma": spec.gamma,
        "publication_bits": spec.publication_bits,
        "condition": condition_of(spec, features[:start]),
        "start": start,
        "fewest": fewest,
        "checks": checks,
        "equal": equal,
        "exact_resets": exact.resets,
        "series": {name: follower.as_dict() for name, follower in followers.items()},
    }


def _named(done: base.Done) -> str:
    return f"{done.key['source']}, {done.key['pattern']}, condition {done.key['condition']:.0e}"


def _worst(done: base.Done, name: str) -> float | None:
    deviations = [value for value in done.result["series"][name]["deviations"] if value is not None]
    return max(deviations) if deviations else None


def _table(results: base.Results) -> base.Table:
    columns = ["stream", "condition of H", "samples", "exact B: equal to retraining"]
    columns += [
        f"{label}: {what}" for label in SERIES.values() for what in ("largest", "last", "resets")
    ]
    rows = []
    for done in results:
        result = done.result
        row = [
            _named(done),
            f"{result['condition']:.1e}",
            f"{result['fewest']} to {result['start']}",
        ]
        row.append(f"{result['equal']} of {len(result['checks'])} checks")
        for name in SERIES:
            series = result["series"][name]
            last = (
                f"lost at {series['lost']}"
                if series["lost"] is not None
                else scientific(series["deviations"][-1])
            )
            worst = _worst(done, name)
            row += [
                MISSING if worst is None else scientific(worst),
                last,
                str(len(series["resets"])),
            ]
        rows.append(row)
    key = results[0].key
    note = (
        f"{key['requests']:,} single requests each, compared every {key['every']}; d = "
        f"{key['dim']}. Deviations are relative (Frobenius), from the retrained head. Resets: "
        f"those forced by an infeasible downdate; the periodic ones come every {key['period']} "
        "requests besides. Lost: even a reset found no positive definite matrix."
    )
    return base.Table("Drift of Variant B", columns, rows, frozenset(columns[1:]), note)


def _draw(results: base.Results) -> Figure:
    conditions, patterns = results.values("condition"), results.values("pattern")
    figure, axes = panels(
        len(conditions),
        len(patterns),
        width=3.0,
        height=2.3,
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    for row, pattern in zip(axes, patterns, strict=True):
        for panel, condition in zip(row, conditions, strict=True):
            for done in results.where(pattern=pattern, condition=condition):
                _lines(panel, done)
            panel.set(
                title=f"{pattern}, condition {condition:.0e}", xlim=(0, results[0].key["requests"])
            )
            log_axis(panel, zero=_ZERO)
            panel.set_yticks(_TICKS)
            panel.set_ylim(-_ZERO / 2, 10.0)
        row[0].set_ylabel("relative deviation")
    for panel in axes[-1]:
        panel.set_xlabel("requests")
        panel.set_xticks(
            [results[0].key["requests"] * quarter / 4 for quarter in range(4)]
        )  # not the last: it touches the next panel
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def _lines(axes: Any, done: base.Done) -> None:
    checks = done.result["checks"]
    axes.plot(checks, [0.0] * len(checks), color=BLACK, label="exact")
    for name, label in SERIES.items():
        series = done.result["series"][name]
        colour = BLUE if name.startswith("float64") else VERMILLION
        points = [
            (request, value)
            for request, value in zip(checks, series["deviations"], strict=True)
            if value is not None
        ]
        x, y = [point[0] for point in points], [point[1] for point in points]
        axes.plot(
            x,
            y,
            color=colour,
            linestyle=":" if "periodic" in name else "-",
            linewidth=1.0,
            label=label,
        )
        if points and "periodic" not in name:
            step = max(1, len(series["resets"]) // _MOST_MARKS)
            marked = series["resets"][::step]
            axes.plot(
                marked,
                np.interp(marked, x, y),
                linestyle="none",
                marker="^",
                markersize=2.5,
                color=colour,
            )
        if series["lost"] is not None:
            axes.plot(
                [series["lost"]], [y[-1] if y else 1.0], linestyle="none", marker="x", color=colour
            )
