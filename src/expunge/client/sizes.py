"""How many bytes a request has, before it is made.

Law: `request_bytes` is never less than what the request turns out to be.
"""

from __future__ import annotations

from collections.abc import Sequence

from expunge.protocol.commitment import COMMITMENT_BYTES, SALT_BYTES
from expunge.spec import Spec

_HEADER_BYTES = 1024  # with its signature and the longest name
_ORDER_BYTES = 80  # of each answer to an order, in the header
_STATISTICS_BYTES = 136  # of statistics, beside their numbers
_WIDE_BYTES = 16
_NUMBER_BYTES = 8


def request_bytes(spec: Spec, kind: str, added: int, deleted: int, orders: int = 0) -> int:
    """An upper bound for a request that adds and deletes so many samples, by a message of this kind."""
    samples, parts = added + deleted, (added > 0) + (deleted > 0)
    if kind == "rows":
        message = parts + samples * (SALT_BYTES + _NUMBER_BYTES * (spec.dim + spec.columns))
    elif kind == "gram":
        message = parts * (_NUMBER_BYTES + statistics_bytes(spec))
    else:
        message = 2 * _NUMBER_BYTES * (1 + spec.width * (spec.width + spec.columns) + spec.columns)
    return _HEADER_BYTES + _ORDER_BYTES * orders + COMMITMENT_BYTES * samples + message


def fitting(spec: Spec, kind: str, largest: int | None, *, added: int = 0, deleted: int = 0, orders: int = 0) -> str:
    """The kind of message by which such a request is within `largest` bytes: this one, or else gram; empty if neither is.

    Rows may go as gram where the spec allows that, which shows the server less.
    """
    kinds = (kind, "gram") if kind == "rows" and "gram" in spec.messages else (kind,)
    for one in kinds:
        if largest is None or request_bytes(spec, one, added, deleted, orders) <= largest:
            return one
    return ""


def statistics_bytes(spec: Spec) -> int:
    """The bytes of statistics, which are as many for any number of samples."""
    classes = spec.columns if spec.is_classification else 0
    numbers = spec.width * (spec.width + 1) // 2 + spec.width * spec.columns + spec.columns * (spec.columns + 1) // 2
    return _STATISTICS_BYTES + _NUMBER_BYTES * classes + _WIDE_BYTES * numbers


def beyond(spec: Spec, orders: Sequence[str], deleted: int, largest: int | None) -> str:
    """Why what these orders delete cannot be sent."""
    kind = "gram" if "gram" in spec.messages else "rows"
    needed = request_bytes(spec, kind, 0, deleted, len(orders))
    return (
        f"the {deleted} samples to delete for order {', '.join(orders)} must travel in one request, which needs up to {needed} "
        f"bytes, and the server takes {largest}. Nothing is lost: have its operator raise largest_request (expunge serve "
        "--largest-request), then sync again"
    )
