"""FeMNIST as LEAF writes it: writers are chosen by seed alone, drawings stay as they are."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import raw_files

from expunge.errors import FormatError, InputError
from expunge_experiments.datasets.leaf import read_femnist
from expunge_experiments.datasets.places import MissingDataError
from expunge_experiments.datasets.raw import RawDataset

WRITERS = {
    f"f{number:04}_{number % 7:02}": raw_files.drawings(number, 6 + number) for number in range(8)
}
NAMES = list(WRITERS)


def unsplit(folder: Path, *cuts: int, order: list[str] = NAMES) -> Path:
    """The writers in files of their own, cut at these places."""
    bounds = [0, *cuts, len(order)]
    for number, (begin, end) in enumerate(pairwise(bounds)):
        part = {name: WRITERS[name] for name in order[begin:end]}
        raw_files.leaf(folder / "femnist" / "all_data" / f"all_data_{number}.json", part)
    return folder


def rows(raw: RawDataset) -> set[tuple[bytes, int]]:
    """All samples with their labels, whichever part they are in."""
    both = [
        *zip(raw.train, raw.train_labels, strict=True),
        *zip(raw.test, raw.test_labels, strict=True),
    ]
    return {(np.asarray(image).tobytes(), int(label)) for image, label in both}


def as_leaf_has_them(names: list[str]) -> set[tuple[bytes, int]]:
    found = set()
    for name in names:
        for image, label in zip(WRITERS[name]["x"], WRITERS[name]["y"], strict=True):
            found.add((bytes(int(255 * value + 0.5) for value in image), label))
    return found


def test_all_drawings_of_all_writers_come_back(tmp_path: Path) -> None:
    raw = read_femnist(unsplit(tmp_path, 3), writers=8)
    assert (raw.name, raw.modality, raw.classes) == ("femnist", "image", 62)
    assert isinstance(raw.train, np.ndarray)
    assert raw.train.shape[1:] == (28, 28)
    assert rows(raw) == as_leaf_has_them(NAMES)
    assert len(raw.train_labels) + len(raw.test_labels) == sum(
        len(one["y"]) for one in WRITERS.values()
    )
    assert raw.groups is not None
    for number, name in enumerate(
        sorted(NAMES)
    ):  # whole writers, and about nine tenths of each for training
        count = len(WRITERS[name]["y"])
        assert (raw.groups == number).sum() == count - round(0.1 * count)


def test_dark_ink_stays_dark(tmp_path: Path) -> None:
    page = [1.0] * 784
    page[28 * 3 + 5] = 0.0
    raw_files.leaf(
        tmp_path / "femnist" / "all_data_0.json", {"w": {"x": [page] * 10, "y": [0] * 10}}
    )
    raw = read_femnist(tmp_path, writers=1)
    assert isinstance(raw.train, np.ndarray)
    assert raw.train[0, 3, 5] == 0
    assert (raw.train[0] == 255).sum() == 783


def test_the_choice_depends_on_the_seed_alone(tmp_path: Path) -> None:
    one = read_femnist(unsplit(tmp_path / "a", 1, 5), writers=3, seed=4)
    other = read_femnist(unsplit(tmp_path / "b", order=NAMES[::-1]), writers=3, seed=4)
    assert one.digest == other.digest
    choices = {read_femnist(tmp_path / "a", writers=3, seed=seed).digest for seed in range(4)}
    assert len(choices) > 2


def test_a_smaller_choice_is_part_of_a_larger(tmp_path: Path) -> None:
    unsplit(tmp_path, 4)
    nested = [rows(read_femnist(tmp_path, writers=count, seed=1)) for count in (1, 3, 4, 8)]
    assert all(small < large for small, large in pairwise(nested))


def test_leafs_own_split_is_kept(tmp_path: Path) -> None:
    for part, begin, end in (("train", 0, 4), ("test", 4, 99)):
        writers = {
            name: {key: values[begin:end] for key, values in one.items()}
            for name, one in WRITERS.items()
        }
        raw_files.leaf(
            tmp_path / "femnist" / part / f"all_data_0_niid_0_keep_0_{part}_9.json", writers
        )
    raw = read_femnist(tmp_path, writers=5, seed=2)
    assert raw.groups is not None
    assert np.bincount(raw.groups).tolist() == [4] * 5
    chosen = [name for name in NAMES if rows(raw) & as_leaf_has_them([name])]
    assert rows(raw) == as_leaf_has_them(chosen)
    assert len(chosen) == 5


def test_a_split_by_writer_is_kept_and_said(tmp_path: Path) -> None:
    raw_files.leaf(
        tmp_path / "femnist" / "train" / "a.json", {name: WRITERS[name] for name in NAMES[:5]}
    )
    raw_files.leaf(
        tmp_path / "femnist" / "test" / "a.json", {name: WRITERS[name] for name in NAMES[5:]}
    )
    raw = read_femnist(tmp_path, writers=4)
    assert "tested on 3 other writers" in raw.source
    assert len(raw.test_labels) == sum(len(WRITERS[name]["y"]) for name in NAMES[5:])


def test_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"FeMNIST .*all_data_\*\.json.*preprocess\.sh"):
        read_femnist(tmp_path)
    unsplit(tmp_path)
    with pytest.raises(InputError, match="has 8 writers, fewer than the 100 wanted"):
        read_femnist(tmp_path)
    with pytest.raises(InputError, match="writers=0"):
        read_femnist(tmp_path, writers=0)
    raw_files.leaf(tmp_path / "femnist" / "train" / "a.json", WRITERS)
    with pytest.raises(FormatError, match="test has no json files"):
        read_femnist(tmp_path, writers=2)


GOOD = raw_files.drawings(1, 2)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"x": [[0.5] * 783] * 2, "y": [1, 2]}, "not 28 x 28 numbers"),
        ({"x": [[0.5] * 784, [0.5] * 3], "y": [1, 2]}, "not 28 x 28 numbers"),
        ({"x": [["a"] * 784] * 2, "y": [1, 2]}, "not 28 x 28 numbers"),
        ({"y": [1, 2]}, "not 28 x 28 numbers"),
        ({"x": [[1.5] * 784] * 2, "y": [1, 2]}, "not from 0 to 1"),
        ({"x": [[float("nan")] * 784] * 2, "y": [1, 2]}, "not from 0 to 1"),
        (GOOD | {"y": [1, 62]}, "not class numbers from 0 to 61"),
        (GOOD | {"y": [-1, 2]}, "not class numbers"),
        (GOOD | {"y": [1.5, 2]}, "not class numbers"),
        (GOOD | {"y": ["a", "b"]}, "not class numbers"),
    ],
)
def test_drawings_that_are_none_are_refused_by_file_and_writer(
    tmp_path: Path, entry: Any, said: str
) -> None:
    raw_files.leaf(tmp_path / "femnist" / "all_data_0.json", {"w7": entry})
    with pytest.raises(FormatError, match=rf"all_data_0\.json: the .* of 'w7' .*{said}"):
        read_femnist(tmp_path, writers=1)


def test_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
    path = raw_files.leaf(tmp_path / "femnist" / "all_data_0.json", {"w": GOOD})
    whole = path.read_text()
    content = json.loads(whole)
    for text in (
        whole[:-1],
        whole[:100],
        "",
        "[1]",
        "{}",
        json.dumps(content | {"users": ["v"]}),
        '"\ud800"',
    ):
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(FormatError, match=r"all_data_0\.json is not a file of LEAF"):
            read_femnist(tmp_path, writers=1)
    path.write_text(json.dumps(content | {"num_samples": [3]}))
    with pytest.raises(FormatError, match="num_samples does not agree"):
        read_femnist(tmp_path, writers=1)
    path.write_text(whole)
    raw_files.leaf(tmp_path / "femnist" / "all_data_1.json", {"w": GOOD})
    with pytest.raises(FormatError, match=r"all_data_1\.json: the writer 'w' is in another file"):
        read_femnist(tmp_path, writers=1)
