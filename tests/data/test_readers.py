"""Files of samples: whatever the format, the same samples come out; what is missing is named with
what is there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from expunge import Spec, Statistics
from expunge.client import Selection
from expunge.data.columns import Keys
from expunge.data.readers import load, load_inputs, load_samples
from expunge.errors import (
    ExpungeError,
    FormatError,
    InputError,
    MissingExtraError,
    NotFiniteError,
    ShapeError,
    UnknownLabelError,
)
from support.clients import NOW, SPEC, Server, deliver, features, make_store

ROWS = features(3)
LABELS = ["cat", "eel", "dog"]
IDS = ["a", "b", "c"]
SUBJECTS = ["ann", "ben", "ann"]


def as_csv(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_npz(path: Path) -> Path:
    np.savez(path / "x.npz", features=ROWS, labels=LABELS, ids=IDS, subjects=SUBJECTS)
    return path / "x.npz"


def write_csv(path: Path) -> Path:
    rows = [
        f"{name},{about},{label},{','.join(map(repr, row))}" for name, about, label, row in table()
    ]
    return as_csv(path / "x.csv", ["id,subject,label,f0,f1,f2,f3", *rows])


def table() -> Any:
    return zip(IDS, SUBJECTS, LABELS, ROWS.astype(float).tolist(), strict=True)


def write_lists(path: Path) -> Path:
    content = {"id": IDS, "subject": SUBJECTS, "label": LABELS, "features": list(ROWS)}
    parquet.write_table(pa.table(content), path / "x.parquet")
    return path / "x.parquet"


def write_fixed_lists(path: Path) -> Path:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(ROWS.ravel()), 4)
    labels = pa.array(LABELS).dictionary_encode()
    content = {"ids": IDS, "subjects": SUBJECTS, "labels": labels, "features": lists}
    parquet.write_table(pa.table(content), path / "y.parquet", row_group_size=2)
    return path / "y.parquet"


def write_columns(path: Path) -> Path:
    content: dict[str, Any] = {f"f{number}": ROWS[:, number] for number in range(4)}
    parquet.write_table(
        pa.table(content | {"id": IDS, "subject": SUBJECTS, "label": LABELS}), path / "z.parquet"
    )
    return path / "z.parquet"


@pytest.mark.parametrize(
    "write", [write_npz, write_csv, write_lists, write_fixed_lists, write_columns]
)
def test_every_format_gives_the_same_samples(tmp_path: Path, write: Any) -> None:
    loaded = load(write(tmp_path))
    assert (loaded.ids, loaded.subjects, list(loaded.labels), len(loaded)) == (
        IDS,
        SUBJECTS,
        LABELS,
        3,
    )
    np.testing.assert_array_equal(loaded.features.astype(np.float64), ROWS.astype(np.float64))
    server = Server()
    with make_store(tmp_path) as store:
        store.add(loaded.ids, loaded.features, loaded.labels, subjects=loaded.subjects, now=NOW)
        assert store.preview(Selection(subject="ann")).ids == ("a", "c")
        deliver(store, server)
    assert server.statistics == Statistics.of(SPEC, ROWS, [0, 2, 1])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int16])
def test_the_type_of_numbers_is_kept(tmp_path: Path, dtype: Any) -> None:
    rows = (ROWS * 8).astype(dtype)
    np.savez(tmp_path / "x.npz", features=rows, labels=[0, 1, 2])
    np.save(tmp_path / "x.npy", rows)
    np.save(tmp_path / "y.npy", [0, 1, 2])
    parquet.write_table(
        pa.table({"label": [0, 1, 2], "features": list(rows)}), tmp_path / "x.parquet"
    )
    for loaded in (
        load(tmp_path / "x.npz"),
        load(tmp_path / "x.npy", labels=tmp_path / "y.npy"),
        load(tmp_path / "x.parquet"),
    ):
        assert loaded.features.dtype == dtype
        np.testing.assert_array_equal(loaded.features, rows)
        np.testing.assert_array_equal(loaded.labels, [0, 1, 2])
        assert loaded.subjects is None


def test_ids_are_made_of_file_name_and_row(tmp_path: Path) -> None:
    np.savez(tmp_path / "scans.npz", features=ROWS, labels=[0, 1, 2])
    assert load(tmp_path / "scans.npz").ids == ["scans.npz#0", "scans.npz#1", "scans.npz#2"]


def test_names_can_be_chosen(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X=ROWS, y=[0, 1, 2], key=[7, 8, 9], who=SUBJECTS)
    loaded = load(
        tmp_path / "x.npz", feature_keys=["X"], label_keys=["y"], id_key="key", subject_key="who"
    )
    assert (loaded.ids, loaded.subjects) == (["7", "8", "9"], SUBJECTS)
    file = as_csv(tmp_path / "x.csv", ["a,b,c,d", "1,2,cat,4", "5,6,dog,8"])
    loaded = load(file, feature_keys=["d", "a"], label_keys=["c"])
    np.testing.assert_array_equal(loaded.features, [[4, 1], [8, 5]])
    assert list(loaded.labels) == ["cat", "dog"]


def test_what_was_not_read_and_what_was_made_up_is_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", features=ROWS, labels=LABELS, patients=SUBJECTS)
    loaded = load(tmp_path / "x.npz")
    assert (loaded.ignored, loaded.made_ids, loaded.subjects) == (("patients",), True, None)
    loaded = load(write_csv(tmp_path), feature_keys=["f1", "f3"])
    assert (loaded.ignored, loaded.made_ids) == (("f0", "f2"), False)
    assert load(write_columns(tmp_path), feature_keys=["f1"]).ignored == ("f0", "f2", "f3")
    assert load(write_npz(tmp_path)).ignored == ()


def test_features_of_another_width_are_refused_by_the_name_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=r"x\.csv has 4 columns of features, and the spec has 5"):
        load(write_csv(tmp_path), spec=Spec(dim=5, labels=("cat", "dog", "eel")))


COUNTED = "All columns count but those of labels, ids and subjects"


@pytest.mark.parametrize(
    ("write", "dim", "named", "remedy"),
    [
        (write_csv, 5, None, f"{COUNTED}: add the columns that are missing"),
        (write_csv, 3, None, f"{COUNTED}. Say which columns are features"),
        (write_csv, 3, ["f0"], "Say which columns are features: 3 of them"),
        (write_columns, 5, None, f"{COUNTED}: add the columns that are missing"),
        (write_lists, 5, None, "Give features of length 5"),
        (write_npz, 5, None, "Give features of length 5"),
        (write_npz, 3, None, "Give features of length 3"),
    ],
)
def test_features_of_another_width_are_refused_with_the_remedy_for_the_file(
    tmp_path: Path, write: Any, dim: int, named: Any, remedy: str
) -> None:
    path, spec = write(tmp_path), Spec(dim=dim, labels=("cat", "dog", "eel"))
    width = "1 column" if named else "4 columns"
    problem = f"{path} has {width} of features, and the spec has {dim}. {remedy}"
    for read in (load_samples, load_inputs):
        with pytest.raises(ShapeError) as refusal:
            read(path, Keys(named), spec)
        assert str(refusal.value) == problem


def test_another_array_is_a_remedy_only_where_there_is_one(tmp_path: Path) -> None:
    spec = Spec(dim=5, labels=("cat", "dog", "eel"))
    np.savez(tmp_path / "x.npz", features=ROWS, labels=LABELS, wide=np.ones((3, 5)))
    with pytest.raises(ShapeError, match=r"Give features of length 5, or name another array$"):
        load(tmp_path / "x.npz", spec=spec)
    assert len(load(tmp_path / "x.npz", feature_keys=["wide"], spec=spec)) == 3
    np.savez(tmp_path / "x.npz", wide=ROWS, labels=LABELS)
    with pytest.raises(InputError, match=r"no array 'features'.* Name the one with the features"):
        load(tmp_path / "x.npz", spec=spec)
    np.save(tmp_path / "x.npy", np.ones((3, 5)))
    with pytest.raises(ShapeError, match=r"has 4 columns of .* Give features of length 5$"):
        load(tmp_path / "x.npy", label_columns=1, spec=spec, label_indices=True)


class TestNpy:
    def test_labels_as_last_columns(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.array([[0.5, 1.5, 2], [2.5, 3.5, 0]]))
        loaded = load(tmp_path / "x.npy", label_columns=1)
        assert loaded.labels.dtype == np.int64
        np.testing.assert_array_equal(loaded.labels, [2, 0])
        np.testing.assert_array_equal(loaded.features, [[0.5, 1.5], [2.5, 3.5]])
        soft = load(tmp_path / "x.npy", label_columns=2)
        np.testing.assert_array_equal(soft.labels, [[1.5, 2], [3.5, 0]])

    @pytest.mark.parametrize("value", [0.5, np.nan, np.inf, 1e300])
    def test_real_labels_stay_real(self, tmp_path: Path, value: float) -> None:
        np.save(tmp_path / "x.npy", np.array([[0.5, 1.5, 2], [2.5, 3.5, value]]))
        np.testing.assert_array_equal(load(tmp_path / "x.npy", label_columns=1).labels, [2, value])

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({}, "features only"),
            ({"label_columns": 4}, "its last 4 cannot"),
            ({"label_columns": -1}, "cannot"),
            ({"labels": Path("nowhere.npy")}, "no file nowhere.npy"),
            ({"label_keys": ["y"]}, "no names"),
        ],
    )
    def test_where_the_labels_are_must_be_said(
        self, tmp_path: Path, options: Any, text: str
    ) -> None:
        np.save(tmp_path / "x.npy", ROWS)
        with pytest.raises(InputError, match=text):
            load(tmp_path / "x.npy", **options)


def test_digits_as_texts_mean_the_same_in_arrays_and_tables(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", features=[[1.5], [2.5]], labels=["1", "0"])
    content = {"label": ["1", "0"], "features": [[1.5], [2.5]]}
    parquet.write_table(pa.table(content), tmp_path / "x.parquet")
    for spec, labels in (
        (Spec(dim=1, labels=(0, 1)), [1, 0]),
        (Spec(dim=1, labels=("0", "1")), ["1", "0"]),
    ):
        for name in ("x.npz", "x.parquet"):
            assert load(tmp_path / name, spec=spec).labels.tolist() == labels
    assert load(tmp_path / "x.npz").labels.tolist() == ["1", "0"]  # an array of texts stays one


class TestInputs:
    SPEC = Spec(dim=4, labels=("cat", "dog", "eel"))

    @pytest.mark.parametrize("write", [write_npz, write_csv, write_lists, write_columns])
    def test_labels_come_along(self, tmp_path: Path, write: Any) -> None:
        inputs = load_inputs(write(tmp_path), Keys(), self.SPEC)
        assert inputs.labels is not None
        assert (inputs.ids, inputs.labels.tolist()) == (IDS, LABELS)
        assert inputs.features.tolist() == ROWS.tolist()

    def test_labels_are_not_needed(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", features=ROWS, ids=IDS)
        np.save(tmp_path / "x.npy", ROWS)
        content = {"ID": IDS, "features": list(ROWS), "subject": SUBJECTS}
        parquet.write_table(pa.table(content), tmp_path / "x.parquet")
        rows = [f"{name},{','.join(map(repr, row))}" for name, _, _, row in table()]
        as_csv(tmp_path / "x.csv", ["Id ,a,b,c,d", *rows])
        for name in ("x.npz", "x.npy", "x.parquet", "x.csv"):
            inputs = load_inputs(tmp_path / name, Keys(), self.SPEC)
            made = [f"x.npy#{row}" for row in range(3)]
            assert (inputs.ids, inputs.labels) == (made if name == "x.npy" else IDS, None)
            assert inputs.features.tolist() == ROWS.tolist()

    def test_an_id_column_that_is_not_there(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", features=ROWS)
        with pytest.raises(InputError, match="has no array 'nr'; it has 'features'"):
            load_inputs(tmp_path / "x.npz", Keys(id="nr"), self.SPEC)


class TestCsv:
    @pytest.mark.parametrize(
        ("lines", "error", "text"),
        [
            (
                ["id,label,x", "a,cat,1", "b,dog,much"],
                InputError,
                "line 3 .*column 'x' holds no number",
            ),
            (
                ["id,label,x", "a,cat,1", "", "b,dog"],
                FormatError,
                "line 4 .*has 2 fields, but the header has 3",
            ),
            (["id,label,x", "a,cat,1", "b,cat,nan"], NotFiniteError, "line 3 .*column 'x' is nan"),
            (["id;label;x", "a;cat;1"], FormatError, "has ';' between its columns"),
            (["id,label,x", "a,,1"], InputError, "line 2 .*column 'label' is empty"),
            (
                ["id,x,y", "a,1,2"],
                InputError,
                "no column 'label' or 'labels'; it has 'id', 'x', 'y'",
            ),
            (["label,x,x", "a,1,2"], FormatError, "occurs twice"),
            (["id,label", "a,cat"], InputError, "no column of features besides .*: add them"),
            ([""], FormatError, "empty"),
            (["label,x", '"cat,1'], FormatError, "cannot be read"),
        ],
    )
    def test_errors_name_the_line(
        self, tmp_path: Path, lines: list[str], error: Any, text: str
    ) -> None:
        with pytest.raises(error, match=text):
            load(as_csv(tmp_path / "x.csv", lines))

    @pytest.mark.parametrize(
        ("texts", "spec", "expected"),
        [
            (["1", "0"], None, [1, 0]),
            (["1", "0"], Spec(dim=1, labels=(0, 1)), [1, 0]),
            (["10", "20"], Spec(dim=1, labels=("20", "10")), ["10", "20"]),
            (["0.5", "2"], None, [0.5, 2.0]),
            (["cat", "1"], None, ["cat", "1"]),
        ],
    )
    def test_labels_are_what_the_spec_has(
        self, tmp_path: Path, texts: list[str], spec: Any, expected: list[Any]
    ) -> None:
        file = as_csv(tmp_path / "x.csv", ["label,x", *(f"{text},1.5" for text in texts)])
        assert load(file, spec=spec).labels.tolist() == expected

    def test_integers_are_not_taken_for_texts_unless_it_is_said(self, tmp_path: Path) -> None:
        spec = Spec(dim=1, labels=("healthy", "ill"))
        rows = np.array([[1.5], [2.5]])
        np.savez(tmp_path / "x.npz", features=rows, labels=[1, 0])
        np.save(tmp_path / "x.npy", np.hstack([rows, [[1.0], [0.0]]]))
        parquet.write_table(pa.table({"label": [1, 0], "x": [1.5, 2.5]}), tmp_path / "x.parquet")
        as_csv(tmp_path / "x.csv", ["label,x", "1,1.5", "0,2.5"])
        for name in ("x.npz", "x.npy", "x.parquet", "x.csv"):
            options: Any = {"label_columns": 1} if name == "x.npy" else {}
            with pytest.raises(
                UnknownLabelError, match=r"are integers, .*healthy, ill\..*label_indices=True"
            ):
                load(tmp_path / name, spec=spec, **options)
            assert load(
                tmp_path / name, spec=spec, label_indices=True, **options
            ).labels.tolist() == [1, 0]

    @pytest.mark.parametrize(
        "header", ["ID,Subject,LABEL,x", "id, subject, label,x", "Ids,SUBJECTS,Labels ,x"]
    )
    def test_usual_names_in_other_writing(self, tmp_path: Path, header: str) -> None:
        loaded = load(as_csv(tmp_path / "x.csv", [header, "a,ann,cat,1"]))
        assert (loaded.ids, loaded.subjects, loaded.labels.tolist(), loaded.features.tolist()) == (
            ["a"],
            ["ann"],
            ["cat"],
            [[1.0]],
        )

    def test_several_label_columns_are_real_targets(self, tmp_path: Path) -> None:
        file = as_csv(tmp_path / "x.csv", ["x,y0,y1", "1,2,3", "4,5,6"])
        np.testing.assert_array_equal(load(file, label_keys=["y0", "y1"]).labels, [[2, 3], [5, 6]])
        file = as_csv(tmp_path / "x.csv", ["x,y0,y1", "1,2,many"])
        with pytest.raises(InputError, match=r"^line 2 of .*'y1' holds no number"):
            load(file, label_keys=["y0", "y1"])

    def test_a_subject_may_be_missing(self, tmp_path: Path) -> None:
        file = as_csv(tmp_path / "x.csv", ["subject,label,x", "ann,cat,1", ",dog,2"])
        assert load(file).subjects == ["ann", None]

    def test_excel_writes_a_mark_before_the_header(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbflabel,x\r\ncat,1\r\n")
        assert load(tmp_path / "x.csv").labels.tolist() == ["cat"]

    def test_other_encodings_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_bytes("label,x\nKäse,1\n".encode("latin-1"))
        with pytest.raises(FormatError, match="UTF-8"):
            load(tmp_path / "x.csv")


class TestParquet:
    @pytest.mark.parametrize(
        ("content", "error", "text"),
        [
            ({"label": [0, 1], "x": [1.0, None]}, InputError, "row 1 .*'x' is empty"),
            ({"label": [0, None], "x": [1.0, 2.0]}, InputError, "row 1 .*'label' is empty"),
            ({"label": [0, 1], "x": [1.0, np.inf]}, NotFiniteError, "row 1 .*column 'x' is inf"),
            ({"label": [0, 1], "x": ["a", "b"]}, InputError, "'x' holds string"),
            (
                {"label": [0, 1], "features": [[1.0, 2.0], [3.0]]},
                ShapeError,
                "row 1 .*has 1 entries",
            ),
            ({"y": [0, 1], "x": [1.0, 2.0]}, InputError, "it has 'y', 'x'"),
        ],
    )
    def test_what_cannot_be_taken_is_named(
        self, tmp_path: Path, content: Any, error: Any, text: str
    ) -> None:
        parquet.write_table(pa.table(content), tmp_path / "x.parquet")
        with pytest.raises(error, match=text):
            load(tmp_path / "x.parquet")

    def test_a_number_missing_in_a_list_is_refused(self, tmp_path: Path) -> None:
        parquet.write_table(
            pa.table({"label": [0, 1], "features": [[1.0, 2.0], [3.0, None]]}),
            tmp_path / "x.parquet",
        )
        with pytest.raises(InputError, match=r"^row 1 of .*an entry of the list .* is missing"):
            load(tmp_path / "x.parquet")

    def test_soft_labels_as_lists(self, tmp_path: Path) -> None:
        content = {"labels": [[0.5, 0.5], [1.0, 0.0]], "features": [[1.0], [2.0]]}
        parquet.write_table(pa.table(content), tmp_path / "x.parquet")
        np.testing.assert_array_equal(load(tmp_path / "x.parquet").labels, [[0.5, 0.5], [1, 0]])

    def test_several_label_columns(self, tmp_path: Path) -> None:
        parquet.write_table(
            pa.table({"x": [1.0, 2.0], "y0": [3, 4], "y1": [0.5, 0.25]}), tmp_path / "x.parquet"
        )
        np.testing.assert_array_equal(
            load(tmp_path / "x.parquet", label_keys=["y0", "y1"]).labels, [[3, 0.5], [4, 0.25]]
        )

    def test_a_damaged_file(self, tmp_path: Path) -> None:
        (tmp_path / "x.parquet").write_bytes(b"PAR1 nothing of use PAR1")
        with pytest.raises(FormatError, match="cannot be read as Parquet"):
            load(tmp_path / "x.parquet")

    def test_without_pyarrow_the_remedy_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_lists(tmp_path)
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'expunge\[parquet\]'"):
            load(tmp_path / "x.parquet")


class TestRefusals:
    @pytest.mark.parametrize("name", ["x.npy", "x.npz"])
    def test_pickles_are_never_opened(self, tmp_path: Path, name: str) -> None:
        trap = np.array([Trap(tmp_path / "sprung")], dtype=object)
        save: Any = np.save if name.endswith("npy") else np.savez
        save(tmp_path / name, trap) if name.endswith("npy") else save(
            tmp_path / name, features=ROWS[:1], labels=trap
        )
        with pytest.raises(FormatError, match="Python objects"):
            load(tmp_path / name, **({"label_columns": 1} if name.endswith("npy") else {}))
        assert not (tmp_path / "sprung").exists()

    def test_the_trap_would_spring(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.array([Trap(tmp_path / "sprung")], dtype=object))
        np.load(tmp_path / "x.npy", allow_pickle=True)
        assert (tmp_path / "sprung").exists()

    @pytest.mark.parametrize(
        ("arrays", "error", "text"),
        [
            (
                {"X": ROWS, "labels": [0, 1, 2]},
                InputError,
                "no array 'features'; it has 'X', 'labels'",
            ),
            ({"features": ROWS}, InputError, "no array 'label' or 'labels'; it has 'features'"),
            ({"features": ROWS, "labels": [0, 1]}, ShapeError, "3 rows of features, but 2 labels"),
            ({"features": ROWS[0], "labels": [0]}, ShapeError, r"shape \(4,\)"),
            (
                {"features": ROWS, "labels": [0, 1, 2], "ids": [0.5, 1.5, 2.5]},
                InputError,
                "^row 0 of .*the id is neither",
            ),
            (
                {"features": ROWS, "labels": [0, 1, 2], "ids": ["a"]},
                ShapeError,
                "3 rows of features, but 1 ids",
            ),
        ],
    )
    def test_npz(self, tmp_path: Path, arrays: Any, error: Any, text: str) -> None:
        np.savez(tmp_path / "x.npz", **arrays)
        with pytest.raises(error, match=text):
            load(tmp_path / "x.npz")

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"id_key": "nr"}, "no array 'nr'"),
            ({"feature_keys": ["features", "features"]}, "named twice"),
            ({"feature_keys": ["labels"]}, "named twice"),
            ({"feature_keys": "features"}, "in a list"),
            ({"label_columns": 1}, "labels of its own"),
        ],
    )
    def test_options_that_make_no_sense(self, tmp_path: Path, options: Any, text: str) -> None:
        with pytest.raises(InputError, match=text):
            load(write_npz(tmp_path), **options)

    @pytest.mark.parametrize("name", ["x.npz", "x.npy"])
    def test_garbage(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"garbage")
        with pytest.raises(FormatError, match=r"cannot be read: it is not an \.np"):
            load(tmp_path / name, **({"label_columns": 1} if name.endswith("npy") else {}))

    def test_a_truncated_npz(self, tmp_path: Path) -> None:
        file = write_npz(tmp_path)
        file.write_bytes(file.read_bytes()[:-40])
        with pytest.raises(FormatError, match="cannot be read"):
            load(file)

    def test_a_wrong_suffix(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", ROWS)
        (tmp_path / "x.npy").rename(tmp_path / "x.npz")
        with pytest.raises(FormatError, match=r"not an \.npz"):
            load(tmp_path / "x.npz")
        write_npz(tmp_path).rename(tmp_path / "y.npy")
        with pytest.raises(FormatError, match=r"not an \.npy"):
            load(tmp_path / "y.npy", label_columns=1)

    def test_unknown_kinds_and_missing_files(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"ends in \.npz, \.npy, \.csv, \.parquet"):
            load(tmp_path / "x.xlsx")
        with pytest.raises(InputError, match="there is no file"):
            load(tmp_path / "x.csv")


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_file_with_an_altered_byte_is_read_or_refused_by_name(
    tmp_path: Path, suffix: str
) -> None:
    whole = tmp_path / f"whole{suffix}"
    features, labels = np.arange(600.0).reshape(200, 3), np.arange(200) % 2
    if suffix == ".npz":
        np.savez_compressed(whole, features=features, labels=labels)
    else:
        columns = {name: features[:, place] for place, name in enumerate("xyz")}
        parquet.write_table(pa.table({**columns, "label": labels}), whole)
    data = whole.read_bytes()
    refused: list[str] = []
    for place in range(0, len(data), 13):
        altered = tmp_path / f"altered{suffix}"
        altered.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        try:
            load(altered)
        except ExpungeError as problem:
            refused.append(str(problem))
    assert len(refused) > 5
    assert all("altered" in one for one in refused)
