"""`expunge experiment`: configs are checked before anything is run, results resume, failures show
in the exit code.
"""

from __future__ import annotations

import json
import sys
from collections import ChainMap
from pathlib import Path

import numpy as np
import pytest

from experiment_cases import Toy, tiny_features
from expunge_experiments.cli import experiment
from expunge_experiments.runs import catalogue
from expunge_experiments.runs.base import Table
from support.cli import run, value

SMALL = """
[invariance]
systems = ["a_float64", "a_exact"]
clients = [2, 3]
seeds = [0]
gammas = [1.0, 10]
gamma_clients = [2]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with features of our own and a config of an experiment on them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EXPUNGE_FLOWER_PYTHON", raising=False)
    tiny_features(tmp_path / "own.npz")
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


@pytest.fixture
def toy(place: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """The experiment of the framework's tests, under its own name."""
    made = Toy()
    monkeypatch.setitem(catalogue.ABOUT, "toy", "Add up features.")
    known = ChainMap({"toy": made}, catalogue.EXPERIMENTS)  # type: ignore[arg-type]
    monkeypatch.setattr(experiment, "EXPERIMENTS", known)
    return made


def test_one_command_measures_writes_and_resumes(place: Path) -> None:
    command = ("experiment", "invariance", "--config", "small.toml", "--dataset", "own.npz")
    shown = run(*command).stdout
    assert "Relative Frobenius deviation from central ridge, own.npz" in shown
    assert "6 cells of 6, 6 measured now" in shown
    assert "✓ Both exact variants" in shown
    folder = place / "results" / "invariance"
    assert {path.name for path in folder.iterdir()} >= {
        "results.json",
        "table.md",
        "clients.png",
        "gamma-2.svg",
        "cells",
    }
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    again = value(*command)
    assert again["experiments"][0]["measured"] == 0
    assert again["experiments"][0]["done"] == again["experiments"][0]["cells"] == 6
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    fresh = value(*command, "--fresh", "--only", "system=a_exact")
    assert fresh["experiments"][0]["measured"] == 3


def test_the_config_that_is_shown_is_the_config_that_is_run(place: Path) -> None:
    shown = run("experiment", "invariance", "--config", "small.toml", "--show-config").stdout
    assert "clients = [2, 3]  # each divides the same samples" in shown
    (place / "shown.toml").write_text(shown)
    told = [
        value("experiment", "invariance", "--config", name, "--show-config")
        for name in ("small.toml", "shown.toml")
    ]
    assert told[0] == told[1]
    assert told[0]["config"]["invariance"]["gammas"] == [1.0, 10.0]
    assert not (place / "results").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[invariance]\ngama = 1.0", "Did you mean 'gamma'?"),
        ("[invarianc]\ngamma = 1.0", "Did you mean 'invariance'?"),
        ("[accuracy]\nsystems = ['fedprox']", "there are: central"),
        ("[invariance]\ngamma = 'one'", "must be a number (not nan), such as 1.0"),
        ("[invariance]\ngamma = -1", "must be positive"),
        ("gamma = 1.0", "gamma = 1.0 stands outside any table"),
        ("[invariance", "is no TOML"),
    ],
)
def test_a_wrong_config_is_refused_before_anything_is_run(
    place: Path, text: str, words: str
) -> None:
    (place / "wrong.toml").write_text(text)
    refused = run("experiment", "invariance", "--config", "wrong.toml", code=1)
    assert words in refused.stderr
    assert not (place / "results").exists()


def test_missing_data_are_named_and_the_exit_code_says_so(place: Path) -> None:
    failed = run("experiment", "invariance", "--config", "small.toml", "--data", str(place), code=1)
    assert "digits_by_writer_efficientnet_lite0.npz" in failed.stdout
    assert "(6 of 6 cells: dataset=digits_by_writer part=clients" in failed.stdout
    assert (place / "results" / "invariance" / "table.md").exists()


