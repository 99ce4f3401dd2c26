"""Optional libraries, imported only when a backbone needs them."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from expunge.errors import MissingExtraError


def needed(module: str, extra: str) -> Any:
    """The module, or MissingExtraError that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        library = module.partition(".")[0]
        if problem.name is not None and problem.name.partition(".")[0] != library:
            said = f"{library} cannot be imported: {problem}"  # it is there, and lacks something of its own
        else:
            said = f"{library} is not installed"
        raise MissingExtraError(f"{said}. This backbone needs it: pip install 'expunge[{extra}]'") from problem


def versions(*distributions: str) -> dict[str, str]:
    """The installed versions of these distributions."""
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
