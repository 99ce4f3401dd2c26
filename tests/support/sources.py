"""Source files as syntax trees, for tests that read them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def nodes_of(folder: Path, *words: str) -> Iterator[tuple[Path, ast.AST]]:
    """Every node of the files in a folder, with the file's path in it; of those alone that have one
    of these words somewhere, since the others need not be parsed.
    """
    for file in sorted(folder.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if any(word in text for word in words):
            for node in ast.walk(ast.parse(text)):
                yield file.relative_to(folder), node
