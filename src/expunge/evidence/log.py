"""The audit log as evidence: entries, checkpoints, and proofs that an entry is in the log.

An entry is a canonical JSON object of a kind that has exactly its own fields. Entries hold digests,
counts, names of institutions and times; never statistics, features, subjects or samples' ids. Law:
`make_entry(**read_entry(data)) == data` for every `data` that `read_entry` accepts. Some kinds have
a second version, which says so and has more fields; entries of the first are read as ever.

A `Checkpoint` is the state of the log at one moment, in 32 bytes. `Logged` is an entry together
with the proof that it is in the log. A `Frontier` is the roots of a log's complete subtrees, which
is all that is needed to append and to know the root. Law: `Frontier().extended(entries)` has the
root of RFC 9162 over those entries, in however many steps they were appended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

from expunge import kinds
from expunge.crypto import PublicKey, canonical
from expunge.errors import EvidenceError, FormatError
from expunge.evidence import merkle
from expunge.evidence.merkle import EMPTY_ROOT, leaf_hash, node_hash
from expunge.wire import schema

_CHECK_CHECKPOINT = schema.objects(
    {
        "federation": schema.federation,
        "root": schema.digest,
        "size": schema.count,
        "time": schema.time,
    }
)


@dataclass(frozen=True)
class Checkpoint:
    """The Merkle root of the first entries of a federation's audit log, at one time.

    Two checkpoints of the same size and federation with different roots show that the server keeps
    two logs. Law: `from_json(c.to_json()) == c`.

    Attributes
    ----------
    federation : str
        The federation's id, 32 hexadecimal digits.
    size : int
        How many entries the log has.
    root : bytes
        The Merkle root of RFC 9162 over these entries, 32 bytes.
    time : str
        When the checkpoint was made, in UTC.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.crypto import Envelope
    >>> from expunge.evidence import Checkpoint
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> envelope = Envelope.from_bytes(federation.carrier.checkpoint(), "checkpoint")
    >>> checkpoint = Checkpoint.from_json(envelope.verify(federation.office.server))
    >>> checkpoint.size, len(checkpoint.root)
    (2, 32)
    >>> federation.close()
    >>> folder.cleanup()
    """

    federation: str
    size: int
    root: bytes
    time: str

    def to_json(self) -> dict[str, Any]:
        """The checkpoint as a JSON value; `from_json` is the inverse.

        Returns
        -------
        dict
            `federation`, `root` (hexadecimal), `size` and `time`: the payload of an envelope of
            kind `checkpoint`, or a part of other evidence.
        """
        return {
            "federation": self.federation,
            "root": self.root.hex(),
            "size": self.size,
            "time": self.time,
        }

    @classmethod
    def from_json(cls, value: object) -> Checkpoint:
        """The checkpoint of a JSON value.

        Parameters
        ----------
        value : object
            What `to_json` returned.

        Returns
        -------
        Checkpoint
            The checkpoint; who signed it is for the caller to verify.

        Raises
        ------
        FormatError
            The value is not a checkpoint.
        """
        parts = _CHECK_CHECKPOINT(value, "a checkpoint")
        return cls(parts["federation"], parts["size"], bytes.fromhex(parts["root"]), parts["time"])


_CHECK_FRONTIER = schema.objects({"size": schema.count, "hashes": schema.lists(schema.digest)})


@dataclass(frozen=True)
class Frontier:
    """The complete subtrees of a log of `size` entries, the largest first: one for each bit of the
    size.
    """

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if len(self.hashes) != self.size.bit_count():
            raise FormatError(
                f"the frontier of {self.size} entries has {self.size.bit_count()} hashes"
            )

    def extended(self, entries: Iterable[bytes]) -> Frontier:
        """The frontier with these entries appended."""
        size, hashes = self.size, list(self.hashes)
        for entry in entries:
            current, position = leaf_hash(entry), size
            while position % 2:
                current, position = node_hash(hashes.pop(), current), position // 2
            hashes.append(current)
            size += 1
        return Frontier(size, tuple(hashes))

    @property
    def root(self) -> bytes:
        """The root of the log."""
        if not self.hashes:
            return EMPTY_ROOT
        return reduce(
            lambda right, left: node_hash(left, right), reversed(self.hashes[:-1]), self.hashes[-1]
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON value; `from_json` is its inverse."""
        return {"hashes": [digest.hex() for digest in self.hashes], "size": self.size}

    @classmethod
    def from_json(cls, value: object) -> Frontier:
        """The inverse of `to_json`."""
        parts = _CHECK_FRONTIER(value, "the frontier of a log")
        return cls(parts["size"], tuple(bytes.fromhex(text) for text in parts["hashes"]))


