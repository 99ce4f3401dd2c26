"""What a tracked head, a truncated system and their bounds say is true in rational arithmetic."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge import Grid, Spec, Statistics, solve
from expunge.errors import SolveError
from expunge.exact import symmetric, wide
from expunge.exact.symmetric import LeadingBits
from expunge.ridge.encoding import Rows, integer_rows
from expunge.ridge.sums import Sums
from expunge.solvers.change import Change
from expunge.solvers.factor import CholeskyFactor, Downdate, raised_floor
from expunge.solvers.refinement import Propose
from expunge.solvers.tracking import TrackedHead
from expunge.solvers.truncated import RowStack, SolvedColumn, TruncatedSystem

Rational = list[list[Fraction]]
GAMMAS = [1.0, 0.1, 3.7, 1e-3, 2.0**-9, 1e5]


def spec_of(draw: np.random.Generator) -> Spec:
    """One of many grids, gammas and publication grids, of classes or real targets."""
    digits = int(draw.integers(1, 3))
    bits = int(draw.integers(4, 18) if digits == 1 else draw.integers(10, 38))
    common = {
        "dim": int(draw.integers(1, 6)),
        "gamma": float(draw.choice(GAMMAS)),
        "publication_bits": int(draw.choice([0, 5, 20, 40, 45])),
        "grid": Grid(digits, bits),
        "intercept": bool(draw.integers(2)),
    }
    if draw.integers(2):
        return Spec(outputs=int(draw.integers(1, 4)), label_grid=Grid(2, 30), **common)
    return Spec(labels=("a", "b", "c"), **common)


def samples_of(spec: Spec, draw: np.random.Generator, count: int) -> tuple[Any, Any]:
    largest = min(0.9 * spec.grid.limit, 8.0)
    features = np.clip(draw.standard_normal((count, spec.dim)), -largest, largest)
    if draw.integers(4) == 0:
        features *= draw.random(features.shape) < 0.2
    if spec.labels is None:
        return features, draw.standard_normal((count, spec.columns))
    return features, draw.integers(0, 3, count)


def gram_of(statistics: Statistics | Sums) -> Rational:
    """H = S + gamma I."""
    spec, entries = statistics.spec, iter(wide.to_ints(statistics.gram))
    matrix = [[Fraction(0)] * spec.width for _ in range(spec.width)]
    for row in range(spec.width):
        for column in range(row, spec.width):
            value = Fraction(next(entries)) / Fraction(4) ** spec.grid.fraction_bits
            matrix[row][column] = matrix[column][row] = value
        matrix[row][row] += spec.exact_gamma
    return matrix


def product(matrix: Rational, column: list[Fraction]) -> list[Fraction]:
    return [sum((a * b for a, b in zip(row, column, strict=True)), Fraction(0)) for row in matrix]


def square(column: list[Fraction]) -> Fraction:
    return sum((value * value for value in column), Fraction(0))


def solved(
    system: TruncatedSystem, propose: Propose, change: Change, bits: int, enough: float = 0.0
) -> SolvedColumn | None:
    """H^-1 u for the one row of a change."""
    values = change.values[0]
    first = propose(values[:, None])[:, 0]
    return system.solved(propose, change.digits, values, first, bits=bits, enough=enough)


def exact_column(column: SolvedColumn) -> list[Fraction]:
    """z, with its tail."""
    total = [Fraction(int(value)) / Fraction(2) ** column.bits for value in column.tail]
    for digit, scale in zip(column.digits, column.scales, strict=True):
        total = [
            one + Fraction(int(value)) / Fraction(2) ** scale
            for one, value in zip(total, digit, strict=True)
        ]
    return total


class Following:
    """Sums, a tracked head of them and an inverse, all of which follow the same rows."""

    def __init__(self, spec: Spec, features: Any, labels: Any, off: float = 0.0) -> None:
        """The inverse is `off` by this share."""
        self.off = off
        self.sums = Sums(spec)
        self.sums.change(integer_rows(spec, features, labels), 1)
        self.sums.settle()
        statistics = Statistics.snapshot(self.sums, by_construction=True)
        self.system = TruncatedSystem(spec, self.sums.gram, 16)
        self.factor = CholeskyFactor(self.system)
        self.floor = raised_floor(self.system, self.factor.solve, spec.gamma)
        tracked = TrackedHead.of(self.system, solve(statistics).integers)
        assert tracked is not None
        self.tracked = tracked
        self.is_tight = tracked.refreshed(self.sums.moment, self.factor.solve, self.floor)

    def move(self, rows: Rows, sign: int) -> bool:
        """Whether the rows were taken."""
        change = Change(self.sums.spec, rows)
        moved = self.tracked.move(
            lambda right: self.factor.solve(right) * (1 + self.off),
            change.digits,
            change.values[0],
            change.integers[0],
            sign=sign,
            floor=self.floor,
        )
        if isinstance(moved, Downdate):
            return False
        self.floor, _ = moved
        self.factor.follow(change.values, sign)
        self.sums.change(rows, sign)
        self.sums.settle()
        return True

    def residuals(self) -> list[Fraction]:
        """The squared norms of the columns of G - H W, exactly."""
        spec, mark = self.sums.spec, self.tracked.mark()
        matrix, moment = gram_of(self.sums), wide.to_ints(self.sums.moment)
        unit = Fraction(2) ** (spec.grid.fraction_bits + spec.label_grid.fraction_bits)
        found = []
        for column in range(spec.columns):
            weights = [
                (int(whole) + Fraction(int(fraction), 2**60)) / 2**spec.publication_bits
                for whole, fraction in zip(
                    mark.whole[:, column], mark.fraction[:, column], strict=True
                )
            ]
            right = [Fraction(one) / unit for one in moment[column :: spec.columns]]
            left = zip(right, product(matrix, weights), strict=True)
            found.append(square([one - other for one, other in left]))
        return found


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 2.0**-40, 2.0**-10, -(2.0**-4)]))
def test_the_residual_is_never_larger_than_its_bound(seed: int, off: float) -> None:
    draw = np.random.default_rng(seed)
    spec = spec_of(draw)
    features, labels = samples_of(spec, draw, 12)
    try:
        following = Following(spec, features[:8], labels[:8], off)
    except SolveError:
        assume(False)
    for sign, place in [(1, 8), (-1, 0), (-1, 8), (1, 9), (-1, 3), (1, 0)]:
        row = slice(place, place + 1)
        following.move(integer_rows(spec, features[row], labels[row]), sign)
        bounds = following.tracked.mark().bounds
        for squared, bound in zip(following.residuals(), bounds, strict=True):
            assert not np.isfinite(bound) or squared <= Fraction(float(bound)) ** 2


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 2.0**-10]))
def test_a_head_that_is_corrected_later_keeps_its_bound(seed: int, off: float) -> None:
    """By the residual of before some moves, on the base of that moment and the rows since."""
    draw = np.random.default_rng(seed)
    spec = spec_of(draw)
    features, labels = samples_of(spec, draw, 14)
    try:
        following = Following(spec, features[:8], labels[:8], off)
    except SolveError:
        assume(False)
    tracked = following.tracked
    for sign, place in [(1, 8), (-1, 0), (1, 9)]:
        row = slice(place, place + 1)
        following.move(integer_rows(spec, features[row], labels[row]), sign)
    mark = tracked.watch()
    base, moment = TruncatedSystem(spec, following.sums.gram, 16), following.sums.moment.copy()
    residual, errors = base.remainder(
        moment, mark.weights(), tracked.bits, float(draw.choice([0.0, np.inf]))
    )
    for sign, place in [(1, 10), (-1, 2), (-1, 10), (1, 11)]:
        row = slice(place, place + 1)
        following.move(integer_rows(spec, features[row], labels[row]), sign)
    base.rows = tracked.system.rows.since(mark.rows)
    tracked.rebase(base)
    tracked.correct_since(following.factor.solve, residual, errors, following.floor)
    bounds = tracked.mark().bounds
    for squared, bound in zip(following.residuals(), bounds, strict=True):
        assert not np.isfinite(bound) or squared <= Fraction(float(bound)) ** 2


@given(st.integers(0, 2**32 - 1), st.integers(0, 6))
def test_later_rows_of_a_stack_are_a_stack_of_them(seed: int, first: int) -> None:
    draw = np.random.default_rng(seed)
    spec = spec_of(draw)
    whole, later = RowStack(spec.width, 8), RowStack(spec.width, 8)
    features, labels = samples_of(spec, draw, 6)
    for place in range(6):
        rows = integer_rows(spec, features[place : place + 1], labels[place : place + 1])
        change, sign = Change(spec, rows), int(draw.choice([1, -1]))
        whole.append(change.digits, change.values[0], sign)
        if place >= first:
            later.append(change.digits, change.values[0], sign)
    since = whole.since(first)
    assert (since.count, since.room, since.squares) == (later.count, later.room, later.squares)
    for name in ("values", "signs", "touched", "taken"):
        np.testing.assert_array_equal(getattr(since, name), getattr(later, name))
    for mine, other in zip(since.digits.parts, later.digits.parts, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("widest", [symmetric.WIDE, 0])
@given(
    seed=st.integers(0, 2**32 - 1),
    off=st.sampled_from([0.0, 2.0**-30, -(2.0**-10)]),
    enough=st.sampled_from([0.0, 2.0**-60, np.inf]),
)
def test_a_solved_column_misses_no_more_than_it_says(
    seed: int, off: float, enough: float, widest: int
) -> None:
    """By an inverse that is `off`; with long digits and with short ones."""
    draw = np.random.default_rng(seed)
    spec = spec_of(draw)
    features, labels = samples_of(spec, draw, 10)
    sums = Sums(spec)
    sums.change(integer_rows(spec, features[:6], labels[:6]), 1)
    sums.settle()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symmetric, "WIDE", widest)
        system = TruncatedSystem(spec, sums.gram, 4)
    try:
        inverse = CholeskyFactor(system)
    except SolveError:
        assume(False)
    for place, sign in ((6, 1), (7, 1), (2, -1)):
        rows = integer_rows(spec, features[place : place + 1], labels[place : place + 1])
        change = Change(spec, rows)
        system.rows.append(change.digits, change.values[0], sign)
        sums.change(rows, sign)
    sums.settle()
    last = Change(spec, integer_rows(spec, features[9:], labels[9:]))
    column = solved(system, lambda right: inverse.solve(right) * (1 + off), last, 100, enough)
    assume(column is not None and np.isfinite(column.missed))
    row = [Fraction(float(value)) for value in last.values[0]]
    exact = exact_column(column)
    missed = [a - b for a, b in zip(row, product(gram_of(sums), exact), strict=True)]
    assert square(missed) <= Fraction(column.missed) ** 2
    assert square(exact) <= Fraction(column.size) ** 2
    inner = sum((a * b for a, b in zip(row, exact, strict=True)), Fraction(0))
    said = Fraction(column.product) / Fraction(2) ** column.product_bits
    assert abs(inner - said) <= Fraction(column.product_error)


@given(st.integers(0, 2**32 - 1))
def test_a_raised_bound_on_the_smallest_eigenvalue_is_true(seed: int) -> None:
    """H - floor I is positive definite: by elimination in rationals, no pivot is negative."""
    draw = np.random.default_rng(seed)
    spec = spec_of(draw)
    sums = Sums(spec)
    sums.change(integer_rows(spec, *samples_of(spec, draw, 9)), 1)
    sums.settle()
    system = TruncatedSystem(spec, sums.gram, 4)
    try:
        floor = raised_floor(system, CholeskyFactor(system).solve, spec.gamma / 2)
    except SolveError:
        assume(False)
    assert floor >= spec.gamma / 2
    matrix = gram_of(sums)
    for place in range(spec.width):
        matrix[place][place] -= Fraction(floor)
    for place in range(spec.width):
        assert matrix[place][place] > 0
        for row in range(place + 1, spec.width):
            share = matrix[row][place] / matrix[place][place]
            matrix[row] = [a - share * b for a, b in zip(matrix[row], matrix[place], strict=True)]


def test_a_well_conditioned_head_is_tracked_to_far_below_its_grid() -> None:
    draw = np.random.default_rng(5)
    spec = Spec(dim=40, labels=("a", "b", "c"))
    features, labels = draw.standard_normal((300, 40)), draw.integers(0, 3, 300)
    following = Following(spec, features, labels)
    assert following.is_tight
    for place in range(16):
        assert following.move(
            integer_rows(spec, features[place : place + 1], labels[place : place + 1]), -1
        )
    rounded = following.tracked.rounded(following.floor)
    assert rounded is not None
    assert rounded[1] < 2.0**-70


def test_a_column_that_is_corrected_misses_much_less() -> None:
    """By an inverse that is good to 20 bits: one correction more is worth as many."""
    draw = np.random.default_rng(7)
    spec = Spec(dim=40, labels=("a", "b", "c"))
    features, labels = draw.standard_normal((300, 40)), draw.integers(0, 3, 300)
    following = Following(spec, features, labels)
    change = Change(spec, integer_rows(spec, features[:1], labels[:1]))
    missed = []
    for enough in (np.inf, 0.0):
        column = solved(
            following.system,
            lambda right: following.factor.solve(right) * (1 + 2.0**-20),
            change,
            140,
            enough,
        )
        assert column is not None
        missed.append(column.missed)
    assert missed[1] < 2.0**-15 * missed[0]


def test_the_exact_budget_holds_at_every_width() -> None:
    for size in (1, 2, 3, 129, 1281, 2048, 2049, 4096, 4097, 8193, 20000):
        assert size * 2 ** sum(symmetric.leading_bits(size)) <= 2**53


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [2, 33, 128, 200])
def test_the_exact_budget_holds_for_the_entries_there_are(size: int, sign: int) -> None:
    """Whether these are all as large as can be, or large in one row only: every product of the
    leading bits with the longest digits is exact.
    """
    draw = np.random.default_rng(size)
    largest = (1 << 76) - 1
    for rows in (size, 1):
        entries = np.zeros((size, size), dtype=object)
        entries[:rows] = entries[:, :rows] = sign * largest
        packed = wide.from_ints(list(entries[np.triu_indices(size)]))
        leading = LeadingBits(packed, size)
        for one in [leading, leading.deeper()]:
            assert one is not None
            digits = np.full((size, 2), 2.0**one.digit_bits)
            digits[:, 1] -= draw.integers(0, 9, size)
            for part, shift in one.leading_products(digits):
                end = leading.high_shift if one is leading else leading.low_shift
                signed = one is leading and shift == end
                matrix = (entries if signed else entries & ((1 << end) - 1)) >> shift
                assert (part == matrix @ digits.astype(np.int64).astype(object)).all()


def test_what_a_column_may_miss_adds_little_to_the_risk_for_any_target() -> None:
    """However far the targets are off, and so however much the head is moved by the column: a full
    room of rows adds 2^-12.
    """
    draw = np.random.default_rng(8)
    spec = Spec(dim=40, outputs=3, label_grid=Grid(2, 20))
    features, targets = draw.standard_normal((300, 40)), draw.standard_normal((300, 3))
    following = Following(spec, features, targets)
    solved = TruncatedSystem.solved
    allowed: list[float] = []

    def missing(*arguments: Any, bits: int, enough: float) -> SolvedColumn | None:
        column = solved(*arguments, bits=bits, enough=enough)
        allowed.append(enough)
        return column and replace(column, missed=enough)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TruncatedSystem, "solved", missing)
        for far in (1e-3, 1.0, 1e3):
            before = following.tracked.risk(following.floor)
            assert following.move(integer_rows(spec, features[:1] + 0.1, targets[:1] + far), 1)
            added = following.tracked.risk(following.floor) - before
            assert 0.5 < added * following.system.rows.room * 2.0**12 < 2.0
    assert allowed[0] > allowed[1] > 100 * allowed[2]


def test_an_undone_move_leaves_the_head_as_it_was() -> None:
    draw = np.random.default_rng(6)
    spec = Spec(dim=5, labels=("a", "b", "c"))
    features, labels = draw.standard_normal((30, 5)), draw.integers(0, 3, 30)
    following = Following(spec, features, labels)
    before = following.tracked.mark()
    rounded = following.tracked.rounded(following.floor)
    assert following.move(integer_rows(spec, features[:1], labels[:1]), -1)
    assert not np.array_equal(following.tracked.mark().whole, before.whole)
    following.tracked.back_to(before)
    after = following.tracked.mark()
    assert np.array_equal(after.whole, before.whole)
    assert np.array_equal(after.fraction, before.fraction)
    assert rounded is not None
    assert following.system.rows.count == 0


# -- the leading bits of a matrix ------------------------------------------------------------------


@given(
    st.integers(1, 6),
    st.integers(0, 126),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["plain", "deeper"]),
)
@pytest.mark.parametrize("widest", [symmetric.WIDE, 0])
def test_leading_products_and_the_rest_add_up(
    widest: int, size: int, bits: int, seed: int, how: str
) -> None:
    draw = np.random.default_rng(seed)
    count = size * (size + 1) // 2
    entries = [
        int(draw.integers(-(2**62), 2**62)) * 2**64 + int(draw.integers(0, 2**63))
        for _ in range(count)
    ]
    entries = [entry >> (126 - bits) for entry in entries]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symmetric, "WIDE", widest)
        leading = LeadingBits(wide.from_ints(entries), size)
    matrices = [leading]
    if how == "deeper":
        deeper = leading.deeper()
        matrices += [] if deeper is None else [deeper]
    most = 2 ** min(one.digit_bits for one in matrices)
    digits = draw.integers(-most, most + 1, (size, 2)).astype(np.float64)
    matrix = np.zeros((size, size), dtype=object)
    matrix[np.triu_indices(size)] = entries
    whole = (matrix + np.triu(matrix, 1).T) @ digits.astype(np.int64).astype(object)
    exact: NDArray[Any] = np.zeros((size, 2), dtype=object)
    for one in matrices:
        for part, shift in one.leading_products(digits):
            exact += part.astype(object) << shift
    last = matrices[-1]
    rest = last.rest_times(digits)
    sizes = np.sqrt(np.square(digits).sum(axis=0))
    off = ((size + 8) * 2.0**-53 * last.rest_norm + last.rest_error) * sizes * (1 + 2.0**-20)
    for column in range(2):
        missed = [
            Fraction(int(whole[row, column] - exact[row, column])) - Fraction(rest[row, column])
            for row in range(size)
        ]
        assert square(missed) <= Fraction(float(off[column])) ** 2


@given(
    st.lists(st.integers(-(2**127), 2**127 - 1), min_size=1, max_size=4),
    st.integers(0, 140),
    st.integers(1, 63),
)
def test_bits_are_those_of_the_integers(values: list[int], low: int, count: int) -> None:
    plain = wide.bits_of(wide.from_ints(values), low, low + count)
    signed = wide.bits_of(wide.from_ints(values), low, low + count, signed=True)
    for value, bare, one in zip(values, plain.tolist(), signed.tolist(), strict=True):
        assert bare == (value >> low) % 2**count
        assert one == bare - (2**count if bare >= 2 ** (count - 1) else 0)


@pytest.mark.parametrize("bits", [60, 100])
def test_a_column_beyond_what_integers_hold_is_not_solved(bits: int) -> None:
    """An inverse that gives nonsense gives no column."""
    spec = Spec(dim=3, outputs=1)
    system = TruncatedSystem(spec, Statistics.zero(spec).gram, 4)
    change = Change(spec, integer_rows(spec, [[1.0, 2.0, 3.0]], [1.0]))
    for nonsense in (np.nan, np.inf, 1e300, -1e-300):
        assert (
            solved(system, lambda right, nonsense=nonsense: right * nonsense, change, bits) is None
        )
