"""The documentation is tested: every file's Python examples run, top to bottom, as one script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if FENCE.search(page.read_text())], ids=lambda page: page.name
)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = "\n".join(FENCE.findall(page.read_text()))
    exec(compile(script, str(page), "exec"), {"__name__": "documentation"})  # noqa: S102 - our own documentation


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
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
