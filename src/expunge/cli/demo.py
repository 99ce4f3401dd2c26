"""The core on real handwritten digits: train over ten clients, forget, compare with retraining by digest.

Run it by `make demo` or `python -m expunge.cli.demo`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import expunge

Float = NDArray[np.float64]

_CLIENTS = 10
_PEOPLE = 40
_FEATURES = 768
_TEST_EVERY = 5
_SEED = 20


@dataclass
class Federation:
    """Samples with their owners, and which of them are retained."""

    features: Float
    labels: NDArray[np.int64]
    client: NDArray[np.int64]
    person: NDArray[np.int64]
    test_features: Float
    test_labels: NDArray[np.int64]
    retained: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.retained = np.ones(len(self.labels), dtype=bool)


def frozen_backbone(images: Float) -> Float:
    """A fixed feature map: random convolution-free ReLU features from one seed, the same for every client."""
    draw = np.random.default_rng(_SEED)
    mixing = draw.standard_normal((images.shape[1], _FEATURES)) / np.sqrt(images.shape[1])
    offset = draw.standard_normal(_FEATURES)
    features: Float = np.maximum(images / 4.0 @ mixing + offset, 0.0)
    return features


def digits_federation() -> Federation:
    """scikit-learn's 1,797 digits, shared out among clients and people; every fifth is kept for testing."""
    digits = load_digits()
    features, labels = frozen_backbone(digits.data), digits.target.astype(np.int64)
    test = np.arange(len(labels)) % _TEST_EVERY == 0
    draw = np.random.default_rng(_SEED)
    count = int((~test).sum())
    return Federation(
        features=features[~test],
        labels=labels[~test],
        client=draw.integers(0, _CLIENTS, count),
        person=draw.integers(0, _PEOPLE, count),
        test_features=features[test],
        test_labels=labels[test],
    )


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result of some work, and its milliseconds."""
    start = time.perf_counter()
    result = work()
    return result, 1e3 * (time.perf_counter() - start)


class Report:
    """Prints one row a step, and remembers whether every digest was right."""

    columns = ("step", "retained", "accuracy", "took", "retraining", "head digest", "equals retraining")
    widths = (34, 9, 9, 10, 11, 18, 18)

    def __init__(self) -> None:
        self.all_equal = True
        self._tell("  ".join(name.ljust(width) for name, width in zip(self.columns, self.widths, strict=True)).rstrip())
        self._tell("  ".join("-" * width for width in self.widths))

    def row(self, step: str, federation: Federation, head: expunge.Head, took: float, spec: expunge.Spec) -> None:
        """Retrain from what is retained, compare the digests, print a row."""
        kept = federation.retained
        samples = federation.features[kept], federation.labels[kept]
        retrained, retraining = timed(lambda: expunge.solve(expunge.Statistics.of(spec, *samples)))
        equal = head.digest == retrained.digest
        self.all_equal &= equal
        accuracy = float((head.predict(federation.test_features) == federation.test_labels).mean())
        cells = (
            step,
            f"{int(kept.sum()):,}",
            f"{accuracy:.4f}",
            f"{took:.1f} ms",
            f"{retraining:.1f} ms",
            head.digest[:16] + "..",
            "yes, bit for bit" if equal else "NO",
        )
        self._tell("  ".join(cell.ljust(width) for cell, width in zip(cells, self.widths, strict=True)).rstrip())

    @staticmethod
    def _tell(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def run(variant: type[expunge.CholeskySolver] | type[expunge.WoodburySolver], name: str) -> bool:
    """Train, forget a sample, a person and a client, add everything back; whether every digest was right."""
    federation = digits_federation()
    spec = expunge.Spec(dim=_FEATURES, labels=tuple(range(10)), gamma=10.0)
    sys.stdout.write(f"\n{name}\n\n")
    report = Report()
    solver = variant(spec)

    def train() -> expunge.Head:
        for client in range(_CLIENTS):
            own = federation.client == client
            solver.add_statistics(expunge.Statistics.of(spec, federation.features[own], federation.labels[own]))
        return solver.head()

    head, took = timed(train)
    trained = head.digest
    report.row(f"train over {_CLIENTS} clients", federation, head, took, spec)

    first = np.arange(len(federation.labels)) == int(np.flatnonzero(federation.person != 7)[0])
    forgotten = np.zeros(len(federation.labels), dtype=bool)
    for step, who in (
        ("forget one sample", first),
        ("forget one person (at all clients)", federation.person == 7),
        ("forget one client", federation.client == 3),
    ):
        gone = who & ~forgotten
        head, took = timed(lambda gone=gone: _forget(solver, federation, gone))  # type: ignore[misc]
        forgotten |= gone
        federation.retained &= ~gone
        report.row(step, federation, head, took, spec)

    head, took = timed(lambda: _add_back(solver, federation, forgotten))
    federation.retained |= forgotten
    report.row("add everything back", federation, head, took, spec)
    sys.stdout.write(
        f"\nBack to the first digest: {'yes' if head.digest == trained else 'NO'}. Certified error before rounding: "
        f"{head.error_bound:.1e} (weights are multiples of 2^-{spec.publication_bits}).\n"
    )
    return report.all_equal and head.digest == trained


def _forget(solver: Any, federation: Federation, gone: NDArray[np.bool_]) -> expunge.Head:
    solver.delete(federation.features[gone], federation.labels[gone])
    head: expunge.Head = solver.head()
    return head


def _add_back(solver: Any, federation: Federation, gone: NDArray[np.bool_]) -> expunge.Head:
    solver.add(federation.features[gone], federation.labels[gone])
    head: expunge.Head = solver.head()
    return head


def main() -> int:
    """The demo; exits with 1 if any digest differs from retraining."""
    sys.stdout.write(
        f"Expunge {expunge.__version__}: exact unlearning on scikit-learn's handwritten digits.\n"
        f"{_CLIENTS} clients, {_PEOPLE} people, {_FEATURES} frozen features and an intercept, 10 labels, ridge gamma = 10.\n"
        "After each step the head is compared with one retrained from scratch on what is retained.\n"
    )
    equal = run(expunge.CholeskySolver, "Variant A (Cholesky)") & run(expunge.WoodburySolver, "Variant B (Woodbury)")
    sys.stdout.write(
        "\nThe head forgets, and its digest proves it to anyone who holds the retained samples. (A backbone that was trained on\n"
        "forgotten samples would still remember them.)\n"
        "With so few samples retraining is cheap; docs/benchmarks.md has the figures for 50,000.\n"
        "Next: README.md for the Python API, docs/exactness.md for why this works, `make bench` for the figures.\n"
    )
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
