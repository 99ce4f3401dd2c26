"""Entries of the audit log: canonical JSON objects, each of a kind that has exactly its own fields.

Entries hold digests, counts, names of institutions and times; never statistics, features, subjects or samples' ids.
Law: `entry(**read(data)) == data` for every `data` that `read` takes.
"""

from __future__ import annotations

from typing import Any

from expunge import canonical
from expunge.errors import FormatError
from expunge.evidence import fields
from expunge.signing import PublicKey

_ROLES = ("client", "officer", "operator")
_MESSAGES = ("gram", "rows", "factor", "group", "none")
_PUBLISHED = fields.or_empty(fields.digest)  # "" where no head can be published


def _summary_value(value: Any, what: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise FormatError(f"{what} must be a string or an integer, got {value!r:.80}")
    return value


KINDS: dict[str, dict[str, fields.Check]] = {
    "founded": {
        "federation": fields.federation,
        "spec": fields.digest,
        "server": fields.digest,  # the id of `key`
        "key": fields.key_text,
        "solver": fields.text,
    },
    "enrolled": {"name": fields.name, "role": fields.one_of(*_ROLES), "key": fields.key_text},
    "changed": {  # a client's request took effect
        "client": fields.name,
        "sequence": fields.count,
        "request": fields.digest,
        "message": fields.one_of(*_MESSAGES),
        "added": fields.count,
        "deleted": fields.count,
        "added_commitments": fields.digest,
        "deleted_commitments": fields.digest,
        "leave": fields.boolean,
        "reset": fields.boolean,
        "orders": fields.lists(fields.objects({"order": fields.identifier, "found": fields.found})),
        "audits": fields.lists(fields.identifier),
        "round": fields.count,
        "ledger_before": fields.digest,
        "ledger_after": fields.digest,
        "head": _PUBLISHED,
        "spec": fields.digest,
        "erased_by": fields.time,
        "generation": fields.count,  # of the journal
    },
    "forwarded": {  # with the `changed` entry of an aggregator's request: the log of its group, of which the request is the state
        "client": fields.name,
        "sequence": fields.count,
        "size": fields.count,
        "root": fields.digest,
    },
    "aggregated": {  # a round of secure aggregation took effect: the server saw sums over these clients, and no single request
        "aggregation": fields.identifier,
        "clients": fields.lists(fields.objects({"client": fields.name, "sequence": fields.count, "request": fields.digest})),
        "added": fields.count,
        "deleted": fields.count,
        "round": fields.count,
        "ledger_before": fields.digest,
        "ledger_after": fields.digest,
        "head": _PUBLISHED,
        "spec": fields.digest,
        "erased_by": fields.time,
        "generation": fields.count,
    },
    "commanded": {  # by an operator or an officer
        "actor": fields.name,
        "sequence": fields.count,
        "command": fields.digest,
        "action": fields.identifier,
        "summary": fields.mapping(fields.identifier, _summary_value),
    },
    "amended": {
        "spec_before": fields.digest,
        "spec_after": fields.digest,
        "actor": fields.name,
        "ledger": fields.digest,
        "head": _PUBLISHED,
    },
    "erased": {
        "first": fields.count,
        "generation": fields.count,
        "round": fields.count,
    },  # the keys of these generations are gone
    "ordered": {
        "order": fields.identifier,
        "subject": fields.digest,
        "deadline": fields.time,
        "clients": fields.lists(fields.name),
    },
    "answered": {
        "order": fields.identifier,
        "client": fields.name,
        "found": fields.found,
        "sequence": fields.count,
    },
    "completed": {"order": fields.identifier},
    "audited": {
        "audit": fields.identifier,
        "result": fields.one_of("equal", "different"),
        "clients": fields.lists(fields.name),
        "ledger": fields.digest,
        "recomputed": fields.digest,
        "count": fields.count,
    },
    "forgotten": {  # a client that vanished
        "client": fields.name,
        "count": fields.found,  # not disclosed where several were forgotten in one round of secure aggregation
        "ledger_before": fields.digest,
        "ledger_after": fields.digest,
        "head": _PUBLISHED,
    },
    "rotated": {"old": fields.digest, "new": fields.digest, "key": fields.key_text},
    "restored": {"size": fields.count, "withheld": fields.lists(fields.name)},
}


def entry(kind: str, time: str, **content: Any) -> bytes:
    """The bytes of an entry; a field that is missing, unknown or of another form is refused by name."""
    return canonical.encode(checked({"kind": kind, "time": time, **content}))


def read(data: bytes) -> dict[str, Any]:
    """The inverse of `entry`."""
    return checked(canonical.decode(data, "an entry of the audit log"))


def checked(value: object) -> dict[str, Any]:
    """`value`, if it is the object of an entry."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str) or kind not in KINDS:
        raise FormatError(f"this is no entry of the audit log of a known kind: {value!r:.80}")
    what = f"the log entry {kind!r}"
    checks = KINDS[kind]
    canonical.require_keys(value, what, frozenset(checks) | {"kind", "time"})
    fields.time(value["time"], f"'time' of {what}")
    for key, check in checks.items():
        check(value[key], f"{key!r} of {what}")
    _check_key_id(value, what)
    return value


def _check_key_id(value: dict[str, Any], what: str) -> None:
    """Where an entry has both a key and its id, they belong together."""
    for kind, key_id in (("founded", "server"), ("rotated", "new")):
        if value["kind"] == kind and PublicKey.from_text(value["key"]).id != value[key_id]:
            raise FormatError(f"{key_id!r} of {what} is not the id of its key")