def test_a_failing_cell_stops_no_other(toy: Toy) -> None:
    toy.broken = {1}
    found = value("experiment", "toy", "--dataset", "own.npz", code=1)["experiments"][0]
    assert (found["done"], found["cells"]) == (2, 3)
    assert found["failed"][0]["error"].startswith("ZeroDivisionError: this seed is broken")
    toy.broken = set()
    assert value("experiment", "toy", "--dataset", "own.npz")["experiments"][0]["measured"] == 1


def test_an_interrupt_is_a_message_and_the_next_run_goes_on(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("expunge_experiments.runner.Store.keep", interrupt)
        assert "safe to retry" in run("experiment", "toy", "--dataset", "own.npz", code=130).stderr
    assert value("experiment", "toy", "--dataset", "own.npz")["experiments"][0]["measured"] == 3


def test_all_makes_a_page(toy: Toy, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge_experiments.cli.experiment.ABOUT", {"toy": "Add up features."})
    (place / "toy.toml").write_text('[toy]\ndataset = "own.npz"\n')
    told = value("experiment", "all", "--quick", "--config", "toy.toml", "-o", "out")
    page = Path(told["page"]).read_text()
    assert "# The paper, reproduced" in page
    assert "A toy: sums of features" in page
    assert "are for one experiment" in run("experiment", "all", "--only", "seed=0", code=2).stderr


FAKE = """#!{python}
# Another Python as far as the command can tell: it has a Flower of its own and knows the
# experiment.
import sys
from collections import ChainMap
sys.path[:0] = [{tests!r}, {flower!r}]
from experiment_cases import Toy
from expunge.cli.main import main
from expunge_experiments.cli import experiment
from expunge_experiments.runs import catalogue
from expunge_experiments.runs.base import Table
catalogue.ABOUT["toy"] = "Add up features."
toy = Toy()
experiment.EXPERIMENTS = ChainMap({{"toy": toy}}, catalogue.EXPERIMENTS)
toy.broken = {{9}} if {broken} else set()
main(sys.argv[3:])
"""


def other_python(place: Path, *, broken: bool = False) -> Path:
    (place / "flower" / "flwr").mkdir(parents=True, exist_ok=True)
    (place / "flower" / "flwr" / "__init__.py").touch()
    path = place / "python"
    tests = str(Path(__file__).parents[1])
    path.write_text(
        FAKE.format(python=sys.executable, tests=tests, flower=str(place / "flower"), broken=broken)
    )
    path.chmod(0o755)
    return path


def test_cells_on_flower_are_measured_by_another_python(
    toy: Toy, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("expunge_experiments.runner.find_spec", lambda _: None)
    (place / "toy.toml").write_text('[toy]\ndataset = "own.npz"\nflower = true\n')
    command = ("experiment", "toy", "--config", "toy.toml")
    alone = value(*command)["experiments"][0]
    assert [one["reason"].split(" (")[0] for one in alone["not_run"]] == [
        "needs Flower in this Python"
    ]
    assert "not run: needs Flower in this Python" in run(*command).stdout
    broken = value(*command, "--flower-python", other_python(place, broken=True), code=1)[
        "experiments"
    ][0]
    assert "this seed is broken" in broken["failed"][0]["error"]
    helped = value(*command, "--flower-python", other_python(place))["experiments"][0]
    assert (helped["done"], helped["cells"], helped["measured"]) == (4, 4, 1)
    assert toy.measured == [0, 1, 2]
    results = json.loads((place / "results" / "toy" / "results.json").read_text())
    assert [one["key"]["seed"] for one in results["results"]] == [0, 1, 2, 9]


def test_a_python_that_cannot_measure_is_said_to(
    toy: Toy, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("expunge_experiments.runner.find_spec", lambda _: None)
    (place / "toy.toml").write_text('[toy]\ndataset = "own.npz"\nflower = true\n')
    command = ("experiment", "toy", "--config", "toy.toml", "--flower-python")
    assert "is no program that can be started" in run(*command, "nowhere/python", code=1).stderr
    (place / "useless").write_text("#!/bin/sh\nexit 3\n")
    (place / "useless").chmod(0o755)
    failed = value(*command, place / "useless", code=1)["experiments"][0]
    assert "it ended with 3" in failed["failed"][0]["error"]
    assert failed["done"] == 3


def test_an_engine_that_is_asked_for_and_not_there_is_refused(
    toy: Toy, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("expunge_experiments.runner.find_spec", lambda _: None)
    (place / "toy.toml").write_text('[toy]\ndataset = "own.npz"\nflower = true\n')
    refused = run("experiment", "toy", "--config", "toy.toml", "--engine", "flower", code=1)
    assert "cells of the engine flower need Flower in this Python" in refused.stderr
    none = run("experiment", "toy", "--dataset", "own.npz", "--engine", "flower", code=1)
    assert "toy has no cells of the engine flower" in none.stderr
    assert not (place / "results").exists()
    assert (
        value("experiment", "toy", "--config", "toy.toml", "--engine", "process")["experiments"][0][
            "measured"
        ]
        == 3
    )


def test_features_of_ones_own_from_the_sweep_to_the_table(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger than the usual grid holds, and unknown to the package: a sweep chooses settings, and
    others then use them.
    """
    with np.load(place / "own.npz") as content:
        np.savez(
            place / "large.npz",
            **{name: one * 50 if "features" in name else one for name, one in content.items()},
        )
    (place / "small.toml").write_text(
        '[sweep]\nsystems = ["central"]\nclients = 3\nheld_out = 0.3\nevery = 5\nseeds = [0]\n'
        '[accuracy]\nsystems = ["central", "a_exact", "b_exact"]\nclients = 3\nanalytic_seeds = '
        "[0, 1]\n"
    )
    command = ("experiment", "accuracy", "--config", "small.toml", "--dataset", "large.npz")
    unknown = run(*command, code=1)
    assert "expunge experiment sweep --dataset large.npz" in unknown.stderr
    value("experiment", "sweep", "--config", "small.toml", "--dataset", "large.npz")
    monkeypatch.setenv("EXPUNGE_SWEEP", str(place / "results" / "sweep" / "results.json"))
    told = value(*command)["experiments"][0]
    assert told["done"] == told["cells"] == 5
    assert all(one["holds"] for one in told["findings"] if one["holds"] is not None)
    table = (place / "results" / "accuracy" / "table.md").read_text()
    assert (
        "Exact variants take them on the finest grid that holds them, of 33 fraction bits" in table
    )


def test_a_folder_that_cannot_be_written_to_is_named(toy: Toy, place: Path) -> None:
    (place / "file").touch()
    refused = run("experiment", "toy", "--dataset", "own.npz", "-o", "file/results", code=1)
    assert (
        "results cannot be written to file/results/toy: Not a directory. Name another folder"
        in " ".join(refused.stderr.split())
    )


def test_a_path_that_is_not_there_is_said_to_be_a_path(place: Path) -> None:
    refused = run("experiment", "accuracy", "--dataset", "nowhere.npz", code=1)
    assert "there is no file or folder nowhere.npz" in refused.stderr


def test_a_table_that_is_too_wide_for_the_screen_is_shown_row_by_row(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ("stream", *(f"deviation{number}" for number in range(12)))
    wide = Table("Wide", columns, [["alternating", *["1.20e-13"] * 12]], frozenset(columns[1:]))
    monkeypatch.setattr(toy, "tables", lambda *_: [wide])
    shown = run("experiment", "toy", "--dataset", "own.npz", env={"COLUMNS": "80"}).stdout
    lines = [text.split() for text in shown.splitlines()]
    assert ["deviation11", "1.20e-13"] in lines
    assert ["alternating"] in lines


def test_the_list_and_what_is_typed_wrong() -> None:
    assert list(value("experiment", "list")["experiments"])[:3] == [
        "sweep",
        "accuracy",
        "invariance",
    ]
    assert "No such command 'acuracy'" in run("experiment", "acuracy", code=2).stderr


@pytest.mark.parametrize("name", catalogue.ABOUT)
def test_every_experiment_shows_its_config(name: str) -> None:
    for options in ((), ("--quick",)):
        found = value("experiment", name, "--show-config", *options)
        assert set(found["config"]) == {name}
        assert f"[{name}]" in found["toml"]
