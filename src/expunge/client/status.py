"""Where a client stands, at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """Where a client stands. `adding` and `deleting` are pending; `composed` is the number of the request being offered.

    `gone` says that the server no longer knows the client, though the client did not leave by a request of its own.
    """

    name: str
    federation: str
    mode: str
    message: str
    enrolled: bool
    live: int
    adding: int
    deleting: int
    labels: Mapping[str, int]  # of samples that are adding or live
    sequence: int
    composed: int | None
    orders: int  # carried out here, and not yet answered with a receipt in hand
    checkpoint: int
    head: str
    refusal: str
    leaving: bool
    left: bool
    gone: bool
