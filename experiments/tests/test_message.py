"""Messages: what is written is what is read, and nothing else is read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from expunge.errors import FormatError
from expunge_experiments.message import ArrayMessage

KINDS = st.sampled_from(["<f4", "<f8", "<i8", "<u8", "|b1", "|u1"])
ARRAYS = st.dictionaries(
    st.text(max_size=8),
    KINDS.flatmap(lambda kind: arrays(kind, array_shapes(min_dims=0, min_side=0, max_side=4))),
    max_size=4,
)
SETTINGS = st.dictionaries(
    st.text(max_size=8),
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    max_size=4,
)


@given(st.text(), SETTINGS, ARRAYS)
def test_a_letter_is_read_as_it_was_written(task: str, settings: dict, content: dict) -> None:
    data = ArrayMessage(task, settings, content).to_bytes()
    read = ArrayMessage.from_bytes(data)
    assert (read.task, dict(read.settings), list(read.arrays)) == (task, settings, list(content))
    for name, array in content.items():
        assert (read.arrays[name].dtype, read.arrays[name].shape) == (array.dtype, array.shape)
        assert read.arrays[name].tobytes() == array.tobytes()
    assert read.to_bytes() == data


def test_arrays_of_any_layout_are_written_alike() -> None:
    array = np.arange(12.0).reshape(3, 4)
    assert (
        ArrayMessage("x", {}, {"a": np.asfortranarray(array)}).to_bytes()
        == ArrayMessage("x", {}, {"a": array}).to_bytes()
    )


@given(st.data())
def test_a_letter_that_was_cut_or_lengthened_is_refused(data: st.DataObject) -> None:
    whole = ArrayMessage("train", {"round": 3}, {"weights": np.ones((3, 2), np.float32)}).to_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(FormatError):
        ArrayMessage.from_bytes(whole[:cut])
    with pytest.raises(FormatError, match="too many"):
        ArrayMessage.from_bytes(whole + b"\0")


def test_another_version_is_named() -> None:
    with pytest.raises(FormatError, match="version 9"):
        ArrayMessage.from_bytes(b"\x09" + ArrayMessage("x").to_bytes()[1:])


def test_objects_are_no_arrays() -> None:
    head = b'["x",{},[["a","|O",[1]]]]'
    with pytest.raises(FormatError):
        ArrayMessage.from_bytes(b"\x01" + len(head).to_bytes(4, "little") + head + bytes(8))
