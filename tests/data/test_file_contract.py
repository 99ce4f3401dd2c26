"""One reader: a bad file is refused with the same error by every command that reads it, and a good
one gives the same samples in every format.
"""

from __future__ import annotations

import csv
import json
import re
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from expunge import Spec
from expunge.data import formats, listed, shards
from expunge.data.columns import Keys
from expunge.data.readers import load, load_inputs
from expunge.errors import ExpungeError, FormatError
from expunge_experiments.datasets.features import load_features
from support.cli import ROWS_A, Federation, value

PERSONAL = "crushing pain"
SPEC = Spec(dim=3, labels=("cat", "dog"))
FEATURES = np.arange(12.0).reshape(4, 3) / 8
LABELS = np.array(["cat", "dog", "cat", "dog"])


# -- writing ---------------------------------------------------------------------------------------


def write_npz(path: Path, features: Any, labels: Any) -> None:
    np.savez(path, features=features, labels=labels)


def write_split(path: Path, features: Any, labels: Any) -> None:
    """As experiments have it: the same samples for training and for tests."""
    names = ("train_features", "train_labels", "test_features", "test_labels")
    np.savez(path, **dict(zip(names, (features, labels) * 2, strict=True)))


def write_npy(path: Path, features: Any, labels: Any) -> None:
    np.save(path, features)
    np.save(labels_of(path), labels)


def labels_of(path: Path) -> Path:
    return path.with_name(path.name.replace("feature", "label"))


def write_csv(path: Path, features: Any, labels: Any) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", *(f"f{place}" for place in range(np.shape(features)[1]))])
        writer.writerows(
            [label, *(cell if isinstance(cell, str) else repr(cell) for cell in row)]
            for label, row in zip(labels.tolist(), features.tolist(), strict=True)
        )


def write_parquet(path: Path, features: Any, labels: Any) -> None:
    table = pa.table({"features": list(features), "label": list(labels)})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)


WRITE: dict[str, Callable[[Path, Any, Any], None]] = {
    ".npz": write_npz,
    ".npy": write_npy,
    ".csv": write_csv,
    ".parquet": write_parquet,
}


# -- bad files -------------------------------------------------------------------------------------


def absent(path: Path) -> None:
    path.unlink()


def unreadable(path: Path) -> None:
    """Reading the first byte fails, whoever asks."""
    path.unlink()
    path.symlink_to("/proc/self/mem")


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def replaced(path: Path) -> None:
    path.write_bytes(PERSONAL.encode() * 20)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: -path.stat().st_size // 3])


def lengthened(path: Path) -> None:
    if path.suffix == ".npy":
        path.write_bytes(path.read_bytes() + b"more")
        return
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data + b"more")


def flipped(path: Path) -> None:
    """One bit of the features, which checksums notice."""
    data = bytearray(path.read_bytes())
    place = bytes(data).index(np.ascontiguousarray(FEATURES[1]).tobytes())
    data[place] ^= 1
    path.write_bytes(data)


def changed(**parts: Any) -> Callable[[Path], None]:
    """The same file with other features or labels."""

    def make(path: Path) -> None:
        split = path.suffix == ".npz" and "train_features" in np.load(path).files
        write = write_split if split else WRITE[path.suffix]
        write(path, parts.get("features", FEATURES), parts.get("labels", LABELS))

    return make


def renamed(path: Path) -> None:
    """The features by another name."""
    with np.load(path) as arrays:
        others = {name.replace("features", "vectors"): arrays[name] for name in arrays.files}
    np.savez(path, **others)


def hidden(column: str) -> Callable[[Path], None]:
    """A value of a table that is missing in the second row."""

    def make(path: Path) -> None:
        table = pq.read_table(path).to_pydict()
        table[column][1] = None
        pq.write_table(pa.table(table), path)

    return make


def uneven(path: Path) -> None:
    lists = [list(row) for row in FEATURES]
    pq.write_table(pa.table({"features": [*lists[:3], [1.0]], "label": list(LABELS)}), path)


