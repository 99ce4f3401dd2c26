"""Going on from the right time, after the clock was ahead.

What was stamped with a time to come stays as it is in the log: an entry says from where on, and by
how much at the most, and from then on stamps follow the clock again. What the store has beside the
log (orders, tokens, when who was seen) is read by that entry at once; audits have the times that
the log has of them.

Laws: the order of the log is that of its positions; a deadline, and the end of a token, is never
later than if it were counted from the correction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from expunge.errors import RefusedError
from expunge.evidence.log import corrected_time, read_entry
from expunge.server.clock import TOLERANCE
from expunge.server.state import ServerState
from expunge.wire import schema
from expunge.wire.schema import time_seconds, time_text

_EPOCH = time_text(0)
_PIECE = 1000  # entries that are read at a time

Corrected = Callable[[int], int]


def correct_clock(state: ServerState, given: dict[str, Any]) -> dict[str, Any]:
    """Log the correction and go on from the time of the clock, within a transaction; what it says.

    `time` of the arguments is what the operator's clock says: this machine's must agree.
    """
    right = _agreed(state, given)
    first, after, tokens = _stamped_ahead(state, time_text(right))
    _require_no_rotation(state, first)
    content: dict[str, Any] = {
        "first": first,
        "after": after,
        "ahead": max(state.most_ahead, state.stamps_ahead()),
    }
    entry = content | {"time": time_text(right)}

    def corrected(time: int) -> int:
        return time_seconds(corrected_time(entry, time_text(time)))

    orders = _correct_orders(state, first, corrected)
    index = state.append("corrected", right, **content, orders=orders)
    for order in _orders_since(state, first):
        state.storage.orders.mention(order, index)
    _correct_actors(state, right, corrected)
    for name in tokens:
        _correct_tokens(state, name, content["ahead"])
    state.storage.state.put(replace(state.record, time=right))
    return content


def _agreed(state: ServerState, given: dict[str, Any]) -> int:
    """The time on which the machine's clock and the operator's agree; refused where they do not, or
    there is nothing to correct.
    """
    asked, right = time_seconds(schema.time(given.get("time"), "the time")), state.by_clock()
    if abs(asked - right) > TOLERANCE:
        raise RefusedError(
            "not-allowed",
            f"the server's clock says {time_text(right)}, and yours {time_text(asked)}: set the "
            "one that is wrong right, and try again. Nothing was changed",
        )
    if state.stamps_ahead() <= TOLERANCE:
        raise RefusedError(
            "not-allowed",
            "there is nothing to correct: the log is stamped "
            f"{state.stamps_ahead()} seconds ahead of the server's clock",
        )
    return right


def _stamped_ahead(state: ServerState, right: str) -> tuple[int, str, set[str]]:
    """The first of the last entries that are all stamped later than this; when the one before it
    was made; and for whom there were tokens from then on.
    """
    log, tokens = state.log, set[str]()
    end = log.size
    while end > 0:
        start = max(0, end - _PIECE)
        for offset, data in reversed(list(enumerate(log.entries(start, end)))):
            entry = read_entry(data)
            if entry["time"] <= right:
                return start + offset + 1, entry["time"], tokens
            if entry["kind"] == "commanded" and entry["action"] == "token":
                tokens.add(entry["summary"]["name"])
        end = start
    return 0, _EPOCH, tokens


def _require_no_rotation(state: ServerState, first: int) -> None:
    """A key that took over at a time to come would have signed nothing until then."""
    late = [rotation.unverified()["index"] for rotation in state.rotations()]
    late = [index for index in late if index >= first]
    if late:
        raise RefusedError(
            "not-allowed",
            f"the server's key was rotated while its clock was ahead (entry {late[0]}): by that "
            "rotation the new key is good from a time to come on. Restore the server from a "
            "backup made before it, or let the time come. Nothing was changed",
        )


def _orders_since(state: ServerState, first: int) -> list[str]:
    """The orders that entries from the first on speak of."""
    table = state.storage.orders
    return [order.id for order in table.all() if max(table.entries(order.id), default=-1) >= first]


def _correct_orders(state: ServerState, first: int, corrected: Corrected) -> list[dict[str, str]]:
    """Orders and the answers to them; the deadlines of those that were filed from the first on."""
    table, deadlines = state.storage.orders, []
    for order in table.all():
        filed = corrected(order.filed)
        deadline = order.deadline - order.filed + filed
        if min(table.entries(order.id), default=-1) >= first:
            deadlines.append({"order": order.id, "deadline": time_text(deadline)})
        else:
            filed, deadline = order.filed, order.deadline
        completed = None if order.completed is None else corrected(order.completed)
        closed = None if order.closed is None else corrected(order.closed)
        table.put(
            replace(order, filed=filed, deadline=deadline, completed=completed, closed=closed)
        )
        for reply in table.replies(order.id):
            if reply.time is not None:
                table.reply(order.id, replace(reply, time=corrected(reply.time)))
    return deadlines


def _correct_actors(state: ServerState, right: int, corrected: Corrected) -> None:
    """Who was seen by a clock that was ahead was seen now at the latest."""
    for actor in state.storage.actors.all():
        state.storage.actors.put(
            replace(
                actor,
                enrolled=corrected(actor.enrolled),
                seen=None if actor.seen is None else min(actor.seen, right),
                spoke=min(actor.spoke, right),
                joined=min(actor.joined, right),
                present=min(actor.present, right),
            )
        )


def _correct_tokens(state: ServerState, name: str, ahead: int) -> None:
    """Tokens that were made then end as much earlier."""
    table = state.storage.tokens
    for token in table.of(name):
        table.remove(token.digest)
        table.add(replace(token, expires=token.expires - ahead))
