"""Messages: what is written is read back, and what is left over, missing or beyond the grid is
refused.
"""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Grid, Spec, Statistics
from expunge.errors import ExpungeError, FormatError
from expunge.exact import wide
from expunge.solvers.float64 import FloatWoodburySolver
from expunge.wire import messages
from expunge.wire.messages import FactorPart, GramPart, Message, RowsPart
from support.samples import Sample, part_of, rows_of, statistics_of

SPECS = {
    "classes": Spec(dim=3, labels=("a", "b", "c")),
    "without intercept": Spec(dim=2, labels=("a",), intercept=False),
    "small grid": Spec(dim=4, labels=("a", "b"), grid=Grid(1, 10), label_grid=Grid(1, 12)),
    "outputs": Spec(dim=3, outputs=2, gamma=0.1),
}
FLOATS = Spec(dim=3, labels=("a", "b"), messages=("factor", "gram", "rows"))


@st.composite
def samples(draw: st.DrawFn, spec: Spec, least: int = 0) -> list[Sample]:
    """Samples on the grid, up to its very ends; targets hard, soft or real."""
    top = (1 << spec.grid.bits) - 1
    label_top = (1 << spec.label_grid.bits) - 1
    whole = st.integers(-top, top) | st.sampled_from([-top, top, 0, 1, -1])
    integers = st.lists(whole, min_size=spec.dim, max_size=spec.dim)
    targets = st.lists(
        st.integers(-label_top, label_top), min_size=spec.columns, max_size=spec.columns
    )
    real = targets.map(
        lambda row: np.ldexp(np.array(row, dtype=np.float64), -spec.label_grid.fraction_bits)
    )
    target = st.integers(0, spec.columns - 1) | real if spec.is_classification else real
    found = draw(
        st.lists(
            st.tuples(integers, target, st.binary(min_size=32, max_size=32)),
            min_size=least,
            max_size=5,
        )
    )
    scale = -spec.grid.fraction_bits
    return [
        Sample(np.ldexp(np.array(row, dtype=np.float64), scale), target, salt)
        for row, target, salt in found
    ]


@st.composite
def changes(draw: st.DrawFn) -> tuple[Spec, list[Sample], list[Sample]]:
    spec = SPECS[draw(st.sampled_from(sorted(SPECS)))]
    return spec, draw(samples(spec)), draw(samples(spec))


def same(one: messages.Part | None, other: messages.Part | None) -> None:
    if one is None or other is None:
        assert one is other
    elif isinstance(one, RowsPart):
        assert isinstance(other, RowsPart)
        assert one.salts == other.salts
        assert np.array_equal(one.rows.integers, other.rows.integers)
        assert np.array_equal(one.rows.targets.integers, other.rows.targets.integers)
        assert np.array_equal(one.class_counts, other.class_counts)
        assert one.rows.largest == other.rows.largest
    else:
        assert isinstance(one, GramPart)
        assert isinstance(other, GramPart)
        assert one.statistics == other.statistics
    if one is not None and other is not None:
        assert one.count == other.count


@given(changes(), st.sampled_from(["rows", "gram"]))
def test_what_is_written_is_read_back(
    change: tuple[Spec, list[Sample], list[Sample]], kind: str
) -> None:
    spec, added, deleted = change
    message = Message(kind, part_of(spec, kind, added), part_of(spec, kind, deleted))
    data = message.to_bytes(spec)
    again = messages.read(spec, kind, len(added), len(deleted), data)
    same(message.added, again.added)
    same(message.deleted, again.deleted)
    assert again.to_bytes(spec) == data
    assert (
        messages.read(spec, kind, len(added), len(deleted), memoryview(data)).to_bytes(spec) == data
    )


@given(changes())
def test_rows_and_gram_of_the_same_samples_say_the_same(
    change: tuple[Spec, list[Sample], list[Sample]],
) -> None:
    spec, added, _ = change
    if not added:
        return
    rows, gram = part_of(spec, "rows", added), part_of(spec, "gram", added)
    assert isinstance(rows, RowsPart)
    assert isinstance(gram, GramPart)
    assert (rows.count, rows.class_counts.tolist()) == (gram.count, gram.class_counts.tolist())
    assert np.array_equal(rows.diagonal(), gram.diagonal())
    assert wide.to_ints(rows.diagonal()) == gram.statistics.diagonal()
    squares = [sum(int(value) ** 2 for value in column) for column in rows.rows.integers.T]
    assert wide.to_ints(rows.diagonal()) == squares


