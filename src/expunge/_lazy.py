"""Names of a package that are imported when they are first asked for, and what dir() shows (PEP
562).

A package's `__init__` says under TYPE_CHECKING where its names come from, for editors and mypy, and
gives the same names to `lazy_names`; tests/test_startup.py compares the two. So a program that
needs a light module of the package does not wait for numpy and scipy, which the heavy ones import.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, str], modules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    `names` has the module that each name comes from; `modules` are the public modules of the
    package, which are imported when first asked for as well. A name must not be that of a module
    of the package: once imported, the module would hide it.
    """

    def find(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(names[name]), name)
        setattr(import_module(package), name, value)  # from now on it is an ordinary attribute
        return value

    return find, public_dir(package, modules)


def public_dir(module: str, modules: Collection[str] = ()) -> Callable[[], list[str]]:
    """`__dir__` of a module.

    Law: dir() of the module is its `__all__`, its dunder names and `modules`, which are its public
    modules, whatever has been imported so far.
    """

    def listed() -> list[str]:
        attributes = vars(import_module(module))
        dunders = {name for name in attributes if name.startswith("__") and name.endswith("__")}
        return sorted({*attributes["__all__"], *dunders, *modules})

    return listed
