"""Where files of data are looked for: the folder that EXPUNGE_DATA names, else the user's data
folder, and no other place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from expunge.errors import InputError


class MissingDataError(InputError):
    """A file of an experiment's data that is in none of the places where it is looked for."""


VARIABLE = "EXPUNGE_DATA"


def data_folder(environment: Mapping[str, str] | None = None) -> Path:
    """The one folder with data: $EXPUNGE_DATA if it is set, else $XDG_DATA_HOME/expunge, else
    ~/.local/share/expunge.

    As in the XDG specification, an XDG_DATA_HOME that is not absolute counts as unset.
    """
    variables = os.environ if environment is None else environment
    if variables.get(VARIABLE):
        return Path(variables[VARIABLE])
    base = Path(variables.get("XDG_DATA_HOME") or "")
    return (base if base.is_absolute() else Path.home() / ".local" / "share") / "expunge"


def found(folder: Path, candidates: Sequence[str], *, what: str, remedy: str) -> Path:
    """The first of these names (files, folders or patterns) that is in the folder, or
    MissingDataError.

    A pattern means the folder that holds its matches.
    """
    for name in candidates:
        if any(mark in name for mark in "*?["):
            if next(folder.glob(name), None) is not None:
                return (folder / name).parent
        elif (folder / name).exists():
            return folder / name
    raise missing(folder, candidates, what=what, remedy=remedy)


def missing(folder: Path, candidates: Sequence[str], *, what: str, remedy: str) -> MissingDataError:
    """The error that says what is missing, everywhere it was looked for, and how to get or make
    it.
    """
    paths = ", ".join(str(folder / name) for name in candidates)
    return MissingDataError(
        f"{what} cannot be found. It was looked for at {paths}. {remedy} To look in another "
        f"folder, set {VARIABLE} to it"
    )
