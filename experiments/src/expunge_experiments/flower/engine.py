"""FlowerEngine: messages travel in Flower's own to the nodes of a grid, each of which is one
client.

Law: a system on this engine reaches the same head as in one process, bit for bit if the arithmetic
of its clients is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from expunge.crypto import canonical
from expunge.errors import FormatError, InputError
from expunge.transport.flower.messages import Payload
from expunge_experiments.engine import MessageEngine, State
from expunge_experiments.flower.node import packed, unpacked

_NANO = 1e-9


class ParcelExchange(Protocol):
    """What is needed of `flower.exchange.Exchange`."""

    def nodes(self, count: int) -> list[int]:
        """All nodes, once there are at least `count`."""

    def ask(self, parcels: Sequence[tuple[int, Payload]]) -> list[Payload]:
        """One parcel to each node, and its answer."""


class FlowerEngine(MessageEngine):
    """`parallel` clients work at the same time.

    Messages to one client in one exchange share one of Flower's, in their order.

    A cost's bytes are those of messages. Its client seconds are measured at the nodes, as in one
    process: reading a message, answering it, writing the answer. All else is orchestration, also
    what nodes need to load samples and state (`loading_seconds`).
    """

    def __init__(self, exchange: ParcelExchange, clients: int, parallel: int = 1) -> None:
        super().__init__()
        self.parallel = parallel
        self.loading_seconds = 0.0  # of all clients together
        self._exchange_of_parcels = exchange
        nodes = exchange.nodes(clients)
        notes = [
            _note(parcel)
            for parcel in exchange.ask([(node, _question("client")) for node in nodes])
        ]
        self._nodes: dict[int, int] = {
            note["client"]: node for node, note in zip(nodes, notes, strict=True)
        }
        self._kept: dict[int, int] = {
            note["client"]: note["kept"] for note in notes
        }  # the size of a state, as last reported
        if len(nodes) != clients or sorted(self._nodes) != list(range(clients)):
            raise InputError(
                f"{len(nodes)} nodes are {len(self._nodes)} clients, and there must be one node "
                f"for each of {clients} clients: their partition-id must be 0 to {clients - 1}"
            )

    def _exchange(self, messages: Sequence[tuple[int, bytes]]) -> list[bytes]:
        mine: dict[int, list[int]] = {}  # positions in `messages` of each client's
        for position, (client, _) in enumerate(messages):
            mine.setdefault(client, []).append(position)
        parcels = self._ask(
            {
                client: _question("messages", *(messages[position][1] for position in positions))
                for client, positions in mine.items()
            }
        )
        answers, busiest = [b""] * len(messages), 0.0
        for client, positions in mine.items():
            note, parts = _note(parcels[client]), parcels[client].parts
            if len(parts) != len(positions):
                raise FormatError(
                    f"client {client} has answered {len(positions)} messages with {len(parts)}"
                )
            for position, answer, worked in zip(positions, parts, note["worked"], strict=True):
                self._count(len(messages[position][1]), len(answer), worked * _NANO)
                answers[position] = answer
            busiest = max(busiest, sum(note["worked"]) * _NANO)
            self.loading_seconds += note["loaded"] * _NANO
            self._kept[client] = note["kept"]
        self.usage.busiest_seconds += busiest
        return answers

    def states(self) -> dict[int, State]:
        """What each client remembers: every client is asked."""
        parcels = self._ask(dict.fromkeys(sorted(self._nodes), _question("state")))
        return {client: unpacked(parcel.parts[0]) for client, parcel in parcels.items()}

    def restore(self, states: Mapping[int, State]) -> None:
        """Give each client its state."""
        parcels = self._ask(
            {client: _question("restore", packed(state)) for client, state in states.items()}
        )
        self._kept |= {client: _note(parcel)["kept"] for client, parcel in parcels.items()}

    def state_bytes(self) -> int:
        """The size of all clients' states, as reported with their answers; no client is queried."""
        return sum(self._kept.values())

    def _ask(self, parcels: Mapping[int, Payload]) -> dict[int, Payload]:
        answers = self._exchange_of_parcels.ask(
            [(self._nodes[client], parcel) for client, parcel in parcels.items()]
        )
        return dict(zip(parcels, answers, strict=True))


def _question(ask: str, *parts: bytes) -> Payload:
    return Payload(canonical.encode({"ask": ask}), parts)


def _note(parcel: Payload) -> dict[str, Any]:
    note = canonical.decode(parcel.note, "a node's answer")
    if not isinstance(note, dict):
        raise FormatError(
            f"{note!r:.80} is no answer of a node: it was altered, or is of another version"
        )
    return note
