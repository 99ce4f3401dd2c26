"""The client's store: what is put in comes out as the same integers, and what is wrong is refused
whole and by name.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from expunge import Grid, Spec, Statistics
from expunge.client import ClientStore, Selection
from expunge.errors import (
    FormatError,
    GridRangeError,
    InputError,
    NotFiniteError,
    ShapeError,
    SpecError,
    SpecMismatchError,
    StoreBusyError,
    StoreError,
    UnknownLabelError,
    UnknownSampleError,
)
from support.agents import Home
from support.client_files import live_slots
from support.clients import (
    CLIENT,
    FEDERATION,
    NOW,
    SERVER,
    SPEC,
    Server,
    deliver,
    features,
    ids,
    make_store,
)


class TestFolder:
    def test_a_store_survives_reopening(self, tmp_path: Path) -> None:
        with make_store(tmp_path, address="https://example.org", message="gram") as store:
            store.add(ids(3), features(3), [0, 1, 2], now=NOW)
            before = store.status()
        with ClientStore.open(tmp_path / "store") as store:
            assert store.status() == before
            assert (store.name, store.federation, store.message, store.mode) == (
                "ward-3",
                FEDERATION,
                "gram",
                "cached",
            )
            assert (store.server, store.key.public, store.spec) == (
                SERVER.public,
                CLIENT.public,
                SPEC,
            )
            assert store.recall("address") == "https://example.org"

    def test_only_the_owner_can_read_it(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            store.add(ids(1), features(1), [0], now=NOW)
            assert stat.S_IMODE(store.path.stat().st_mode) == 0o700
            for file in store.path.iterdir():
                if file.name in {"client.db", "client.vault", "client.key"}:
                    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    def test_a_folder_that_is_not_empty_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "thesis.txt").write_text("precious")
        with pytest.raises(StoreError, match="not empty"):
            make_store(tmp_path)
        assert [file.name for file in (tmp_path / "store").iterdir()] == ["thesis.txt"]

    def test_an_interrupted_creation_is_begun_again(self, tmp_path: Path) -> None:
        (tmp_path / "store.new").mkdir()
        (tmp_path / "store.new" / "client.vault").write_bytes(b"half")
        (tmp_path / "store").mkdir()
        make_store(tmp_path).close()
        assert sorted(file.name for file in tmp_path.iterdir()) == ["store"]

    def test_creation_refuses_what_cannot_be(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="mode='keep'"):
            make_store(tmp_path, mode="keep")
        with pytest.raises(SpecError, match="message='factor'"):
            make_store(tmp_path, message="factor")
        with pytest.raises(FormatError, match="federation"):
            ClientStore.create(
                tmp_path / "s", federation="?", name="a", server=SERVER.public, spec=SPEC
            )
        (tmp_path / "mirror").write_bytes(b"precious")
        with pytest.raises(StoreError, match="exists already"):
            make_store(tmp_path, mirrors=[tmp_path / "mirror"])
        assert sorted(file.name for file in tmp_path.iterdir()) == ["mirror"]
        assert (tmp_path / "mirror").read_bytes() == b"precious"

    @pytest.mark.parametrize("name", ["client.db", "client.vault", "client.key"])
    def test_a_missing_file_is_named(self, tmp_path: Path, name: str) -> None:
        make_store(tmp_path).close()
        (tmp_path / "store" / name).unlink()
        with pytest.raises(StoreError, match=name):
            ClientStore.open(tmp_path / "store")

    def test_a_newer_database_is_refused(self, tmp_path: Path) -> None:
        make_store(tmp_path).close()
        with closing(sqlite3.connect(tmp_path / "store" / "client.db")) as database:
            database.execute("PRAGMA user_version=99")
        with pytest.raises(StoreError, match="version 99, newer"):
            ClientStore.open(tmp_path / "store")

    def test_a_damaged_database_is_refused(self, tmp_path: Path) -> None:
        make_store(tmp_path).close()
        (tmp_path / "store" / "client.db").write_bytes(b"garbage" * 5000)
        with pytest.raises(StoreError, match="cannot be used"):
            ClientStore.open(tmp_path / "store")

    def test_a_second_agent_is_refused_by_the_number_of_the_first(self, tmp_path: Path) -> None:
        with make_store(tmp_path):
            code = (
                "import sys; from pathlib import Path\n"
                "from expunge.client import ClientStore; from expunge.errors import "
                "StoreBusyError\n"
                "try: ClientStore.open(Path(sys.argv[1]), timeout=0.1)\n"
                "except StoreBusyError as problem: sys.exit(str(problem))"
            )
            command = [sys.executable, "-c", code, str(tmp_path / "store")]
            run = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own interpreter
            assert run.returncode == 1
            assert f"in use by process {os.getpid()}" in run.stderr
            with pytest.raises(StoreBusyError):
                ClientStore.open(tmp_path / "store")
        ClientStore.open(tmp_path / "store").close()

    def test_a_closed_store_says_so(self, tmp_path: Path) -> None:
        store = make_store(tmp_path)
        store.close()
        store.close()
        with pytest.raises(StoreError, match="was closed"):
            store.status()
        with pytest.raises(StoreError, match="was closed"):
            store.remember({"a": "b"})

    def test_mirrors_are_remembered_and_kept_in_step(self, tmp_path: Path) -> None:
        make_store(tmp_path, mirrors=[tmp_path / "mirror"]).close()
        with ClientStore.open(tmp_path / "store") as store:
            store.add(ids(3), features(3), [0, 1, 2], now=NOW)
            store.forget(Selection(ids=["sample-1"]))
        assert (tmp_path / "mirror").read_bytes() == (
            tmp_path / "store" / "client.vault"
        ).read_bytes()


class TestAdding:
    @pytest.mark.parametrize(
        "dtype", [np.float16, np.float32, np.float64, np.int8, np.int64, ">f4", bool]
    )
    @pytest.mark.parametrize("message", ["rows", "gram"])
    def test_the_server_gets_the_integers_that_the_statistics_have(
        self, tmp_path: Path, dtype: Any, message: str
    ) -> None:
        rows = features(7, dtype=np.float64)
        rows = (rows > 0 if dtype is bool else rows * 3).astype(dtype)
        server = Server()
        with make_store(tmp_path, message=message) as store:
            store.add(ids(7), rows, [0, 1, 2, 0, 1, 2, 0], now=NOW)
            header = deliver(store, server)
            assert header is not None
            assert (header.message, header.added, header.deleted) == (message, 7, 0)
            expected = Statistics.of(SPEC, rows, [0, 1, 2, 0, 1, 2, 0], lost_columns="accept")
            assert server.statistics == store.statistics() == expected

    def test_labels_in_every_form_are_the_same(self, tmp_path: Path) -> None:
        forms: list[Any] = [["dog", "eel"], [1, 2], np.array([[0, 1, 0], [0, 0, 1.0]])]
        with make_store(tmp_path) as store:
            for number, labels in enumerate(forms):
                store.add(ids(2, f"batch{number}"), features(2), labels, now=NOW)
            assert store.status().labels == {"dog": 3, "eel": 3}
            assert store.preview(Selection(label="dog")).ids == ("batch0-0", "batch1-0", "batch2-0")
            deliver(store, server := Server())
            once = Statistics.of(SPEC, features(2), [1, 2])
            assert server.statistics == once + once + once

    def test_soft_labels_and_real_targets_are_kept_as_they_came(self, tmp_path: Path) -> None:
        soft = np.array([[0.25, 0.5, 0.25], [0, 0, 1], [1, 1, 0]], dtype=np.float32)
        server = Server()
        with make_store(tmp_path) as store:
            store.add(ids(3), features(3), soft, now=NOW)
            assert store.status().labels == {"eel": 1}
            deliver(store, server)
            assert server.statistics == Statistics.of(SPEC, features(3), soft) == store.statistics()

    def test_regression(self, tmp_path: Path) -> None:
        spec = Spec(dim=4, outputs=1, grid=Grid(2, 30))
        server = Server(spec)
        with make_store(tmp_path, spec) as store:
            store.add(ids(3), features(3), [0.5, -1.5, 2.25], now=NOW)
            deliver(store, server)
            store.correct("sample-1", label=7.5)
            deliver(store, server)
            assert server.statistics == Statistics.of(spec, features(3), [0.5, 7.5, 2.25])
            with pytest.raises(UnknownLabelError):
                store.preview(Selection(label="cat"))

    def test_mixed_types_in_one_request(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(["a"], features(1, 1, np.float16), ["cat"], now=NOW)
            store.add(["b"], features(1, 2, np.float64), [[0.5, 0.5, 0]], now=NOW)
            store.add(["c"], np.array([[1, -2, 3, 4]]), [2], now=NOW)
            header = deliver(store, server)
            assert header is not None
            assert header.added == 3
            expected = (
                Statistics.of(SPEC, features(1, 1, np.float16), [0])
                + Statistics.of(SPEC, features(1, 2, np.float64), [[0.5, 0.5, 0]])
                + Statistics.of(SPEC, [[1, -2, 3, 4]], [2])
            )
            assert server.statistics == expected

    def test_many_blocks_with_progress(self, tmp_path: Path) -> None:
        seen: list[int] = []
        recounted: list[int] = []
        server = Server()
        rows = features(1203)
        with make_store(tmp_path) as store:
            assert (
                store.add(range(1203), rows, np.arange(1203) % 3, now=NOW, progress=seen.append)
                == 1203
            )
            deliver(store, server)
            assert seen == [500, 1000, 1203]
            assert (
                store.statistics(recounted.append)
                == server.statistics
                == Statistics.of(SPEC, rows, np.arange(1203) % 3)
            )
            assert recounted == [500, 1000, 1203]

    @pytest.mark.parametrize(
        ("change", "error", "text"),
        [
            ((601, 2, np.nan), NotFiniteError, "^row 601 .*column 2.*nan"),
            ((3, 0, 1e9), GridRangeError, "^row 3 .*column 0"),
            ((9, None, 3), UnknownLabelError, "^row 9 .*the label is not a class index"),
        ],
    )
    def test_one_bad_sample_refuses_the_batch_by_its_row(
        self, tmp_path: Path, change: Any, error: Any, text: str
    ) -> None:
        rows, labels = features(700, dtype=np.float64), np.arange(700) % 3
        row, column, value = change
        if column is None:
            labels[row] = value
        else:
            rows[row, column] = value
        with make_store(tmp_path) as store:
            store.add(["before"], features(1), [0], now=NOW)
            with pytest.raises(error, match=text) as caught:
                store.add(ids(700), rows, labels, now=NOW)
            assert "row 0" not in str(caught.value)
            assert store.status().adding == 1
            assert live_slots(store) == {0, 1}
            store.add(ids(2), features(2), [0, 1], now=NOW)

    @pytest.mark.parametrize(
        ("arguments", "error", "text"),
        [
            ((["a", "a"], features(2), [0, 1]), InputError, "^rows 0 and 1 .*have the same id"),
            ((["a", ""], features(2), [0, 1]), InputError, "empty"),
            ((["a", None], features(2), [0, 1]), InputError, "text or an integer"),
            ((["x" * 5000], features(1), [0]), InputError, "5000 characters"),
            (("ab", features(2), [0, 1]), InputError, "sequence"),
            ((["a"], features(2), [0, 1]), ShapeError, "1 ids need as many features, got 2"),
            ((["a", "b"], features(2), [0]), ShapeError, "2 ids need as many labels, got 1"),
            ((["a"], features(1, dim=5), [0]), ShapeError, r"\(n, 4\)"),
            ((["a"], [["x"] * 4], [0]), ShapeError, "real numbers"),
            (
                (["a"], features(1), ["cow"]),
                UnknownLabelError,
                "^the sample cannot be taken.*the label is not in the spec",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused(
        self, tmp_path: Path, arguments: Any, error: Any, text: str
    ) -> None:
        with make_store(tmp_path) as store:
            with pytest.raises(error, match=text):
                store.add(*arguments, now=NOW)
            assert store.status().adding == 0
            assert live_slots(store) == {0}

    def test_subjects_must_be_as_many(self, tmp_path: Path) -> None:
        with (
            make_store(tmp_path) as store,
            pytest.raises(ShapeError, match="2 ids need as many subjects, got 1"),
        ):
            store.add(["a", "b"], features(2), [0, 1], subjects=["p"], now=NOW)

    def test_an_id_is_taken_once(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            store.add(["a", "b"], features(2), [0, 1], now=NOW)
            with pytest.raises(InputError, match=r"^row 1 .*is in the store already"):
                store.add(["c", "a"], features(2), [0, 1], now=NOW)
            deliver(store, server := Server())
            store.forget(Selection(ids=["a"]))
            with pytest.raises(InputError, match=r"^row \d .*the deletion .* is pending"):
                store.add(["a"], features(1), [0], now=NOW)
            deliver(store, server)
            assert store.add(["a"], features(1), [0], now=NOW) == 1

    def test_an_empty_batch_is_nothing(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            assert store.add([], np.zeros((0, 4)), [], now=NOW) == 0
            assert store.outbox.compose() is None

    def test_any_text_is_an_id(self, tmp_path: Path) -> None:
        strange = ["é", "日本", "a b\n", "0", "\ufffd", "%s{}", "'; DROP TABLE samples"]
        with make_store(tmp_path) as store:
            store.add(strange, features(7), [0] * 7, subjects=strange, now=NOW)
            for name in strange:
                assert store.preview(Selection(ids=[name], subject=name)).ids == (name,)


class TestSelecting:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Any:
        with make_store(tmp_path) as store:
            store.add(
                ids(6), features(6), [0, 1, 2, 0, 1, 2], subjects=["ann", "ben", None] * 2, now=NOW
            )
            store.add(
                ["late-0", "late-1"],
                features(2),
                ["cat", "dog"],
                subjects=["ann", "ann"],
                now=NOW + 100,
            )
            yield store

    @pytest.mark.parametrize(
        ("selection", "expected"),
        [
            ({"ids": ["sample-4", "sample-1"]}, {"sample-1", "sample-4"}),
            ({"subject": "ann"}, {"sample-0", "sample-3", "late-0", "late-1"}),
            ({"label": "dog"}, {"sample-1", "sample-4", "late-1"}),
            ({"since": NOW + 1}, {"late-0", "late-1"}),
            ({"until": NOW + 1, "label": "cat"}, {"sample-0", "sample-3"}),
            ({"until": NOW}, set()),
            ({"since": NOW, "until": NOW + 100, "subject": "ann"}, {"sample-0", "sample-3"}),
            ({"subject": "ann", "label": "dog"}, {"late-1"}),
            ({"ids": ["sample-0", "late-0"], "since": NOW + 50}, {"late-0"}),
            ({"everything": True}, {*ids(6), "late-0", "late-1"}),
        ],
    )
    def test_conditions_are_joined_by_and(
        self, store: ClientStore, selection: Any, expected: set[str]
    ) -> None:
        preview = store.preview(Selection(**selection))
        assert set(preview.ids) == expected
        assert preview.count == len(expected) == preview.unsent

    def test_a_preview_says_what_would_go_and_changes_nothing(self, store: ClientStore) -> None:
        before = store.status()
        preview = store.preview(Selection(subject="ann"))
        assert preview.labels == {"cat": 3, "dog": 1}
        assert preview.subjects == {"ann": 4}
        assert preview.pending == ()
        assert store.status() == before

    def test_what_is_not_there_is_named(self, store: ClientStore) -> None:
        with pytest.raises(
            UnknownSampleError, match=r"^2 of the 3 ids are not in the store, such as number 2:"
        ):
            store.forget(Selection(ids=["sample-0", "nothing", "nobody"]))
        with pytest.raises(UnknownSampleError, match="no sample of that subject"):
            store.forget(Selection(subject="cyd"))
        with pytest.raises(UnknownLabelError, match="'cow'"):
            store.forget(Selection(label="cow"))
        with pytest.raises(UnknownSampleError, match="no sample with that id is in the store"):
            store.correct("x", label=0)
        assert store.status().adding == 8

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({}, "empty"),
            ({"everything": True, "label": "cat"}, "contradict"),
            ({"ids": []}, "empty"),
            ({"ids": "sample"}, "not one text"),
            ({"since": 5, "until": 5}, "before"),
        ],
    )
    def test_a_selection_that_means_nothing_is_refused(self, arguments: Any, text: str) -> None:
        with pytest.raises(InputError, match=text):
            Selection(**arguments)

    @pytest.mark.parametrize("label", [1, "1"])
    def test_labels_without_names_are_found_by_their_number(
        self, tmp_path: Path, label: int | str
    ) -> None:
        with make_store(tmp_path / "numbers", Spec(dim=4, labels=(0, 1, 2))) as store:
            store.add(ids(3), features(3), [0, 1, 2], now=NOW)
            assert store.preview(Selection(label=label)).ids == ("sample-1",)

    def test_more_ids_than_one_query_takes(self, tmp_path: Path) -> None:
        with make_store(tmp_path / "many") as store:
            store.add(ids(1300), features(1300), [0] * 1300, now=NOW)
            assert store.preview(Selection(ids=ids(1300))).count == 1300


class TestStanding:
    def test_an_amended_spec_keeps_the_samples(self, tmp_path: Path) -> None:
        soft = [[0.5, 0.25, 0.25]]
        grown = SPEC.with_labels("fox").with_gamma(3.0)
        with make_store(tmp_path) as store:
            store.add(["a"], features(1), [2], now=NOW)
            store.add(["b"], features(1, 1), soft, now=NOW)
            deliver(store, Server())
            store.amend(grown, [b"amendment"])
            assert store.documents("amendment") == {0: b"amendment"}
            store.add(["c"], features(1, 2), ["fox"], now=NOW)
            server = Server(grown, sequence=1)
            deliver(store, server, reset=True)
            padded = Statistics.of(grown, features(1, 1), [[*soft[0], 0]])
            assert server.statistics == Statistics.of(
                grown, features(1), [2]
            ) + padded + Statistics.of(grown, features(1, 2), [3])
            store.correct("b", feature=features(1, 5)[0])
            store.forget(Selection(ids=["a", "c"]))
            deliver(store, server)
            assert server.statistics == Statistics.of(grown, features(1, 5), [[*soft[0], 0]])
        with ClientStore.open(tmp_path / "store") as store:
            assert store.spec == grown

    def test_a_spec_of_other_data_is_refused(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            with pytest.raises(SpecMismatchError, match="dim is 4 here and 5 there"):
                store.amend(Spec(dim=5, labels=("cat", "dog", "eel"), grid=Grid(2, 30)))
            assert store.spec == SPEC

    def test_documents_settings_and_head(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            store.keep("rotation", b"one", b"two")
            store.keep("rotation", b"three")
            store.remember({"colour": "blue", "address": "x"})
            assert store.head() is None
            store.put_head(b"weights", "d" * 64)
        with ClientStore.open(tmp_path / "store") as store:
            assert store.documents("rotation") == {0: b"one", 1: b"two", 2: b"three"}
            assert (store.recall("colour"), store.recall("none")) == ("blue", None)
            assert store.head() == b"weights"
            assert store.status().head == "d" * 64


def test_the_first_table_names_the_features(home: Home) -> None:
    width = home.store.spec.dim
    names = tuple(f"f{index}" for index in range(width))
    table = pa.table({name: [1.0] for name in names})
    home.store.add(["t0"], table, [0], now=NOW)
    assert home.store.feature_names == names
    with pytest.raises(ShapeError, match="another order"):
        home.store.add(["t1"], table.select(names[::-1]), [0], now=NOW)
    with pytest.raises(ShapeError, match="lacks column 'f0'"):
        home.store.add(["t1"], np.ones((1, width)), [0], feature_names=names[1:], now=NOW)
    home.store.add(["t1"], np.ones((1, width)), [0], now=NOW)  # by position
    assert home.store.status().adding == 2


def test_a_value_beyond_the_grid_is_refused_by_the_name_of_its_column(home: Home) -> None:
    width = home.store.spec.dim
    names = tuple(f"f{index}" for index in range(width))
    values = np.ones((3, width))
    values[2, 1] = 98765.5
    table = pa.table(dict(zip(names, values.T, strict=True)))
    message = r"row 2 \(counted from 0\) .*nothing was added: column 'f1' of the features is beyond"
    with pytest.raises(GridRangeError, match=message):
        home.store.add(["t0", "t1", "t2"], table, [0, 0, 0], now=NOW)
    with pytest.raises(GridRangeError, match=message):
        home.store.add(["t0", "t1", "t2"], values, [0, 0, 0], feature_names=names, now=NOW)
    with pytest.raises(GridRangeError, match="nothing was added: column 1 of the features"):
        home.store.add(["t0", "t1", "t2"], values, [0, 0, 0], now=NOW)
    assert (home.store.status().adding, home.store.feature_names) == (0, None)


def test_names_that_may_be_personal_are_not_stored(home: Home) -> None:
    width = home.store.spec.dim
    names = ("a text that is rather long for the name of a column", *map(str, range(1, width)))
    home.store.add(["t0"], np.ones((1, width)), [0], feature_names=names, now=NOW)
    assert home.store.feature_names is None
