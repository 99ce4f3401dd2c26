"""The roster: who takes part in a round, with which keys; and who masks with whom.

Law: plan, ring and context are functions of the roster's bytes alone, so all who hold the same
roster agree on them.

The graph is a ring in random order on which each client's neighbours are those next to it: being
neighbours is mutual, and every client has `degree` neighbours. The order is by SHA-256(seed, name),
which for a seed that nobody chose is a uniformly random order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from expunge.crypto.envelope import SignedHeader, header_bytes
from expunge.crypto.keys import SIGNATURE_BYTES, PublicKey
from expunge.errors import EvidenceError, FormatError, InputError
from expunge.ridge.spec import Aggregation
from expunge.secagg.keys import KEY_BYTES, Context, checked_public
from expunge.secagg.messages import (
    SAID,
    about,
    names,
    opening_of,
    pieces,
    read_server_message,
    rules_of,
    write_server_message,
)
from expunge.secagg.plan import Opening, Plan, plan
from expunge.secagg.unmasking import Part, covering_quorum
from expunge.wire import schema


class Graph:
    """The neighbours of every client of a round."""

    def __init__(self, seed: bytes, names: Sequence[str], degree: int) -> None:
        complete = degree == len(names) - 1
        if not complete and (degree % 2 or not 0 < degree < len(names)):
            raise InputError(
                f"{len(names)} clients cannot have {degree} neighbours each: it must be all "
                "others, or an even number"
            )
        self._order = sorted(
            names, key=lambda name: hashlib.sha256(seed + name.encode("ascii")).digest()
        )
        self._place = {name: position for position, name in enumerate(self._order)}
        self._complete = complete
        self._reach = degree // 2

    def neighbours(self, name: str) -> tuple[str, ...]:
        """The neighbours of a client, sorted by name."""
        position, count = self._place[name], len(self._order)
        if self._complete:
            neighbours = self._order[:position] + self._order[position + 1 :]
        else:
            steps = range(1, self._reach + 1)
            neighbours = [
                self._order[(position + way * step) % count] for step in steps for way in (1, -1)
            ]
        return tuple(sorted(neighbours))


_KEPT = 4  # rosters read lately: in a simulation all clients of a round read the same one


@dataclass(frozen=True)
class Join:
    """A client that takes part, under the sequence number that the round will use up: with its two
    public keys, and whether its part is exposed (expunge.secagg.unmasking).
    """

    name: str
    sequence: int
    cipher: bytes
    mask: bytes
    exposed: bool = False

    def header(self, opening: Opening, rules: Aggregation) -> dict[str, Any]:
        """The header of its message, without the body's digest."""
        keys = {"cipher": self.cipher.hex(), "mask": self.mask.hex()}
        claims = {"client": self.name, "kind": "join", "sequence": self.sequence}
        marks = {"exposed": True} if self.exposed else {}
        return about(opening, rules) | keys | claims | marks

    def signed(self, opening: Opening, rules: Aggregation, signature: bytes) -> SignedHeader:
        """The header of its message, which has no body, with a signature."""
        return SAID.signed(header_bytes(self.header(opening, rules), b""), signature)

    @classmethod
    def from_header(cls, header: dict[str, Any]) -> Join:
        """The client of a join's header."""
        name = header["client"]
        cipher = checked_public(bytes.fromhex(header["cipher"]), f"the cipher key of {name}")
        return cls(
            name,
            header["sequence"],
            cipher,
            checked_public(bytes.fromhex(header["mask"]), f"the mask key of {name}"),
            header.get("exposed", False),
        )


def survivors_message(context: Context, names: Collection[str]) -> bytes:
    """What the server tells of whose vectors arrived."""
    header = {"clients": sorted(names), "kind": "survivors"}
    return write_server_message(
        header
        | {"federation": context.federation, "roster": context.roster, "round": context.round}
    )


