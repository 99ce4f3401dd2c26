"""Turns: what clients say in rounds of secure aggregation, read and checked for who signed it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from expunge.errors import EvidenceError, ExpungeError, RefusedError
from expunge.privacy.aggregation import Introduction, introduced
from expunge.protocol import speech
from expunge.server.core import Core
from expunge.signing import Envelope


@dataclass(frozen=True)
class Turn:
    """What a client says: a message of a phase, or only that it asks."""

    client: str
    aggregation: str  # the round, or empty before it has joined one
    sequence: int
    reset: bool
    message: bytes | memoryview | None
    digest: str
    wait: int = 0  # seconds that it would like to wait for a change


def read_turn(core: Core, data: bytes | memoryview) -> Turn:
    """Who says what; signed by the key that this client enrolled. RefusedError otherwise."""
    digest = hashlib.sha256(data).hexdigest()
    try:
        if bytes(data[:1]) != b"{":
            header = introduced(data)
            _require_federation(core, header.federation)
            _verify(core, header, header.client)
            return Turn(header.client, header.round, header.sequence, False, data, digest)
        envelope, content = speech.overheard("turn", bytes(data))
    except RefusedError:
        raise
    except ExpungeError as problem:
        raise RefusedError("malformed", str(problem)) from problem
    _require_federation(core, content["federation"])
    name = content["actor"]
    _verify(core, envelope, name)
    return Turn(name, content["aggregation"], content["sequence"], content["reset"], None, digest, content["wait"])


def _verify(core: Core, said: Introduction | Envelope, name: str) -> None:
    try:
        said.verify(core.actor(name, "client").key)
    except EvidenceError as problem:
        raise RefusedError("bad-signature", f"this is not signed by the key that {name} enrolled") from problem


def _require_federation(core: Core, federation: str) -> None:
    if federation != core.federation:
        raise RefusedError("wrong-federation", f"this is federation {core.federation}, not {federation}")