_PUBLISHED = schema.or_empty(schema.digest)  # "" where no head can be published


def _summary_value(value: Any, what: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise FormatError(f"{what} must be a string or an integer, got {value!r:.80}")
    return value


_EFFECT: dict[str, schema.Check] = {  # of a request, or of a sum of requests
    "round": schema.count,
    "ledger_before": schema.digest,
    "ledger_after": schema.digest,
    "head": _PUBLISHED,
    "spec": schema.digest,
    "erased_by": schema.time,
    "generation": schema.count,  # of the journal
}
_MEMBERS = schema.lists(
    schema.objects({"client": schema.name, "sequence": schema.count, "request": schema.digest})
)
EntryKind = Literal[
    "founded",
    "enrolled",
    "changed",
    "forwarded",
    "aggregated",
    "voided",
    "judged",
    "excluded",
    "commanded",
    "amended",
    "erased",
    "ordered",
    "answered",
    "completed",
    "audited",
    "digested",
    "forgotten",
    "rotated",
    "restored",
    "corrected",
]

ENTRY_KINDS: dict[EntryKind, dict[str, schema.Check]] = {
    "founded": {
        "federation": schema.federation,
        "spec": schema.digest,
        "server": schema.digest,  # the id of `key`
        "key": schema.key_text,
        "solver": schema.text,
    },
    "enrolled": {"name": schema.name, "role": schema.role, "key": schema.key_text},
    "changed": {  # a client's request took effect
        "client": schema.name,
        "sequence": schema.count,
        "request": schema.digest,
        "message": schema.one_of(*kinds.REQUEST_KINDS),
        "added": schema.count,
        "deleted": schema.count,
        "added_commitments": schema.digest,
        "deleted_commitments": schema.digest,
        "leave": schema.boolean,
        "reset": schema.boolean,
        "orders": schema.lists(schema.objects({"order": schema.identifier, "found": schema.found})),
        "audits": schema.lists(schema.identifier),
        **_EFFECT,
    },
    # With the `changed` entry of an aggregator's request: the log of its group, of which the
    # request is the state
    "forwarded": {
        "client": schema.name,
        "sequence": schema.count,
        "size": schema.count,
        "root": schema.digest,
    },
    # A round of secure aggregation took effect: the server saw sums over these clients, and no
    # single request
    "aggregated": {
        "aggregation": schema.identifier,
        "clients": _MEMBERS,
        "added": schema.count,
        "deleted": schema.count,
        **_EFFECT,
    },
    # The sum of a round of secure aggregation was false, and was not applied
    "voided": {
        "aggregation": schema.identifier,
        "clients": _MEMBERS,
        "reason": schema.one_of(*kinds.VOID_REASONS),
        "roster": schema.digest,
        "size": schema.count,  # of the roster
        "agreed": schema.mapping(schema.name, schema.signature),  # who signed this sum
    },
    # The arbiter has said whose part of a false sum was false
    "judged": {"aggregation": schema.identifier, "verdict": schema.envelope_json},
    # Of the clients that others wait for, to repeat a sum, these were silent for too long
    "excluded": {
        "aggregation": schema.identifier,
        "clients": schema.lists(schema.objects({"client": schema.name, "sequence": schema.count})),
        "excluded": schema.lists(schema.name),
    },
    "commanded": {  # by an operator or an officer
        "actor": schema.name,
        "sequence": schema.count,
        "command": schema.digest,
        "action": schema.identifier,
        "summary": schema.mapping(schema.identifier, _summary_value),
    },
    "amended": {
        "spec_before": schema.digest,
        "spec_after": schema.digest,
        "actor": schema.name,
        "ledger": schema.digest,
        "head": _PUBLISHED,
    },
    # the keys of these generations are gone
    "erased": {"first": schema.count, "generation": schema.count, "round": schema.count},
    "ordered": {
        "order": schema.identifier,
        "subject": schema.digest,
        "deadline": schema.time,
        "clients": schema.lists(schema.name),
    },
    "answered": {
        "order": schema.identifier,
        "client": schema.name,
        "found": schema.found,
        "sequence": schema.count,
    },
    "completed": {"order": schema.identifier},
    "audited": {
        "audit": schema.identifier,
        "result": schema.one_of(*kinds.AUDIT_RESULTS),
        "clients": schema.lists(schema.name),
        "ledger": schema.digest,
        "recomputed": schema.digest,
        "count": schema.count,
    },
    # A digest of the sums, in the place of one that bound them by their samples (`changed`,
    # version 2)
    "digested": {
        "round": schema.count,  # the last that is in them
        "count": schema.count,
        "ledger": schema.digest,
        "head": _PUBLISHED,
    },
    "forgotten": {  # a client that vanished
        "client": schema.name,
        # Not disclosed where several were forgotten in one round of secure aggregation
        "count": schema.found,
        "ledger_before": schema.digest,
        "ledger_after": schema.digest,
        "head": _PUBLISHED,
    },
    "rotated": {"old": schema.digest, "new": schema.digest, "key": schema.key_text},
    "restored": {"size": schema.count, "withheld": schema.lists(schema.name)},
    # The server's clock was ahead: how the times from entry `first` to this one are to be read
    "corrected": {
        "first": schema.count,
        "after": schema.time,  # no entry from the first on was made before
        "ahead": schema.count,  # seconds, at the most
        # Of orders that were filed from the first on
        "orders": schema.lists(
            schema.objects({"order": schema.identifier, "deadline": schema.time})
        ),
    },
}

# What the second version of a kind has beyond the first.
SECOND_VERSIONS: dict[EntryKind, dict[str, schema.Check]] = {
    "changed": {
        "version": schema.versions(2),
        "binds": schema.one_of(*kinds.BOUND),  # what `ledger_after` is a digest of
        # With "samples": how many entries the log had when the digest of the sums was made that
        # the binding builds on. With "sums": null.
        "base": schema.or_null(schema.count),
    },
    "judged": {
        "version": schema.versions(2),
        # Of those found false that had not agreed to the sum: header and signature of what they
        # sent, in Base64
        "masked": schema.mapping(schema.name, schema.lists(schema.string)),
    },
    "restored": {
        "version": schema.versions(2),
        "id": schema.digest,  # random: two restores of one backup are two, at one time as well
    },
    "audited": {
        "version": schema.versions(2),
        "current": schema.digest,  # of the ledger, as receipts named it when it was audited
    },
}


def make_entry(kind: EntryKind, time: str, **content: Any) -> bytes:
    """The bytes of an entry; a field that is missing, unknown or of another form is refused by
    name.
    """
    return canonical.encode(check_entry({"kind": kind, "time": time, **content}))


def read_entry(data: bytes) -> dict[str, Any]:
    """The inverse of `entry`."""
    return check_entry(canonical.decode(data, "an entry of the audit log"))


def check_entry(value: object) -> dict[str, Any]:
    """`value`, if it is the object of an entry."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str) or kind not in ENTRY_KINDS:
        raise FormatError(f"this is no entry of the audit log of a known kind: {value!r:.80}")
    what = f"the log entry {kind!r}"
    checks = ENTRY_KINDS[kind]
    if "version" in value:
        checks = checks | SECOND_VERSIONS.get(kind, {})
    canonical.require_keys(value, what, frozenset(checks) | {"kind", "time"})
    schema.time(value["time"], f"'time' of {what}")
    for key, check in checks.items():
        check(value[key], f"{key!r} of {what}")
    _check_key_id(value, what)
    _check_binding(value, what)
    return value


def _check_binding(value: dict[str, Any], what: str) -> None:
    """Samples are bound on a base, and only by messages that open their commitments."""
    by_samples = binds_of(value) == "samples"
    if by_samples != (value.get("base") is not None):
        raise FormatError(f"'base' of {what} is for a digest that binds samples, and for no other")
    if by_samples and value["message"] not in ("rows", "none"):
        raise FormatError(
            f"'binds' of {what} must be 'sums': a message of kind {value['message']!r} opens no "
            "commitments"
        )


def binds_of(entry: dict[str, Any]) -> kinds.Bound:
    """What the digest of the ledger in an entry is of; in the first version, of all sums."""
    bound: kinds.Bound = entry.get("binds", "sums")
    return bound


def corrected_time(corrected: Mapping[str, Any], time: str) -> str:
    """When something happened that was stamped with this time by a clock that was ahead, as far as
    it is known by the `corrected` entry about it.

    Law: the order of times stays, and none is later than that of the `corrected` entry.
    """
    if time <= corrected["time"]:
        return time
    earlier = schema.time_seconds(time) - int(corrected["ahead"])
    after: str = corrected["after"]
    return max(schema.time_text(max(0, earlier)), after)


def _check_key_id(value: dict[str, Any], what: str) -> None:
    """Where an entry has both a key and its id, they belong together."""
    for kind, key_id in (("founded", "server"), ("rotated", "new")):
        if value["kind"] == kind and PublicKey.from_text(value["key"]).id != value[key_id]:
            raise FormatError(f"{key_id!r} of {what} is not the id of its key")


_POSITION = {"index": schema.count, "proof": schema.lists(schema.digest)}
check_position = schema.objects(_POSITION)
_CHECK_LOGGED = schema.objects({**_POSITION, "entry": lambda value, _: check_entry(value)})


@dataclass(frozen=True)
class Logged:
    """An entry of the audit log with its position and an inclusion proof.

    Attributes
    ----------
    entry : dict
        The entry: its `kind` and `time`, and the fields of that kind (docs/protocol.md).
    index : int
        Its position in the log, counted from 0.
    proof : tuple of bytes
        The inclusion proof of RFC 9162 for some checkpoint of the log, hashes of 32 bytes.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.crypto import Envelope
    >>> from expunge.evidence import Checkpoint, Logged
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> carrier = federation.carrier
    >>> envelope = Envelope.from_bytes(carrier.checkpoint(), "checkpoint")
    >>> checkpoint = Checkpoint.from_json(envelope.verify(federation.office.server))
    >>> (entry,) = carrier.entries(0, 1)
    >>> logged = Logged.of(entry, 0, carrier.inclusion(0, checkpoint.size))
    >>> logged.verify(checkpoint)
    >>> logged.entry["kind"]
    'founded'
    >>> federation.close()
    >>> folder.cleanup()
    """

    entry: dict[str, Any]
    index: int
    proof: tuple[bytes, ...]

    @classmethod
    def of(cls, entry: bytes, index: int, proof: Sequence[bytes]) -> Logged:
        """Combine an entry, as the log holds it, with its position and proof.

        Parameters
        ----------
        entry : bytes
            The entry in canonical JSON.
        index : int
            Its position in the log.
        proof : sequence of bytes
            Its inclusion proof.

        Returns
        -------
        Logged
            The parts, which are not verified yet.

        Raises
        ------
        FormatError
            The bytes are not an entry of a known kind.
        """
        return cls(read_entry(entry), index, tuple(proof))

    @classmethod
    def at(cls, entry: object, position: object) -> Logged:
        """Combine an entry's JSON object with the position that stands beside it in other evidence.

        Parameters
        ----------
        entry : object
            The entry as a JSON object.
        position : object
            `{"index": ..., "proof": [...]}`, with the hashes in hexadecimal.

        Returns
        -------
        Logged
            The parts, which are not verified yet.

        Raises
        ------
        FormatError
            Either is of another form.
        """
        parts = check_position(position, "a position in the log")
        proof = tuple(bytes.fromhex(text) for text in parts["proof"])
        return cls(check_entry(entry), parts["index"], proof)

    def position(self) -> dict[str, Any]:
        """The index and proof as a JSON value.

        Returns
        -------
        dict
            `index` and `proof` (hexadecimal).
        """
        return {"index": self.index, "proof": [sibling.hex() for sibling in self.proof]}

    def to_json(self) -> dict[str, Any]:
        """The three parts as one JSON value; `from_json` is the inverse.

        Returns
        -------
        dict
            `entry`, `index` and `proof` (hexadecimal).
        """
        return {"entry": self.entry, **self.position()}

    @classmethod
    def from_json(cls, value: object) -> Logged:
        """The three parts of a JSON value.

        Parameters
        ----------
        value : object
            What `to_json` returned.

        Returns
        -------
        Logged
            The parts, which are not verified yet.

        Raises
        ------
        FormatError
            The value is of another form.
        """
        parts = _CHECK_LOGGED(value, "an entry with its proof")
        return cls(
            parts["entry"], parts["index"], tuple(bytes.fromhex(text) for text in parts["proof"])
        )

    def verify(self, checkpoint: Checkpoint) -> None:
        """Return if exactly this entry is at this position of the checkpoint's log; raise
        otherwise.

        Parameters
        ----------
        checkpoint : Checkpoint
            The state of the log that the proof is for.

        Raises
        ------
        EvidenceError
            The proof does not lead to the checkpoint's root.
        """
        leaf = merkle.leaf_hash(canonical.encode(self.entry))
        try:
            merkle.verify_inclusion(leaf, self.index, checkpoint.size, self.proof, checkpoint.root)
        except EvidenceError as problem:
            raise EvidenceError(
                f"the {self.entry['kind']!r} entry is not in the log as claimed: {problem}"
            ) from problem
