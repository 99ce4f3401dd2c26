"""The grid against exact rounding by fractions."""

from __future__ import annotations

import math
import pickle
import re
import sys
from dataclasses import FrozenInstanceError
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge.errors import GridRangeError, NotFiniteError, SpecError
from expunge.exact import Grid

GRIDS = st.builds(
    Grid,
    st.sampled_from([1, 2]),
    st.one_of(st.integers(-20, 45), st.sampled_from([-100, -1, 0, 35, 100])),
)


def put(grid: Grid, values: NDArray[Any], **names: Any) -> tuple[NDArray[np.float64], float]:
    out = np.full(values.shape, 7.5)
    largest = grid.put(values, out, **names)
    return out, largest


def on_grid(grid: Grid, value: float) -> int:
    """The nearest integer to value * 2^fraction_bits, ties to even."""
    return round(Fraction(value) * Fraction(2) ** grid.fraction_bits)


def named_grid(text: str) -> Grid:
    """The last grid that a message names."""
    digits, fraction = re.findall(r"Grid\(digits=(\d+), fraction_bits=(-?\d+)\)", text)[-1]
    return Grid(int(digits), int(fraction))


@st.composite
def values_on(draw: st.DrawFn) -> tuple[Grid, list[float]]:
    grid = draw(GRIDS)
    most = 2.0**grid.bits - 1
    halves = st.integers(-int(2 * most), int(2 * most)).map(
        lambda twice: math.ldexp(twice / 2, -grid.fraction_bits)
    )
    scaled = st.floats(-most, most).map(lambda value: math.ldexp(value, -grid.fraction_bits))
    return grid, draw(st.lists(st.one_of(halves, scaled, st.just(0.0)), max_size=12))


@given(values_on())
def test_put_rounds_to_nearest_with_ties_to_even(case: tuple[Grid, list[float]]) -> None:
    grid, values = case
    out, largest = put(grid, np.array(values).reshape(-1, 1))
    expected = [on_grid(grid, value) for value in values]
    assert [int(value) for value in out[:, 0]] == expected
    assert largest == max((abs(value) for value in expected), default=0)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i1", "i4", "i8", "u1", "u8", "?"])
def test_put_takes_every_kind_of_real_number(dtype: str) -> None:
    values = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    if values.dtype.kind in "if":
        values = values * np.array(-37, dtype=dtype)
    if values.dtype.kind == "f":
        values = values / np.array(64, dtype=dtype)
    grid = Grid(2, 20)
    out, largest = put(grid, values)
    assert out.tolist() == [
        [float(on_grid(grid, float(value))) for value in row] for row in values.tolist()
    ]
    assert largest == np.abs(out).max()


def test_put_takes_columns_and_views_as_they_are() -> None:
    source = np.arange(24.0).reshape(4, 6)[::2, ::-2]
    target = np.zeros((2, 5))
    assert Grid(2, 3).put(source, target[:, 1:4]) == 17 * 8
    assert np.array_equal(target[:, 1:4], source * 8)
    assert not target[:, [0, 4]].any()


def test_put_of_nothing() -> None:
    assert put(Grid(), np.zeros((0, 3)))[1] == 0.0
    assert put(Grid(), np.zeros((3, 0)))[1] == 0.0


def test_half_way_values_round_to_even() -> None:
    grid = Grid(1, 4)
    values = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5]]) / 16
    assert put(grid, values)[0].tolist() == [[0.0, 2.0, 2.0, 0.0, -2.0, -2.0]]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "grid",
    [Grid(1, 10), Grid(1, 20), Grid(2, 35), Grid(2, 0), Grid(2, -7), Grid(2, 100), Grid(1, -100)],
)
def test_the_largest_allowed_value_and_the_smallest_refused(grid: Grid, sign: int) -> None:
    whole = 2.0**grid.bits
    last = math.ldexp(math.nextafter(whole - 0.5, 0.0), -grid.fraction_bits)
    for value in (math.ldexp(whole - 1, -grid.fraction_bits), last):
        out, largest = put(grid, np.array([[sign * value]]))
        assert out[0, 0] == sign * (whole - 1)
        assert largest == whole - 1
    for refused in (
        whole - 0.5,
        whole,
        whole + 1,
        4 * whole,
    ):  # the first is half-way, and rounds to 2^bits
        with pytest.raises(GridRangeError):
            put(grid, np.array([[sign * math.ldexp(refused, -grid.fraction_bits)]]))
    assert grid.limit == math.ldexp(whole, -grid.fraction_bits)


