"""The store: a result counts as long as everything it depends on is the same, and files are whole
or absent.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiment_cases import Toy
from expunge.errors import InputError
from expunge_experiments.runs.base import Cell
from expunge_experiments.store import CellResult, Store, data_names, plain

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
SAME = {"tiny": {"digest": "d1"}}


def cell(**key: Any) -> Cell:
    return Cell({"dataset": "tiny", "seed": 0} | key, lambda *_: {})


def kept(result: dict[str, Any], **key: Any) -> CellResult:
    return CellResult(cell(**key).key, result, 1.5, SAME, {"versions": {}})


@settings(max_examples=15)  # each writes to disk
@given(st.dictionaries(st.text(), JSON))
def test_what_is_kept_is_found(
    tmp_path_factory: pytest.TempPathFactory, result: dict[str, Any]
) -> None:
    store = Store(tmp_path_factory.mktemp("store"), Toy())
    store.keep(kept(result))
    found = store.find(cell(), SAME)
    assert found is not None
    assert found.result == result
    assert found.seconds == 1.5


def test_another_key_version_or_data_is_another_result(tmp_path: Path) -> None:
    store = Store(tmp_path, Toy())
    store.keep(kept({"total": 1}))
    assert store.find(cell(seed=1), SAME) is None
    assert store.find(cell(), {"tiny": {"digest": "d2"}}) is None
    assert (
        store.find(cell(), {"tiny": None}) is not None
    )  # data that are not here cannot have changed what was measured
    newer = Toy()
    newer.version = 2  # type: ignore[misc]
    assert Store(tmp_path, newer).find(cell(), SAME) is None
    assert store.find(cell(), SAME) is not None


def test_keys_are_equal_as_json_has_them(tmp_path: Path) -> None:
    store = Store(tmp_path, Toy())
    store.keep(kept({"total": 1}, gammas=(1.0, 2.0), count=np.int64(3)))
    assert store.find(cell(gammas=[1.0, 2.0], count=3), SAME) is not None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 0}'])
def test_a_damaged_file_is_measured_anew(tmp_path: Path, content: str) -> None:
    store = Store(tmp_path, Toy())
    store.keep(kept({"total": 1}))
    store.path(cell().key).write_text(content)
    assert store.find(cell(), SAME) is None


def test_a_file_from_which_a_part_was_cut_is_measured_anew(tmp_path: Path) -> None:
    store = Store(tmp_path, Toy())
    for part in ("result", "seconds", "data", "environment"):
        store.keep(kept({"total": 1}))
        content = json.loads(store.path(cell().key).read_text())
        del content[part]
        store.path(cell().key).write_text(json.dumps(content))
        assert store.find(cell(), SAME) is None


def test_forgetting(tmp_path: Path) -> None:
    store = Store(tmp_path, Toy())
    store.keep(kept({"total": 1}))
    store.forget(cell())
    store.forget(cell())
    assert store.find(cell(), SAME) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, {"a": [object()]}, b"bytes"])
def test_what_json_does_not_have_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InputError, match=r"at \.total.*which JSON does not have"):
        plain({"total": value})
    with pytest.raises(InputError):
        Store(tmp_path, Toy()).keep(kept({"total": value}))
    assert not list(tmp_path.rglob("*.json"))


def test_numbers_of_numpy_are_numbers() -> None:
    value = {"a": np.float32(0.5), "b": (np.int64(2), np.bool_(True))}
    assert json.dumps(plain(value)) == '{"a": 0.5, "b": [2, true]}'


def test_the_datasets_of_a_key() -> None:
    assert data_names({"dataset": "a"}) == ["a"]
    assert data_names({"dataset": ["a", "b"]}) == ["a", "b"]
    assert data_names({"seed": 0}) == []
