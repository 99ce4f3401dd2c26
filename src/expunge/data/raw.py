"""Images and texts before the backbone: files, folders of them, or a .csv that lists them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from expunge.data.formats import SUFFIXES, open_file
from expunge.errors import InputError

_SOURCES = ("file", "text")
_KNOWN = ("id", *_SOURCES, "label", "subject")


@dataclass(frozen=True)
class Raw:
    """One image or text before the backbone.

    `what` is a path, or the text itself; `origin` is where it was found.
    """

    id: str
    what: Path | str
    origin: str
    label: str | None = None
    subject: str | None = None


def raw_column(path: Path) -> str | None:
    """The column by which a .csv file lists raw samples, `file` or `text`; None of other files."""
    if path.suffix.lower() != ".csv":
        return None
    with open_file(path) as file:
        return next((name for name in _SOURCES if name in file.names), None)


def holds_raw(path: Path) -> bool:
    """Whether a file holds raw samples rather than features: an image, a text, a folder of them,
    or a list of them.
    """
    return path.suffix.lower() not in SUFFIXES or raw_column(path) is not None


def list_raw(path: Path) -> Iterator[Raw]:
    """The raw samples of a file, of a folder (a sample's label is the name of its folder), or of a
    .csv that lists them.
    """
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file() and not file.name.startswith("."):
                label = None if file.parent == path else file.parent.name
                yield Raw(file.relative_to(path).as_posix(), file, str(file), label)
    elif path.suffix.lower() == ".csv":
        yield from _from_list(path)
    elif path.is_file():
        yield Raw(path.as_posix(), path, str(path))
    else:
        raise InputError(f"there is no file {path}, or none that can be seen from here")


def _from_list(path: Path) -> Iterator[Raw]:
    number = 0
    with open_file(path) as file:
        names = [name for name in _KNOWN if name in file.names]
        for block in file.blocks(names):
            columns = [block[name].values() for name in names]
            for cells in zip(*columns, strict=True):
                yield _listed(path, number, dict(zip(names, cells, strict=True)))
                number += 1


def _listed(path: Path, number: int, row: dict[str, str]) -> Raw:
    origin = f"row {number} of {path}"
    what: Path | str | None = path.parent / row["file"] if row.get("file") else row.get("text")
    if what is None:
        raise InputError(f"{origin} names no file and has no text")
    name = row.get("id") or f"{path.name}#{number}"
    return Raw(name, what, origin, row.get("label") or None, row.get("subject") or None)
