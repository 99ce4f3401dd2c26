"""Samples as files: all that the store holds, number for number, and readable again."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from expunge import Grid, Spec
from expunge.client import ClientStore, Selection, load
from expunge.client.export import file_of
from expunge.errors import InputError, MissingExtraError
from support.clients import NOW, SPEC, Server, deliver, features, ids, make_store

EVERYTHING = Selection(everything=True)
SUBJECTS = ["ann", None, 'b"en,\n']
TIME = "2026-09-21T14:13:20Z"  # NOW


def written(path: Path, store: ClientStore) -> Path:
    path.write_bytes(file_of(path, store.opened(EVERYTHING), store.spec))
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(), newline="")))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64])
@pytest.mark.parametrize("name", ["out.npz", "out.parquet"])
def test_what_was_added_can_be_added_again_and_is_the_same(
    tmp_path: Path, dtype: Any, name: str
) -> None:
    given = (features(3) * 8).astype(dtype)
    with make_store(tmp_path) as store:
        store.add(ids(3), given, [0, 1, 2], subjects=SUBJECTS, now=NOW)
        deliver(store, Server())
        loaded = load(written(tmp_path / name, store), spec=SPEC)
        assert loaded.ids == ids(3)
        assert loaded.subjects == SUBJECTS
        assert np.array_equal(loaded.features, given)
        assert loaded.labels.tolist() == ["cat", "dog", "eel"]
        with make_store(tmp_path / "again") as other:
            other.add(loaded.ids, loaded.features, loaded.labels, subjects=loaded.subjects, now=NOW)
            deliver(other, Server())
            assert other.statistics() == store.statistics()


def test_a_csv_file_has_everything_in_plain_sight(tmp_path: Path) -> None:
    given = features(3)
    with make_store(tmp_path) as store:
        store.add(
            ids(3), given, [0, 1, 2], subjects=SUBJECTS, sources=["text:hello", None, None], now=NOW
        )
        deliver(store, Server())
        store.forget(Selection(ids=["sample-2"]))
        store.add(["late"], given[:1], [1], now=NOW + 60)
        rows = rows_of(written(tmp_path / "out.csv", store))
    columns = [
        "id",
        "subject",
        "label",
        "added",
        "state",
        "source",
        *(f"feature_{place}" for place in range(4)),
    ]
    assert list(rows[0]) == columns
    assert [row["id"] for row in rows] == [*ids(3), "late"]
    assert [row["subject"] for row in rows] == ["ann", "", 'b"en,\n', ""]
    assert [row["label"] for row in rows] == ["cat", "dog", "eel", "dog"]
    assert [row["state"] for row in rows] == ["live", "live", "deleting", "adding"]
    assert [row["added"] for row in rows] == [TIME] * 3 + ["2026-09-21T14:14:20Z"]
    assert [row["source"] for row in rows] == ["text:hello", "", "", ""]
    numbers = np.array([[float(row[name]) for name in columns[6:]] for row in rows])
    assert np.array_equal(numbers, np.vstack([given, given[:1]]).astype(np.float64))


@pytest.mark.parametrize("name", ["out.npz", "out.parquet", "out.csv"])
def test_outputs_and_soft_labels_are_rows_of_numbers(tmp_path: Path, name: str) -> None:
    soft = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    outputs = np.array([[0.1, -2.0], [3.0, 1e-6]])
    spec = Spec(dim=4, labels=None, outputs=2, grid=Grid(2, 30), label_grid=Grid(2, 30))
    hard = np.array([[0.0, 0.0, 1.0]])
    for number, (kind, given, targets) in enumerate(
        ((SPEC, soft, np.vstack([soft, hard])), (spec, outputs, outputs))
    ):
        with make_store(tmp_path / str(number), kind) as store:
            store.add(ids(2), features(2), given, now=NOW)
            if kind is SPEC:
                store.add(["hard"], features(1), [2], now=NOW)
            path = written(tmp_path / f"{number}{name}", store)
        if name.endswith("csv"):
            found = np.array(
                [
                    [float(row[f"label_{place}"]) for place in range(kind.columns)]
                    for row in rows_of(path)
                ]
            )
        elif name.endswith("npz"):
            found = np.load(path)["labels"]
        else:
            found = np.array(parquet.read_table(path)["label"].to_pylist())
        assert np.array_equal(found, targets)


def test_features_that_are_not_kept_are_left_out(tmp_path: Path) -> None:
    with make_store(tmp_path, mode="recompute") as store:
        store.add(ids(2), features(2), [0, 1], sources=["file:/a", "file:/b"], now=NOW)
        deliver(store, Server())
        store.add(["new"], features(1), [2], sources=["file:/c"], now=NOW)
        places = [written(tmp_path / name, store) for name in ("o.csv", "o.npz", "o.parquet")]
    rows = rows_of(places[0])
    assert [row["source"] for row in rows] == ["file:/a", "file:/b", "file:/c"]
    assert [row["feature_0"] == "" for row in rows] == [True, True, False]
    array = np.load(places[1])["features"]
    assert np.isnan(array[:2]).all()
    assert np.array_equal(array[2], features(1)[0])
    assert [row is None for row in parquet.read_table(places[2])["features"].to_pylist()] == [
        True,
        True,
        False,
    ]


def test_numbers_of_different_types_are_never_rounded(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        store.add(["a"], features(1), [0], now=NOW)
        store.add(["b"], features(1, dtype=np.float64), [0], now=NOW)
        array = np.load(written(tmp_path / "o.npz", store))["features"]
        assert array.dtype == np.float64
        assert np.array_equal(array, np.vstack([features(1), features(1, dtype=np.float64)]))
    wide = Spec(dim=1, labels=("x",), intercept=False, grid=Grid(2, -14))
    with make_store(tmp_path / "wide", wide) as store:
        store.add(["a"], np.array([[0.5]]) * 2, [0], now=NOW)
        store.add(["b"], np.array([[2**53 + 1]]), [0], now=NOW)
        with pytest.raises(InputError, match="no type holds all of them exactly"):
            written(tmp_path / "w.npz", store)
        rows = rows_of(written(tmp_path / "w.csv", store))
    assert [row["feature_0"] for row in rows] == ["1.0", str(2**53 + 1)]


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_nothing_can_be_written_too(tmp_path: Path, suffix: str) -> None:
    assert file_of(tmp_path / f"o{suffix}", [], SPEC)


def test_other_names_and_a_missing_library_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"ends in \.npz, \.csv, \.parquet"):
        file_of(tmp_path / "out.xlsx", [], SPEC)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'expunge\[parquet\]'"):
        file_of(tmp_path / "out.parquet", [], SPEC)
