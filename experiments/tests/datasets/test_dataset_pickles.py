"""Pickles of arrays and plain values are read; whatever else a pickle asks for is refused, and
nothing of it is run.
"""

from __future__ import annotations

import collections
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import raw_files

from expunge.errors import FormatError
from expunge_experiments.datasets.pickles import read_pickle

ARRAYS = [
    np.arange(12, dtype=np.uint8).reshape(3, 4),
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
    np.arange(4, dtype=">i4"),
    np.array([True, False]),
]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays_come_back(array: Any, protocol: int) -> None:
    value = {"data": array, "labels": [1, 2, 3], "name": "batch", "more": None}
    found = read_pickle(pickle.dumps(value, protocol=protocol), "it")
    assert found["data"].dtype == array.dtype
    assert np.array_equal(found["data"], array)
    assert (found["labels"], found["more"]) == ([1, 2, 3], None)


def test_what_python_2_wrote() -> None:
    values = {"data": raw_files.images(2), "labels": [3, 9]}
    data = raw_files.python2(values)
    official = pickle.loads(data, encoding="bytes")  # noqa: S301 - our own bytes; they must be a true pickle
    found = read_pickle(data, "it")
    assert found.keys() == official.keys() == {b"data", b"labels"}
    assert np.array_equal(found[b"data"], official[b"data"])
    assert np.array_equal(found[b"data"], values["data"])
    assert found[b"labels"] == [3, 9]


class Call:
    """Asks for a function to be called when it is read."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.what = (function, arguments)

    def __reduce__(self) -> Any:
        return self.what


def test_calls_are_refused_and_not_made(tmp_path: Path) -> None:
    target = str(tmp_path / "ran")
    for bad in (
        Call(os.mkdir, target),
        Call(exec, f"import os; os.mkdir({target!r})"),
        Call(getattr, {}, "get"),
        Call(open, target, "w"),
    ):
        for protocol in range(5):
            for value in (bad, {"data": bad}, [bad]):
                with pytest.raises(FormatError, match=r"the batch cannot be read .*it asks for"):
                    read_pickle(pickle.dumps(value, protocol=protocol), "the batch")
    assert not Path(target).exists()


@pytest.mark.parametrize(
    "value",
    [
        collections.OrderedDict(a=1),
        np.float64(1.5),
        np.ma.masked_array([1, 2], [True, False]),
        Path("x"),
        complex(1, 2),
        len,
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(FormatError, match="it cannot be read"):
        read_pickle(pickle.dumps({"data": value}), "it")


def test_arrays_of_objects_and_texts_are_refused() -> None:
    for array in (
        np.array([{}, []], dtype=object),
        np.array(["a", "b"]),
        np.zeros(2, dtype=[("a", "i4")]),
    ):
        with pytest.raises(FormatError, match="nothing in it was run"):
            read_pickle(pickle.dumps({"data": array}, protocol=2), "it")


def test_shapes_that_lie_are_refused() -> None:
    data = raw_files.python2({"data": raw_files.images(2)})
    for lie in (3, 2**30, -1):
        changed = data.replace(
            b"J" + (2).to_bytes(4, "little"), b"J" + lie.to_bytes(4, "little", signed=True)
        )
        assert changed != data
        with pytest.raises(FormatError, match="it has an array"):
            read_pickle(changed, "it")


@pytest.mark.parametrize(
    "data",
    [
        b"cnumpy\ndtype\n}U\x01x1sb.",  # sets the state of a function of ours
        b"cnumpy\nndarray\n}U\x01x1sb.",  # and of what stands for a class
        b"cnumpy\nndarray\n(tR.",  # calls what stands for a class
        b"c_codecs\nencode\n(U\x01aU\x03hextR.",  # another encoding
        b"(dU\x04dataP0\ns.",  # something kept elsewhere
        b"\x80\x02]r\x00\x00\x00\x08.",  # wants room for 2^27 values
        b"\x82\x01.",  # an entry of the process's own registry
        b"",
        b".",
        b"garbage",
    ],
)
def test_tricks_are_refused(data: bytes) -> None:
    before = {name: getattr(np, name) for name in ("dtype", "ndarray")}
    with pytest.raises(FormatError, match="it cannot be read"):
        read_pickle(data, "it")
    assert before == {name: getattr(np, name) for name in before}
    assert read_pickle(pickle.dumps({"data": ARRAYS[0]}), "it")["data"].shape == (
        3,
        4,
    )  # and the reader is as it was


@pytest.mark.parametrize("text", [rb"\q", rb"\777"])
def test_a_text_with_an_escape_that_there_is_not_is_refused_without_a_warning(text: bytes) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(FormatError, match=r"it cannot be read .*escape"):
            read_pickle(b"S'" + text + b"'\n.", "it")
    assert seen == []


DAMAGED = pickle.dumps({"data": ARRAYS[0], "labels": [1, 2, 3]}, protocol=2)


@pytest.mark.parametrize("part", range(4))
def test_damaged_bytes_are_read_or_refused_but_never_anything_else(part: int) -> None:
    """Every byte that there is in every place; and every beginning."""
    for place in range(part, len(DAMAGED), 4):
        for one in (
            DAMAGED[:place],
            *(DAMAGED[:place] + bytes([value]) + DAMAGED[place + 1 :] for value in range(256)),
        ):
            try:
                read_pickle(one, "it")
            except FormatError:
                continue
