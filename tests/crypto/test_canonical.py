"""Canonical JSON: one text for one value, and no other text is taken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.crypto import canonical
from expunge.errors import FormatError

leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
)


@given(values)
def test_decoding_is_the_inverse_of_encoding(value: Any) -> None:
    assert canonical.decode(canonical.encode(value)) == value


@given(values)
def test_the_text_is_ascii_json_without_spaces_and_with_sorted_keys(value: Any) -> None:
    data = canonical.encode(value)
    assert data.isascii()
    assert json.loads(data) == value
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode()


@given(st.dictionaries(st.text(max_size=4), leaves, max_size=6), st.randoms())
def test_the_order_of_keys_does_not_matter(value: dict[str, Any], random: Any) -> None:
    keys = list(value)
    random.shuffle(keys)
    assert canonical.encode({key: value[key] for key in keys}) == canonical.encode(value)


def test_values_that_look_alike_have_different_texts() -> None:
    alike: list[Any] = [1, True, "1", [1], {"1": 1}, None, "null", False, 0, "", [], {}, [None]]
    assert len({canonical.encode(value) for value in alike}) == len(alike)


@given(values, st.data())
def test_a_value_said_with_other_bytes_is_refused(value: Any, data: st.DataObject) -> None:
    text = canonical.encode(value)
    place = data.draw(st.integers(0, len(text)))
    for blank in (b"\n", b"\t", b"\xc2\xa0", b"\0"):
        with pytest.raises(FormatError):
            canonical.decode(text[:place] + blank + text[place:])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b" 1",
        b"1 ",
        b"1\n",
        b"01",
        b"-0",
        b"+1",
        b"1.0",
        b"1e2",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b'{"b":1,"a":2}',
        b'{"a":1,"a":1}',
        b'{"a": 1}',
        b"[1, 2]",
        b"[1,]",
        b'"\\u0041"',
        b'"\\/"',
        b'"\\u00E4"',
        '"ä"'.encode(),
        b"\xef\xbb\xbf1",
        "1".encode("utf-16"),
        "[1]".encode("utf-32"),
        b"\xff",
        b"'a'",
        b"nul",
        b"9007199254740993",
        b"9" * 5000,
        b"[" * 100_000,
        b"[" * 40 + b"]" * 40,
        b"1 2",
    ],
)
def test_any_other_text_is_refused_and_the_thing_is_named(data: bytes) -> None:
    with pytest.raises(FormatError, match="the letter"):
        canonical.decode(data, "the letter")


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        float("nan"),
        (1,),
        {1},
        b"a",
        {1: 2},
        {None: 1},
        {"a": 1.5},
        [object()],
        2**53 + 1,
        -(2**53) - 1,
        {"a": [2**60]},
    ],
)
def test_a_value_without_a_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(FormatError):
        canonical.encode(value)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_values_are_nested_32_deep_at_most() -> None:
    assert canonical.decode(canonical.encode(nested(32))) == nested(32)
    with pytest.raises(FormatError, match="32 deep"):
        canonical.encode(nested(33))
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(FormatError, match="32 deep"):
        canonical.encode(endless)


def test_an_object_has_exactly_its_keys() -> None:
    keys = frozenset({"a", "b"})
    assert canonical.decode_object(b'{"a":1,"b":2}', "it", keys) == {"a": 1, "b": 2}
    with pytest.raises(FormatError, match=r"missing: \['b'\], unknown: \['c'\]"):
        canonical.decode_object(b'{"a":1,"c":2}', "it", keys)
    with pytest.raises(FormatError, match="must be an object, got list"):
        canonical.decode_object(b"[]", "it", keys)


@pytest.mark.parametrize("value", ["\ud800", ["a\udfff"], {"\udc00": 1}, {"k": "x\ud83d"}])
def test_half_of_a_surrogate_pair_is_no_text(value: object) -> None:
    with pytest.raises(FormatError, match="surrogate"):
        canonical.encode(value)
    with pytest.raises(FormatError, match="surrogate"):
        canonical.decode(json.dumps(value, separators=(",", ":")).encode())
