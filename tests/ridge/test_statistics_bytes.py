"""The canonical bytes of statistics: fixed for ever by a golden digest, and refused when anything
is wrong with them.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Grid, Spec, Statistics
from expunge.errors import ExpungeError, FormatError, SpecMismatchError

SPEC = Spec(dim=2, labels=("cat", "dog"), gamma=0.1, backbone="vit-b/16")
FEATURES = np.array([[0.5, -1.25], [3.0, 2.0**-35], [-63.0, 0.1]])
LABELS = ["dog", "cat", "dog"]
MAGIC = b"expunge\x00statistics\x00"

TINY_SPEC = Spec(dim=1, labels=("a",), grid=Grid(1, 10))
TINY = Statistics.of(TINY_SPEC, [[0.75]], ["a"]).to_bytes()


def tiny(data: bytes) -> Statistics:
    return Statistics.from_bytes(TINY_SPEC, data)


def sealed(body: bytes) -> bytes:
    """Bytes whose checksum is right, whatever else is wrong."""
    return body + hashlib.sha256(body).digest()


def test_golden_digest() -> None:
    """A change of this digest is a change of format, and needs a new version."""
    stats = Statistics.of(SPEC, FEATURES, LABELS)
    assert stats.digest == "74657fa4cbd1bf21a43b068e53afda6f678a08303f1a822f7c5a58989013c69b"
    assert (-stats).digest == "c899593ac42c0fd97d9a02d5ea674830e015f4533ac79def784bea0d42a6ac55"
    assert (
        Statistics.of(Spec(dim=2, outputs=1), FEATURES, [0.1, -2.0, 3.5]).digest
        == "5cfbed725fc8d2800846242db058e6251f40dd1e1819d244d1c3d643fa227ba5"
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_the_layout(sign: int) -> None:
    rows = [[round(value * 2**35) for value in row] + [2**35] for row in FEATURES.tolist()]
    hot = [[2**35 * (label == name) for name in ("cat", "dog")] for label in LABELS]

    def total(left: int, right: int, one: list[list[int]], other: list[list[int]]) -> bytes:
        value = sign * sum(a[left] * b[right] for a, b in zip(one, other, strict=True))
        return value.to_bytes(16, "little", signed=True)

    digests = bytes.fromhex(SPEC.data_digest) + bytes.fromhex(SPEC.labels_digest)
    body = MAGIC + b"\x01" + digests + struct.pack("<IIqI", 3, 2, sign * 3, 2)
    body += struct.pack("<qq", sign * 1, sign * 2)
    body += b"".join(total(i, j, rows, rows) for i in range(3) for j in range(i, 3))
    body += b"".join(total(i, j, rows, hot) for i in range(3) for j in range(2))
    body += b"".join(total(i, j, hot, hot) for i in range(2) for j in range(i, 2))
    stats = Statistics.of(SPEC, FEATURES, LABELS)
    value = stats if sign > 0 else -stats
    assert value.to_bytes() == sealed(body)
    assert value.digest == hashlib.sha256(body).hexdigest()


@given(st.integers(1, 4), st.integers(1, 3), st.booleans(), st.booleans(), st.data())
def test_round_trip(
    dim: int, columns: int, intercept: bool, classes: bool, data: st.DataObject
) -> None:
    kind: dict[str, Any] = {"labels": tuple(range(columns))} if classes else {"outputs": columns}
    spec = Spec(dim=dim, intercept=intercept, grid=Grid(2, 30), **kind)
    values = np.array(data.draw(st.lists(st.integers(-100, 100), min_size=8, max_size=8)))
    labels = np.arange(4) % columns if classes else np.resize(values / 13, (4, columns))
    stats = Statistics.of(spec, np.resize(values / 7, (4, dim)), labels)
    for value in (stats, -stats - stats):
        content = value.to_bytes()
        for form in (content, bytearray(content), memoryview(content)):
            again = Statistics.from_bytes(spec, form)  # type: ignore[arg-type]
            assert again == value
            assert again.to_bytes() == content
            assert again.digest == value.digest
            assert again.spec == spec
            assert again + stats == value + stats


def test_every_truncation_is_refused() -> None:
    for length in range(len(TINY)):
        with pytest.raises(FormatError, match=r"truncated: .*ask for them again"):
            tiny(TINY[:length])


def test_bytes_too_many_are_refused() -> None:
    for more in (b"\x00", TINY[-32:], TINY):
        with pytest.raises(FormatError, match=r"too many: .*ask for them again"):
            tiny(TINY + more)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_is_refused(flip: int) -> None:
    for place in range(len(TINY)):
        altered = bytearray(TINY)
        altered[place] ^= flip
        with pytest.raises((FormatError, SpecMismatchError)):
            tiny(bytes(altered))
    assert tiny(TINY).count == 1


def test_altered_content_is_told_apart_from_another_kind_and_another_version() -> None:
    body = bytearray(TINY[:-32])
    with pytest.raises(FormatError, match="not statistics"):
        tiny(sealed(b"X" + bytes(body[1:])))
    with pytest.raises(FormatError, match="not statistics"):
        tiny(b"\x00" * len(TINY))
    other = body.copy()
    other[len(MAGIC)] = 2
    with pytest.raises(FormatError, match="version 2 cannot be read; this release reads version 1"):
        tiny(sealed(bytes(other)))
    last = body.copy()
    last[-1] ^= 1
    with pytest.raises(FormatError, match="altered: their checksum does not match"):
        tiny(bytes(last) + TINY[-32:])
    with pytest.raises(FormatError, match="altered: their checksum does not match"):
        tiny(bytes(body) + hashlib.sha256(last).digest())


def test_a_header_that_contradicts_itself_is_refused_even_with_a_right_checksum() -> None:
    position = len(MAGIC) + 1 + 64
    width, columns, count, classes = struct.unpack_from("<IIqI", TINY, position)
    for changed in (
        (width + 1, columns, count, classes),
        (width, columns + 1, count, classes),
        (width, 0, count, classes),
    ):
        with pytest.raises(ExpungeError):
            tiny(
                sealed(TINY[:position] + struct.pack("<IIqI", *changed) + TINY[position + 20 : -32])
            )
    with pytest.raises(FormatError, match="number of class counts"):
        tiny(
            sealed(
                TINY[:position]
                + struct.pack("<IIqI", width, columns, count, 0)
                + TINY[position + 20 : -32]
            )
        )


@pytest.mark.parametrize(
    "other",
    [
        Spec(dim=3, labels=("cat", "dog"), backbone="vit-b/16"),
        Spec(dim=2, labels=("cat", "dog")),
        Spec(dim=2, labels=("cat", "dog"), backbone="vit-b/16", intercept=False),
        Spec(dim=2, labels=("cat", "dog"), backbone="vit-b/16", grid=Grid(2, 34)),
        Spec(dim=2, labels=("cat", "dog"), backbone="vit-b/16", label_grid=Grid(2, 34)),
        Spec(dim=2, labels=("dog", "cat"), backbone="vit-b/16"),
        Spec(dim=2, labels=("cat",), backbone="vit-b/16"),
        Spec(dim=2, labels=("cow", "cat", "dog"), backbone="vit-b/16"),
        Spec(dim=2, outputs=2, backbone="vit-b/16"),
    ],
)
def test_bytes_of_another_spec_are_refused(other: Spec) -> None:
    data = Statistics.of(SPEC, FEATURES, LABELS).to_bytes()
    with pytest.raises(SpecMismatchError):
        Statistics.from_bytes(other, data)
    if not SPEC.grows_from(other):
        with pytest.raises(SpecMismatchError):
            Statistics.from_bytes(SPEC, Statistics.zero(other).to_bytes())


def test_regression_bytes_are_refused_for_another_number_of_outputs() -> None:
    data = Statistics.of(Spec(dim=2, outputs=2), FEATURES, np.zeros((3, 2))).to_bytes()
    assert Statistics.from_bytes(Spec(dim=2, outputs=2), data).count == 3
    for outputs in (1, 3):
        with pytest.raises(SpecMismatchError):
            Statistics.from_bytes(Spec(dim=2, outputs=outputs), data)


def test_another_gamma_reads_the_same_bytes() -> None:
    stats = Statistics.of(SPEC, FEATURES, LABELS)
    assert (
        Statistics.from_bytes(SPEC.with_gamma(7.0).with_publication_bits(50), stats.to_bytes())
        == stats
    )


def test_bytes_made_before_labels_were_appended_are_embedded() -> None:
    stats = Statistics.of(SPEC, FEATURES, LABELS)
    grown = SPEC.with_labels("cow", "ant")
    again = Statistics.from_bytes(grown, stats.to_bytes())
    assert (
        again.to_bytes()
        == stats.under(grown).to_bytes()
        == Statistics.of(grown, FEATURES, LABELS).to_bytes()
    )
