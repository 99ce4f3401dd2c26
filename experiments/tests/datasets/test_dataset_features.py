"""Files of features: decoded as they say, and refused by name where they cannot be right."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import raw_files
from hypothesis import given
from hypothesis import strategies as st

from expunge.errors import ExpungeError, FormatError, InputError, NotFiniteError, ShapeError
from expunge_experiments.datasets.features import decoded, load_features

GOOD: dict[str, Any] = {
    "train_features": np.arange(12, dtype=np.float32).reshape(4, 3),
    "train_labels": np.array([0, 1, 2, 1]),
    "test_features": np.ones((2, 3), np.float32),
    "test_labels": np.array([2, 0]),
}


def saved(path: Path, **changes: Any) -> Path:
    """The good file with other arrays; None leaves one out."""
    np.savez(path, **{name: array for name, array in (GOOD | changes).items() if array is not None})
    return path


def test_a_plain_file_is_taken_as_it_is(tmp_path: Path) -> None:
    dataset = load_features(saved(tmp_path / "mine.npz"))
    assert (dataset.name, dataset.classes, dataset.dim, dataset.groups) == ("mine", 3, 3, None)
    assert np.array_equal(dataset.train_features, GOOD["train_features"])
    assert dataset.train_features.dtype == np.float32
    assert dataset.train_labels.tolist() == [0, 1, 2, 1]
    assert dataset.test_labels.tolist() == [2, 0]
    with pytest.raises(ValueError, match="read-only"):
        dataset.train_features[0] = 1


@given(st.integers(0, 2**32 - 1))
def test_8_bit_features_are_decoded_bit_for_bit(seed: int) -> None:
    draw = np.random.default_rng(seed)
    raw = draw.integers(0, 256, (draw.integers(1, 9), draw.integers(1, 5)), np.uint8)
    scale = (draw.random(raw.shape[1]) + 1e-3).astype(np.float32)
    features = decoded(Path("x"), "features", raw, scale)
    assert features.dtype == np.float32
    assert np.array_equal(features, raw.astype(np.float32) * scale)


def test_groups_of_any_name_and_half_precision(tmp_path: Path) -> None:
    half = GOOD["train_features"].astype(np.float16)
    for name in ("train_groups", "train_writers", "train_users"):
        groups = {name: np.array([70, 3, 70, 5], np.uint16)}
        dataset = load_features(saved(tmp_path / "a.npz", train_features=half, **groups))
        assert dataset.groups is not None
        assert dataset.groups.tolist() == [2, 0, 2, 1]
    assert np.array_equal(dataset.train_features, GOOD["train_features"])


def test_labels_that_are_texts_are_numbered_alike_in_both_parts(tmp_path: Path) -> None:
    names = {"train_labels": np.array(["b", "a", "d", "a"]), "test_labels": np.array(["c", "a"])}
    dataset = load_features(saved(tmp_path / "a.npz", **names))
    assert (dataset.train_labels.tolist(), dataset.test_labels.tolist(), dataset.classes) == (
        [1, 0, 3, 0],
        [2, 0],
        4,
    )


def test_what_a_file_says_of_itself(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "a.npz",
        dataset=np.array("femnist"),
        source=np.array("by hand"),
        classes=np.array(62),
    )
    dataset = load_features(path)
    assert (dataset.name, dataset.source, dataset.classes) == ("femnist", "by hand", 62)
    assert load_features(path, name="mine").name == "mine"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"train_features": None},
            "no array 'train_features'; it has 'train_labels', 'test_features'",
        ),
        ({"test_labels": None}, "no array 'test_labels'"),
        ({"train_features": np.ones(4, np.float32)}, "train_features must be a matrix"),
        ({"train_features": np.ones((4, 3), np.uint8)}, "no array 'scale'"),
        ({"train_features": np.ones((4, 3), np.int32)}, "holds int32"),
        ({"train_features": np.ones((4, 3), np.complex64)}, "holds complex64"),
        ({"scale": np.ones(3, np.float32)}, "'scale' is for features of 8 bits"),
        (
            {"train_features": np.ones((4, 3), np.uint8), "scale": np.ones(2, np.float32)},
            "one float for each of 3",
        ),
        (
            {"train_features": np.ones((4, 3), np.uint8), "scale": np.ones(3, np.int64)},
            "one float for each of 3",
        ),
        (
            {"train_features": np.ones((4, 3), np.uint8), "scale": np.array([1, np.nan, 1])},
            "positive and finite",
        ),
        (
            {"train_features": np.ones((4, 3), np.uint8), "scale": np.array([1, 0.0, 1])},
            "positive and finite",
        ),
        (
            {"train_features": np.full((4, 3), 1e300)},
            "row 0 of .*a value of train_features is beyond float32",
        ),
        (
            {"test_features": np.array([[1, 2, 3], [1, np.nan, 3]])},
            "row 1 of .*column 1 of 'test_features' is nan",
        ),
        ({"test_features": np.ones((2, 4), np.float32)}, "same backbone"),
        ({"train_labels": np.array([0, 1, 2])}, "4 rows of train_features, but 3 train_labels"),
        ({"train_labels": np.array([0, 1, 2, -1])}, "a label is -1"),
        ({"train_labels": np.array([0, 1, 2, 10**9])}, "without gaps"),
        ({"train_labels": np.array([0, 1, 2, 1.0])}, "holds float64"),
        ({"train_labels": np.array(["a", "b", "a", "b"])}, "all of them texts"),
        (
            {"test_labels": np.array([], np.int64), "test_features": np.ones((0, 3), np.float32)},
            "at least one",
        ),
        ({"train_groups": np.array([0, 1])}, "groups must be 4"),
        ({"train_groups": np.ones(4)}, "groups must be 4"),
        ({"classes": np.array([1, 2])}, "'classes' must be one integer"),
        ({"classes": np.array(2)}, "not 0 to 1"),
    ],
)
def test_what_cannot_be_right_is_refused_with_the_file(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path = saved(tmp_path / "wrong.npz", **changes)
    with pytest.raises((InputError, ShapeError, NotFiniteError), match=said) as refusal:
        load_features(path)
    assert "wrong" in str(refusal.value)


def test_a_file_cut_anywhere_is_refused_by_name(tmp_path: Path) -> None:
    whole = saved(tmp_path / "whole.npz").read_bytes()
    for end in range(0, len(whole), 37):
        (tmp_path / "cut.npz").write_bytes(whole[:end])
        with pytest.raises(FormatError, match=r"cut\.npz cannot be read"):
            load_features(tmp_path / "cut.npz")


@given(place=st.integers(0, 10**6), value=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    """Zip files check their contents by CRC; names and padding may change without harm."""
    folder = tmp_path_factory.mktemp("bytes")
    data = bytearray(saved(folder / "a.npz").read_bytes())
    data[place % len(data)] = value
    (folder / "a.npz").write_bytes(data)
    try:
        dataset = load_features(folder / "a.npz")
    except ExpungeError:
        return
    assert np.array_equal(dataset.train_features, GOOD["train_features"])
    assert dataset.train_labels.tolist() == [0, 1, 2, 1]


def test_objects_are_not_read(tmp_path: Path) -> None:
    target = tmp_path / "ran"
    objects = np.array([raw_files.Payload(target)] * 4, dtype=object)
    np.savez(tmp_path / "a.npz", allow_pickle=True, **(GOOD | {"train_labels": objects}))
    (tmp_path / "b.npz").write_bytes(pickle.dumps(raw_files.Payload(target)))
    for name, words in (("a", "Python objects"), ("b", "not an .npz file")):
        with pytest.raises(FormatError, match=words):
            load_features(tmp_path / f"{name}.npz")
    assert not target.exists()


def test_other_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(FormatError, match=r"not an \.npz file"):
        load_features(tmp_path / "a.npz")
    with pytest.raises(InputError, match=r"there is no file .*b\.npz"):
        load_features(tmp_path / "b.npz")
    with pytest.raises(InputError, match=r"give an \.npz file with train_features"):
        load_features(tmp_path / "c.txt")


def test_a_folder_with_tables(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    (tmp_path / "train.csv").write_text("label,subject,x,y\ncat,p,1,2\ndog,q,3,4\ncat,p,5,6.5\n")
    table = pyarrow.table({"features": [[1.0, 2.0]], "label": ["dog"]})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "test.parquet")
    dataset = load_features(tmp_path)
    assert np.array_equal(dataset.train_features, np.array([[1, 2], [3, 4], [5, 6.5]], np.float32))
    assert dataset.train_labels.tolist() == [0, 1, 0]
    assert dataset.test_labels.tolist() == [1]
    assert dataset.groups is not None
    assert dataset.groups.tolist() == [0, 1, 0]
    assert (dataset.name, dataset.classes) == (tmp_path.name, 2)


def test_folders_that_lack_something(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("label,subject,x\n0,p,1\n1,,2\n")
    with pytest.raises(InputError, match=r"has no test\.csv or test\.parquet"):
        load_features(tmp_path)
    (tmp_path / "test.csv").write_text("label,x\n0,1\n")
    with pytest.raises(InputError, match=r"train\.csv: a sample has no subject"):
        load_features(tmp_path)
    (tmp_path / "train.csv").write_text("label,x\n0,1\n1,1e200\n")
    with pytest.raises(NotFiniteError, match=r"row 1 of .*train\.csv: a value of the features"):
        load_features(tmp_path)
