"""What a bundle holds: all the evidence of one erasure order, under one signature.

Law: `Bundle.read` takes a bundle only if every signature and every inclusion proof in it holds, and what it says of the order is
what the log says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from expunge.errors import EvidenceError, FormatError
from expunge.evidence import digests, fields
from expunge.evidence.certificate import Certificate
from expunge.evidence.checkpoint import Checkpoint
from expunge.evidence.logged import Logged
from expunge.evidence.order import Order, lists_order
from expunge.evidence.receipt import Receipt
from expunge.evidence.rotation import KeyChain
from expunge.signing import Envelope, PublicKey

_KINDS = ("ordered", "answered", "completed", "changed", "forgotten", "audited")


def _template(value: Any, what: str) -> Any:
    """Of the page: 2 shows the order's reference, 1 is for orders without one."""
    if isinstance(value, bool) or value not in (1, 2):
        raise FormatError(f"{what} must be 1 or 2, got {value!r:.80}: written by a newer Expunge, or altered")
    return value


_CHECK = fields.objects(
    {
        "version": fields.version,
        "federation": fields.federation,
        "server": fields.digest,
        "time": fields.time,
        "template": _template,
        "order": lambda value, _: Order.from_json(value),
        "receipts": fields.lists(fields.envelope_json),
        "erased": fields.lists(lambda value, _: Logged.from_json(value)),
        "entries": fields.lists(lambda value, _: Logged.from_json(value)),
        "certificate": fields.or_null(fields.envelope_json),
        "rotations": fields.lists(fields.envelope_json),
        "checkpoint": lambda value, _: Checkpoint.from_json(value),
    }
)


def bundle_content(
    *,
    server: str,
    time: str,
    order: str,
    subject: str,
    subjects: Mapping[str, str],
    salt: bytes | None,
    reference: str = "",
    receipts: Sequence[Envelope],
    entries: Sequence[Logged],
    certificate: Envelope | None,
    rotations: Sequence[Envelope],
    checkpoint: Checkpoint,
) -> dict[str, Any]:
    """What the server signs as an envelope of kind "bundle", for the order with the id `order`.

    `entries`, with proofs in `checkpoint`, are: the order's `ordered`, `answered` and `completed` entries; the `changed` entry of
    every receipt; `erased` entries; `forgotten` entries of clients that vanished; the `audited` entry that the certificate names.
    `certificate` is of the same checkpoint, or None where no head can be published. `salt` is that of the subject's digest in the
    `ordered` entry, or None if it is lost: then the log cannot show whom the order was about. `reference` is "" if there is none.
    """
    in_order = sorted(entries, key=lambda logged: logged.index)
    return {
        "version": 1,
        "federation": checkpoint.federation,
        "server": server,
        "time": time,
        "template": 2 if reference else 1,
        "order": Order.of(order, subject, subjects, salt, entries=in_order, time=time, reference=reference).to_json(),
        "receipts": [envelope.to_json() for envelope in receipts],
        "erased": [logged.to_json() for logged in in_order if logged.entry["kind"] == "erased"],
        "entries": [logged.to_json() for logged in in_order if logged.entry["kind"] != "erased"],
        "certificate": None if certificate is None else certificate.to_json(),
        "rotations": [envelope.to_json() for envelope in rotations],
        "checkpoint": checkpoint.to_json(),
    }


