"""What a round costs a client and the log, in bytes, before there is one.

Everything follows from the spec and the names of the clients: the plan says how many neighbours
each has, and every message has a fixed form. A round is counted in which nobody drops out. Not
counted are the questions of a client that waits for others, and what HTTP and TLS add.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from expunge.crypto import canonical
from expunge.crypto.keys import SIGNATURE_BYTES, SigningKey
from expunge.errors import SpecError
from expunge.evidence.log import make_entry
from expunge.ridge.spec import Aggregation, Spec
from expunge.secagg import messages
from expunge.secagg.keys import KEY_BYTES
from expunge.secagg.masks import length
from expunge.secagg.parcels import PARCEL_BYTES
from expunge.secagg.plan import Opening, plan
from expunge.secagg.roster import Join, Roster
from expunge.secagg.shamir import SHARE_BYTES
from expunge.wire import payloads

_ENTRY_BYTES = 16  # of a vector
_DIGEST = "0" * 64
_ROUND = "0" * 32
_TIME = "2026-01-01T00:00:00Z"
_KEY = SigningKey(bytes(32))  # signatures of every key have the same length


@dataclass(frozen=True)
class RoundTraffic:
    """Bytes of one round: sent and received by one client, and added to the audit log."""

    sent: int
    received: int
    logged: int


class RoundSizes:
    """The sizes of the messages of one round, of clients that have these names and this sequence
    number.
    """

    def __init__(self, spec: Spec, names: Sequence[str], sequence: int = 1000) -> None:
        if spec.aggregation is None:
            raise SpecError("a spec without rules of aggregation has no rounds")
        self._spec = spec
        self._rules: Aggregation = spec.aggregation
        self._names = sorted(names)
        self._sequence = sequence
        self._degree = plan(self._rules, len(names)).degree
        self._opening = Opening(_ROUND, _ROUND, "change", spec.data_digest, spec.labels_digest)

    def of(self, name: str) -> RoundTraffic:
        """What the round costs the client of this name, and the log."""
        entry = self._entry()
        received = sum(
            len(self._standing(name, content)) for content in (0, *self._told(name).values())
        )
        received += len(self._standing(name, 0, canonical.decode(entry)))
        return RoundTraffic(sum(self.sent(name).values()), received, len(entry))

    def sent(self, name: str) -> dict[str, int]:
        """The bytes of each message that this client sends: exactly those of a round in which
        nobody drops out.
        """
        digests = {
            "shares": ("own", "roster", "seed"),
            "masked": ("deliveries", "roster"),
            "agreed": ("roster", "survivors"),
            "reveal": ("roster", "survivors"),
        }
        bodies = {
            "shares": self._degree * PARCEL_BYTES,
            "masked": length(self._spec) * _ENTRY_BYTES,
            "reveal": (1 + self._degree) * SHARE_BYTES,
        }
        join = Join(name, self._sequence, bytes(KEY_BYTES), bytes(KEY_BYTES))
        sizes = {
            "turn": len(self._turn(name)),
            "join": _said(join.header(self._opening, self._rules)),
        }
        for kind, fields in digests.items():
            header = self._header(kind) | dict.fromkeys(fields, _DIGEST) | {"client": name}
            header |= {"sequence": self._sequence}
            header |= {"length": length(self._spec)} if kind == "masked" else {}
            sizes[kind] = _said(header) + bodies.get(kind, 0)
        return sizes

    def _header(self, kind: str) -> dict[str, Any]:
        return {"federation": _ROUND, "kind": kind, "round": _ROUND}

    def _turn(self, name: str) -> bytes:
        content = {
            "actor": name,
            "aggregation": "",
            "federation": _ROUND,
            "reset": False,
            "sequence": self._sequence,
            "wait": 0,
        }
        return payloads.sign("turn", content, _KEY)

    def _told(self, name: str) -> dict[str, int]:
        """The bytes that the server tells this client in each phase."""
        join, signature = Join(name, self._sequence, bytes(KEY_BYTES), bytes(KEY_BYTES)), bytes(64)
        joins = [
            (Join(other, self._sequence, join.cipher, join.mask), signature)
            for other in self._names
        ]
        about, count = {"roster": _DIGEST}, len(self._names)
        lists: dict[str, tuple[dict[str, Any], int]] = {
            "deliveries": (
                {"client": name, "senders": self._names[: self._degree]},
                self._degree * PARCEL_BYTES,
            ),
            "survivors": ({"clients": self._names}, 0),
            "agreements": (
                {"clients": self._names, "survivors": _DIGEST},
                count * SIGNATURE_BYTES,
            ),
        }
        sizes = {"roster": len(Roster.write(self._opening, self._rules, joins))}
        for kind, (fields, body) in lists.items():
            header = self._header(kind) | about | fields
            sizes[kind] = len(messages.write_server_message(header)) + body
        return sizes

    def _standing(self, name: str, content: int, receipt: object = None) -> bytes:
        """An answer of the server that has this many bytes for a client, or a receipt."""
        answer = {
            "actor": name,
            "aggregation": _ROUND,
            "content": base64.b64encode(bytes(content)).decode("ascii"),
            "federation": _ROUND,
            "fewest": self._rules.fewest,
            "joined": len(self._names),
            "opening": self._opening.to_json() if not content and receipt is None else None,
            "phase": "joining",
            "purpose": "change",
            "reason": "",
            "receipt": receipt,
            "time": _TIME,
            "to": _DIGEST,
        }
        return payloads.sign("standing", answer, _KEY)

    def _entry(self) -> bytes:
        """The entry of the round in the audit log."""
        return make_entry(
            "aggregated",
            _TIME,
            aggregation=_ROUND,
            clients=[
                {"client": name, "request": _DIGEST, "sequence": self._sequence}
                for name in self._names
            ],
            added=0,
            deleted=0,
            round=self._sequence,
            ledger_before=_DIGEST,
            ledger_after=_DIGEST,
            head=_DIGEST,
            spec=_DIGEST,
            erased_by=_TIME,
            generation=1,
        )


def _said(header: dict[str, Any]) -> int:
    """The bytes of a client's message with this header, but for its body."""
    return len(messages.sign(header, b"", _KEY))
