"""Samples as one part of a message: as rows, as exact statistics, or as a factor in float64."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from expunge.client.samples import Block
from expunge.errors import FormatError
from expunge.protocol.messages import FactorPart, GramPart, Part, RowsPart
from expunge.rows import Rows
from expunge.solvers.floating import Factor
from expunge.spec import Spec
from expunge.statistics import Statistics
from expunge.sums import Sums
from expunge.targets import Targets


def part_of(spec: Spec, kind: str, blocks: Iterable[Block]) -> Part:
    """The part of a message of this kind for these samples, of which there is at least one."""
    if kind == "rows":
        return _rows(list(blocks))
    if kind == "gram":
        return _gram(spec, blocks)
    if kind == "factor":
        return _factor(spec, blocks)
    raise FormatError(f"a client sends rows, gram or factor messages; {kind!r} is unknown to it")


def _rows(blocks: list[Block]) -> RowsPart:
    targets = Targets(
        np.concatenate([block.rows.targets.integers for block in blocks]),
        np.sum([block.rows.targets.class_counts for block in blocks], axis=0),
    )
    integers = np.concatenate([block.rows.integers for block in blocks])
    rows = Rows(integers, max(block.rows.largest for block in blocks), targets)
    return RowsPart(rows, tuple(salt for block in blocks for salt in block.salts))


def _gram(spec: Spec, blocks: Iterable[Block]) -> GramPart:
    sums = Sums(spec)
    for block in blocks:
        sums.change(block.rows, 1)
    return GramPart(Statistics.snapshot(sums, by_construction=True))


def _factor(spec: Spec, blocks: Iterable[Block]) -> FactorPart:
    """R and Q'Y of the rows so far take the place of those rows, block by block."""
    r, coefficients = np.zeros((0, spec.width)), np.zeros((0, spec.columns))
    count, class_counts = 0, np.zeros(spec.columns if spec.is_classification else 0, dtype=np.int64)
    for block in blocks:
        rows = np.concatenate([r, np.ldexp(block.rows.integers, -spec.grid.fraction_bits)])
        targets = np.concatenate([coefficients, np.ldexp(block.rows.targets.integers, -spec.label_grid.fraction_bits)])
        q, r = np.linalg.qr(rows)
        coefficients = q.T @ targets
        count += len(block.rows)
        class_counts += block.rows.targets.class_counts
    return FactorPart(Factor(r, coefficients), count, class_counts)