def edited(old: str, new: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return make


def latin(path: Path) -> None:
    path.write_bytes(path.read_bytes() + "Käse,1,2,3\n".encode("latin-1"))


def other_suffix(path: Path) -> None:
    path.rename(path.with_suffix(".bin"))


@dataclass(frozen=True)
class Case:
    """What is done to a good file, and how it is refused then: by its kind as --json gives it, and
    by a pattern for the whole message.
    """

    make: Callable[[Path], None]
    suffixes: tuple[str, ...]
    kind: str
    words: str
    not_by: tuple[str, ...] = ()  # ways in that take such a file

    def ways(self, suffix: str) -> list[str]:
        """The ways in that read files of this kind."""
        reading = ["add", "predict"]
        reading += ["statistics"] if suffix != ".csv" else []
        reading += ["experiments"] if suffix == ".npz" else []
        return [way for way in reading if way not in self.not_by]


NOT_FINITE = np.where(np.arange(12).reshape(4, 3) == 5, np.inf, FEATURES)
OBJECTS = np.array([[PERSONAL, 1, 2]] * 4, dtype=object)
TEXTS = np.array([["1", PERSONAL, "2"]] * 4)
ARRAYS, BINARY, ALL = (".npz", ".npy"), (".npz", ".npy", ".parquet"), tuple(WRITE)

CASES = [
    Case(absent, ALL, "input", "there is no file FILE, or none that can be seen from here"),
    Case(unreadable, ALL, "input", "FILE cannot be read: Input/output error"),
    Case(emptied, BINARY, "format", r"FILE cannot be read: it is not an? \.\w+ file, though .*"),
    Case(replaced, BINARY, "format", r"FILE cannot be read: it is not an? \.\w+ file, though .*"),
    Case(truncated, BINARY, "format", "FILE cannot be read.*: it is damaged, cut short, .*"),
    Case(flipped, (".npz", ".parquet"), "format", ".*FILE cannot be read.*: it is damaged, .*"),
    Case(lengthened, ARRAYS, "format", ".*FILE cannot be read: it is longer than it says, .*"),
    Case(changed(features=OBJECTS), ARRAYS, "format", ".*FILE cannot be read: .*Python objects.*"),
    Case(changed(features=TEXTS), BINARY, "shape", "FILE: .* holds .*, where real numbers are .*"),
    Case(
        changed(features=FEATURES + 1j), ARRAYS, "shape", "FILE: .* holds complex128, where real .*"
    ),
    Case(
        changed(features=TEXTS), (".csv",), "shape", "line 2 of FILE: column 'f1' holds no number.*"
    ),
    Case(
        changed(features=NOT_FINITE),
        BINARY,
        "not-finite",
        "row 1 of FILE: column 2 of .* is inf: .*",
    ),
    Case(
        changed(features=NOT_FINITE),
        (".csv",),
        "not-finite",
        "line 3 of FILE: column 'f2' is inf: .*",
    ),
    Case(
        changed(features=FEATURES[:, 0]),
        ARRAYS,
        "shape",
        r"FILE: \w+ must be a matrix \(n, dim\),.*",
    ),
    Case(changed(features=FEATURES[:3]), (".npz",), "shape", r"FILE has 3 rows of \w+, but 4 \w+"),
    Case(  # without --labels, predict reads the features alone
        changed(features=FEATURES[:3]),
        (".npy",),
        "shape",
        "FILE has 3 rows .* 4 labels",
        ("predict",),
    ),
    Case(uneven, (".parquet",), "shape", "row 3 of FILE: the list in column 'features' has 1 .*"),
    Case(
        hidden("features"), (".parquet",), "input", "row 1 of FILE: column 'features' is empty .*"
    ),
    Case(hidden("label"), (".parquet",), "input", "row 1 of FILE: column 'label' is empty there.*"),
    Case(edited("\ndog,", "\n,"), (".csv",), "input", "line 3 of FILE: column 'label' is empty .*"),
    Case(renamed, (".npz",), "input", "FILE has no array .*features'; it has '.*labels'.*"),
    Case(
        changed(features=FEATURES[:, :2]),
        ALL,
        "shape",
        "FILE has 2 columns of features, and the .*",
        ("experiments",),
    ),
    Case(
        emptied, (".csv",), "format", "FILE is empty: a CSV file begins with a line of column names"
    ),
    Case(edited("f1", "f2"), (".csv",), "format", "FILE: a column name occurs twice .* 3 and 4.*"),
    Case(
        edited("\ncat,", "\ncat,1,"), (".csv",), "format", "line 2 of FILE has 5 fields, but .* 4"
    ),
    Case(
        edited("\ncat,", '\n"cat'), (".csv",), "format", "FILE cannot be read as CSV in UTF-8: .*"
    ),
    Case(
        latin, (".csv",), "format", "FILE cannot be read as CSV in UTF-8: it is written otherwise"
    ),
    Case(other_suffix, ALL, "input", r"FILE is of a kind that cannot be read: give .*\.npz.*"),
]


# -- ways in ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """What the commands work on."""

    client: Path
    spec: Path

    def refusal(self, way: str, path: Path) -> tuple[str, str]:
        """Kind and message of the error with which a file is refused."""
        if way == "experiments":
            with pytest.raises(ExpungeError) as caught:
                load_features(path)
            name = type(caught.value).__name__.removesuffix("Error")
            return {"NotFinite": "not-finite"}.get(name, name.lower()), str(caught.value)
        labels = ("--labels", labels_of(path)) if path.suffix == ".npy" else ()
        command: tuple[object, ...] = {
            "add": ("client", "add", path, *labels, "--no-sync", "--dir", self.client),
            "predict": ("predict", path, "--dir", self.client),
            "statistics": ("statistics", path, "--spec", self.spec),
        }[way]
        told = value(*command, code=1)["error"]
        return told["kind"], told["message"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("contract")
    (folder / "spec.json").write_text(json.dumps(SPEC.to_dict()))
    return Place(
        Federation.found(folder).client("clinic", ROWS_A.replace("x,y,z", "f0,f1,f2")),
        folder / "spec.json",
    )


def parameters() -> list[Any]:
    return [
        pytest.param(case, suffix, id=f"{number}{suffix}")
        for number, case in enumerate(CASES)
        for suffix in case.suffixes
    ]


@pytest.mark.parametrize(("case", "suffix"), parameters())
def test_a_bad_file_is_refused_alike_by_all_that_read_it(
    place: Place, tmp_path: Path, case: Case, suffix: str
) -> None:
    if case.make is unreadable and not Path("/proc/self/mem").exists():
        pytest.skip("this system has no file that fails when it is read")
    assert len(case.ways(suffix)) >= 2
    for way in case.ways(suffix):
        path = tmp_path / way / f"x-feature{suffix}"
        path.parent.mkdir()
        (write_split if way == "experiments" else WRITE[suffix])(path, FEATURES, LABELS)
        case.make(path)
        path = path.with_suffix(".bin") if case.make is other_suffix else path
        kind, message = place.refusal(way, path)
        assert kind == case.kind, (way, message)
        pattern = case.words.replace("FILE", ".*" + re.escape(path.name))
        assert re.fullmatch(pattern, message, re.DOTALL), (way, message)
        assert PERSONAL not in message


def test_the_files_are_good_before_anything_is_done_to_them(place: Place, tmp_path: Path) -> None:
    for suffix, write in WRITE.items():
        path = tmp_path / f"x-feature{suffix}"
        write(path, FEATURES, LABELS)
        keys = Keys(labels_file=labels_of(path) if suffix == ".npy" else None)
        assert load_inputs(path, keys, SPEC).features.tolist() == FEATURES.tolist()
        assert value("predict", path, "--dir", place.client)["predictions"]
        if suffix != ".csv":
            assert value("statistics", path, "--spec", place.spec)["samples"] == 4
    write_split(tmp_path / "split.npz", FEATURES, LABELS)
    assert load_features(tmp_path / "split.npz").classes == 2


@pytest.mark.parametrize("form", [".npz", "packed", ".npy", ".parquet"])
def test_every_truncation_is_refused(tmp_path: Path, form: str) -> None:
    """Of .csv files nobody can tell: a shorter one is a file as well."""
    path = tmp_path / f"x-feature{'.npz' if form == 'packed' else form}"
    if form == "packed":
        np.savez_compressed(path, features=FEATURES, labels=LABELS)
    else:
        WRITE[form](path, FEATURES, LABELS)
    labels = labels_of(path) if form == ".npy" else None
    (shard,) = listed([path])
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(FormatError, match=r"x-feature.* cannot be read"):
            load(path, labels=labels)
        with pytest.raises(FormatError, match=r"x-feature.* cannot be read"):
            list(shards.blocks(shard, shards.ColumnNames("feature", "label"), 3))
    path.write_bytes(data)
    assert len(load(path, labels=labels)) == 4


def test_a_header_that_swallows_values_does_not_show_them(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([PERSONAL.encode()]))
    data = bytearray((tmp_path / "x.npy").read_bytes())
    data[8:10] = (len(data) - 10).to_bytes(2, "little")
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(FormatError, match="cannot be read") as caught:
        load(tmp_path / "x.npy", label_columns=1)
    assert PERSONAL not in str(caught.value)


# -- good files ------------------------------------------------------------------------------------


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8).map(
    "x{}".format
)
rows = npst.arrays(
    st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.int64]),
    st.tuples(st.integers(0, 5), st.integers(1, 4)),
    elements={"allow_nan": False, "allow_infinity": False},
)


