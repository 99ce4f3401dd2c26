"""Exchanges: one parcel to each of some nodes, and their answers, under an action of one's own
beside whatever else the apps do.

Laws: an answer belongs to the parcel at its place; every parcel has its answer, or the exchange
raises and says which node is at fault. Nothing is retried, because not every message is safe to
repeat: retries are up to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from expunge.errors import CarrierError, ExpungeError, InputError, ProtocolError
from expunge.transport.flower.messages import Payload
from expunge.transport.flower.records import from_records, to_records
from expunge.transport.flower.server_app import Backoff, Clock, Sleep, connected

_LONGEST_PAUSE = 0.02  # an exchange is timed, so that its end is noticed soon
_LONGEST_PROBLEM = 1000
_MOST_AT_ONCE = 16  # replies that are pulled at the same time
_PROBLEM = "expunge.problem"


@dataclass(frozen=True)
class NodeContext:
    """Where a parcel is answered: what Flower's configs say of the node and of the run."""

    node_config: Mapping[str, Any]
    run_config: Mapping[str, Any]


Handle = Callable[[Payload, NodeContext], Payload]
Lead = Callable[["Exchange", Mapping[str, Any]], None]


def client_app(action: str, handle: Handle) -> ClientApp:
    """A ClientApp that does nothing but answer parcels of this action."""
    app = ClientApp()
    register(app, action, handle)
    return app


def server_app(action: str, lead: Lead) -> ServerApp:
    """A ServerApp whose main calls `lead` with an exchange of this action and the run's config."""
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        lead(Exchange(grid, action), context.run_config)

    app.main()(main)
    return app


def register(app: ClientApp, action: str, handle: Handle) -> None:
    """Let a ClientApp answer the parcels of an `Exchange` of the same action.

    An ExpungeError is reported to the server.
    """

    def reply(message: Message, context: Context) -> Message:
        try:
            records = to_records(
                handle(
                    from_records(message.content),
                    NodeContext(context.node_config, context.run_config),
                )
            )
        except ExpungeError as problem:
            records = to_records(Payload(b"{}"))
            records[_PROBLEM] = ConfigRecord(
                {"kind": type(problem).__name__, "text": str(problem)[:_LONGEST_PROBLEM]}
            )
        return Message(records, reply_to=message)

    app.query(action)(reply)


class Exchange:
    """The server's side.

    A node that has not answered after `reply_seconds` is not waited for any longer.
    """

    def __init__(
        self,
        grid: Grid,
        action: str,
        *,
        reply_seconds: float = 600.0,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        self._grid = grid
        self._type = f"query.{action}"
        self._seconds = reply_seconds
        self._clock = clock
        self._sleep = sleep

    def nodes(self, count: int, seconds: float = 120.0) -> list[int]:
        """All nodes, once there are at least `count`."""
        nodes = connected(self._grid, count, seconds, self._clock, self._sleep)
        if len(nodes) < count:
            raise CarrierError(
                f"{len(nodes)} nodes are connected, and {count} are needed: start the others, and "
                "run this again"
            )
        return nodes

    def ask(self, parcels: Sequence[tuple[int, Payload]]) -> list[Payload]:
        """Ask nodes, each of them once; their answers, in the same order."""
        if len({node for node, _ in parcels}) != len(parcels):
            raise InputError(
                "a node can be asked once in an exchange: put what is for the same node into one "
                "parcel"
            )
        end = self._clock() + self._seconds
        waiting = {self._pushed(node, parcel): node for node, parcel in parcels}
        answers: dict[int, Payload] = {}
        backoff = Backoff(self._sleep, _LONGEST_PAUSE)
        while waiting:
            replies = self._pulled(list(waiting))
            for reply in replies:
                node = waiting.pop(
                    reply.metadata.reply_to_message_id
                )  # only what is waited for is pulled
                answers[node] = _content(node, reply)
            if replies:
                backoff.reset()
            elif self._clock() >= end:
                raise CarrierError(
                    f"no answer within {self._seconds:g} seconds from: {_named(waiting.values())}"
                )
            else:
                backoff.wait()
        return [answers[node] for node, _ in parcels]

    def _pushed(self, node: int, parcel: Payload) -> str:
        """Send a parcel; the identity of its message."""
        message = Message(to_records(parcel), node, self._type, ttl=self._seconds)
        for identity in self._grid.push_messages([message]):
            if identity:
                return str(identity)
        raise CarrierError(f"a message to node {node} could not be sent: it is not connected")

    def _pulled(self, identities: list[str]) -> list[Message]:
        parts = (
            identities[start : start + _MOST_AT_ONCE]
            for start in range(0, len(identities), _MOST_AT_ONCE)
        )
        return [reply for part in parts for reply in self._grid.pull_messages(part)]


def _content(node: int, reply: Message) -> Payload:
    if reply.has_error():
        raise CarrierError(f"node {node} did not answer: {reply.error.reason}")
    if _PROBLEM in reply.content:
        record = reply.content[_PROBLEM]
        raise ProtocolError(
            f"node {node} could not answer: {record.get('kind')}: {record.get('text')}"
        )
    try:
        return from_records(reply.content)
    except ExpungeError as problem:
        raise ProtocolError(f"node {node} says what cannot be understood: {problem}") from problem


def _named(nodes: Iterable[int]) -> str:
    listed = sorted(nodes)
    return ", ".join(f"node {node}" for node in listed[:5]) + (
        f" and {len(listed) - 5} others" if len(listed) > 5 else ""
    )
