"""What is in the wheel that people install and auditors read: the runtime, and no experiments."""

from __future__ import annotations

import tomllib
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder

from expunge import __version__

ROOT = Path(__file__).parent.parent


def built(project: Path, folder: Path) -> ZipFile:
    """The project's wheel, built as pip builds it, without a network."""
    (file,) = WheelBuilder(str(project)).build(directory=str(folder), versions=["standard"])
    return ZipFile(file)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    return built(ROOT, tmp_path_factory.mktemp("runtime"))


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    return built(ROOT / "experiments", tmp_path_factory.mktemp("experiments"))


def contents(wheel: ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def metadata(wheel: ZipFile, name: str) -> str:
    (file,) = [one for one in wheel.namelist() if one.endswith(f".dist-info/{name}")]
    return wheel.read(file).decode()


def test_the_runtime_has_no_experiments_in_it(runtime: ZipFile) -> None:
    names = contents(runtime)
    assert {"expunge/__init__.py", "expunge/py.typed", "expunge/cli/main.py"} <= names
    assert {name.split("/")[0] for name in names} == {"expunge"}
    assert [name for name in names if "experiment" in name or "systems" in name] == []
    baselines = (b"fedavg", b"sisa", b"exactfun")
    assert [
        name for name in names if any(word in runtime.read(name).lower() for word in baselines)
    ] == []
    assert "matplotlib" not in metadata(runtime, "METADATA")


def test_the_experiments_are_a_wheel_of_their_own(runtime: ZipFile, experiments: ZipFile) -> None:
    names = contents(experiments)
    assert {"expunge_experiments/tuned.json", "expunge_experiments/systems/fedavg.py"} <= names
    assert {name.split("/")[0] for name in names} == {"expunge_experiments"}
    assert "[expunge.commands]\nexperiment = " in metadata(experiments, "entry_points.txt")
    own = Parser().parsestr(metadata(experiments, "METADATA"))
    assert (
        own["Version"] == Parser().parsestr(metadata(runtime, "METADATA"))["Version"] == __version__
    )
    assert f"expunge=={__version__}" in own.get_all("Requires-Dist")


def test_both_are_built_alike() -> None:
    ours, theirs = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
        for folder in (".", "experiments")
    )
    assert ours["build-system"] == theirs["build-system"]
    for name in ("license", "requires-python", "authors"):
        assert ours["project"][name] == theirs["project"][name]
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "experiments" / "LICENSE").read_bytes()
