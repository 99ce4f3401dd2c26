"""Bundle: all the evidence of one erasure order, under one signature.

Law: `Bundle.read` accepts a bundle only if every signature and every inclusion proof in it holds,
and what it says of the order is what the log says.

A `BundledOrder` is the erasure order as a bundle tells it. All but the subject's names and the
reference follows from the audit log. A client has settled an order when it answered (found so many
samples and deleted them, or found none), or when, after the order, it left or was forgotten with
all that it held. The log may then have an answer of 0 in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from expunge.crypto import Envelope, PublicKey
from expunge.errors import EvidenceError, FormatError
from expunge.evidence import digests
from expunge.evidence.certificate import Certificate
from expunge.evidence.digests import SALT_BYTES
from expunge.evidence.log import Checkpoint, EntryKind, Logged, corrected_time
from expunge.evidence.receipt import Receipt
from expunge.evidence.rotation import KeyChain
from expunge.kinds import BUNDLED_STATES, BundledState
from expunge.wire import schema
from expunge.wire.schema import UNDISCLOSED


def _reference(value: Any, what: str) -> Any:
    if value == "":
        raise FormatError(f"{what} is empty: an order without a reference has none")
    return schema.text(value, what)


_FIELDS: dict[str, schema.Check] = {
    "id": schema.identifier,
    "subject": schema.text,
    "subjects": schema.mapping(schema.name, schema.text),
    "salt": schema.or_empty(schema.digest),
    "filed": schema.time,
    "deadline": schema.time,
    "completed": schema.or_empty(schema.time),
    "state": schema.one_of(*BUNDLED_STATES),
    "answers": schema.lists(
        schema.objects(
            {
                "client": schema.name,
                "found": schema.found,
                "sequence": schema.count,
                "time": schema.time,
            }
        )
    ),
}
_CHECK_ORDER = schema.objects(_FIELDS)
_CHECK_ORDER_REFERRED = schema.objects(_FIELDS | {"reference": _reference})


@dataclass(frozen=True)
class BundledOrder:
    """An erasure order at the time of the bundle.

    Attributes
    ----------
    id : str
        The order's id, 32 hexadecimal digits.
    subject : str
        Whom the order is about.
    subjects : dict of str to str
        The name of the subject at clients that know it by another one.
    salt : bytes or None
        The salt of the subject's digest in the log; None if it is lost.
    filed : str
        When it was filed, in UTC.
    deadline : str
        By when all clients are to answer, in UTC.
    completed : str
        When all clients had answered; empty if they have not.
    state : {"open", "overdue", "complete"}
        The state at the time of the bundle.
    answers : tuple of dict
        `client`, `found`, `sequence` and `time` of each answer; `found` is -1 if it is not
        disclosed.
    reference : str, default ""
        What officers call the order in their own files. An order without one has the bytes of
        orders before there were references.
    """

    id: str
    subject: str
    subjects: dict[str, str]
    salt: bytes | None
    filed: str
    deadline: str
    completed: str  # "" if it is not
    state: BundledState
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
    ) -> BundledOrder:
        """The order that these entries of the log tell of; refused where they contradict one
        another.
        """
        if salt is not None and len(salt) != SALT_BYTES:
            raise EvidenceError(
                f"the salt of order {order} must have {SALT_BYTES} bytes, got {len(salt)}"
            )
        ordered = _only("ordered", order, entries)
        if ordered is None:
            raise EvidenceError(
                f"the log entries of a bundle must have the one that filed order {order}"
            )
        strange = [
            logged.entry["order"] for logged in entries if logged.entry.get("order", order) != order
        ]
        if strange:
            raise EvidenceError(
                f"the bundle is of order {order}, but has a log entry of order {strange[0]}"
            )
        completed = _only("completed", order, entries)
        answers = [logged for logged in entries if logged.entry["kind"] == "answered"]
        _check_answers(order, ordered, answers, entries)
        waiting = sorted(set(ordered.entry["clients"]) - settled(ordered, entries))
        if completed is not None and (
            waiting or any(logged.index > completed.index for logged in answers)
        ):
            raise EvidenceError(
                f"order {order} was logged as complete before all of its clients had answered: "
                f"{waiting}"
            )
        deadline = _deadline(order, ordered, entries)
        return cls(
            order,
            subject,
            dict(subjects),
            salt,
            _time_of(ordered, entries),
            deadline,
            "" if completed is None else _time_of(completed, entries),
            "complete" if completed is not None else "overdue" if time > deadline else "open",
            tuple(
                {
                    **{name: logged.entry[name] for name in ("client", "found", "sequence")},
                    "time": _time_of(logged, entries),
                }
                for logged in answers
            ),
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
    def from_json(cls, value: object) -> BundledOrder:
        """The inverse of `to_json`."""
        check = (
            _CHECK_ORDER_REFERRED
            if isinstance(value, dict) and "reference" in value
            else _CHECK_ORDER
        )
        parts = check(value, "the order of a bundle")
        salt = bytes.fromhex(parts["salt"]) or None
        return cls(**{**parts, "salt": salt, "answers": tuple(parts["answers"])})


def _time_of(logged: Logged, entries: Sequence[Logged]) -> str:
    """When an entry was made, by the corrections of the clock that came after it."""
    time: str = logged.entry["time"]
    for correction in _corrections(entries):
        if correction.entry["first"] <= logged.index < correction.index:
            time = corrected_time(correction.entry, time)
    return time


def _deadline(order: str, ordered: Logged, entries: Sequence[Logged]) -> str:
    """The deadline of an order, as it was filed, or by the last correction that gives another: an
    earlier one, of an order that was filed while the clock was ahead.
    """
    deadline: str = ordered.entry["deadline"]
    for correction in _corrections(entries):
        deadlines = {each["order"]: each["deadline"] for each in correction.entry["orders"]}
        corrected = deadlines.get(order, deadline)
        if corrected > deadline or (
            order in deadlines and ordered.index < correction.entry["first"]
        ):
            raise EvidenceError(
                f"the correction at entry {correction.index} gives order {order} another deadline, "
                f"{corrected}, which it cannot"
            )
        deadline = corrected
    return deadline


def _corrections(entries: Sequence[Logged]) -> list[Logged]:
    corrections = (logged for logged in entries if logged.entry["kind"] == "corrected")
    return sorted(corrections, key=lambda logged: logged.index)


def lists_order(request: Mapping[str, Any], order: str) -> bool:
    """Whether a `changed` entry says itself that it answers the order."""
    return any(answer["order"] == order for answer in request["orders"])


def settled(ordered: Logged, entries: Sequence[Logged]) -> set[str]:
    """The clients that answered, or that left or were forgotten after the order was filed."""
    after = [logged.entry for logged in entries if logged.index > ordered.index]
    answered = {entry["client"] for entry in after if entry["kind"] in ("answered", "forgotten")}
    return answered | {
        entry["client"] for entry in after if entry["kind"] == "changed" and entry["leave"]
    }


def _only(kind: EntryKind, order: str, entries: Sequence[Logged]) -> Logged | None:
    matches = [logged for logged in entries if logged.entry["kind"] == kind]
    if len(matches) > 1:
        raise EvidenceError(
            f"the bundle of order {order} must have one log entry of kind {kind!r}, got "
            f"{len(matches)}"
        )
    return matches[0] if matches else None


def _check_answers(
    order: str, ordered: Logged, answers: Sequence[Logged], entries: Sequence[Logged]
) -> None:
    """Every answer is of a client that was asked, after it was asked, once, and what its request
    says; or the client is gone.
    """
    clients = [logged.entry["client"] for logged in answers]
    if len(set(clients)) != len(clients) or not set(clients) <= set(ordered.entry["clients"]):
        raise EvidenceError(
            f"order {order} has two answers of one client, or an answer of a client that was not "
            "asked"
        )
    requests = {
        (e["client"], e["sequence"]): e
        for e in (logged.entry for logged in entries)
        if e["kind"] == "changed"
    }
    vanished = {logged.entry["client"] for logged in entries if logged.entry["kind"] == "forgotten"}
    for logged in answers:
        entry = logged.entry
        if logged.index < ordered.index:
            raise EvidenceError(
                f"the answer of {entry['client']} to order {order} stands before the order in the "
                "log"
            )
        request = requests.get((entry["client"], entry["sequence"]))
        if request is None and entry["client"] not in vanished:
            raise EvidenceError(
                f"the answer of {entry['client']} to order {order} has no log entry of its request"
            )
        if request is None or (request["leave"] and not lists_order(request, order)):
            # the client is gone: the server closed the question for it
            agrees = entry["found"] == 0
        else:
            enough = (
                entry["found"] <= request["deleted"]
                or request["reset"]
                or request["message"] == "group"
            )
            agrees = enough and {"order": order, "found": entry["found"]} in request["orders"]
        if not agrees:
            raise EvidenceError(
                f"the log says that {entry['client']} found {entry['found']} samples for order "
                f"{order}; its request does not"
            )


_KINDS: tuple[EntryKind, ...] = (
    "ordered",
    "answered",
    "completed",
    "changed",
    "forgotten",
    "audited",
    "corrected",
)


TEMPLATES, MASKED = (1, 2, 3, 4), (3, 4)


def _template(value: Any, what: str) -> Any:
    """Of the page: see `expunge.evidence.page`."""
    if isinstance(value, bool) or value not in TEMPLATES:
        raise FormatError(
            f"{what} must be 1 to 4, got {value!r:.80}: written by a newer Expunge, or altered"
        )
    return value


_CHECK_BUNDLE = schema.objects(
    {
        "version": schema.version,
        "federation": schema.federation,
        "server": schema.digest,
        "time": schema.time,
        "template": _template,
        "order": lambda value, _: BundledOrder.from_json(value),
        "receipts": schema.lists(schema.envelope_json),
        "erased": schema.lists(lambda value, _: Logged.from_json(value)),
        "entries": schema.lists(lambda value, _: Logged.from_json(value)),
        "certificate": schema.or_null(schema.envelope_json),
        "rotations": schema.lists(schema.envelope_json),
        "checkpoint": lambda value, _: Checkpoint.from_json(value),
    }
)


def _is_masked(certificate: Envelope | None, entries: Sequence[Logged]) -> bool:
    if certificate is not None:
        return Certificate.unverified(certificate).spec.is_masked
    return any(
        logged.entry["kind"] == "answered" and logged.entry["found"] == UNDISCLOSED
        for logged in entries
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

    `entries`, with proofs in `checkpoint`, are: the order's `ordered`, `answered` and `completed`
    entries; the `changed` entry of every receipt; `erased` entries; `forgotten` entries of clients
    that vanished; the `audited` entry that the certificate names. `certificate` is of the same
    checkpoint, or None where no head can be published. `salt` is that of the subject's digest in
    the `ordered` entry, or None if it is lost: then the log cannot show whom the order was about.
    `reference` is "" if there is none.
    """
    in_order = sorted(entries, key=lambda logged: logged.index)
    return {
        "version": 1,
        "federation": checkpoint.federation,
        "server": server,
        "time": time,
        "template": 1 + bool(reference) + 2 * _is_masked(certificate, in_order),
        "order": BundledOrder.of(
            order, subject, subjects, salt, entries=in_order, time=time, reference=reference
        ).to_json(),
        "receipts": [envelope.to_json() for envelope in receipts],
        "erased": [logged.to_json() for logged in in_order if logged.entry["kind"] == "erased"],
        "entries": [logged.to_json() for logged in in_order if logged.entry["kind"] != "erased"],
        "certificate": None if certificate is None else certificate.to_json(),
        "rotations": [envelope.to_json() for envelope in rotations],
        "checkpoint": checkpoint.to_json(),
    }


