"""What is wrong with a shard is said with its name and the row; nothing comes of the others
then.
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from expunge.data import shard_statistics
from expunge.data.engines import engine_of
from expunge.errors import (
    ExpungeError,
    FormatError,
    GridRangeError,
    InputError,
    MissingExtraError,
    NotFiniteError,
    ShapeError,
    UnknownLabelError,
)
from support.shards import FORMS, SPEC, samples, write, written

FEATURES, LABELS = samples(40)


def refused(shards: Any, kind: type[ExpungeError], words: str, **options: Any) -> None:
    with pytest.raises(kind, match=words):
        shard_statistics(SPEC, shards, **options)


@pytest.mark.parametrize("on", ["threads", "processes"])
def test_one_bad_shard_among_many_is_named(tmp_path: Path, on: str) -> None:
    shards = written(tmp_path, FEATURES, LABELS, [10, 20, 30], ["npz"])
    bad = FEATURES[:9].copy()
    bad[6, 2] = np.nan
    shards.append(write(tmp_path / "bad", bad, LABELS[:9], "npz"))
    refused(shards, NotFiniteError, r"row 6 of .*bad\.npz: column 2", on=on, workers=1)


@pytest.mark.parametrize("form", FORMS)
def test_values_and_labels_that_cannot_be_taken(tmp_path: Path, form: str) -> None:
    far = FEATURES.copy()
    far[33, 4] = 1e9
    refused(write(tmp_path / "far", far, LABELS, form), GridRangeError, "far.*row 33, column 4")
    strange = [*LABELS[:21], "fox", *LABELS[22:]]
    refused(
        write(tmp_path / "strange", FEATURES, strange, form),
        UnknownLabelError,
        "strange.*the label of row 21",
    )
    refused(
        write(tmp_path / "narrow", FEATURES[:, :3], LABELS, form),
        ShapeError,
        r"narrow.* has 3 columns of features, and the spec has 5",
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_file_is_a_damaged_file_wherever_it_is_cut(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / "cut", FEATURES, LABELS, form)
    data = path.read_bytes()
    for size in (0, 3, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        refused(path, FormatError, "cut.*cannot be read")


@pytest.mark.parametrize("form", ["parquet", "npz", "packed"])
def test_no_altered_byte_is_counted_as_it_stands(tmp_path: Path, form: str) -> None:
    """Formats with checksums; of .npy files nobody can tell.

    Where nothing is refused, nothing was altered that counts.
    """
    path = write(tmp_path / "altered", FEATURES, LABELS, form, group=1000)
    if form == "parquet":
        table = pq.read_table(path)
        pq.write_table(table, path, write_page_checksum=True)
    data, expected = path.read_bytes(), shard_statistics(SPEC, path)
    for place in range(0, len(data), 61):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        try:
            found = shard_statistics(SPEC, path)
        except (InputError, FormatError) as problem:
            assert "altered" in str(problem)  # noqa: PT017 - either is right
        else:
            assert found == expected, place


@pytest.mark.parametrize("form", ["parquet", "npz"])
def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / "a", FEATURES, LABELS, form)
    refused(
        path,
        InputError,
        r"a\.\w+ has no \w+ 'vector' or 'vectors'; it has .*'label",
        features="vector",
    )
    refused(
        path,
        InputError,
        r"has no \w+ 'class'; it has .*Name the one with the labels",
        labels="class",
    )
    refused(path, InputError, r"has no \w+ 'w'", features=["w", "label"])
    refused(path, InputError, "is named twice", features="label")


def test_what_is_missing_in_parquet_is_named_by_its_row(tmp_path: Path) -> None:
    rows: list[Any] = [list(map(float, row)) for row in FEATURES]
    cases: dict[str, tuple[list[Any], list[Any], str]] = {
        "a": (
            [*rows[:12], None, *rows[13:]],
            list(LABELS),
            "row 12 of NAME: column 'feature' is empty",
        ),
        "b": (rows, [*LABELS[:30], None, *LABELS[31:]], "row 30 of NAME: column 'label' is empty"),
        "c": (
            [*rows[:12], [1.0, None, 0.0, 0.0, 0.0], *rows[13:]],
            list(LABELS),
            "row 12 of NAME: an entry of the list",
        ),
        "d": (
            [*rows[:12], [1.0], *rows[13:]],
            list(LABELS),
            r"row 12 of NAME: the list .* has 1 entries",
        ),
        "e": ([["x"] * 5 for _ in rows], list(LABELS), "NAME: column 'feature' holds string"),
    }
    for name, (features, labels, words) in cases.items():
        pq.write_table(
            pa.table({"feature": features, "label": labels}),
            tmp_path / f"{name}.parquet",
            row_group_size=7,
        )
        kind = ShapeError if name == "d" else InputError
        refused(tmp_path / f"{name}.parquet", kind, words.replace("NAME", rf".*{name}\.parquet"))


def test_arrays_that_do_not_belong_together(tmp_path: Path) -> None:
    for form in ("npz", "npy"):
        refused(
            write(tmp_path / f"short-{form}", FEATURES, LABELS[:39], form),
            ShapeError,
            "40 rows of features, but 39",
        )
        refused(
            write(tmp_path / f"flat-{form}", FEATURES[0], LABELS[:5], form),
            ShapeError,
            "must be a matrix",
        )


def test_python_objects_are_never_read(tmp_path: Path) -> None:
    for form in ("npz", "npy"):
        path = write(
            tmp_path / f"objects-{form}", FEATURES, np.array(list(LABELS), dtype=object), form
        )
        refused(path, FormatError, "objects.*runs code")


def test_rows_that_cannot_be_streamed_are_refused_but_mapped_ones_are_taken(tmp_path: Path) -> None:
    by_columns = np.asfortranarray(FEATURES)
    refused(write(tmp_path / "f", by_columns, LABELS, "npz"), FormatError, "ascontiguousarray")
    mapped = shard_statistics(SPEC, write(tmp_path / "g", by_columns, LABELS, "npy"))
    assert mapped == shard_statistics(SPEC, write(tmp_path / "h", FEATURES, LABELS, "npy"))


def test_an_array_that_is_longer_than_it_says(tmp_path: Path) -> None:
    path = write(tmp_path / "long", FEATURES, LABELS, "npz")
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data + bytes(4))
    refused(path, FormatError, "longer than it says")


def test_shards_that_cannot_be_meant(tmp_path: Path) -> None:
    path = write(tmp_path / "a", FEATURES, LABELS)
    alone = tmp_path / "x.npy"
    np.save(alone, FEATURES)
    refused([], InputError, "no shards")
    refused([path, str(path)], InputError, "given twice")
    refused(tmp_path, InputError, r"is a folder.*\*\.parquet")
    refused(tmp_path / "b.csv", InputError, r"ends in \.parquet, \.npz, \.npy")
    refused(f"{tmp_path}/*.feather", InputError, "no file is called like")
    refused(tmp_path / "none.parquet", InputError, "there is no file")
    refused(alone, InputError, "does not say which file has the labels")
    refused([(alone, path)], InputError, "half of a pair")
    refused([(alone, alone, alone)], InputError, "3 entries")
    refused(tmp_path / "lonely-features.npy", InputError, "there is no file")
    refused(path, InputError, "must be one of threads", on="clouds")
    refused(path, InputError, "workers=0", workers=0)
    with pytest.raises(InputError, match="takes a Spec first"):
        shard_statistics(path, SPEC)  # type: ignore[arg-type]


@pytest.mark.parametrize(("on", "library"), [("ray", "ray"), ("dask", "distributed")])
def test_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    refused(
        write(tmp_path / "a", FEATURES, LABELS),
        MissingExtraError,
        rf"pip install 'expunge\[{on}\]'",
        on=on,
    )


def test_a_worker_that_dies_is_told_as_that(tmp_path: Path) -> None:
    with engine_of("processes", 1) as engine:
        name = engine.run(os._exit, 3)
        with pytest.raises(ExpungeError, match="a worker was lost"):
            engine.finished([name])