@given(
    st.sampled_from([math.nan, math.inf, -math.inf, 64.0, -64.0, 1e300, -1e-3 - 64]),
    st.integers(0, 7),
    st.integers(0, 2),
    st.integers(0, 1000),
    st.sampled_from([0.0, 1.0, -63.0]),
)
def test_refusals_name_row_and_column(
    value: float, row: int, column: int, first: int, others: float
) -> None:
    values = np.full((8, 3), others)
    values[row, column] = value
    kind = GridRangeError if math.isfinite(value) else NotFiniteError
    expected = re.escape(f"row {first + row}, column {column} of the labels is ")
    with pytest.raises(kind, match=expected):
        put(Grid(2, 35), values, what="labels", first_row=first)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_what_is_not_finite_is_refused_in_every_float_type(value: float, dtype: str) -> None:
    with pytest.raises(NotFiniteError, match="row 0, column 0 of the features"):
        put(Grid(), np.full((1, 1), value, dtype=dtype))


@pytest.mark.parametrize("row", [0, 4_914, 4_915, 5_999])
@pytest.mark.parametrize("value", [math.nan, math.inf, 64.0])
def test_refusals_count_rows_across_internal_blocks(row: int, value: float) -> None:
    values = np.ones((6_000, 5))
    values[row, 3] = value
    with pytest.raises((NotFiniteError, GridRangeError), match=f"row {100 + row}, column 3 "):
        put(Grid(), values, first_row=100)


def test_the_first_bad_value_is_named() -> None:
    values = np.ones((4, 3))
    values[1, 2], values[2, 0], values[3, 1] = 99.0, math.inf, 1e9
    with pytest.raises(
        GridRangeError, match=r"row 1, column 2 of the features is beyond the range"
    ):
        put(Grid(), values)


@given(GRIDS, st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False))
def test_the_grid_named_as_remedy_holds_the_value(grid: Grid, value: float) -> None:
    try:
        put(grid, np.array([[value]]))
    except GridRangeError as refusal:
        if "scale the values down" in str(refusal):
            assert abs(value) >= Grid(2, -100).limit / 2
        else:
            serving = named_grid(str(refusal))
            assert abs(on_grid(serving, value)) < 2**serving.bits
            assert put(serving, np.array([[value]]))[1] == abs(on_grid(serving, value))


@pytest.mark.parametrize("value", [sys.float_info.max, 2.0**141, 64.0, 63.999999999999])
def test_remedies_at_the_extremes(value: float) -> None:
    with pytest.raises(GridRangeError) as caught:
        put(Grid(2, 36), np.array([[value]]))
    text = str(caught.value)
    if "scale the values down" not in text:
        assert put(named_grid(text), np.array([[value]]))[1] > 0


@given(st.integers(-(2**60), 2**60))
def test_integers_are_read_as_float64_whatever_their_size(value: int) -> None:
    integers = np.array([[value]], dtype=np.int64)
    assert np.array_equal(
        put(Grid(2, -20), integers)[0], put(Grid(2, -20), integers.astype(np.float64))[0]
    )


@given(st.floats(2.0**-58, 2.0**60), st.sampled_from([1, 2]), st.integers(0, 6))
def test_covering_is_the_finest_grid_with_room(largest: float, digits: int, headroom: int) -> None:
    grid = Grid.covering(largest, digits=digits, headroom_bits=headroom, holding_one=False)
    assert grid.digits == digits
    room = largest * 2**headroom
    assert abs(on_grid(grid, room)) < 2**grid.bits
    assert abs(on_grid(Grid(digits, grid.fraction_bits + 1), room)) >= 2**grid.bits


