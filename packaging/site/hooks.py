"""What the documentation site needs beyond Markdown: mkdocs.yml names this file as a hook.

- A page of the Python reference shows its `:::` directives; what its modules have in `__all__`
  besides comes at its end, so no public name is left out.
- The overview of the Python reference is a table of all these names with their first sentences. It
  is read from pages and docstrings, so it cannot fall behind either of them.
- The changelog page shows CHANGELOG.md.
- Files outside docs/ that pages link to (`LINKED`) are copied into the site.

The source is read, never imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import TYPE_CHECKING, Any

import griffe
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page
    from mkdocs.structure.toc import AnchorLink

ROOT = Path(__file__).parent.parent.parent
PAGES = ROOT / "docs" / "reference" / "python"
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
# Files next to docs/ that pages link to.
LINKED = ("packaging/Containerfile", "packaging/*.service", "packaging/*.timer", "vectors/*.json")
UP = re.compile(r"\]\((?:\.\./)+(packaging|vectors)/")
# What click adds to an option, such as [x>=1]: text in brackets, where Markdown would see a link.
BRACKETS = re.compile(r"\[([^\]`]*)\](?![(\[])")
# What a converted notebook would fetch from another host: for formulas, and for drawn diagrams.
MATHJAX = re.compile(r"<!-- Load mathjax -->.*?<!-- End of mathjax configuration -->", re.DOTALL)
MERMAID = re.compile(r"<script type=\"module\">(?:(?!</script>).)*mermaid.*?</script>", re.DOTALL)
# A heading of a converted notebook: its anchor and its text, without the link to itself.
HEADING = re.compile(r'<h[1-6] id="([^"]*)">(.*?)<a class="anchor-link"', re.DOTALL)
# A link to another page, in HTML.
PAGE_LINK = re.compile(r'href="([^":#]+\.(?:md|ipynb))(?=["#])')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the linked files, under the folder that they are in."""
    for pattern in LINKED:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fills in the generated pages; elsewhere, links to linked files lead to their copies."""
    name = page.file.src_uri
    if name == "reference/python/index.md":
        return markdown.replace("<!-- every public name -->", overview())
    if name.startswith("reference/python/"):
        return completed(markdown)
    if name == "reference/changelog.md":
        changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        return changelog.replace("](docs/", "](../")
    if name == "reference/command-line.md":
        return "\n".join(
            BRACKETS.sub(r"\\[\1\\]", line) if line.startswith("|") else line
            for line in markdown.split("\n")
        )
    up = "../" * name.count("/")
    return UP.sub(rf"]({up}\1/", markdown)


def on_page_content(html: str, page: Page, files: Files, **_: Any) -> str:
    """Notebooks without scripts of other hosts, so without formulas and Mermaid; and with links to
    pages that lead there, which MkDocs does for Markdown only. The table of contents gets the
    headings that are there: mkdocs-jupyter drops code from them.
    """
    name = page.file.src_uri
    if not name.endswith(".ipynb"):
        return html

    def linked(match: re.Match[str]) -> str:
        file = files.get_file_from_path(normpath(join(dirname(name), match[1])))
        if file is None:
            raise PluginError(f"{name} links to {match[1]}, which is not there")
        return f'href="{file.url_relative_to(page.file)}'

    for entry, (anchor, title) in zip(flattened(page.toc), HEADING.findall(html), strict=True):
        entry.id, entry.title = anchor, re.sub(r"<[^>]+>", "", title)
    return PAGE_LINK.sub(linked, MERMAID.sub("", MATHJAX.sub("", html)))


def flattened(entries: Iterable[AnchorLink]) -> Iterator[AnchorLink]:
    """The entries of a table of contents, in the order of the page."""
    for entry in entries:
        yield entry
        yield from flattened(entry.children)


@cache
def package() -> griffe.Module:
    """The source of Expunge, parsed."""
    loaded = griffe.load("expunge", search_paths=[ROOT / "src"], allow_inspection=False)
    if not isinstance(loaded, griffe.Module):
        raise PluginError("src/expunge is no package")
    return loaded


def find(path: str) -> griffe.Object | griffe.Alias:
    """What a directive names."""
    try:
        return package()[path.removeprefix("expunge.")] if path != "expunge" else package()
    except KeyError as problem:
        raise PluginError(
            f"docs/reference/python shows {path}, which is not in src: remove its directive"
        ) from problem


def completed(markdown: str) -> str:
    """A reference page with what its modules have in `__all__` and the page does not show."""
    shown = DIRECTIVE.findall(markdown)
    modules = dict.fromkeys(path.rpartition(".")[0] for path in shown if not find(path).is_module)
    missing = [
        f"::: {module}.{name}"
        for module in modules
        for name in find(module).exports or ()
        if f"{module}.{name}" not in shown and is_shown(f"{module}.{name}")
    ]
    if not missing:
        return markdown
    return "\n\n".join([markdown.rstrip(), "## Other names", *missing]) + "\n"


def is_shown(path: str) -> bool:
    """Not modules, which have pages of their own, nor names such as `__version__`."""
    return not path.rpartition(".")[2].startswith("_") and not find(path).is_module


def overview() -> str:
    """A section with a table for each page of the Python reference; names of a module below the
    one that heads the page begin with it.
    """
    sections = {}
    for path in PAGES.glob("*.md"):
        if path.name == "index.md":
            continue
        text = completed(path.read_text(encoding="utf-8"))
        title = text.splitlines()[0].removeprefix("# ").split(" {")[0]
        rows = [
            f"| [`{anchor.removeprefix(f'{title}.')}`]({path.name}#{anchor}) | {sentence} |"
            for anchor, sentence in entries(DIRECTIVE.findall(text))
        ]
        table = [f"## {title}", "", "| name | what it is |", "|---|---|", *rows]
        sections[title] = "\n".join(table)
    return "\n\n".join(sections[title] for title in sorted(sections))


def entries(paths: list[str]) -> Iterator[tuple[str, str]]:
    """Path and first sentence of what the directives show; a module stands for its members."""
    for path in paths:
        thing = find(path)
        members = [thing]
        if thing.is_module:
            members = [
                member
                for member in thing.members.values()
                if member.is_public
                and not member.is_alias
                and (member.docstring or member.name in (thing.exports or ()))
            ]
        for member in members:
            yield member.path, first_sentence(member)


def first_sentence(thing: griffe.Object | griffe.Alias) -> str:
    """The first sentence of a docstring, on one line; of a constant without one, its type."""
    if thing.docstring is None and thing.is_attribute:
        return f"a constant: `{thing.annotation}`"
    paragraph = thing.docstring.value.split("\n\n")[0] if thing.docstring else ""
    sentence = re.split(r"(?<=[.:])\s+(?=[A-Z`])", " ".join(paragraph.split()), maxsplit=1)[0]
    return sentence.rstrip(":").replace("|", r"\|")