def test_the_diagonal_of_very_many_large_rows_does_not_overflow() -> None:
    spec = Spec(dim=1, labels=("a",), intercept=False)
    top, count = (1 << spec.grid.bits) - 1, (1 << 18) + 3
    rows = rows_of(spec, [Sample(np.ldexp(np.array([float(-top)]), -spec.grid.fraction_bits), 0)])
    many = type(rows)(np.repeat(rows.integers, count, axis=0), float(top), rows.targets)
    assert wide.to_ints(RowsPart(many, ()).diagonal()) == [count * top * top]


@given(changes(), st.sampled_from(["rows", "gram"]), st.data())
def test_what_is_cut_off_or_too_long_is_refused(
    change: tuple[Spec, list[Sample], list[Sample]], kind: str, data: st.DataObject
) -> None:
    spec, added, deleted = change
    whole = Message(kind, part_of(spec, kind, added), part_of(spec, kind, deleted)).to_bytes(spec)
    if whole:
        end = data.draw(st.integers(0, len(whole) - 1))
        with pytest.raises(FormatError):
            messages.read(spec, kind, len(added), len(deleted), whole[:end])
    with pytest.raises(FormatError):
        messages.read(
            spec,
            kind,
            len(added),
            len(deleted),
            whole + data.draw(st.binary(min_size=1, max_size=80)),
        )
    with pytest.raises(ExpungeError):
        messages.read(spec, kind, len(added) + 1, len(deleted), whole)