@given(st.floats(0, 2.0**60), st.sampled_from([1, 2]), st.integers(0, 6))
def test_covering_holds_one_where_asked(largest: float, digits: int, headroom: int) -> None:
    grid = Grid.covering(largest, digits=digits, headroom_bits=headroom)
    free = Grid.covering(largest, digits=digits, headroom_bits=headroom, holding_one=False)
    assert grid.holds_one
    assert put(grid, np.ones((1, 1)))[1] == 2.0**grid.fraction_bits
    if free.holds_one:
        assert grid == free


@pytest.mark.parametrize(
    "largest", [1.0, 0.75, math.nextafter(1.0, 0.0), math.nextafter(1.0, 2.0), 2.0**-90, 1e25]
)
@pytest.mark.parametrize("digits", [1, 2])
def test_covering_holds_the_value_it_covers(largest: float, digits: int) -> None:
    for headroom in (0, 1):
        grid = Grid.covering(largest, digits=digits, headroom_bits=headroom, holding_one=False)
        assert put(grid, np.array([[largest]]))[1] > 0


def test_covering_of_the_extremes_is_a_grid() -> None:
    assert Grid.covering(0.0) == Grid(2, 38)
    assert Grid.covering(sys.float_info.max, holding_one=False).fraction_bits == -100
    assert Grid.covering(5e-324, holding_one=False).fraction_bits == 100


def test_properties_of_the_default() -> None:
    grid = Grid()
    assert (grid.digits, grid.fraction_bits, grid.bits, grid.limit, grid.step) == (
        2,
        35,
        41,
        64.0,
        2.0**-35,
    )
    assert grid.holds_one
    for value in (
        2.0**-12,
        -np.float32(2.0**-12) * np.float32(1 + 2**-23),
        np.nextafter(np.float32(64), np.float32(0)),
    ):
        out, _ = put(grid, np.array([[value]], dtype=np.float32))
        assert out[0, 0] * grid.step == np.float32(value), (
            "float32 from 2^-12 to 64 is kept to its last bit"
        )


@pytest.mark.parametrize(
    ("digits", "fraction", "holds"),
    [(1, 19, True), (1, 20, False), (2, 40, True), (2, 41, False), (2, 0, True), (2, -1, False)],
)
def test_holds_one_says_whether_one_can_be_put(digits: int, fraction: int, holds: bool) -> None:
    grid = Grid(digits, fraction)
    assert grid.holds_one is holds
    if fraction >= 0:
        if holds:
            assert put(grid, np.ones((1, 1)))[0][0, 0] == 2.0**fraction
        else:
            with pytest.raises(GridRangeError):
                put(grid, np.ones((1, 1)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"digits": 0}, r"digits must be 1 or 2"),
        ({"digits": 3}, r"Grid\(digits=3\): digits must be 1 or 2 \(three would not fit"),
        ({"digits": 2.0}, r"digits=2.0\): digits must be an integer"),
        ({"digits": True}, r"digits=True\): digits must be an integer"),
        ({"digits": "2"}, r"digits='2'\): digits must be an integer"),
        (
            {"fraction_bits": 101},
            r"fraction_bits=101\): fraction_bits must lie between -100 and 100; scale",
        ),
        ({"fraction_bits": -101}, r"fraction_bits must lie between"),
        ({"fraction_bits": None}, r"fraction_bits must be an integer"),
        ({"fraction_bits": False}, r"fraction_bits must be an integer"),
    ],
)
def test_grids_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Grid(**arguments)


def test_a_grid_is_an_immutable_value() -> None:
    grid = Grid(np.int64(2), np.int32(35))  # type: ignore[arg-type]
    assert grid == Grid()
    assert hash(grid) == hash(Grid())
    assert type(grid.digits) is int
    assert pickle.loads(pickle.dumps(grid)) == grid  # noqa: S301 - our own bytes
    assert grid != Grid(2, 34)
    assert repr(grid) == "Grid(digits=2, fraction_bits=35)"
    with pytest.raises(FrozenInstanceError):
        grid.digits = 1  # type: ignore[misc]


@pytest.mark.parametrize("largest", [float("nan"), float("inf"), float("-inf")])
def test_no_grid_covers_what_is_not_finite(largest: float) -> None:
    with pytest.raises(SpecError, match="must be finite"):
        Grid.covering(largest)
