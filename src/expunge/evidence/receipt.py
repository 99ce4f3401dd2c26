"""Receipts: the server's signed statement that a client's request took effect, with its place in
the audit log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from expunge.crypto import Envelope, PublicKey
from expunge.errors import EvidenceError
from expunge.evidence import digests
from expunge.evidence.log import Checkpoint, Logged, check_position
from expunge.evidence.rotation import KeyChain
from expunge.wire import schema

if TYPE_CHECKING:
    from expunge.ridge.spec import Spec

_SUMS = ("gram", "group")  # messages that are the sums of samples
_CHECK = schema.objects(
    {
        "version": schema.version,
        "federation": schema.federation,
        "server": schema.digest,
        "client": schema.name,
        "sequence": schema.count,
        "entry": lambda value, _: value,  # read as Logged
        "log": check_position,
        "checkpoint": lambda value, _: Checkpoint.from_json(value),
        "spec": schema.spec_digests,
    }
)


def receipt_content(
    *,
    server: str,
    entry: bytes,
    index: int,
    proof: Sequence[bytes],
    checkpoint: Checkpoint,
    spec: Spec,
    client: str = "",
) -> dict[str, Any]:
    """What the server signs as an envelope of kind "receipt", for the `changed` or `aggregated`
    entry with these bytes.

    An `aggregated` entry is of many clients, so `client` says for which of them the receipt is.
    """
    logged = Logged.of(entry, index, proof)
    member = logged.entry if logged.entry["kind"] == "changed" else member_of(logged.entry, client)
    return {
        "version": 1,
        "federation": checkpoint.federation,
        "server": server,
        "client": member["client"],
        "sequence": member["sequence"],
        "entry": logged.entry,
        "log": logged.position(),
        "checkpoint": checkpoint.to_json(),
        "spec": digests.spec_digests(spec),
    }


def member_of(entry: Mapping[str, Any], client: str) -> dict[str, Any]:
    """What an `aggregated` entry says of one client: its sequence number and the digest of its
    request.
    """
    matches: list[dict[str, Any]] = [
        member for member in entry["clients"] if member["client"] == client
    ]
    if len(matches) != 1:
        raise EvidenceError(
            f"the round of secure aggregation has {len(matches)} entries of {client}, not one"
        )
    return matches[0]


def request_in(entry: Mapping[str, Any], client: str, what: str) -> Mapping[str, Any]:
    """What an entry says of a client's request; `what` is for entries of requests only."""
    if entry["kind"] not in ("changed", "aggregated"):
        raise EvidenceError(
            f"a {what} is for an entry of kind 'changed' or 'aggregated', not {entry['kind']!r}"
        )
    return entry if entry["kind"] == "changed" else member_of(entry, client)


@dataclass(frozen=True)
class Receipt:
    """A verified receipt: the server's signed statement that one request of a client took effect.

    Attributes
    ----------
    federation : str
        The federation's id.
    server : str
        The id of the key that signed it.
    client : str
        Whose request it was.
    sequence : int
        The number of the request, counted from 1 for each client.
    logged : Logged
        The entry in the audit log. For a request of its own it is of kind `changed`: counts, orders
        answered, salted digests, and by when the request is erased at rest (`erased_by`). For a
        round of secure aggregation it is of kind `aggregated`, whose counts are of all its clients
        together.
    checkpoint : Checkpoint
        The state of the log that the inclusion proof is for.
    spec : dict of str to str
        The digests of the spec: `data`, `labels`, `head` and `policy`.

    Notes
    -----
    A receipt proves, to anybody who has the server's public key, that the server signed and logged
    this. It does not prove that the published head belongs to the ledger, nor that no copy was
    kept: both rest on the operator's word.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.crypto import Envelope
    >>> from expunge.evidence import Receipt
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> client = federation.client("north")
    >>> (receipt,) = client.add(["a"], [[1.0, 0.5]], ["cat"])
    >>> receipt.sequence, receipt.logged.entry["added"], receipt.logged.entry["deleted"]
    (1, 1, 0)

    The store keeps the file, which others can read with the server's public key:

    >>> data = client.store.documents("receipt")[1]
    >>> Receipt.read(Envelope.from_bytes(data, "receipt"), federation.office.server) == receipt
    True
    >>> federation.close()
    >>> folder.cleanup()
    """

    federation: str
    server: str
    client: str
    sequence: int
    logged: Logged
    checkpoint: Checkpoint
    spec: dict[str, str]

    @classmethod
    def read(cls, envelope: Envelope, keys: KeyChain | PublicKey) -> Receipt:
        """The receipt, if the server signed it, its entry is in the log, and its parts agree.

        Parameters
        ----------
        envelope : Envelope
            The envelope of kind `receipt`.
        keys : KeyChain or PublicKey
            The server's key, or the keys that rotations link to it.

        Returns
        -------
        Receipt
            The verified receipt.

        Raises
        ------
        EvidenceError
            The signature or the inclusion proof does not hold, or parts contradict one another.
        FormatError
            The content is not a receipt.
        """
        chain = keys if isinstance(keys, KeyChain) else KeyChain(keys)
        parts = chain.verify(envelope, lambda content: _claims(_CHECK(content, "a receipt")))
        receipt = cls(
            parts["federation"],
            parts["server"],
            parts["client"],
            parts["sequence"],
            Logged.at(parts["entry"], parts["log"]),
            Checkpoint.from_json(parts["checkpoint"]),
            parts["spec"],
        )
        receipt._verify(envelope.signatures[0][0])
        return receipt

    @property
    def is_of_round(self) -> bool:
        """Whether the request took effect in a round of secure aggregation."""
        return bool(self.logged.entry["kind"] == "aggregated")

    @property
    def samples_in_sum(self) -> int | None:
        """Of how many samples, added and deleted ones, the sum is that the server saw; None if it
        saw no sum of a change: single samples, nothing, or everything anew.
        """
        entry = self.logged.entry
        if not self.is_of_round and (entry["message"] not in _SUMS or entry["reset"]):
            return None
        return int(entry["added"] + entry["deleted"]) or None

    def _verify(self, signer: str) -> None:
        if self.server != signer:
            raise EvidenceError("the receipt names another server key than the one that signed it")
        if self.checkpoint.federation != self.federation:
            raise EvidenceError("the receipt and its checkpoint are of different federations")
        entry = self.logged.entry
        member = request_in(entry, self.client, "receipt")
        if (member["client"], member["sequence"]) != (self.client, self.sequence):
            raise EvidenceError(
                f"the receipt is for request {self.sequence} of {self.client}, but its log entry "
                f"is request {member['sequence']} of {member['client']}"
            )
        if entry["spec"] != digests.whole_spec_digest(self.spec):
            raise EvidenceError(
                "the receipt's spec digests are not those that its log entry was made under"
            )
        self.logged.verify(self.checkpoint)


def _claims(parts: dict[str, Any]) -> tuple[str, str]:
    """A receipt is signed when its checkpoint is made."""
    return parts["federation"], parts["checkpoint"]["time"]