@dataclass(frozen=True)
class Bundle:
    """The evidence of one erasure order: the order, the answers of all clients with their receipts,
    the log entries with proofs, and the certificate of the current head.

    Attributes
    ----------
    federation : str
        The federation's id.
    server : str
        The id of the key that signed the bundle.
    time : str
        When it was made, in UTC.
    order : BundledOrder
        The order and its answers, as the log entries tell them.
    receipts : tuple of Envelope
        The receipts of the requests that answered.
    erased : tuple of Logged
        Entries that say which journal generations were destroyed.
    entries : tuple of Logged
        All other entries of the log that concern the order.
    certificate : Envelope or None
        The certificate of the head at that time; None if no head could be published.
    rotations : tuple of Envelope
        The rotations of the server's key.
    checkpoint : Checkpoint
        The state of the log that all proofs are for.
    template : {1, 2, 3, 4}, default 1
        Of the page that shows it.

    Notes
    -----
    Everything in a bundle is signed by the server alone. That the clients deleted what they found,
    and that they found all of it, rests on what they told the server; that the head belongs to the
    ledger, on the operator. The names of the subject are in the clear.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.evidence import Bundle, read_bundle
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> client = federation.client("north")
    >>> features, labels = [[1.0, 0.5], [0.0, 1.0]], ["cat", "dog"]
    >>> receipts = client.add(["a", "b"], features, labels, subjects=["ann", "bob"])
    >>> order = federation.order("ann")
    >>> synced = federation.sync()
    >>> page = federation.bundle(order)
    >>> bundle = Bundle.read(read_bundle(page), federation.office.server)
    >>> bundle.order.state
    'complete'
    >>> [(answer["client"], answer["found"]) for answer in bundle.answers()]
    [('north', 1)]
    >>> len(bundle.receipts), bundle.departures()
    (1, [])
    >>> federation.close()
    >>> folder.cleanup()
    """

    federation: str
    server: str
    time: str
    order: BundledOrder
    receipts: tuple[Envelope, ...]
    erased: tuple[Logged, ...]
    entries: tuple[Logged, ...]
    certificate: Envelope | None
    rotations: tuple[Envelope, ...]
    checkpoint: Checkpoint
    template: int = 1

    @classmethod
    def read(cls, envelope: Envelope, key: PublicKey, rotations: Sequence[Envelope] = ()) -> Bundle:
        """The bundle, if every signature and proof in it holds and its parts agree.

        Parameters
        ----------
        envelope : Envelope
            The envelope of kind `bundle` (`read_bundle`).
        key : PublicKey
            The server's public key.
        rotations : sequence of Envelope, default ()
            Further rotations that link `key` to the keys that signed; the bundle's own are used as
            well.

        Returns
        -------
        Bundle
            The verified parts.

        Raises
        ------
        EvidenceError
            A signature or a proof does not hold, or parts contradict one another.
        FormatError
            The content is not a bundle.
        """
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
        """The bundle without checking signatures and proofs: to display it, not to rely on it.

        Parameters
        ----------
        envelope : Envelope
            The envelope of kind `bundle`.

        Returns
        -------
        Bundle
            The parts, which agree with one another.

        Raises
        ------
        EvidenceError
            Parts contradict one another.
        FormatError
            The content is not a bundle.
        """
        parts = _CHECK_BUNDLE(envelope.unverified(), "a bundle")
        bundle = cls(
            parts["federation"],
            parts["server"],
            parts["time"],
            BundledOrder.from_json(parts["order"]),
            tuple(Envelope.from_json(value, "receipt") for value in parts["receipts"]),
            tuple(Logged.from_json(value) for value in parts["erased"]),
            tuple(Logged.from_json(value) for value in parts["entries"]),
            None
            if parts["certificate"] is None
            else Envelope.from_json(parts["certificate"], "certificate"),
            tuple(Envelope.from_json(value, "rotation") for value in parts["rotations"]),
            Checkpoint.from_json(parts["checkpoint"]),
            parts["template"],
        )
        if (bundle.template in (2, 4)) != bool(bundle.order.reference):
            raise FormatError(
                "a bundle is of template 2 or 4 if its order has a reference, and of template 1 or "
                "3 if it has none"
            )
        if bundle.template in MASKED and not bundle.is_masked:
            raise FormatError("a bundle is of template 3 or 4 under secure aggregation only")
        bundle._check_entries()
        return bundle

    @property
    def is_masked(self) -> bool:
        """Whether the clients of the order change the ledger by secure aggregation."""
        return _is_masked(self.certificate, self.entries)

    @property
    def ordered(self) -> Logged:
        """The log entry that filed the order."""
        return self.found("ordered")[0]

    def found(self, kind: EntryKind) -> list[Logged]:
        """The entries of one kind, in the order of the log.

        Parameters
        ----------
        kind : str
            `"ordered"`, `"answered"`, `"completed"`, `"changed"`, `"forgotten"` or `"audited"`.

        Returns
        -------
        list of Logged
            The entries.
        """
        return [logged for logged in self.entries if logged.entry["kind"] == kind]

    def change(self, client: str, sequence: int) -> Logged | None:
        """The `changed` entry of a client's request, if the bundle holds it.

        Parameters
        ----------
        client : str
            The client's name.
        sequence : int
            The number of the request.

        Returns
        -------
        Logged or None
            The entry.
        """
        changes = (logged for logged in self.found("changed") if logged.entry["client"] == client)
        return next((logged for logged in changes if logged.entry["sequence"] == sequence), None)

    def answers(self) -> list[dict[str, Any]]:
        """The answers that clients gave themselves; `departures` tells of the others.

        Returns
        -------
        list of dict
            `client`, `found` (-1 if not disclosed), `sequence` and `time` of each.
        """
        given = (
            (answer, self.change(answer["client"], answer["sequence"]))
            for answer in self.order.answers
        )
        return [
            answer
            for answer, change in given
            if change is not None and lists_order(change.entry, self.order.id)
        ]

    def departures(self) -> list[Logged]:
        """The entries by which clients that gave no answer left or were forgotten.

        Returns
        -------
        list of Logged
            Entries of kind `changed` with `leave`, or of kind `forgotten`.
        """
        answered = {answer["client"] for answer in self.answers()}
        gone = (
            logged
            for logged in self.entries
            if logged.entry["kind"] == "forgotten" or logged.entry.get("leave")
        )
        return [logged for logged in gone if logged.entry["client"] not in answered]

    def shredding(self, change: Logged) -> Logged | None:
        """The first entry that says that the journal which held a change was destroyed.

        Parameters
        ----------
        change : Logged
            A `changed` entry of this bundle.

        Returns
        -------
        Logged or None
            An entry of kind `erased`; None if the bundle holds none yet.
        """
        generation = change.entry["generation"]
        later = (logged for logged in self.erased if logged.index > change.index)
        fitting = (
            logged
            for logged in later
            if logged.entry["first"] <= generation <= logged.entry["generation"]
        )
        return next(fitting, None)

    def _check_entries(self) -> None:
        """What must hold between entries and order, whoever signed them."""
        for group, kinds in ((self.entries, _KINDS), (self.erased, ("erased",))):
            indices = [logged.index for logged in group]
            if sorted(set(indices)) != indices:
                raise FormatError(
                    "the log entries of a bundle must stand in the order of the log, each once"
                )
            strange = [
                logged.entry["kind"] for logged in group if logged.entry["kind"] not in kinds
            ]
            if strange:
                raise FormatError(
                    f"a log entry of kind {strange[0]!r} has no place there in a bundle"
                )
        order = self.order
        expected = BundledOrder.of(
            order.id,
            order.subject,
            order.subjects,
            order.salt,
            entries=self.entries,
            time=self.time,
            reference=order.reference,
        )
        if order != expected:
            raise EvidenceError(
                f"what the bundle says of order {order.id} is not what the log entries in it say"
            )
        entry = self.ordered.entry
        if (
            order.salt is not None
            and digests.subject_digest(order.salt, order.subject, order.subjects)
            != entry["subject"]
        ):
            raise EvidenceError(
                f"order {order.id} was logged for another subject than the bundle names"
            )

    def _verify_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Every receipt's entry is in the bundle's log too, and every answer has its receipt."""
        changes = {logged.index: logged.entry for logged in self.found("changed")}
        for receipt in receipts:
            if receipt.federation != self.federation:
                raise EvidenceError("the bundle has a receipt of another federation")
            if changes.pop(receipt.logged.index, None) != receipt.logged.entry:
                raise EvidenceError(
                    f"the receipt for request {receipt.sequence} of {receipt.client} stands at "
                    f"place {receipt.logged.index} of the log, but the bundle does not prove the "
                    "same entry there: it is missing, or the receipt is of another log"
                )
        if changes:
            raise EvidenceError(
                f"the bundle has no receipt for the change at place {min(changes)} of the log"
            )

    def _verify_certificate(self, certificate: Certificate) -> None:
        mine, other = self.checkpoint, certificate.checkpoint
        if (mine.federation, mine.size, mine.root) != (other.federation, other.size, other.root):
            raise EvidenceError(
                "the certificate in the bundle is of another state of the log than the bundle is"
            )
        for logged in self.found("audited"):
            expected = {
                "index": logged.index,
                **{name: logged.entry[name] for name in ("audit", "time", "result")},
            }
            if certificate.audit != expected:
                raise EvidenceError(
                    "the audit that the bundle proves is not the one that the certificate names"
                )
