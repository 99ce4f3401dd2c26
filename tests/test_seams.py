"""Tests change how the product behaves only where any caller could: by an argument, a hook, a
public constant or a public method. A private name can then change without a test.

Reads the tests; runs none of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = (ROOT / "tests", ROOT / "experiments" / "tests")
# `patch` is what some helpers call a setattr that they are given.
SETTERS = {"setattr", "delattr", "setitem", "delitem", "patch"}

# What is left, and why.
ALLOWED = {
    "tests/support/cli.py: (_connect, name.upper())": (
        "a module of the command line that is no command begins with _; its constants, which say "
        "how long commands wait, are public"
    ),
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def names_in(node: ast.expr) -> Iterator[str]:
    """Every name on the way to what an expression means; a text is a dotted name."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield from part.value.split(".")


def is_own(target: ast.expr) -> bool:
    """Whether an attribute is one of the object whose method this is."""
    return isinstance(target, ast.Name) and target.id in ("self", "cls")


def is_target(node: ast.Attribute | ast.Subscript) -> bool:
    return isinstance(node.ctx, (ast.Store, ast.Del))


def set_by_call(call: ast.Call) -> bool:
    """Whether a call such as `monkeypatch.setattr(target, "name", ...)` sets what is private."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in SETTERS and any(
        is_private(part) for given in call.args[:2] for part in names_in(given)
    )


def patched(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The private names that a module sets: the line, and the code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and set_by_call(node):
            yield node.lineno, ast.unparse(ast.Tuple(node.args[:2]))
        elif isinstance(node, (ast.Attribute, ast.Subscript)) and is_target(node):
            place = node.value if isinstance(node, ast.Subscript) else node
            parts = (part for part in ast.walk(place) if isinstance(part, ast.Attribute))
            if any(is_private(part.attr) and not is_own(part.value) for part in parts):
                yield node.lineno, ast.unparse(node)


def test_no_test_patches_what_is_private() -> None:
    found = {
        f"{file.relative_to(ROOT)}: {code}"
        for folder in TESTS
        for file in sorted(folder.rglob("*.py"))
        for _, code in patched(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert sorted(found - set(ALLOWED)) == []
    assert sorted(set(ALLOWED) - found) == []  # what has been mended is no longer allowed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("monkeypatch.setattr(module, '_LIMIT', 3)", ["(module, '_LIMIT')"]),
        ("monkeypatch.setattr('expunge.x._LIMIT', 3)", ["('expunge.x._LIMIT', 3)"]),
        ("patch.setattr(store._folder, 'erase', f)", ["(store._folder, 'erase')"]),
        ("monkeypatch.setattr(_File, 'write', f)", ["(_File, 'write')"]),
        ("monkeypatch.delattr(module, '_LIMIT')", ["(module, '_LIMIT')"]),
        ("setattr(agent, '_clock', f)", ["(agent, '_clock')"]),
        ("agent._clock = f", ["agent._clock"]),
        ("agent._count += 1", ["agent._count"]),
        ("one._a, other._b = 1, 2", ["one._a", "other._b"]),
        ("del grid._nodes", ["grid._nodes"]),
        ("system._heads[0] = 1", ["system._heads[0]"]),
        ("del grid._nodes[1]", ["grid._nodes[1]"]),
        ("monkeypatch.setitem(module._TABLE, 1, f)", ["(module._TABLE, 1)"]),
        ("exchange._grid.pull = f", ["exchange._grid.pull"]),
        ("monkeypatch.setattr(module, 'LIMIT', 3)", []),
        ("monkeypatch.setattr(module, 'f', lambda x: x._y)", []),
        ("monkeypatch.setattr(Thing, '__len__', f)", []),
        ("class A:\n    def f(self):\n        self._x = self._x.y = 1", []),
        ("agent.clock = other._clock", []),
        ("table[one._key] = 1", []),
    ],
)
def test_each_way_to_patch_is_seen(text: str, expected: list[str]) -> None:
    assert [code for _, code in patched(ast.parse(text))] == expected
