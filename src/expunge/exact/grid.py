"""Grid: the fixed-point grid on which features and labels become integers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, TypeAlias

from expunge.errors import GridRangeError, NotFiniteError, SpecError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float: TypeAlias = NDArray[np.float64]

DIGIT_BITS = 21
_MOST_FRACTION_BITS = 100


@dataclass(frozen=True)
class Grid:
    """Multiples of 2^-fraction_bits with an absolute value below 2^(21 * digits - 1 -
    fraction_bits).

    `digits` is how many radix-2^21 digits an integer has: 1 (20 bits and a sign; the faster) or 2
    (41 bits and a sign). The default keeps every float32 from 2^-12 to 64 in magnitude to its last
    bit.
    """

    digits: int = 2
    fraction_bits: int = 35

    def __post_init__(self) -> None:
        for name in ("digits", "fraction_bits"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise SpecError(f"Grid({name}={value!r}): {name} must be an integer")
            object.__setattr__(self, name, int(value))
        if self.digits not in (1, 2):
            raise SpecError(
                f"Grid(digits={self.digits}): digits must be 1 or 2 (three would not fit 128-bit "
                "sums)"
            )
        if abs(self.fraction_bits) > _MOST_FRACTION_BITS:
            raise SpecError(
                f"Grid(fraction_bits={self.fraction_bits}): fraction_bits must lie between "
                f"-{_MOST_FRACTION_BITS} and {_MOST_FRACTION_BITS}; scale the values instead"
            )

    @property
    def bits(self) -> int:
        """Bits of magnitude: every integer q of this grid has |q| < 2^bits."""
        return DIGIT_BITS * self.digits - 1

    @property
    def limit(self) -> float:
        """Values must be smaller than this in magnitude."""
        return 2.0 ** (self.bits - self.fraction_bits)

    @property
    def step(self) -> float:
        """The distance between neighbouring points."""
        return 2.0**-self.fraction_bits

    @property
    def holds_one(self) -> bool:
        """Whether the value 1 is a point of the grid, as a constant feature and a hard label
        need.
        """
        return 0 <= self.fraction_bits < self.bits

    @classmethod
    def covering(
        cls, largest: float, *, digits: int = 2, headroom_bits: int = 3, holding_one: bool = True
    ) -> Grid:
        """The finest grid with room for `headroom_bits` doublings of the magnitude `largest`."""
        mantissa, whole = math.frexp(largest) if largest > 0 else (0.5, 0)
        whole += mantissa >= 1 - 2.0 ** -(DIGIT_BITS * digits)  # would round up to the limit
        fraction = DIGIT_BITS * digits - 1 - whole - headroom_bits
        if holding_one:
            fraction = max(0, min(fraction, DIGIT_BITS * digits - 2))
        return cls(digits, max(-_MOST_FRACTION_BITS, min(_MOST_FRACTION_BITS, fraction)))

    def put(
        self,
        values: NDArray[np.generic],
        out: Float,
        *,
        what: str = "features",
        first_row: int = 0,
        holding_one: bool = False,
    ) -> float:
        """Write the integers rint(values * 2^fraction_bits) into `out`, as float64; return the
        largest magnitude.

        Refuses NaN, infinities and values beyond the grid, naming row and column; `out` then holds
        nothing of use. A grid named as the remedy holds the value, and 1 too where `holding_one`
        says that it must.
        """
        import numpy as np  # noqa: PLC0415 - a grid is part of every spec, and most are only read

        from expunge.exact.threads import chunks  # noqa: PLC0415 - the same

        scale = 2.0**self.fraction_bits
        largest = np.float64(0.0)
        for part in chunks(len(out), out.shape[1]):
            block = out[part]
            with np.errstate(
                over="ignore", invalid="ignore"
            ):  # what overflows is refused just below, by name
                np.multiply(values[part], scale, out=block, dtype=np.float64, casting="unsafe")
            np.rint(block, out=block)
            if block.size:
                # unlike max(), keeps a NaN
                largest = np.maximum(largest, np.maximum(block.max(), -block.min()))
            if not largest < 2.0**self.bits:
                self._refuse(values[part], block, what, first_row + part.start, holding_one)
        return float(largest)

    def _refuse(
        self, values: NDArray[np.generic], out: Float, what: str, first_row: int, holding_one: bool
    ) -> None:
        import numpy as np  # noqa: PLC0415 - a grid is part of every spec, and most are only read

        bad = ~(np.abs(out) < 2.0**self.bits)
        row, column = (int(index) for index in np.argwhere(bad)[0])
        value = float(values[row, column])
        where = f"row {first_row + row}, column {column} of the {what}"
        if not math.isfinite(value):
            raise NotFiniteError(
                f"{where} is {value}: {what} must be finite; drop or mend that sample"
            )
        finite = np.abs(values[np.isfinite(values)].astype(np.float64))
        serving = self._serving(float(finite.max()), holding_one)
        name = "label_grid" if what == "labels" else "grid"
        remedy = (
            f"choose {name}={serving!r} when making the spec"
            if serving is not None
            else "scale the values down"
        )
        raise GridRangeError(
            f"{where} is beyond the range of {self!r}, which is below {self.limit:g} in magnitude. "
            f"Values are never clipped: {remedy}"
        )

    def _serving(self, value: float, holding_one: bool) -> Grid | None:
        """A two-digit grid that holds the value, with this grid's fraction bits if it can."""
        fraction = DIGIT_BITS * 2 - 2 - math.frexp(abs(value) / 2 * (1 + 2.0**-20))[1]
        if fraction < (0 if holding_one else -_MOST_FRACTION_BITS):
            return None
        return Grid(2, min(fraction, self.fraction_bits))