@given(
    st.binary(max_size=400),
    st.sampled_from(["rows", "gram", "factor", "none"]),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_garbage_is_refused_or_is_a_message(
    data: bytes, kind: str, added: int, deleted: int
) -> None:
    """Whatever the bytes, there is no other outcome; and a message that garbage happens to be says
    what it was written as.
    """
    try:
        message = messages.read(FLOATS, kind, added, deleted, data)
    except ExpungeError:
        return
    assert message.to_bytes(FLOATS) == data or kind == "rows"  # targets of rows have two forms


SPEC = SPECS["classes"]
TOP = 1 << SPEC.grid.bits
LABEL_TOP = 1 << SPEC.label_grid.bits


def rows_bytes(features: list[int], labels: bytes) -> bytes:
    return bytes(32) + struct.pack("<3q", *features) + labels


@pytest.mark.parametrize("value", [TOP - 1, 1 - TOP])
def test_the_ends_of_the_grid_are_taken(value: int) -> None:
    message = messages.read(SPEC, "rows", 1, 0, rows_bytes([value, 0, 0], b"\0" + bytes(4)))
    assert isinstance(message.added, RowsPart)
    assert message.added.rows.integers[0, 0] == value
    assert message.added.rows.largest == TOP - 1


@pytest.mark.parametrize("value", [TOP, -TOP, (1 << 63) - 1, -(1 << 63)])
@pytest.mark.parametrize("place", [0, 2])
def test_features_beyond_the_grid_are_refused(value: int, place: int) -> None:
    features = [0, 0, 0]
    features[place] = value
    with pytest.raises(FormatError, match="beyond the grid"):
        messages.read(SPEC, "rows", 1, 0, rows_bytes(features, b"\0" + bytes(4)))


@pytest.mark.parametrize("value", [LABEL_TOP, -LABEL_TOP, (1 << 63) - 1, -(1 << 63)])
def test_targets_beyond_the_grid_are_refused(value: int) -> None:
    with pytest.raises(FormatError, match="beyond the label grid"):
        messages.read(
            SPEC, "rows", 1, 0, rows_bytes([0, 0, 0], b"\1" + struct.pack("<3q", 0, value, 0))
        )


def test_other_forms_of_targets_are_refused() -> None:
    for labels, match in (
        (b"\2" + bytes(4), "form 2"),
        (b"\0" + struct.pack("<I", 3), "class index 3"),
    ):
        with pytest.raises(FormatError, match=match):
            messages.read(SPEC, "rows", 1, 0, rows_bytes([0, 0, 0], labels))
    outputs = SPECS["outputs"]
    with pytest.raises(FormatError, match="form 0"):
        messages.read(outputs, "rows", 1, 0, rows_bytes([0, 0, 0], b"\0" + bytes(4)))


def test_a_hard_label_is_the_same_in_both_forms() -> None:
    one = 1 << SPEC.label_grid.fraction_bits
    hard = messages.read(SPEC, "rows", 1, 0, rows_bytes([1, 2, 3], b"\0" + struct.pack("<I", 1)))
    real = messages.read(
        SPEC, "rows", 1, 0, rows_bytes([1, 2, 3], b"\1" + struct.pack("<3q", 0, one, 0))
    )
    same(hard.added, real.added)
    assert hard.to_bytes(SPEC) == real.to_bytes(SPEC)


def test_statistics_of_another_number_or_spec_are_refused() -> None:
    two = statistics_of(SPEC, [Sample(np.ones(3), 0), Sample(np.ones(3), 1)])
    data = Message("gram", GramPart(two)).to_bytes(SPEC)
    with pytest.raises(FormatError, match="2 samples"):
        messages.read(SPEC, "gram", 1, 0, data)
    with pytest.raises(ExpungeError):
        messages.read(SPECS["outputs"], "gram", 2, 0, data)
    more = SPEC.with_labels("d")
    embedded = messages.read(more, "gram", 2, 0, data)  # made before a label was appended
    assert isinstance(embedded.added, GramPart)
    assert embedded.added.statistics == Statistics.of(more, np.ones((2, 3)), [0, 1])


def test_no_message_and_no_such_message() -> None:
    assert messages.read(SPEC, "none", 0, 0, b"") == Message("none")
    assert Message("none").to_bytes(SPEC) == b""
    for added, data in ((1, b""), (0, b"x")):
        with pytest.raises(FormatError):
            messages.read(SPEC, "none", added, 0, data)
    with pytest.raises(FormatError, match="kind 'letter'"):
        messages.read(SPEC, "letter", 0, 0, b"")


@given(st.integers(1, 9), st.integers(0, 6), st.integers(0, 1000))
def test_factors_are_read_back(added: int, deleted: int, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def part(count: int) -> FactorPart | None:
        if not count:
            return None
        labels = rng.integers(0, 2, count)
        factor = FloatWoodburySolver(FLOATS).message(rng.normal(size=(count, 3)), labels)
        return FactorPart(factor, count, np.bincount(labels, minlength=2))

    message = Message("factor", part(added), part(deleted))
    data = message.to_bytes(FLOATS)
    again = messages.read(FLOATS, "factor", added, deleted, data)
    for one, other in ((message.added, again.added), (message.deleted, again.deleted)):
        if isinstance(one, FactorPart):
            assert isinstance(other, FactorPart)
            assert (one.count, one.class_counts.tolist()) == (
                other.count,
                other.class_counts.tolist(),
            )
            assert np.array_equal(one.factor.r, other.factor.r)
            assert np.array_equal(one.factor.coefficients, other.factor.coefficients)
        else:
            assert other is None
    assert again.to_bytes(FLOATS) == data


@pytest.mark.parametrize(
    ("rank", "count", "fill", "counts"),
    [
        (0, 1, 0.0, (1, 0)),
        (2, 1, 0.0, (1, 0)),
        (5, 9, 0.0, (1, 0)),
        (1, 1, np.nan, (1, 0)),
        (1, 1, -np.inf, (1, 0)),
        (1, 1, 1e200, (1, 0)),
    ],
)
def test_factors_that_cannot_be_are_refused(
    rank: int, count: int, fill: float, counts: tuple[int, int]
) -> None:
    data = (
        struct.pack("<I", rank)
        + np.full(rank * (4 + 2), fill).tobytes()
        + struct.pack("<2q", *counts)
    )
    with pytest.raises(FormatError):
        messages.read(FLOATS, "factor", count, 0, data + bytes(4))


@pytest.mark.parametrize(
    "counts", [(-1, 1), (2, 0), (1, 1), ((1 << 63) - 1, (1 << 63) - 1), ((1 << 62), (1 << 62))]
)
def test_factors_whose_counts_cannot_be_are_refused(counts: tuple[int, int]) -> None:
    data = struct.pack("<I", 1) + np.zeros(4 + 2).tobytes() + struct.pack("<2q", *counts)
    with pytest.raises(FormatError, match="counts"):
        messages.read(FLOATS, "factor", 1, 0, data + bytes(4))


def test_parts_of_the_wrong_kind_are_not_written() -> None:
    gram = GramPart(statistics_of(FLOATS, [Sample(np.ones(3), 0)]))
    with pytest.raises(FormatError):
        Message("factor", gram).to_bytes(FLOATS)
    factor = FactorPart(
        FloatWoodburySolver(FLOATS).message(np.ones((1, 3)), [0]), 1, np.array([1, 0])
    )
    with pytest.raises(FormatError):
        Message("rows", factor).to_bytes(FLOATS)