@given(features=rows, data=st.data())
def test_a_good_file_gives_the_same_samples_in_every_format(features: Any, data: Any) -> None:
    count, dim = features.shape
    ids, labels = (data.draw(st.lists(texts, min_size=count, max_size=count)) for _ in range(2))
    order = data.draw(st.sampled_from("CF"))
    with tempfile.TemporaryDirectory() as folder:
        for form, path in written(Path(folder), np.asarray(features, order=order), ids, labels):
            named = ids if form != ".npy" else [f"{path.name}#{row}" for row in range(count)]
            keys = Keys(labels_file=labels_of(path) if form == ".npy" else None)
            loaded = load(path, labels=keys.labels_file)
            inputs = load_inputs(path, keys, Spec(dim=dim, labels=("cat",)))
            for found in (loaded, inputs):
                assert found.ids == named
                assert found.labels is not None
                assert found.labels.tolist() == labels
                wanted = features.astype(float) if form == ".csv" else features
                if count:
                    assert found.features.dtype == wanted.dtype
                assert found.features.tolist() == wanted.tolist()
            if form != ".csv" and order == "C":
                (shard,) = listed([path])
                names = shards.ColumnNames("feature", "label")
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(shards, "BLOCK_ENTRIES", 2 * dim)
                    blocks = list(shards.blocks(shard, names, dim))
                assert [len(block) for block, _ in blocks] == [2] * (count // 2) + [1] * (count % 2)
                assert [row for block, _ in blocks for row in block.tolist()] == features.tolist()
                assert [label for _, block in blocks for label in block.tolist()] == labels


def written(folder: Path, features: Any, ids: list[str], labels: list[str]) -> Iterator[Any]:
    """The same samples in every format."""
    array = np.array(labels, dtype=np.str_)
    np.savez(folder / "a.npz", features=features, labels=array, ids=np.array(ids, dtype=np.str_))
    yield ".npz", folder / "a.npz"
    write_npy(folder / "a-feature.npy", features, array)
    yield ".npy", folder / "a-feature.npy"
    with (folder / "a.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label", *(f"f{place}" for place in range(features.shape[1]))])
        for name, label, row in zip(ids, labels, features.tolist(), strict=True):
            writer.writerow([name, label, *map(repr, row)])
    yield ".csv", folder / "a.csv"
    lists = pa.FixedSizeListArray.from_arrays(
        pa.array(np.ascontiguousarray(features).ravel()), features.shape[1]
    )
    columns = {"id": pa.array(ids, pa.string()), "label": pa.array(labels, pa.string())}
    pq.write_table(pa.table(columns | {"features": lists}), folder / "a.parquet", row_group_size=2)
    yield ".parquet", folder / "a.parquet"


def test_one_thread_at_a_time_parses_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's parser, which numpy uses, is not for several threads at once: see formats.py."""
    np.save(tmp_path / "features.npy", np.zeros((3, 2)))
    parse, inside, most = formats.HEADER_READERS[1, 0], 0, 0

    def watched(file: Any) -> Any:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.01)
        inside -= 1
        return parse(file)

    monkeypatch.setitem(formats.HEADER_READERS, (1, 0), watched)
    with ThreadPoolExecutor(4) as pool:
        opened = [pool.submit(_whole, tmp_path / "features.npy") for _ in range(8)]
        assert all(one.result() == (3, 2) for one in opened)
    assert most == 1


def _whole(path: Path) -> tuple[int, ...]:
    with formats.open_file(path) as file:
        return tuple(file.column("features").numbers().shape)
