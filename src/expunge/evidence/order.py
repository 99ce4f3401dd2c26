"""An erasure order as a bundle tells it. All but the subject's names and the reference follows from the audit log.

A client has settled an order when it answered (found so many samples and deleted them, or found none), or when, after the order,
it left or was forgotten with all that it held. The log may then have an answer of 0 in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from expunge.errors import EvidenceError, FormatError
from expunge.evidence import fields
from expunge.evidence.digests import SALT_BYTES
from expunge.evidence.logged import Logged


def _reference(value: Any, what: str) -> Any:
    if value == "":
        raise FormatError(f"{what} is empty: an order without a reference has none")
    return fields.text(value, what)


_FIELDS: dict[str, fields.Check] = {
    "id": fields.identifier,
    "subject": fields.text,
    "subjects": fields.mapping(fields.name, fields.text),
    "salt": fields.or_empty(fields.digest),
    "filed": fields.time,
    "deadline": fields.time,
    "completed": fields.or_empty(fields.time),
    "state": fields.one_of("open", "overdue", "complete"),
    "answers": fields.lists(
        fields.objects({"client": fields.name, "found": fields.found, "sequence": fields.count, "time": fields.time})
    ),
}
_CHECK = fields.objects(_FIELDS)
_CHECK_REFERRED = fields.objects(_FIELDS | {"reference": _reference})


@dataclass(frozen=True)
class Order:
    """An erasure order at the time of the bundle. `subjects` has the names of those clients that know the subject by another.

    `reference` is what officers call the order in their own files; "" if it has none, and then no byte tells of references.
    """

    id: str
    subject: str
    subjects: dict[str, str]
    salt: bytes | None
    filed: str
    deadline: str
    completed: str  # "" if it is not
    state: str  # "open", "overdue" or "complete"
    answers: tuple[dict[str, Any], ...]
    reference: str = ""

    @classmethod
    def of(
        cls,
        order: str,
        subject: str,
        subjects: Mapping[str, str],
        salt: bytes | None,
        *,
        entries: Sequence[Logged],
        time: str,
        reference: str = "",
    ) -> Order:
        """The order that these entries of the log tell of; refused where they contradict one another."""
        if salt is not None and len(salt) != SALT_BYTES:
            raise EvidenceError(f"the salt of order {order} must have {SALT_BYTES} bytes, got {len(salt)}")
        ordered = _only("ordered", order, entries)
        if ordered is None:
            raise EvidenceError(f"the log entries of a bundle must have the one that filed order {order}")
        strange = [logged.entry["order"] for logged in entries if logged.entry.get("order", order) != order]
        if strange:
            raise EvidenceError(f"the bundle is of order {order}, but has a log entry of order {strange[0]}")
        completed = _only("completed", order, entries)
        answers = [logged for logged in entries if logged.entry["kind"] == "answered"]
        _check_answers(order, ordered, answers, entries)
        waiting = sorted(set(ordered.entry["clients"]) - settled(ordered, entries))
        if completed is not None and (waiting or any(logged.index > completed.index for logged in answers)):
            raise EvidenceError(f"order {order} was logged as complete before all of its clients had answered: {waiting}")
        deadline = ordered.entry["deadline"]
        return cls(
            order,
            subject,
            dict(subjects),
            salt,
            ordered.entry["time"],
            deadline,
            "" if completed is None else completed.entry["time"],
            "complete" if completed is not None else "overdue" if time > deadline else "open",
            tuple({name: logged.entry[name] for name in ("client", "found", "sequence", "time")} for logged in answers),
            reference,
        )

    def to_json(self) -> dict[str, Any]:
        """The order as a JSON value."""
        return {
            "id": self.id,
            "subject": self.subject,
            "subjects": self.subjects,
            "salt": "" if self.salt is None else self.salt.hex(),
            "filed": self.filed,
            "deadline": self.deadline,
            "completed": self.completed,
            "state": self.state,
            "answers": list(self.answers),
            **({"reference": self.reference} if self.reference else {}),
        }

    @classmethod
    def from_json(cls, value: object) -> Order:
        """The inverse of `to_json`."""
        check = _CHECK_REFERRED if isinstance(value, dict) and "reference" in value else _CHECK
        parts = check(value, "the order of a bundle")
        salt = bytes.fromhex(parts["salt"]) or None
        return cls(**{**parts, "salt": salt, "answers": tuple(parts["answers"])})


def lists_order(request: Mapping[str, Any], order: str) -> bool:
    """Whether a `changed` entry says itself that it answers the order."""
    return any(answer["order"] == order for answer in request["orders"])


def settled(ordered: Logged, entries: Sequence[Logged]) -> set[str]:
    """The clients that answered, or that left or were forgotten after the order was filed."""
    after = [logged.entry for logged in entries if logged.index > ordered.index]
    answered = {entry["client"] for entry in after if entry["kind"] in ("answered", "forgotten")}
    return answered | {entry["client"] for entry in after if entry["kind"] == "changed" and entry["leave"]}


def _only(kind: str, order: str, entries: Sequence[Logged]) -> Logged | None:
    found = [logged for logged in entries if logged.entry["kind"] == kind]
    if len(found) > 1:
        raise EvidenceError(f"the bundle of order {order} must have one log entry of kind {kind!r}, got {len(found)}")
    return found[0] if found else None


def _check_answers(order: str, ordered: Logged, answers: Sequence[Logged], entries: Sequence[Logged]) -> None:
    """Every answer is of a client that was asked, after it was asked, once, and what its request says; or the client is gone."""
    clients = [logged.entry["client"] for logged in answers]
    if len(set(clients)) != len(clients) or not set(clients) <= set(ordered.entry["clients"]):
        raise EvidenceError(f"order {order} has two answers of one client, or an answer of a client that was not asked")
    requests = {(e["client"], e["sequence"]): e for e in (logged.entry for logged in entries) if e["kind"] == "changed"}
    vanished = {logged.entry["client"] for logged in entries if logged.entry["kind"] == "forgotten"}
    for logged in answers:
        entry = logged.entry
        if logged.index < ordered.index:
            raise EvidenceError(f"the answer of {entry['client']} to order {order} stands before the order in the log")
        request = requests.get((entry["client"], entry["sequence"]))
        if request is None and entry["client"] not in vanished:
            raise EvidenceError(f"the answer of {entry['client']} to order {order} has no log entry of its request")
        if request is None or (request["leave"] and not lists_order(request, order)):
            said = entry["found"] == 0  # the client is gone: the server closed the question for it
        else:
            enough = entry["found"] <= request["deleted"] or request["reset"] or request["message"] == "group"
            said = enough and {"order": order, "found": entry["found"]} in request["orders"]
        if not said:
            raise EvidenceError(
                f"the log says that {entry['client']} found {entry['found']} samples for order {order}; its request does not"
            )
