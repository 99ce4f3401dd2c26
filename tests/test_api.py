"""The public names: each can be found, says what it is, names its parameters and has examples that
run.
"""

from __future__ import annotations

import builtins
import doctest
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import expunge
from expunge import errors
from support.public_api import PUBLIC

# Bases of public classes whose members are documented elsewhere: those of the service are the
# methods of `Carrier`, and what the server itself uses.
DOCUMENTED_ELSEWHERE = frozenset({"expunge.server.service.Service"})
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SOURCE = Path(expunge.__file__).parent

# A class or function; a method or the getter of a property.
Documented = type | FunctionType


def public_things() -> dict[str, Documented]:
    """The public classes and functions, by the first of their public paths."""
    things: dict[str, Documented] = {}
    for module in PUBLIC:
        for name in import_module(module).__all__:
            thing = getattr(import_module(module), name)
            path = f"{module}.{name}"
            is_known = any(thing is other for other in things.values())
            if isinstance(thing, Documented) and not is_known:
                things[path] = thing
    return things


def public_members(path: str, thing: Documented) -> dict[str, FunctionType]:
    """The public methods and properties of a class, its bases' included."""
    members: dict[str, FunctionType] = {}
    for owner in thing.__mro__ if isinstance(thing, type) else ():
        is_ours = owner.__module__.partition(".")[0] == "expunge"
        if not is_ours or f"{owner.__module__}.{owner.__name__}" in DOCUMENTED_ELSEWHERE:
            continue
        for name, value in vars(owner).items():
            function = function_of(value)
            if function is not None and not name.startswith("_"):
                members.setdefault(f"{path}.{name}", function)
    return members


def function_of(value: object) -> FunctionType | None:
    """The function behind a method or property."""
    if isinstance(value, (classmethod, staticmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, cached_property):
        value = value.func
    return value if isinstance(value, FunctionType) else None


def sections(thing: Documented | ModuleType) -> dict[str, list[str]]:
    """The lines of each section of a docstring; what stands before them is the section ""."""
    content: dict[str, list[str]] = {"": []}
    lines = inspect.cleandoc(thing.__doc__ or "").splitlines()
    current = content[""]
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line and below == "-" * len(line):
            assert line not in content, f"two sections {line}"
            current = content[line] = []
        elif set(line) != {"-"}:
            current.append(line)
    return content


def entries(lines: list[str]) -> list[str]:
    """The names that a section has entries for, in their order."""
    heads = [line.partition(" : ")[0] for line in lines if line and not line.startswith(" ")]
    return [name for head in heads for name in head.split(", ")]


def parameters(thing: Documented) -> list[str]:
    """The names of what a call takes, as numpydoc writes them."""
    if isinstance(thing, type):
        constructor = getattr(thing, "__init__", None)
        if getattr(thing, "_is_protocol", False):
            return []  # an interface is not called
        if getattr(constructor, "__module__", "").partition(".")[0] != "expunge":
            return []  # of a base that is not ours
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [
        f"{stars.get(parameter.kind, '')}{parameter.name}"
        for parameter in inspect.signature(thing).parameters.values()
        if parameter.name not in ("self", "cls")
    ]


THINGS = public_things()
MEMBERS = {
    path: function
    for owner, thing in THINGS.items()
    for path, function in public_members(owner, thing).items()
}
DOCUMENTED: dict[str, Documented] = {**THINGS, **MEMBERS}


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_module_says_which_names_it_has(module: str) -> None:
    content = import_module(module)
    assert content.__doc__
    assert len(set(content.__all__)) == len(content.__all__)
    for name in content.__all__:
        assert getattr(content, name) is not None


def test_docstrings_begin_with_a_whole_sentence() -> None:
    """In a paragraph of its own, of at most two lines, up to a full stop."""
    wrong = []
    for path, thing in DOCUMENTED.items():
        first = inspect.cleandoc(thing.__doc__ or "").partition("\n\n")[0]
        if not re.fullmatch(r"\S[^\n]*(\n[^\n]+)?\.", first):
            wrong.append(f"{path}: {first}")
    assert wrong == []


def test_docstrings_name_every_parameter_in_order() -> None:
    wrong = []
    for path, thing in DOCUMENTED.items():
        content = sections(thing)
        is_value = is_dataclass(thing) and "Parameters" not in content
        named = entries(content.get("Attributes" if is_value else "Parameters", []))
        if named != parameters(thing):
            wrong.append(f"{path} takes {parameters(thing)}, and its docstring names {named}")
    assert wrong == []


def test_docstrings_name_errors_that_exist() -> None:
    wrong = []
    for path, thing in DOCUMENTED.items():
        for name in entries(sections(thing).get("Raises", [])):
            error = getattr(errors, name, None) or getattr(builtins, name, None)
            if not (isinstance(error, type) and issubclass(error, Exception)):
                wrong.append(f"{path}: {name}")
    assert wrong == []


def test_public_names_have_examples() -> None:
    """But for errors: some take a broken disk to be raised."""
    without = [
        path
        for path, thing in THINGS.items()
        if not (isinstance(thing, type) and issubclass(thing, Exception))
        and not any(line.startswith(">>> ") for line in sections(thing).get("Examples", []))
    ]
    assert without == []


def examples(thing: Any, name: str) -> Iterator[doctest.DocTest]:
    """Those of a class with its own methods, of a function, or of a module itself."""
    finder = doctest.DocTestFinder(recurse=not isinstance(thing, ModuleType))
    module = thing if isinstance(thing, ModuleType) else sys.modules[thing.__module__]
    # No names of the module: an example imports what it uses.
    yield from finder.find(thing, name, module=module, globs={"__name__": "example"})


def run_examples(thing: Any, name: str) -> None:
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for example in examples(thing, name):
        runner.run(example, out=output.append)
    assert not runner.failures, "".join(output)


@pytest.mark.parametrize("path", THINGS)
def test_examples_run_and_leave_nothing_behind(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(THINGS[path], path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", PUBLIC)
def test_examples_of_a_module_run(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(import_module(module), module)
    assert list(tmp_path.iterdir()) == []


def lazy_packages() -> list[str]:
    """The packages that import their names when asked."""
    files = [file for file in SOURCE.rglob("__init__.py") if "lazy_names(" in file.read_text()]
    return sorted(".".join(file.parent.relative_to(SOURCE.parent).parts) for file in files)


@pytest.mark.parametrize("package", lazy_packages())
def test_dir_shows_what_is_public(package: str) -> None:
    module = import_module(package)
    modules = {
        name.removeprefix(f"{package}.").partition(".")[0]
        for name in PUBLIC
        if name.startswith(f"{package}.")
    }
    shown = dir(module)
    plain = {name for name in shown if not (name.startswith("__") and name.endswith("__"))}
    assert plain == {name for name in module.__all__ if not name.startswith("__")} | modules
    assert set(module.__all__) <= set(shown)
    assert {"__all__", "__doc__", "__name__"} <= set(shown)


def test_everything_in_dir_is_there_in_a_fresh_process() -> None:
    code = "import expunge; print(*(type(getattr(expunge, name)) for name in dir(expunge)))"
    done = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "module" in done.stdout
