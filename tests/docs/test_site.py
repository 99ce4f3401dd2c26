"""The site as a reader's browser gets it: whole, reachable, and without a request to another
host.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from support.public_api import PUBLIC, public_names

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
# Pages that are not in the site: results/README.md holds the same tables.
NOT_IN_NAV = ("results/*/table.md",)
# What makes a browser load something, by tag.
LOADS = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
CSS_URL = re.compile(r"""url\(\s*['"]?([^'")]+)|@import\s+['"]([^'"]+)""")
# A name of a vocabulary, which no browser fetches.
NAMESPACE = "http://www.w3.org/"


@dataclass
class Page(HTMLParser):
    """What a page refers to, and what can be referred to on it."""

    path: Path
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)
    classes: set[str] = field(default_factory=set)
    inside: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.inside = tag
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self.classes |= set(given.get("class", "").split())
        self.links += [given[name] for name in ("href", "src") if name in given]
        self.loads += [given[name] for name in LOADS.get(tag, ()) if name in given]
        if "style" in given:
            self.styles.append(given["style"])

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts.append(data)
        if self.inside == "style":
            self.styles.append(data)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def sources() -> set[str]:
    """Every page under docs/ that is to be in the site."""
    files = [file for kind in ("md", "ipynb") for file in DOCS.rglob(f"*.{kind}")]
    names = {file.relative_to(DOCS).as_posix() for file in files}
    return {name for name in names if not any(fnmatch(name, skip) for skip in NOT_IN_NAV)}


def built_as(source: str) -> str:
    path = Path(source)
    return path.with_name("index.html" if path.stem == "README" else f"{path.stem}.html").as_posix()


def public_paths() -> list[str]:
    return [f"{module}.{name}" for module in PUBLIC for name in public_names(module)]


def test_the_strict_build_warns_of_nothing(build: tuple[Path, str]) -> None:
    assert "WARNING" not in build[1].upper()


def test_links_and_anchors_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    missing = []
    for page in pages.values():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            # The page for a missing address does not know where it is, so its links are absolute.
            base = site if parts.path.startswith("/") else page.path.parent
            path = unquote(parts.path).lstrip("/")
            target = (base / path).resolve() if parts.path else page.path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                missing.append((page.path.name, link))
            elif parts.fragment and target in pages:
                ids = pages[target].ids
                if unquote(parts.fragment) not in ids and parts.fragment not in ids:
                    missing.append((page.path.name, link))
    assert missing == []


def is_elsewhere(address: str) -> bool:
    parts = urlsplit(address.strip())
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def test_no_page_loads_anything_from_another_host(site: Path, pages: dict[Path, Page]) -> None:
    for page in pages.values():
        assert [load for load in page.loads if is_elsewhere(load)] == [], page.path
        code = "\n".join(page.scripts).replace(NAMESPACE, "")
        assert re.findall(r"https?://[^\s\"'`]+", code) == [], page.path
        # For this class the theme's own script would fetch a library from another host.
        assert "mermaid" not in page.classes, page.path
    styles = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.css")}
    styles |= {page.path: "\n".join(page.styles) for page in pages.values()}
    styles |= {path: path.read_text(encoding="utf-8") for path in site.rglob("*.svg")}
    for path, style in styles.items():
        addresses = [first or second for first, second in CSS_URL.findall(style)]
        assert [address for address in addresses if is_elsewhere(address)] == [], path


def test_every_public_name_has_an_entry(site: Path, pages: dict[Path, Page]) -> None:
    folder = site / "reference" / "python"
    ids = set().union(*(page.ids for path, page in pages.items() if path.parent == folder))
    names = public_paths()
    assert len(names) > 100
    assert [name for name in names if name not in ids] == []


def test_the_overview_lists_every_public_name(site: Path, pages: dict[Path, Page]) -> None:
    links = pages[site / "reference" / "python" / "index.html"].links
    listed = {urlsplit(link).fragment for link in links}
    apart = {"expunge.__version__", "expunge.errors"}  # not things to call; errors has a section
    assert [name for name in public_paths() if name not in listed | apart] == []


def test_every_entry_of_the_overview_has_a_sentence(site: Path) -> None:
    text = (site / "reference" / "python" / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<td>\s*</td>", text) == []


def test_nav_reaches_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    listed = re.findall(r"([\w./-]+\.(?:md|ipynb))$", nav, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == sources()


def test_search_finds_every_page(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {urlsplit(entry["location"]).path or "index.html" for entry in index["docs"]}
    assert {built_as(source) for source in sources()} - found == set()


def test_diagrams_describe_themselves() -> None:
    diagrams = sorted((DOCS / "images").glob("*.svg"))
    assert diagrams
    for diagram in diagrams:
        text = diagram.read_text(encoding="utf-8")
        assert re.search(r"<title\b[^>]*>\s*\S", text), diagram
        assert re.search(r"<desc\b[^>]*>\s*\S", text), diagram
        assert "prefers-color-scheme: dark" in text, diagram
