"""Errors that only experiments raise; all others are those of Expunge."""

from __future__ import annotations

from expunge.errors import InputError


class MissingDataError(InputError):
    """A file of an experiment's data that is in none of the places where it is looked for."""
