"""Grid: the fixed-point grid on which features and labels become integers."""

from __future__ import annotations

import math
from collections.abc import Callable
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
    """The fixed-point grid on which features and labels become integers.

    Its points are the multiples of 2^-fraction_bits with a magnitude below
    2^(21 * digits - 1 - fraction_bits). A value is rounded to the nearest point, halves to even;
    values beyond the grid are refused, never clipped.

    Parameters
    ----------
    digits : {1, 2}, default 2
        How many radix-2^21 digits an integer has: 1 (20 bits and a sign, the faster) or 2 (41 bits
        and a sign).
    fraction_bits : int, default 35
        The step is 2^-fraction_bits; -100 to 100.

    Raises
    ------
    SpecError
        If `digits` is not 1 or 2, or `fraction_bits` is out of range.

    Notes
    -----
    The default covers magnitudes below 64 in steps of 2^-35, and keeps every float32 of magnitude
    2^-12 or more to its last bit. More digits would not fit 128-bit sums.

    Examples
    --------
    >>> import expunge
    >>> grid = expunge.Grid()
    >>> grid.limit, grid.step == 2.0**-35
    (64.0, True)
    >>> expunge.Grid.covering(1000.0)
    Grid(digits=2, fraction_bits=28)
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
        """Bits of magnitude: every integer q of this grid has abs(q) < 2^bits."""
        return DIGIT_BITS * self.digits - 1

    @property
    def limit(self) -> float:
        """The magnitude that every value must stay below: 2^(bits - fraction_bits)."""
        return 2.0 ** (self.bits - self.fraction_bits)

    @property
    def step(self) -> float:
        """The distance between neighbouring points: 2^-fraction_bits."""
        return 2.0**-self.fraction_bits

    @property
    def holds_one(self) -> bool:
        """Whether 1 is a point of the grid, as a constant feature and a hard label need."""
        return 0 <= self.fraction_bits < self.bits

    @classmethod
    def covering(
        cls, largest: float, *, digits: int = 2, headroom_bits: int = 3, holding_one: bool = True
    ) -> Grid:
        """The finest grid with room for `headroom_bits` doublings of a magnitude.

        Parameters
        ----------
        largest : float
            The largest magnitude that was seen. Zero and negative numbers count as 1/2.
        digits : {1, 2}, default 2
            As for `Grid`.
        headroom_bits : int, default 3
            How often later values may be twice as large.
        holding_one : bool, default True
            Whether 1 must be a point, for an intercept or hard labels. A very large or very small
            magnitude then has less room, or a coarser grid.

        Returns
        -------
        Grid
            With `fraction_bits` kept between -100 and 100.

        Raises
        ------
        SpecError
            If `digits` is not 1 or 2, or `largest` is not finite.

        Examples
        --------
        >>> import expunge
        >>> expunge.Grid.covering(5.0).limit
        64.0
        >>> expunge.Grid.covering(5.0, digits=1, headroom_bits=0).limit
        8.0
        """
        if not math.isfinite(largest):
            raise SpecError(f"largest={largest} must be finite: drop or mend that value first")
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
        column: Callable[[int], str] = "column {}".format,
    ) -> float:
        """Write the integers rint(values * 2^fraction_bits); return the largest magnitude.

        Parameters
        ----------
        values : ndarray of shape (n, k)
            Real numbers.
        out : float64 ndarray of shape (n, k)
            Where the integers go, as float64, which holds them exactly.
        what : str, default "features"
            What the values are, for messages; "labels" names `label_grid` in the remedy.
        first_row : int, default 0
            The number that messages give to the first row.
        holding_one : bool, default False
            Whether a grid named as the remedy must hold 1 too.
        column : callable, default "column {}".format
            What messages call the column of a number.

        Returns
        -------
        float
            The largest magnitude of the integers; 0.0 if there are none.

        Raises
        ------
        NotFiniteError
            If a value is NaN or infinite; row and column are named, and `out` holds nothing of use.
        GridRangeError
            If a value is beyond the grid; the message names row, column and a grid that would do.
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
                bad = ~(np.abs(block) < 2.0**self.bits)
                row, number = (int(index) for index in np.argwhere(bad)[0])
                where = f"row {first_row + part.start + row}, {column(number)} of the {what}"
                self._refuse(where, values[part], float(values[part][row, number]), holding_one)
        return float(largest)

    def _refuse(
        self, where: str, values: NDArray[np.generic], value: float, holding_one: bool
    ) -> None:
        import numpy as np  # noqa: PLC0415 - a grid is part of every spec, and most are only read

        what = where.rsplit(maxsplit=1)[-1]
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
