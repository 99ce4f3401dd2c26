"""Names of a package that are imported when they are first asked for, and what dir() shows (PEP
562); extension modules of another package without the package.

A package's `__init__` says under TYPE_CHECKING where its names come from, for editors and mypy, and
gives the same names to `lazy_names`; tests/test_startup.py compares the two. So a program that
needs a light module of the package does not wait for numpy and scipy, which the heavy ones import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader


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


class Extensions:
    """Extension modules of a package that is slow to import, loaded without it.

    Law: whoever imports one of them later, as the package itself does, gets the module that was
    loaded here, and the package gets it as an attribute, as if it had been imported then. For that
    the import system finds it here.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._modules: dict[str, ModuleType] = {}
        self._specs: dict[str, ModuleSpec] = {}
        self._lock = Lock()

    def module(self, name: str) -> ModuleType | None:
        """A module of the package; None if there is no such file, or the package is imported."""
        full = f"{self._package}.{name}"
        with self._lock:
            if full not in self._modules and self._package not in sys.modules:
                self._load(full)
            return self._modules.get(full)

    def _load(self, full: str) -> None:
        from importlib.util import find_spec, module_from_spec  # noqa: PLC0415 - for arithmetic only

        package = find_spec(self._package)  # imports the packages around it, and not it
        spec = package and PathFinder.find_spec(full, package.submodule_search_locations)
        if not spec or not isinstance(spec.loader, ExtensionFileLoader):
            return
        try:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
        except ImportError:  # it cannot do without the package
            return
        if not self._modules:
            sys.meta_path.insert(0, self)
        spec.loader = cast("Loader", self)
        self._modules[full], self._specs[full] = module, spec
        sys.modules.pop(full, None)  # some put themselves there; the package is to ask for them

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a module is, for the import system, if it was loaded here."""
        del path, target
        return self._specs.get(fullname)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """That module."""
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed."""
