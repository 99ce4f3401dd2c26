"""What docstrings of public names must be, for whichever of them can be imported."""

from __future__ import annotations

import builtins
import doctest
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cached_property
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

from expunge import errors

# Bases of public classes whose members are documented elsewhere: those of the service are the
# methods of `Carrier`, and what the server itself uses.
DOCUMENTED_ELSEWHERE = frozenset({"expunge.server.service.Service"})
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

# A class or function; a method or the getter of a property.
Documented = type | FunctionType


def public_things(modules: Iterable[str]) -> dict[str, Documented]:
    """The public classes and functions of modules, by the first of their public paths."""
    things: dict[str, Documented] = {}
    for module in modules:
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


def with_members(things: Mapping[str, Documented]) -> dict[str, Documented]:
    """Classes and functions, and the public members of the classes."""
    members = {
        path: function
        for owner, thing in things.items()
        for path, function in public_members(owner, thing).items()
    }
    return {**things, **members}


def without_sentence(documented: Mapping[str, Documented]) -> list[str]:
    """Names whose docstring does not begin with a whole sentence: in a paragraph of its own, of at
    most two lines, up to a full stop.
    """
    wrong = []
    for path, thing in documented.items():
        first = inspect.cleandoc(thing.__doc__ or "").partition("\n\n")[0]
        if not re.fullmatch(r"\S[^\n]*(\n[^\n]+)?\.", first):
            wrong.append(f"{path}: {first}")
    return wrong


def with_other_parameters(documented: Mapping[str, Documented]) -> list[str]:
    """Names whose docstring does not name every parameter in order."""
    wrong = []
    for path, thing in documented.items():
        content = sections(thing)
        is_value = is_dataclass(thing) and "Parameters" not in content
        named = entries(content.get("Attributes" if is_value else "Parameters", []))
        if named != parameters(thing):
            wrong.append(f"{path} takes {parameters(thing)}, and its docstring names {named}")
    return wrong


def with_unknown_errors(documented: Mapping[str, Documented]) -> list[str]:
    """Names whose docstring names an error that does not exist."""
    wrong = []
    for path, thing in documented.items():
        for name in entries(sections(thing).get("Raises", [])):
            error = getattr(errors, name, None) or getattr(builtins, name, None)
            if not (isinstance(error, type) and issubclass(error, Exception)):
                wrong.append(f"{path}: {name}")
    return wrong


def without_examples(things: Mapping[str, Documented]) -> list[str]:
    """Classes and functions without examples; but for errors: some take a broken disk to be
    raised.
    """
    return [
        path
        for path, thing in things.items()
        if not (isinstance(thing, type) and issubclass(thing, Exception))
        and not any(line.startswith(">>> ") for line in sections(thing).get("Examples", []))
    ]


def examples(thing: Any, name: str) -> Iterator[doctest.DocTest]:
    """Those of a class with its own methods, of a function, or of a module itself."""
    finder = doctest.DocTestFinder(recurse=not isinstance(thing, ModuleType))
    module = thing if isinstance(thing, ModuleType) else sys.modules[thing.__module__]
    # No names of the module: an example imports what it uses.
    yield from finder.find(thing, name, module=module, globs={"__name__": "example"})


def run_examples(thing: Any, name: str) -> None:
    """Run the examples of a class, a function or a module, which must give what they say."""
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for example in examples(thing, name):
        runner.run(example, out=output.append)
    assert not runner.failures, "".join(output)
