"""What people install and auditors read: wheels, sdist, metadata, pinned versions with hashes."""

from __future__ import annotations

import json
import re
import tarfile
import tomllib
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
import trove_classifiers
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.metadata import Metadata

from expunge import __version__
from support.pins import REQUIREMENTS, ROOT, pins

LIGHT_EXTRAS = {"export", "http", "onnx", "parquet", "server", "simulation"}


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
    needs = Parser().parsestr(metadata(runtime, "METADATA")).get_all("Requires-Dist") or []
    plots = [need for need in needs if need.startswith("matplotlib")]
    assert all("extra == 'docs'" in need for need in plots)


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


# -- metadata --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["runtime", "experiments"])
def test_metadata_are_valid_and_complete(name: str, request: pytest.FixtureRequest) -> None:
    wheel = request.getfixturevalue(name)
    data = Metadata.from_email(metadata(wheel, "METADATA"), validate=True)
    assert data.summary
    assert data.description
    assert data.description_content_type == "text/markdown"
    assert data.keywords
    assert data.author == "The Expunge developers"
    assert (data.license_expression, data.license_files) == ("Apache-2.0", ["LICENSE"])
    assert "Apache License" in metadata(wheel, "licenses/LICENSE")
    classifiers = set(data.classifiers or ())
    assert classifiers <= trove_classifiers.classifiers
    assert not any(each.startswith("License ::") for each in classifiers)  # the expression says it
    versions = {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)}
    assert {"Typing :: Typed", "Operating System :: POSIX", *versions} <= classifiers
    assert [each for each in contents(wheel) if each.endswith("/py.typed")] != []
    shipped = (each for each in contents(wheel) if not each.startswith("expunge/testing/"))
    assert [each for each in shipped if "test" in each] == []


def test_one_version_everywhere() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changelog, re.MULTILINE)[0] == __version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)", citation, re.MULTILINE) == [__version__]
    description = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    assert description["info"]["version"] == __version__


def test_the_sdist_has_what_make_test_needs(tmp_path: Path) -> None:
    (file,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = ("Makefile", "conftest.py", "LICENSE", "PKG-INFO", "packaging/smoke.py", ".ci/run")
    assert {*needed, "requirements/core.txt", "constraints.txt", "vectors/spec.json"} <= names
    for folder in ("benchmarks", "docs", "experiments", "src", "tests"):
        files = {
            path.relative_to(ROOT).as_posix()
            for suffix in ("md", "py", "json")
            for path in (ROOT / folder).rglob(f"*.{suffix}")
        }
        assert files <= names


# -- pinned versions -------------------------------------------------------------------------------


def test_there_are_hashes_for_the_core_and_each_light_extra() -> None:
    assert set(REQUIREMENTS) == {"core", "tools", *LIGHT_EXTRAS}


@pytest.mark.parametrize("name", sorted(REQUIREMENTS))
def test_requirements_have_the_pinned_versions_with_hashes(name: str) -> None:
    constraints = pins(ROOT / ("constraints-dist.txt" if name == "tools" else "constraints.txt"))
    required = pins(REQUIREMENTS[name])
    remedy = "constraints have changed: run make requirements"
    assert {each: pin.version for each, pin in required.items()} == {
        each: constraints[each].version for each in required if each in constraints
    }, remedy
    assert [each for each, pin in required.items() if not pin.hashes] == []
    assert set(pins(REQUIREMENTS["core"])) <= set(required) or name == "tools"


def test_requirements_hold_what_pyproject_names(runtime: ZipFile) -> None:
    data = Metadata.from_email(metadata(runtime, "METADATA"), validate=True)
    for extra in ("", *LIGHT_EXTRAS):
        named = {
            each.name
            for each in data.requires_dist or ()
            if each.marker is None or each.marker.evaluate({"extra": extra})
        }
        assert named <= set(pins(REQUIREMENTS[extra or "core"]))


def test_requirements_name_no_place() -> None:
    for path in REQUIREMENTS.values():
        assert re.findall(r"://|--index|--find-links|file:|@", path.read_text()) == []
