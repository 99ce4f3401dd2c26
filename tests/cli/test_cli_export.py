"""`expunge client export`: what is held about a person, counted first, written once, for its owner
alone.
"""

from __future__ import annotations

import csv
import stat
from pathlib import Path

import numpy as np
import pytest

from expunge.client import ClientStore
from support.cli import ROWS_A, Federation, run, value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Federation.found(tmp_path).client("clinic-a", ROWS_A)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_what_is_held_of_a_person(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "held.csv"
    counted = value("client", "export", "--subject", "p1", "--dry-run", "--dir", folder)
    assert counted == {
        "count": 2,
        "subjects": {"p1": 2},
        "states": {"live": 2},
        "features": 2,
        "dry_run": True,
        "busy": False,
        "file": None,
    }
    assert (
        "2 samples would be exported; nothing was written"
        in run(
            "client",
            "export",
            "--subject",
            "-",
            "--dry-run",
            "--output",
            out,
            "--dir",
            folder,
            given="p1\n",
        ).stdout
    )
    assert not out.exists()
    told = value("client", "export", "--subject", "p1", "--output", out, "--dir", folder)
    assert told == counted | {"dry_run": False, "file": str(out)}
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert [(row["id"], row["subject"], row["label"], row["state"]) for row in rows_of(out)] == [
        ("a1", "p1", "cat", "live"),
        ("a2", "p1", "dog", "live"),
    ]
    assert [float(rows_of(out)[0][f"feature_{place}"]) for place in range(3)] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("conditions", "count"),
    [
        (["--all"], 3),
        (["--label", "cat"], 2),
        (["--id", "a1", "--id", "a3"], 2),
        (["--id", "a1", "--id", "a9", "--ignore-missing"], 1),
        (["--since", "2000-01-01T00:00:00+02:00"], 3),
        (["--until", "2000-01-01"], 0),
        (["--subject", "nobody"], 0),
        (["--id", "a9", "--ignore-missing"], 0),
    ],
)
def test_the_conditions_are_those_of_forget(
    folder: Path, tmp_path: Path, conditions: list[str], count: int
) -> None:
    out = tmp_path / "out.npz"
    told = value(
        "client", "export", *conditions, "-o", out, "--dir", folder, code=0 if count else 6
    )
    assert told["count"] == count
    assert out.exists() == bool(count)
    if count:
        assert len(np.load(out)["ids"]) == count


def test_a_file_is_overwritten_only_by_force_and_then_for_its_owner_alone(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "precious.csv"
    out.write_text("precious")
    out.chmod(0o644)
    refused = run("client", "export", "--all", "--output", out, "--dir", folder, code=1)
    assert "was left as it is" in refused.stderr
    assert out.read_text() == "precious"
    run("client", "export", "--all", "--output", out, "--force", "--dir", folder)
    assert len(rows_of(out)) == 3
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_mistakes_write_nothing(folder: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    out = ["--output", tmp_path / "out.csv", "--dir", folder]
    assert "--ignore-missing" in run("client", "export", "--id", "a9", *out, code=1).stderr
    assert "selection is empty" in run("client", "export", *out, code=1).stderr
    assert (
        "ends in .npz, .csv"
        in run("client", "export", "--all", "--output", "o.xlsx", "--dir", folder, code=1).stderr
    )
    assert (
        "give the file to write" in run("client", "export", "--all", "--dir", folder, code=2).stderr
    )
    nowhere = run(
        "client", "export", "--all", "--output", tmp_path / "no" / "o.csv", "--dir", folder, code=1
    )
    assert "there is no folder" in nowhere.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_pending_is_held_too_and_nothing_is_changed(folder: Path, tmp_path: Path) -> None:
    run("client", "forget", "--id", "a1", "--yes", "--no-sync", "--dir", folder)
    before = value("client", "status", "--dir", folder)
    with ClientStore.open(folder):
        told = value("client", "export", "--all", "--output", tmp_path / "out.csv", "--dir", folder)
    assert (told["states"], told["busy"]) == ({"deleting": 1, "live": 2}, True)
    assert value("client", "status", "--dir", folder) == before
