"""The jobs of `highdim`.

Each runs in a process of its own, phase by phase, and notes time and the most memory of each phase.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.linalg import blas

from expunge import CholeskySolver, Head, Spec, Statistics, WoodburySolver, solve
from expunge.exact import wide
from expunge.exact.blas import packed_length
from expunge.solvers.system import RidgeSystem

JOBS = ("retrain", "a", "b", "float64")
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Meter:
    """Time and peak memory of phases.

    Where the system can reset the peak, peaks are per phase ("peak resident memory of each phase");
    elsewhere they are of the process so far, which for the largest of them is the same.
    """

    def __init__(self) -> None:
        self.phases: dict[str, dict[str, float]] = {}
        self.by = (
            "peak resident memory, VmHWM" if _STATUS.exists() else "peak resident memory, getrusage"
        )

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Around a phase."""
        _begin_anew()
        began = time.perf_counter()
        yield
        self.phases[name] = {"seconds": time.perf_counter() - began, "peak_bytes": _peak()}


def _begin_anew() -> None:
    try:
        _CLEAR.write_text("5", encoding="ascii")
    except OSError:  # not there, or not allowed: then the peak is of the process so far
        return


def _peak() -> int:
    """The most memory that was resident, in bytes."""
    if _STATUS.exists():
        line = next(
            line
            for line in _STATUS.read_text(encoding="ascii").splitlines()
            if line.startswith("VmHWM:")
        )
        return int(line.split()[1]) * 1024
    from resource import RUSAGE_SELF, getrusage  # noqa: PLC0415 - not on every system

    return getrusage(RUSAGE_SELF).ru_maxrss * 1024


def measured(key: Mapping[str, Any]) -> dict[str, Any]:
    """Run one job."""
    draw = np.random.default_rng([key["seed"], key["dim"]])
    features = draw.standard_normal((key["samples"], key["dim"]), dtype=np.float32)
    labels = draw.integers(0, key["classes"], key["samples"])
    spec = Spec(dim=key["dim"], labels=tuple(range(key["classes"])), gamma=key["gamma"])
    meter = Meter()
    result = _RUNS[key["job"]](spec, features, labels, meter)
    return {
        "phases": meter.phases,
        "peak_by": meter.by,
        "ledger_bytes": 16 * packed_length(spec.width),
    } | result


def _retrain(
    spec: Spec, features: NDArray[np.float32], labels: NDArray[np.int64], meter: Meter
) -> dict[str, Any]:
    with meter.phase("statistics"):
        statistics = Statistics.of(spec, features[2:], labels[2:])
    with meter.phase("solve"):
        head = solve(statistics)
    return {"digest": head.digest, "verified": residual_is_small(statistics, head)}


def _variant(
    kind: type[CholeskySolver | WoodburySolver],
    spec: Spec,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    meter: Meter,
) -> dict[str, Any]:
    with meter.phase("statistics"):
        statistics = Statistics.of(spec, features, labels)
    with meter.phase("start"):
        solver = kind(spec, statistics)
        del statistics  # the solver has the ledger; a server would not keep two
        solver.head()
    for number, name in enumerate(("delete", "again")):
        with meter.phase(name):
            solver.delete(features[number : number + 1], labels[number : number + 1])
            head = solver.head()
    return {"digest": head.digest, "verified": residual_is_small(solver.statistics, head)}


def _float64(
    spec: Spec, features: NDArray[np.float32], labels: NDArray[np.int64], meter: Meter
) -> dict[str, Any]:
    with meter.phase("statistics"):
        rows = np.ones((len(labels), spec.width), order="F")
        rows[:, :-1] = features
        targets = np.zeros((len(labels), spec.columns))
        targets[np.arange(len(labels)), labels] = 1.0
        gram: Any = blas.dsyrk(1.0, rows, trans=1)
        moment = blas.dgemm(1.0, rows, targets, trans_a=1)
    with meter.phase("solve"):
        _ridge(gram, moment, spec.gamma)
    for number, name in enumerate(("delete", "again")):
        with meter.phase(name):
            gram = blas.dsyr(-1.0, rows[number], a=gram, overwrite_a=1)
            moment -= np.outer(rows[number], targets[number])
            weights = _ridge(gram, moment, spec.gamma)
    return {"digest": "", "verified": bool(np.isfinite(weights).all())}


def _ridge(
    gram: NDArray[np.float64], moment: NDArray[np.float64], gamma: float
) -> NDArray[np.float64]:
    shifted = gram.copy(order="F")
    shifted[np.diag_indices(len(gram))] += gamma
    factor = linalg.cho_factor(shifted, overwrite_a=True, check_finite=False)
    return np.asarray(linalg.cho_solve(factor, moment, check_finite=False))


_RUNS: dict[str, Callable[..., dict[str, Any]]] = {
    "retrain": _retrain,
    "a": lambda *given: _variant(CholeskySolver, *given),
    "b": lambda *given: _variant(WoodburySolver, *given),
    "float64": _float64,
}


def residual_is_small(statistics: Statistics, head: Head) -> bool:
    """Whether G - H W, computed in integers, is as small as it is for the correctly rounded W.

    Every weight is then within half a step of the exact one, so that ||G - H W|| <= ||H|| *
    sqrt(size) * step / 2, column by column; the trace of H is at least ||H||. This uses the exact
    operator, but nothing of the path to the head.
    """
    spec = statistics.spec
    system = RidgeSystem(spec, statistics.gram, once=True)
    bits = max(spec.publication_bits, spec.label_grid.fraction_bits - spec.grid.fraction_bits)
    shift = system.unit(bits) - spec.grid.fraction_bits - spec.label_grid.fraction_bits
    residual = wide.shifted_left(statistics.moment, shift, 6)
    system.subtract_product(
        residual, np.ascontiguousarray(head.integers), bits - spec.publication_bits
    )
    norms = np.sqrt(np.square(wide.to_float(residual, -system.unit(bits))).sum(axis=0))
    trace = sum(statistics.diagonal()) / 4.0**spec.grid.fraction_bits + spec.width * spec.gamma
    allowed = trace * math.sqrt(spec.width) * 2.0 ** -(spec.publication_bits + 1)
    return bool((norms <= allowed * (1.0 + 1e-9)).all())
