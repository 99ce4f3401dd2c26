"""What `make dist` has left in dist/: wheels, sdists, SBOMs and checksums that fit together."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from expunge import __version__
from support.pins import REQUIREMENTS, ROOT, pins

pytestmark = pytest.mark.dist
DIST = ROOT / "dist"
WHEEL = f"expunge-{__version__}-py3-none-any.whl"
SBOMS = {
    "core": f"expunge-{__version__}.cdx.json",
    "server": f"expunge-{__version__}-server.cdx.json",
}
SUMS = "SHA256SUMS"


def sha256(name: str) -> str:
    return hashlib.sha256((DIST / name).read_bytes()).hexdigest()


@pytest.fixture(params=SBOMS)
def requirements(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sbom(requirements: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DIST / SBOMS[requirements]).read_text(encoding="utf-8"))
    return content


def test_everything_is_there_and_nothing_else() -> None:
    assert {path.name for path in DIST.iterdir()} == {
        WHEEL,
        f"expunge-{__version__}.tar.gz",
        f"expunge_experiments-{__version__}-py3-none-any.whl",
        f"expunge_experiments-{__version__}.tar.gz",
        *SBOMS.values(),
        SUMS,
    }


def test_checksums_are_those_of_the_files() -> None:
    lines = (DIST / SUMS).read_text(encoding="ascii").splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums == {path.name: sha256(path.name) for path in DIST.iterdir() if path.name != SUMS}


def test_an_sbom_names_what_is_pinned(sbom: dict[str, Any], requirements: str) -> None:
    pinned = pins(REQUIREMENTS[requirements])
    assert {canonicalize_name(each["name"]): each["version"] for each in sbom["components"]} == {
        name: pin.version for name, pin in pinned.items() if pin.is_for_this_python
    }


def test_an_sbom_is_about_this_wheel(sbom: dict[str, Any]) -> None:
    root = sbom["metadata"]["component"]
    assert (root["name"], root["version"]) == ("expunge", __version__)
    assert root["hashes"] == [{"alg": "SHA-256", "content": sha256(WHEEL)}]


def test_an_sbom_has_every_licence_and_dependency(sbom: dict[str, Any]) -> None:
    components = [sbom["metadata"]["component"], *sbom["components"]]
    assert [each["name"] for each in components if not each.get("licenses")] == []
    assert {each["ref"] for each in sbom["dependencies"]} == {
        each["bom-ref"] for each in components
    }
    direct = {each["ref"]: each.get("dependsOn", []) for each in sbom["dependencies"]}
    assert len(direct[components[0]["bom-ref"]]) >= 7  # what pyproject.toml names


def test_an_sbom_tells_nothing_of_when_and_where_it_was_made(requirements: str) -> None:
    text = (DIST / SBOMS[requirements]).read_text(encoding="utf-8")
    assert "timestamp" not in text
    assert "serialNumber" not in text
    assert re.findall(r'"type": "distribution[^"]*"', text) == []
    assert re.findall(r"file:|site-packages|/simple/|repository_url|download_url", text) == []
    assert str(Path.home()) not in text
