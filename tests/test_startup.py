"""Commands that need no arithmetic import none, and packages import their names when asked."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

LAZY = ("expunge", "expunge.client", "expunge.federation")
LIGHT = (
    *LAZY,
    "expunge.client.status",
    "expunge.evidence",
    "expunge.federation.layout",
    "expunge.office",
    "expunge.transport.http",
)
ARITHMETIC = ("numpy", "scipy", "sklearn", "threadpoolctl")


def imported_by(*arguments: str) -> set[str]:
    """The packages that a Python with these arguments has imported in the end."""
    made = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True
    )
    lines = [line for line in made.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


def declared(package: str) -> dict[str, str]:
    """The names that a package imports for editors and mypy only, with their modules."""
    file = import_module(package).__file__
    assert file is not None
    checking = [node for node in ast.parse(Path(file).read_text()).body if isinstance(node, ast.If)]
    imports = [node for block in checking for node in block.body]
    return {
        alias.name: str(node.module)
        for node in imports
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("package", LAZY)
def test_a_package_gives_the_names_that_it_declares(package: str) -> None:
    module = import_module(package)
    names = declared(package)
    assert names
    assert set(names) <= set(module.__all__) <= set(dir(module))
    for name, source in names.items():
        assert getattr(module, name) is getattr(import_module(source), name)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        module.nonsense  # noqa: B018 - that it raises is the test


@pytest.mark.parametrize("package", LAZY)
def test_names_are_found_in_a_fresh_process(package: str) -> None:
    names = import_module(package).__all__
    code = f"from {package} import {', '.join(names)}; import expunge; expunge.errors.ExpungeError"
    assert "numpy" in imported_by("-c", code)


@pytest.mark.parametrize("module", LIGHT)
def test_a_light_module_imports_no_arithmetic(module: str) -> None:
    assert imported_by("-c", f"import {module}").isdisjoint(ARITHMETIC)
