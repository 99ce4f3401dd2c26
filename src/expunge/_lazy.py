"""Names of a package that are imported when they are first asked for (PEP 562).

A package's `__init__` says under TYPE_CHECKING where its names come from, for editors and mypy, and
gives the same names to `lazy_names`; tests/test_startup.py compares the two. So whoever needs a
light module of the package does not wait for numpy and scipy, which the heavy ones import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package; `names` has the module that each name comes from.

    A name must not be that of a module of the package: once imported, the module would hide it.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(names[name]), name)
        setattr(import_module(package), name, value)  # from now on it is an ordinary attribute
        return value

    def listed() -> list[str]:
        return sorted({*vars(import_module(package)), *names})

    return find, listed