@dataclass(frozen=True)
class Bundle:
    """The parts of a bundle."""

    federation: str
    server: str
    time: str
    order: Order
    receipts: tuple[Envelope, ...]
    erased: tuple[Logged, ...]
    entries: tuple[Logged, ...]
    certificate: Envelope | None
    rotations: tuple[Envelope, ...]
    checkpoint: Checkpoint

    @classmethod
    def read(cls, envelope: Envelope, key: PublicKey, rotations: Sequence[Envelope] = ()) -> Bundle:
        """The bundle, if every signature and proof in it holds, and all of it tells one story; otherwise EvidenceError."""
        bundle = cls.unverified(envelope)
        chain = KeyChain(key, [*rotations, *bundle.rotations])
        chain.verify(envelope, lambda _: (bundle.federation, bundle.time))
        if bundle.server != envelope.signatures[0][0]:
            raise EvidenceError("the bundle names another server key than the one that signed it")
        if bundle.checkpoint.federation != bundle.federation:
            raise EvidenceError("the bundle and its checkpoint are of different federations")
        for logged in (*bundle.entries, *bundle.erased):
            logged.verify(bundle.checkpoint)
        bundle._verify_receipts([Receipt.read(each, chain) for each in bundle.receipts])
        if bundle.certificate is not None:
            bundle._verify_certificate(Certificate.read(bundle.certificate, chain))
        return bundle

    @classmethod
    def unverified(cls, envelope: Envelope) -> Bundle:
        """The bundle with nothing said about signatures and proofs: to be shown, not to be believed."""
        parts = _CHECK(envelope.unverified(), "a bundle")
        bundle = cls(
            parts["federation"],
            parts["server"],
            parts["time"],
            Order.from_json(parts["order"]),
            tuple(Envelope.from_json(value, "receipt") for value in parts["receipts"]),
            tuple(Logged.from_json(value) for value in parts["erased"]),
            tuple(Logged.from_json(value) for value in parts["entries"]),
            None if parts["certificate"] is None else Envelope.from_json(parts["certificate"], "certificate"),
            tuple(Envelope.from_json(value, "rotation") for value in parts["rotations"]),
            Checkpoint.from_json(parts["checkpoint"]),
        )
        if (parts["template"] == 2) != bool(bundle.order.reference):
            raise FormatError("a bundle is of template 2 if its order has a reference, and of template 1 if it has none")
        bundle._check_entries()
        return bundle

    @property
    def ordered(self) -> Logged:
        """The entry that filed the order."""
        return self.found("ordered")[0]

    def found(self, kind: str) -> list[Logged]:
        """The entries of one kind, in the order of the log."""
        return [logged for logged in self.entries if logged.entry["kind"] == kind]

    def change(self, client: str, sequence: int) -> Logged | None:
        """The `changed` entry of a client's request, if the bundle has it."""
        changes = (logged for logged in self.found("changed") if logged.entry["client"] == client)
        return next((logged for logged in changes if logged.entry["sequence"] == sequence), None)

    def answers(self) -> list[dict[str, Any]]:
        """The answers that clients gave themselves. Others stand for clients that are gone, and are told as departures."""
        given = ((answer, self.change(answer["client"], answer["sequence"])) for answer in self.order.answers)
        return [answer for answer, change in given if change is not None and lists_order(change.entry, self.order.id)]

    def departures(self) -> list[Logged]:
        """The entries by which clients that gave no answer left or were forgotten."""
        answered = {answer["client"] for answer in self.answers()}
        gone = (logged for logged in self.entries if logged.entry["kind"] == "forgotten" or logged.entry.get("leave"))
        return [logged for logged in gone if logged.entry["client"] not in answered]

    def shredding(self, change: Logged) -> Logged | None:
        """The first entry that says that the journal generation of this change is shredded."""
        generation = change.entry["generation"]
        later = (logged for logged in self.erased if logged.index > change.index)
        return next((one for one in later if one.entry["first"] <= generation <= one.entry["generation"]), None)

    def _check_entries(self) -> None:
        """What must hold between entries and order, whoever signed them."""
        for group, kinds in ((self.entries, _KINDS), (self.erased, ("erased",))):
            indices = [logged.index for logged in group]
            if sorted(set(indices)) != indices:
                raise FormatError("the log entries of a bundle must stand in the order of the log, each once")
            strange = [logged.entry["kind"] for logged in group if logged.entry["kind"] not in kinds]
            if strange:
                raise FormatError(f"a log entry of kind {strange[0]!r} has no place there in a bundle")
        order = self.order
        told = Order.of(
            order.id,
            order.subject,
            order.subjects,
            order.salt,
            entries=self.entries,
            time=self.time,
            reference=order.reference,
        )
        if order != told:
            raise EvidenceError(f"what the bundle says of order {order.id} is not what the log entries in it say")
        entry = self.ordered.entry
        if order.salt is not None and digests.subject_digest(order.salt, order.subject, order.subjects) != entry["subject"]:
            raise EvidenceError(f"order {order.id} was logged for another subject than the bundle names")

    def _verify_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Every receipt's entry is in the bundle's log too, and every answer has its receipt."""
        places = {logged.index: logged.entry for logged in self.found("changed")}
        for receipt in receipts:
            if receipt.federation != self.federation:
                raise EvidenceError("the bundle has a receipt of another federation")
            if places.pop(receipt.logged.index, None) != receipt.logged.entry:
                raise EvidenceError(
                    f"the receipt for request {receipt.sequence} of {receipt.client} stands at place {receipt.logged.index} of "
                    "the log, but the bundle does not prove the same entry there: it is missing, or the receipt is of another log"
                )
        if places:
            raise EvidenceError(f"the bundle has no receipt for the change at place {min(places)} of the log")

    def _verify_certificate(self, certificate: Certificate) -> None:
        mine, other = self.checkpoint, certificate.checkpoint
        if (mine.federation, mine.size, mine.root) != (other.federation, other.size, other.root):
            raise EvidenceError("the certificate in the bundle is of another state of the log than the bundle is")
        for logged in self.found("audited"):
            told = {"index": logged.index, **{name: logged.entry[name] for name in ("audit", "time", "result")}}
            if certificate.audit != told:
                raise EvidenceError("the audit that the bundle proves is not the one that the certificate names")
