"""The documentation is tested: every page's Python runs, top to bottom, as one script; links lead
somewhere; what is listed is there.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.pages import PAGES, ROOT, blocks_of, run_python

LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page, "python")])
def test_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_python(page, "python")


@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []


def test_contributing_names_files_that_exist() -> None:
    rows = [row for row in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if row[:1] == "|"]
    named = re.findall(r"`([\w-]+(?:/[\w./-]*|\.py))`", "\n".join(rows))
    assert len(named) > 60
    # Source files are named as they are called in src/expunge.
    places = (ROOT, ROOT / "src" / "expunge")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def files_drawn(page: str) -> set[str]:
    """The files of the tree in docs/architecture.md, from their indentation."""
    tree = page.split("```\nsrc/expunge/\n")[1].split("```", maxsplit=1)[0]
    folders: list[str] = []
    files = set()
    for line in tree.splitlines():
        name = line.split()[0]
        del folders[(len(line) - len(line.lstrip())) // 2 - 1 :]
        if name.endswith("/"):
            folders.append(name)
        else:
            files.add("".join([*folders, name]))
    return files


def test_architecture_draws_every_file() -> None:
    source = ROOT / "src" / "expunge"
    drawn = files_drawn((ROOT / "docs" / "architecture.md").read_text())
    there = {file.relative_to(source).as_posix() for file in source.rglob("*.py")}
    # A package's __init__ stands for the package; only the first one has a line of its own.
    assert drawn == {file for file in there if not file.endswith("/__init__.py")}
