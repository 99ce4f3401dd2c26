"""Refinement: an iterate in fixed point with its exact residual, driven until every weight can be
rounded.

The preconditioner only proposes; what is published follows from the residual R = G - H W, which is
known exactly, and from a proven lower bound on the smallest eigenvalue of H, since ||W - W*|| <=
||R|| / lambda_min(H).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from expunge.errors import PublicationRangeError, UndecidableTieError
from expunge.exact import blas, wide
from expunge.exact.gram import Digits
from expunge.exact.symmetric import add_transposed_product, rows_times
from expunge.ridge.spec import Spec
from expunge.solvers.system import RidgeSystem

Float = NDArray[np.float64]
Propose = Callable[[Float], Float]

_SPARE_BITS = 32  # of the iterate below the publication grid
# An entry within 2^-(publication_bits + 128) of a rounding boundary is a tie, on every path
_TIE_BITS = 128
_MOST_WEIGHT_BITS = 53


@dataclass(frozen=True)
class Proposal:
    """A correction in float64, the factor by which it shrinks the residual, and what is known of
    the error after it.
    """

    correction: Float
    contraction: float
    bounds: (
        Float  # per column: on the Euclidean distance of iterate + correction to the exact solution
    )
    remainder: float  # on the Frobenius norm of the residual after the correction
    floor: float  # the proven lower bound on the smallest eigenvalue of H that was used


class Refinement:
    """W = iterate * 2^-bits and R = residual * 2^-unit(bits) with R = G - H W, exactly, at all
    times.
    """

    def __init__(self, system: RidgeSystem, moment: wide.Wide) -> None:
        spec = system.spec
        self.system = system
        self.bits = max(
            spec.publication_bits + _SPARE_BITS,
            spec.label_grid.fraction_bits - spec.grid.fraction_bits,
        )
        shift = system.unit(self.bits) - spec.grid.fraction_bits - spec.label_grid.fraction_bits
        self.iterate = wide.zeros((spec.width, spec.columns), 2)
        self.residual = wide.shifted_left(moment, shift, _limbs(wide.largest_bits(moment) + shift))
        self.steps = 0
        self.digits = 0

    def residual_float(self) -> Float:
        """R in float64, within one part in 2^51."""
        return wide.to_float(self.residual, -self.system.unit(self.bits))

    def propose(self, precondition: Propose, floor: float) -> Proposal:
        """A correction, judged by a float64 product whose error is bounded; `floor` is at most
        lambda_min(H).
        """
        residual = self.residual_float()
        before = blas.column_norms(residual)
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # a stale preconditioner may be far off: seen by its contraction
            correction = precondition(residual)
            remainder = blas.column_norms(residual - self.system.multiply_float(correction))
            sizes = blas.column_norms(correction) * (1 + 2.0**-20)
        certain = (remainder + 2.0**-49 * before) * (1 + 2.0**-20) + self.system.product_error(
            sizes
        )
        total = blas.norm(before)
        return Proposal(
            correction=correction,
            contraction=blas.norm(remainder) / (total or 1.0),
            bounds=certain / floor * (1 + 2.0**-40),
            remainder=blas.norm(certain) * (1 + 2.0**-20),
            floor=floor,
        )

    def apply(self, proposal: Proposal) -> None:
        """Add as much of the correction to the iterate as is worth multiplying exactly; the
        residual stays exact.
        """
        largest = float(np.abs(proposal.correction).max(initial=0.0))
        if largest == 0.0:
            return
        most = 62 // self.system.digit_bits  # a step is a 64-bit integer
        digits = min(max(1, math.ceil(self._useful_bits(proposal) / self.system.digit_bits)), most)
        scale = digits * self.system.digit_bits - 1 - math.frexp(largest)[1]
        if scale > self.bits:
            self._lower(scale)
        step = np.rint(np.ldexp(proposal.correction, scale)).astype(np.int64)
        self._make_room(
            proposal.remainder + self.system.norm * 2.0**-scale * math.sqrt(step.size), largest
        )
        shift = self.bits - scale
        wide.add_shifted(self.iterate, step, shift)
        self.digits += self.system.subtract_product(self.residual, step, shift)
        self.steps += 1

    def _useful_bits(self, proposal: Proposal) -> float:
        """How many bits of the correction to multiply exactly: no more than are right, nor than the
        rounding will need.

        What is left after the step is corrected in float64; the error of that is in proportion to
        it, by rounding and by what the preconditioner leaves. A wrong guess here costs time only.
        """
        size = float(blas.column_norms(proposal.correction).max())
        # Rounding the correction must not add more to the residual, through the largest eigenvalue,
        # than the correction leaves.
        trusted = (
            math.log2(
                self.system.norm * size * math.sqrt(proposal.correction.size) / proposal.remainder
            )
            + 2.0
        )
        wanted = (
            2.0 ** -(self.system.spec.publication_bits + 6)
            / proposal.correction.size
            * proposal.floor
        )
        left = max(
            float(self.system.product_error(np.array(size))),
            proposal.contraction * self.system.norm * size,
        )
        needed = math.log2(max(left, 2.0**-1000) / wanted) + 1.0
        return min(trusted, max(needed, 1.0))

    def change(self, rows: Digits, targets: wide.Wide, sign: int) -> None:
        """The exact residual after rows with integer targets were added or deleted: R += sign *
        U'(V - U W).

        To be called before or after `System.change` with the same rows; the iterate stays as it is.
        """
        spec = self.system.spec
        shift = self.bits + spec.grid.fraction_bits - spec.label_grid.fraction_bits
        bits = max(
            wide.largest_bits(targets) + shift,
            wide.largest_bits(self.iterate) + spec.grid.bits + spec.width.bit_length(),
        )
        error = wide.shifted_left(targets, shift, _limbs(bits + 1))
        wide.subtract_into(error, rows_times(rows, self.iterate, len(error)))
        size = (
            float(np.abs(wide.to_float(error)).max(initial=0.0))
            * 2.0 ** (spec.grid.bits + self.system.guard_bits)
            * len(rows)
        )
        present = wide.largest_bits(self.residual)
        self._extend(max(present, math.frexp(size)[1]) + 2)
        add_transposed_product(self.residual, rows, error, self.system.guard_bits, sign)

    def _lower(self, bits: int) -> None:
        """Express iterate and residual in units of 2^-bits, finer than before."""
        by = bits - self.bits
        self.iterate = wide.shifted_left(
            self.iterate, by, _limbs(wide.largest_bits(self.iterate) + by)
        )
        self.residual = wide.shifted_left(
            self.residual, by, _limbs(wide.largest_bits(self.residual) + by)
        )
        self.bits = bits

    def _make_room(self, remainder: float, largest: float) -> None:
        """See to it that iterate and residual will fit once a step has been taken."""
        self._extend(math.frexp(remainder)[1] + self.system.unit(self.bits) + 1)
        bits = max(wide.largest_bits(self.iterate), math.frexp(largest)[1] + self.bits) + 1
        self.iterate = wide.extended(self.iterate, max(len(self.iterate), _limbs(bits)))

    def _extend(self, bits: int) -> None:
        self.residual = wide.extended(self.residual, max(len(self.residual), _limbs(bits)))

    def rounded(self, proposal: Proposal) -> NDArray[np.int64] | None:
        """The correctly rounded weights * 2^publication_bits, or None while an entry is undecided.

        Raises UndecidableTieError once the bound says that an undecided entry is a tie, and
        PublicationRangeError for an entry that is too large to be an exact float64.
        """
        spec = self.system.spec
        if not float(proposal.bounds.max()) <= 2.0 ** -(
            spec.publication_bits + 2
        ):  # with the tail: within the nearest cell
            return None
        below = self.bits - spec.publication_bits
        tail = np.ldexp(proposal.correction, self.bits)
        floor = wide.shifted_right(self.iterate, below)
        distance = wide.low_bits(
            wide.extended(self.iterate, max(len(self.iterate), below // 64 + 1)), below
        )
        half = wide.zeros(distance.shape[1:], len(distance))
        half[(below - 1) // 64] = np.uint64(1 << ((below - 1) % 64))
        wide.subtract_into(distance, half)
        offset = wide.to_float(distance)
        margin = np.ldexp(proposal.bounds, self.bits) * (1 + 2.0**-20) + 2.0**-48 * (
            np.abs(offset) + np.abs(tail)
        )
        nearest, tie = np.abs(offset + tail), 2.0 ** (below - _TIE_BITS)
        decided = (nearest - margin > tie) & (np.abs(tail) < 2.0 ** (below - 2))
        if decided.all():
            return _in_range(spec, floor, offset + tail > 0.0)
        tied = np.argwhere(nearest + margin <= tie)
        if tied.size:
            row, column = (int(index) for index in tied[0])
            raise UndecidableTieError(
                f"the weight of {_place(spec, row, column)} lies between two points of the "
                f"publication grid, to within 2^-{spec.publication_bits + _TIE_BITS}, so it has no "
                f"correct rounding; publication_bits={spec.publication_bits + 1} makes it a grid "
                "point (spec.with_publication_bits(...))"
            )
        return None


def _in_range(spec: Spec, floor: wide.Wide, up: NDArray[np.bool_]) -> NDArray[np.int64]:
    """floor + up as 64-bit integers, refused where float64 could not hold them exactly."""
    largest = np.abs(wide.to_float(floor))
    if float(largest.max()) < 2.0 ** (_MOST_WEIGHT_BITS + 2):
        integers = wide.to_int64(floor) + up
        if int(np.abs(integers).max()) <= 1 << _MOST_WEIGHT_BITS:
            return integers
    row, column = (int(index) for index in np.unravel_index(largest.argmax(), largest.shape))
    size = float(largest[row, column])
    bits = spec.publication_bits - math.frexp(size)[1] + _MOST_WEIGHT_BITS
    raise PublicationRangeError(
        f"the weight of {_place(spec, row, column)} is about "
        f"{math.ldexp(size, -spec.publication_bits):.6g} in magnitude, too large to be an exact "
        f"float64 with {spec.publication_bits} publication bits; publication_bits={bits} will do "
        "(spec.with_publication_bits(...)), or scale the targets down"
    )


def _limbs(bits: int) -> int:
    """Limbs for signed integers of this many bits, and a bit to spare."""
    return max(2, (bits + 2) // 64 + 1)


def _place(spec: Spec, row: int, column: int) -> str:
    feature = "the intercept" if spec.intercept and row == spec.dim else f"feature {row}"
    target = f"label {spec.labels[column]!r}" if spec.labels is not None else f"output {column}"
    return f"{feature} for {target}"
