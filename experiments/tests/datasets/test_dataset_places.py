"""One place for data; what is missing is named with every place and a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge.errors import InputError
from expunge_experiments.datasets.places import MissingDataError, data_folder, found


def test_the_variable_comes_before_the_users_folder(tmp_path: Path) -> None:
    other = str(tmp_path / "share")
    assert data_folder({"EXPUNGE_DATA": str(tmp_path), "XDG_DATA_HOME": other}) == tmp_path
    assert data_folder({"EXPUNGE_DATA": "", "XDG_DATA_HOME": other}) == Path(other) / "expunge"
    usual = Path.home() / ".local" / "share" / "expunge"
    assert data_folder({}) == data_folder({"XDG_DATA_HOME": "relative"}) == usual


def test_the_environment_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPUNGE_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("EXPUNGE_DATA")
    assert data_folder() != tmp_path


def test_the_first_candidate_that_is_there_is_found(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "all_data_3.json").touch()
    (tmp_path / "b").touch()
    assert (
        found(tmp_path, ["a", "b", "deep/all_data_*.json"], what="it", remedy="") == tmp_path / "b"
    )
    assert (
        found(tmp_path, ["a", "deep/all_data_*.json", "b"], what="it", remedy="")
        == tmp_path / "deep"
    )


def test_what_is_missing_is_named_with_all_places_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"the moon cannot be found") as refusal:
        found(tmp_path, ["a.npz", "b/*.json"], what="the moon", remedy="Fly there.")
    assert isinstance(refusal.value, InputError)
    for part in (
        str(tmp_path / "a.npz"),
        str(tmp_path / "b" / "*.json"),
        "Fly there.",
        "EXPUNGE_DATA",
    ):
        assert part in str(refusal.value)