def _agreed(context: Context, name: str, sequence: int, survivors: str) -> dict[str, Any]:
    return {
        "client": name,
        "federation": context.federation,
        "kind": "agreed",
        "roster": context.roster,
        "round": context.round,
        "sequence": sequence,
        "survivors": survivors,
    }


def verify_agreements(
    context: Context,
    parts: Collection[tuple[str, int]],
    agreed: Mapping[str, bytes],
    keys: Mapping[str, PublicKey],
    *,
    quorum: int,
) -> None:
    """Raise EvidenceError unless these clients, a quorum or more, have agreed to the sum of these
    parts, of clients and sequence numbers, in the round and roster of the context.
    """
    if len(agreed) < quorum:
        raise EvidenceError(
            f"the log speaks of a sum to which {len(agreed)} clients have agreed, and {quorum} must"
        )
    sequences = dict(parts)
    survivors = hashlib.sha256(survivors_message(context, sequences)).hexdigest()
    for name, signature in agreed.items():
        if name not in sequences or name not in keys:
            raise EvidenceError(f"{name} cannot have agreed to a sum that it has no part in")
        header = header_bytes(_agreed(context, name, sequences[name], survivors), b"")
        SAID.signed(header, signature).verify(keys[name])


class Roster:
    """The signed joins of a round, sorted by name.

    Read one with `Roster.read`; `verify` says whose joins they are.
    """

    def __init__(
        self, data: bytes, opening: Opening, rules: Aggregation, joins: Sequence[tuple[Join, bytes]]
    ) -> None:
        self.data = data
        self.digest = hashlib.sha256(data).hexdigest()
        self.opening, self.rules = opening, rules
        self.context = Context(opening.federation, opening.round, self.digest)
        self._joins = {join.name: (join, signature) for join, signature in joins}
        self.names = tuple(self._joins)
        # Caches: what has been computed or verified of an immutable value once.
        self._neighbours: dict[str, tuple[str, ...]] = {}
        self._verified: set[tuple[str, PublicKey]] = set()

    @staticmethod
    def write(opening: Opening, rules: Aggregation, joins: Sequence[tuple[Join, bytes]]) -> bytes:
        """The bytes of a roster of these joins and their signatures."""
        ordered = sorted(joins, key=lambda pair: pair[0].name)
        clients = [[join.name, join.sequence] for join, _ in ordered]
        body = b"".join(join.cipher + join.mask + signature for join, signature in ordered)
        exposed = [join.name for join, _ in ordered if join.exposed]
        header = about(opening, rules) | {"clients": clients, "kind": "roster"}
        return write_server_message(header | ({"exposed": exposed} if exposed else {}), body)

    @staticmethod
    def read(data: bytes | memoryview) -> Roster:
        """The roster of these bytes, with nothing said about signatures; FormatError for what is
        malformed.
        """
        return _read(bytes(data))

    def verify(self, pins: Mapping[str, PublicKey]) -> None:
        """Raise EvidenceError unless every join is signed by the key that is pinned for its
        name.
        """
        for name, (join, signature) in self._joins.items():
            key = pins.get(name)
            if key is None:
                raise EvidenceError(
                    f"{name} is in the roster, but no key is pinned for that name: pin the key of "
                    f"{name} if it is known to be its own, or stay out of rounds with it"
                )
            if (name, key) in self._verified:
                continue
            try:
                join.signed(self.opening, self.rules, signature).verify(key)
            except EvidenceError as problem:
                raise EvidenceError(
                    f"the join of {name} in the roster is not signed by the key pinned for it: "
                    "somebody else speaks in its name, "
                    f"or its key was changed without this client knowing ({problem})"
                ) from problem
            self._verified.add((name, key))

    def __contains__(self, name: object) -> bool:
        return name in self._joins

    def join(self, name: str) -> Join:
        """The join of a client."""
        return self._joins[name][0]

    @cached_property
    def plan(self) -> Plan:
        """Degree and threshold for as many clients."""
        return plan(self.rules, len(self.names))

    @cached_property
    def parts(self) -> frozenset[Part]:
        """Everybody in it, by name and sequence number."""
        return frozenset(self.sequences(self.names))

    @cached_property
    def exposed(self) -> frozenset[Part]:
        """The parts of those that say in their join that it hides nobody."""
        return frozenset(part for part in self.parts if self.join(part[0]).exposed)

    def lacking(self, agreed: Collection[str], shown: Set[Part] = frozenset()) -> str:
        """Which quorum these clients that agreed are not: of all, or of those whose parts are not
        exposed, by their own word or as `shown` by the log; "" if they are both.
        """
        needed, clients = self.plan.quorum, len(self.names)
        if len(agreed) < needed:
            return f"{len(agreed)} of {clients} clients agreed on who survived, but {needed} must"
        hiding = {name for name, _ in self.parts - self.exposed - shown}.intersection(agreed)
        needed = covering_quorum(self.parts, self.rules, self.exposed)
        if len(hiding) < min(needed, len(agreed)):
            return (
                f"{len(hiding)} of the clients among which others are hidden agreed on who "
                f"survived, but {needed} must"
            )
        return ""

    @cached_property
    def _graph(self) -> Graph:
        return Graph(self.context.digest(b"", "ring"), self.names, self.plan.degree)

    def neighbours(self, name: str) -> tuple[str, ...]:
        """The neighbours of a client, sorted."""
        if name not in self._neighbours:
            self._neighbours[name] = self._graph.neighbours(name)
        return self._neighbours[name]

    def holders(self, name: str) -> tuple[str, ...]:
        """Who holds shares of a client's secrets, sorted: its neighbours, and itself (of its self
        seed only).
        """
        return tuple(sorted((name, *self.neighbours(name))))

    def agreed(self, name: str, survivors: str) -> dict[str, Any]:
        """The header by which a client agrees to survivors, given by the SHA-256 of their bytes."""
        return _agreed(self.context, name, self.join(name).sequence, survivors)

    def verify_agreed(self, name: str, survivors: str, signature: bytes, key: PublicKey) -> None:
        """Raise EvidenceError unless `key` signed the agreement of this client."""
        try:
            SAID.signed(header_bytes(self.agreed(name, survivors), b""), signature).verify(key)
        except EvidenceError as problem:
            raise EvidenceError(
                f"the agreement of {name} is not signed by the key pinned for it: the server made "
                f"it up, or altered it ({problem})"
            ) from problem

    def sequences(self, clients: Sequence[str]) -> list[tuple[str, int]]:
        """These clients, each with the sequence number that it joined with."""
        return [(name, self.join(name).sequence) for name in clients]


