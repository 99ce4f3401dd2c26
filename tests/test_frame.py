"""Frames: what was written is read back; what is truncated, extended or altered is refused."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import expunge
from expunge.errors import FormatError, TruncatedError
from expunge.frame import (
    CHECKSUM_BYTES,
    Format,
    HeaderFormat,
    Reader,
    pack,
    pieces,
    prefixed,
    with_checksum,
)
from support.sources import nodes_of

FIXED = Format("a parcel", b"parcel\0", "IqB", version=3, remedy="send it again")
HEADED = HeaderFormat("a letter", b"letter\0", 50, remedy="send it again")
parts = st.lists(st.binary(max_size=40), max_size=4)
fields = st.tuples(st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 255))


def written(values: tuple[int, int, int], contents: list[bytes]) -> bytes:
    body = b"".join(prefixed(content, "Q") for content in contents)
    return with_checksum([FIXED.begin(*values), pack("H", len(contents)), body])


def read(data: bytes) -> tuple[tuple[int, int, int], list[bytes]]:
    values, reader = FIXED.open(data)
    reader.require_checksum()
    (count,) = reader.fields("H", "the number of parts")
    contents = [bytes(reader.prefixed("a part", "Q")) for _ in range(count)]
    reader.end()
    return values, contents


@given(fields, parts)
def test_a_frame_is_read_back(values: tuple[int, int, int], contents: list[bytes]) -> None:
    data = written(values, contents)
    assert read(data) == (values, contents)
    assert data[: FIXED.size] == FIXED.begin(*values)


@given(fields, parts, st.binary(min_size=1, max_size=50))
def test_a_frame_truncated_or_extended_anywhere_is_refused(
    values: tuple[int, int, int], contents: list[bytes], more: bytes
) -> None:
    data = written(values, contents)
    for size in range(len(data)):
        with pytest.raises(FormatError):
            read(data[:size])
    for longer in (data + more, data[:-CHECKSUM_BYTES] + more + data[-CHECKSUM_BYTES:]):
        with pytest.raises(FormatError):
            read(longer)


@given(fields, parts, st.data())
def test_an_altered_frame_is_refused(
    values: tuple[int, int, int], contents: list[bytes], data: st.DataObject
) -> None:
    altered = bytearray(written(values, contents))
    place = data.draw(st.integers(0, len(altered) - 1))
    altered[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(FormatError):
        read(bytes(altered))


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=4), st.data())
def test_another_length_is_refused_though_the_checksum_fits(
    contents: list[bytes], data: st.DataObject
) -> None:
    """Lengths are not believed: whatever they say, all bytes are read, and each once."""
    body = bytearray(written((0, 0, 0), contents)[:-CHECKSUM_BYTES])
    last = len(body) - len(contents[-1]) - 8
    length = data.draw(st.integers(0, 2**64 - 1).filter(lambda size: size != len(contents[-1])))
    body[last : last + 8] = pack("Q", length)
    with pytest.raises(FormatError) as problem:
        read(with_checksum([body]))
    assert isinstance(problem.value, TruncatedError) == (length > len(contents[-1]))


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_a_header_is_found_where_its_end_is_said_to_be(header: bytes, body: bytes) -> None:
    data = HEADED.write(header, body)
    found, reader = HEADED.read(data)
    assert (found, bytes(reader.rest())) == (header, body)
    for size in range(len(data)):
        end = HEADED.header_end(data[:size])
        assert end == (HEADED.size if size < HEADED.size else HEADED.size + len(header))
        if size < HEADED.size + len(header):
            with pytest.raises(TruncatedError, match=r"a letter are truncated: .*send it again"):
                HEADED.read(data[:size])


def test_a_header_beyond_the_limit_is_refused_before_it_is_there() -> None:
    start = HEADED.begin(51)
    for attempt in (HEADED.header_end, HEADED.read):
        with pytest.raises(FormatError, match="header of a letter has 51 bytes, more than the 50"):
            attempt(start)


def test_errors_name_what_was_read() -> None:
    data = written((1, 2, 3), [])
    cases: list[tuple[bytes, str]] = [
        (b"letter\0" + data[7:], "not a parcel: they do not begin as such"),
        (data[:7] + b"\x04" + data[8:], "a parcel of version 4 cannot be read; .* version 3"),
        (data[:7] + b"\x02" + data[8:], "a parcel of version 2 cannot be read; .* version 3"),
        (data[:-1] + b"!", "bytes of a parcel have been altered: .*send it again"),
        (data[: FIXED.size], "the checksum must have 32 bytes, 0 are left; send it again"),
    ]
    for content, problem in cases:
        with pytest.raises(FormatError, match=problem):
            read(content)
    with pytest.raises(TruncatedError, match="truncated: 3 where 4 are expected"):
        Reader(b"abc", "a word").require(4)
    with pytest.raises(FormatError, match="too many: 3 where 2 are expected") as found:
        Reader(b"abc", "a word").require(2)
    assert not isinstance(found.value, TruncatedError)
    with pytest.raises(FormatError):
        Reader(b"abc", "a word").take(-1, "nothing")


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=12).map(sorted))
def test_numbers_are_read_back_and_nothing_is_copied(numbers: list[int]) -> None:
    array = np.array(numbers, dtype="<i8")
    data = array.tobytes()
    found = Reader(data, "numbers").array("<i8", (len(numbers),), "them")
    assert found.tolist() == numbers
    assert not found.flags.writeable
    assert not numbers or np.shares_memory(found, np.frombuffer(data, "<i8"))
    assert pieces(data, 8) == [pack("q", number) for number in numbers]
    assert Reader(data, "numbers").pieces(len(numbers), 8, "them") == pieces(data, 8)
    with pytest.raises(TruncatedError, match="numbers are truncated: them must have"):
        Reader(data, "numbers").array("<i8", (len(numbers) + 1,), "them")


def test_no_other_module_takes_bytes_apart_by_hand() -> None:
    """`struct` elsewhere is only the error that libraries raise for files of theirs."""
    source = Path(expunge.__file__).parent
    found = {
        file.as_posix()
        for file, node in nodes_of(source, "struct.")
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr == "error") == ("struct", False)
    }
    assert found == {"frame.py"}