@lru_cache(maxsize=_KEPT)
def _read(data: bytes) -> Roster:
    header, body = read_server_message("roster", data)
    clients = header["clients"]
    if not isinstance(clients, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in clients
    ):
        raise FormatError("the clients of a roster must be a list of names with sequence numbers")
    order = names([name for name, _ in clients], "the clients of a roster")
    exposed = names(header.get("exposed", []), "the exposed clients of a roster")
    if not set(exposed) <= set(order) or ("exposed" in header and not exposed):
        raise FormatError("the exposed clients of a roster must be some of its clients")
    joins = []
    keys = pieces(body, len(clients), 2 * KEY_BYTES + SIGNATURE_BYTES, "the keys of a roster")
    for name, (_, sequence), piece in zip(order, clients, keys, strict=True):
        cipher = checked_public(piece[:KEY_BYTES], f"the cipher key of {name}")
        mask = checked_public(piece[KEY_BYTES : 2 * KEY_BYTES], f"the mask key of {name}")
        joins.append(
            (
                Join(
                    name,
                    schema.count(sequence, f"the sequence number of {name}"),
                    cipher,
                    mask,
                    name in exposed,
                ),
                piece[2 * KEY_BYTES :],
            )
        )
    return Roster(data, opening_of(header), rules_of(header), joins)
