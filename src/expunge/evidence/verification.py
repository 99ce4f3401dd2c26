"""Offline verification: takes a file of evidence and the server's public key, and says in plain
words what the file shows.

Law: if any byte of the file is altered, or the key is another one, `verify` raises EvidenceError or
FormatError. It never returns a doubtful result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from expunge.crypto import Envelope, PublicKey, canonical
from expunge.crypto.envelope import payload_type
from expunge.errors import EvidenceError, FormatError
from expunge.evidence import page, published_head, wording
from expunge.evidence.audit_result import Result
from expunge.evidence.bundle import Bundle
from expunge.evidence.certificate import Certificate, assumptions_under, certified, unaudited
from expunge.evidence.forwarding_proof import Passage, is_passage
from expunge.evidence.log import Checkpoint, binds_of
from expunge.evidence.receipt import Receipt
from expunge.evidence.rotation import KeyChain, Rotation
from expunge.evidence.wording import (
    STANDS,
    VerifiedFile,
    listed,
    moment,
    number,
    promise_of,
    samples,
    shown,
)
from expunge.wire.schema import UNDISCLOSED

if TYPE_CHECKING:
    from expunge.ridge.head import Head

_PAGE = b"<!DOCTYPE html>"
_KINDS = ("receipt", "certificate", "rotation", "result", "checkpoint")
_ONLY_SUMS = (
    "The server saw sums over these clients, and no client's own message, unless more clients "
    "collude with it than the spec's rules allow, or the log shows that it went on without one."
)
_WHOSE = (
    "How many samples this client itself added or deleted: nobody but the client can tell. Its own "
    "store says which of its samples took part in this request."
)


def verify(
    data: bytes,
    key: PublicKey,
    *,
    head: Head | None = None,
    now: str | None = None,
    rotations: Sequence[Envelope] = (),
    fewest_samples: int = 0,
) -> VerifiedFile:
    """Verify a file of evidence under the server's public key, and say what it shows.

    The file may be a bundle (HTML), a published head, a passage, or the JSON of a receipt,
    certificate, rotation, result or checkpoint; JSON may end with one newline. Nothing is read but
    the arguments: no network, no clock.

    Parameters
    ----------
    data : bytes
        The content of the file.
    key : PublicKey
        The server's public key, obtained by a trusted way (`server.pub`, `Office.server`).
    head : Head or None, default None
        A head to compare with the one that a certificate, bundle or published head names.
    now : str or None, default None
        The time, such as `"2026-11-15T09:30:00Z"`; with it, a receipt's promise to erase is told as
        pending or due.
    rotations : sequence of Envelope, default ()
        Rotations that link `key` to the key that signed, if the two differ. A bundle holds its own.
    fewest_samples : int, default 0
        The spec's `fewest_samples`, if it is known; with it, a receipt says whether its change went
        out with fewer samples, whose sum can reveal them.

    Returns
    -------
    VerifiedFile
        Title, facts, what is proved, what that rests on, and what is not proved.

    Raises
    ------
    EvidenceError
        A signature, proof, digest or statement does not hold; `head` is another head, or the file
        does not name one.
    FormatError
        The data is not a file of evidence, or is truncated or malformed.

    Notes
    -----
    Evidence is signed by the server alone. It is proof against everybody who does not hold the
    server's key. Against the operator it is weaker: anybody who holds that key can sign evidence
    about requests and orders that nobody made, and nothing here proves that the published head
    belongs to the ledger, or that no copy was kept. `VerifiedFile.assumptions` and
    `VerifiedFile.not_proved` list what each file rests on and leaves open; docs/privacy.md says
    what holds against whom.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.crypto import SigningKey
    >>> from expunge.evidence import verify
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> client = federation.client("north")
    >>> receipts = client.add(["a", "b"], [[1.0, 0.5], [0.0, 1.0]], ["cat", "dog"])
    >>> data = client.store.documents("receipt")[1]  # the bytes of the file, by request number
    >>> key = federation.office.server
    >>> finding = verify(data, key)
    >>> finding.title
    'Receipt for request 1 of north'
    >>> finding.facts[3]
    ('Added', '2 samples')
    >>> verify(data, SigningKey(bytes(32)).public)
    Traceback (most recent call last):
    ...
    expunge.errors.EvidenceError: the receipt is signed by key ..., which is not the given key ...
    >>> federation.close()
    >>> folder.cleanup()
    """
    certificate: Certificate | None
    if data.startswith(_PAGE):
        finding, certificate = _bundle(Bundle.read(page.read_bundle(data), key, rotations))
    elif data.startswith(published_head.MAGIC):
        given, certificate = published_head.read(data, KeyChain(key, rotations))
        finding = _published(_certificate(certificate), given)
    elif is_passage(value := canonical.decode(data.removesuffix(b"\n"), "this file of evidence")):
        finding, certificate = Passage.read(value, KeyChain(key, rotations)).finding(), None
    else:
        chain = KeyChain(key, rotations)
        finding, certificate = _signed(_envelope(value), chain, now, fewest_samples)
    if head is not None:
        if certificate is None:
            raise EvidenceError(
                f"a {finding.kind} does not say which head is current: check the head against a "
                "certificate"
            )
        certificate.verify_head(head)
        same = "The head that was given is, weight for weight, the one that the certificate is of."
        finding = replace(finding, proved=[*finding.proved, same])
    return finding


def _envelope(value: object) -> Envelope:
    """The envelope in a JSON file, which may end with one newline and nothing else."""
    given = value.get("payloadType") if isinstance(value, dict) else None
    for kind in _KINDS:
        if given == payload_type(kind):
            return Envelope.from_json(value, kind)
    raise FormatError(
        "this is no file of evidence: expected a bundle (HTML), a published head, or the JSON of "
        f"a {', '.join(_KINDS)}; got something of type {given!r:.80}"
    )


def _signed(
    envelope: Envelope, chain: KeyChain, now: str | None, fewest: int
) -> tuple[VerifiedFile, Certificate | None]:
    if envelope.kind == "receipt":
        receipt = Receipt.read(envelope, chain)
        words = _round_receipt if receipt.is_of_round else _receipt
        return words(receipt, now, fewest), None
    if envelope.kind == "certificate":
        certificate = Certificate.read(envelope, chain)
        return _certificate(certificate), certificate
    if envelope.kind == "rotation":
        return _rotation(envelope, chain), None
    if envelope.kind == "result":
        return _result(Result.read(envelope, chain)), None
    return _checkpoint(envelope, chain), None


def _receipt(receipt: Receipt, now: str | None, fewest: int) -> VerifiedFile:
    entry, index = receipt.logged.entry, receipt.logged.index
    facts = [
        *_request(receipt),
        ("Added", samples(entry["added"])),
        ("Deleted", samples(entry["deleted"])),
        *_effects(receipt, fewest),
    ]
    proved = [
        (
            f"The server confirmed that request {receipt.sequence} of {receipt.client} took "
            f"effect on {moment(entry['time'])}: "
            f"{samples(entry['added'])} added, {samples(entry['deleted'])} deleted."
        ),
        f"This is entry {index} of the federation's audit log. {STANDS}",
    ]
    proved += [
        (
            f"It answers erasure order {each['order']}: {receipt.client} {_found(each['found'])} "
            "of its subject."
        )
        for each in entry["orders"]
    ]
    if entry["leave"]:
        proved.append(f"{receipt.client} left: nothing that it contributed remains in the ledger.")
    if entry["reset"]:
        proved.append(
            f"All that the server held of {receipt.client} was replaced by what this request added."
        )
    return VerifiedFile(
        "receipt",
        f"Receipt for request {receipt.sequence} of {receipt.client}",
        facts,
        [
            *proved,
            wording.bound_by(binds_of(entry), entry.get("base")),
            promise_of("The request itself", entry["erased_by"], now),
        ],
        [
            *wording.assumptions(
                masked=any(each["found"] == UNDISCLOSED for each in entry["orders"])
            ),
            *wording.hash_of(binds_of(entry)),
        ],
        [*wording.not_proved_by_receipt(), *wording.sums_since(binds_of(entry))],
    )


def _request(receipt: Receipt) -> list[tuple[str, str]]:
    """Which request a receipt is for."""
    return [
        ("Client", receipt.client),
        ("Request", str(receipt.sequence)),
        ("Took effect", moment(receipt.logged.entry["time"])),
    ]


def _effects(receipt: Receipt, fewest: int) -> list[tuple[str, str]]:
    """What every receipt says of the round that it is of, and of itself; and with how many samples
    the change went out, if the server saw only their sum.
    """
    entry, count = receipt.logged.entry, receipt.samples_in_sum
    together = [] if count is None else [("Went out in a sum of", wording.sum_of(count, fewest))]
    return [
        *together,
        ("Round", str(entry["round"])),
        ("Ledger before (salted)", entry["ledger_before"]),
        ("Ledger after (salted)", entry["ledger_after"]),
        ("This digest is of", wording.BOUND[binds_of(entry)]),
        ("Head (salted)", entry["head"] or "none could be published"),
        ("Log entry", f"{receipt.logged.index} of {receipt.checkpoint.size}"),
        ("Erased at rest by", moment(entry["erased_by"])),
        ("Federation", receipt.federation),
        ("Signed by key", receipt.server),
    ]


def _round_receipt(receipt: Receipt, now: str | None, fewest: int) -> VerifiedFile:
    """What a receipt of a round shows, what that rests on, and what it does not show."""
    entry, index = receipt.logged.entry, receipt.logged.index
    clients = [member["client"] for member in entry["clients"]]
    facts = [
        *_request(receipt),
        ("Secure aggregation over", number(len(clients), "client")),
        ("Clients included", listed(clients)),
        ("Added by all of them", samples(entry["added"])),
        ("Deleted by all of them", samples(entry["deleted"])),
        *_effects(receipt, fewest),
    ]
    proved = [
        (
            f"The server confirmed that request {receipt.sequence} of {receipt.client} took effect "
            f"on {moment(entry['time'])}, in a round of secure aggregation with "
            f"{number(len(clients) - 1, 'other client')}: together {samples(entry['added'])} "
            f"added, {samples(entry['deleted'])} deleted."
        ),
        f"This is entry {index} of the federation's audit log. {STANDS}",
        wording.bound_by(binds_of(entry)),
        promise_of("The sum of the round", entry["erased_by"], now),
    ]
    return VerifiedFile(
        "receipt",
        (
            f"Receipt for request {receipt.sequence} of {receipt.client}, in a round of "
            f"{number(len(clients), 'client')}"
        ),
        facts,
        proved,
        [
            wording.SERVER_KEY,
            wording.CRYPTOGRAPHY,
            wording.MASKED_CLIENTS,
            wording.SOFTWARE,
            wording.ONE_LOG,
            _ONLY_SUMS,
        ],
        [*wording.not_proved_by_receipt(), wording.SEEN_SUMS, _WHOSE],
    )


def _found(number_found: int) -> str:
    if number_found == UNDISCLOSED:
        return "has deleted, without disclosing how many, all samples that it held"
    return f"found and deleted {samples(number_found)}"


def _certificate(certificate: Certificate) -> VerifiedFile:
    audit = certificate.audit
    audited = (
        "none yet"
        if audit is None
        else f"{moment(audit['time'])}, {audit['result']} (entry {audit['index']})"
    )
    facts = [
        ("Head", certificate.head),
        ("Samples", str(certificate.count)),
        ("Clients", str(certificate.clients)),
        ("Exact", "yes" if certificate.exact else f"no: {shown(certificate.deviation)}"),
        (
            "Error bound before rounding",
            "none" if certificate.bound is None else f"{certificate.bound:.3g}",
        ),
        ("Weights are multiples of", f"2^{-certificate.spec.publication_bits}"),
        ("Solver", shown(certificate.solver)),
        ("Spec", certificate.spec.digest),
        ("Ledger (salted)", certificate.ledger),
        ("This digest is of", wording.BOUND[certificate.binds]),
        ("Log size", str(certificate.checkpoint.size)),
        ("Last audit", audited),
        ("Time", moment(certificate.time)),
        ("Federation", certificate.federation),
        ("Signed by key", certificate.server),
    ]
    proved = [f"On {moment(certificate.time)} the server signed this: {certified(certificate)}"]
    if audit is not None and audit["result"] == "equal":
        how = (
            "signed that the sum of them, added up by secure aggregation, equalled the ledger"
            if certificate.spec.is_masked
            else "signed that each equalled the client's share of the ledger when it answered, "
            "and that the shares add up to the "
            "ledger"
        )
        proved.append(
            f"On {moment(audit['time'])} all clients had recomputed their statistics from their "
            "own stores, and the server "
            f"{how}."
        )
    proved.append(wording.bound_by(certificate.binds))
    current = "That this head is still the current one now."
    not_proved = [
        wording.NOT_THE_BACKBONE,
        wording.NO_COPIES,
        wording.OLD_HEADS,
        current,
        *unaudited(certificate),
        *wording.sums_since(certificate.binds),
    ]
    return VerifiedFile(
        "certificate",
        f"Certificate of the head {certificate.head[:16]}…",
        facts,
        proved,
        [
            wording.SERVER_KEY,
            *assumptions_under(certificate.spec),
            *wording.hash_of(certificate.binds),
        ],
        not_proved,
    )


def _published(finding: VerifiedFile, head: Head) -> VerifiedFile:
    """A published head is its certificate and its weights in one file; that they belong together
    has been seen.
    """
    same = f"The {number(head.integers.size, 'weight')} in the file are those of that head."
    return replace(
        finding,
        kind="head",
        title=f"Published head {head.digest[:16]}…",
        proved=[*finding.proved, same],
    )


def _bundle(evidence: Bundle) -> tuple[VerifiedFile, Certificate | None]:
    order = evidence.order
    certificate = (
        None if evidence.certificate is None else Certificate.unverified(evidence.certificate)
    )
    facts = [
        ("Order", order.id),
        *([("Reference", shown(order.reference))] if order.reference else []),
        ("Subject", shown(order.subject)),
        *((f"Subject at {client}", shown(name)) for client, name in sorted(order.subjects.items())),
        ("State", order.state),
        ("Filed", moment(order.filed)),
        ("Deadline", moment(order.deadline)),
        ("Complete", moment(order.completed) if order.completed else "not yet"),
        (
            "Answers",
            (
                f"{len(evidence.answers())} of "
                f"{number(len(evidence.ordered.entry['clients']), 'client')}"
            ),
        ),
        *(
            (f"Gone: {logged.entry['client']}", f"with all that it held (entry {logged.index})")
            for logged in evidence.departures()
        ),
        ("Found and deleted", _found_and_deleted(evidence)),
        ("Receipts", str(len(evidence.receipts))),
        ("Log size", str(evidence.checkpoint.size)),
        ("Head", "none could be published" if certificate is None else certificate.head),
        ("Time", moment(evidence.time)),
        ("Federation", evidence.federation),
        ("Signed by key", evidence.server),
    ]
    title = f"Evidence of erasure order {order.id}, {order.state}"
    finding = VerifiedFile(
        "bundle",
        title,
        facts,
        page.proved(evidence),
        page.rests_on(evidence),
        page.not_proved(evidence),
    )
    return finding, certificate


def _found_and_deleted(evidence: Bundle) -> str:
    total, undisclosed = wording.found_in(evidence.answers())
    hidden = f"not disclosed by {number(undisclosed, 'client')}"
    if not undisclosed:
        return samples(total)
    return f"{samples(total)}; {hidden}" if total else hidden


def _rotation(envelope: Envelope, chain: KeyChain) -> VerifiedFile:
    """A rotation in a file of its own is a link of the chain, whichever of its two keys was
    given.
    """
    step = Rotation.read(envelope)
    KeyChain(chain.pinned, [*chain.envelopes, envelope])
    facts = [
        ("Old key", step.old.id),
        ("New key", step.new.id),
        ("New public key", step.new.text),
        ("Time", moment(step.time)),
        ("Log entry", str(step.index)),
        ("Federation", step.federation),
    ]
    proved = [
        (
            f"The server's key changed from {step.old.id[:16]}… to {step.new.id[:16]}… on "
            f"{moment(step.time)}; both keys signed it."
        ),
        (
            "What the old key signed is to be believed for times up to then, what the new key "
            "signed for times from then on."
        ),
    ]
    unknown = [
        f"That the change stands in the log at entry {step.index}: the file holds no proof of it."
    ]
    return VerifiedFile(
        "rotation",
        "Rotation of the server's key",
        facts,
        proved,
        [wording.SERVER_KEY, wording.CRYPTOGRAPHY],
        [*unknown, "That nobody else held the old key before it was retired."],
    )


def _result(result: Result) -> VerifiedFile:
    facts = [
        ("Actor", result.actor),
        ("Action", result.action),
        ("Command", str(result.sequence) if result.sequence else "none: a question"),
        ("Time", moment(result.time)),
        ("Result", shown(canonical.encode(result.result).decode("ascii"))),
        ("Federation", result.federation),
        ("Signed by key", result.server),
    ]
    if result.logged is None or result.checkpoint is None:
        proved = [
            (
                f"The server answered the question {result.action} of {result.actor} on "
                f"{moment(result.time)} as shown."
            )
        ]
    else:
        facts.append(("Log entry", f"{result.logged.index} of {result.checkpoint.size}"))
        proved = [
            (
                f"The server carried out {result.action} (command {result.sequence} of "
                f"{result.actor}) on {moment(result.logged.entry['time'])}, with the result shown."
            ),
            f"The command is entry {result.logged.index} of the federation's audit log. {STANDS}",
        ]
    return VerifiedFile(
        "result",
        f"Result of {result.action}",
        facts,
        proved,
        [wording.SERVER_KEY, wording.CRYPTOGRAPHY, wording.SOFTWARE, wording.ONE_LOG],
        [wording.NOT_THE_BACKBONE],
    )


def _checkpoint(envelope: Envelope, chain: KeyChain) -> VerifiedFile:
    checkpoint = Checkpoint.from_json(chain.verify(envelope, _checkpoint_claims))
    facts = [
        ("Entries", str(checkpoint.size)),
        ("Root", checkpoint.root.hex()),
        ("Time", moment(checkpoint.time)),
        ("Federation", checkpoint.federation),
        ("Signed by key", envelope.signatures[0][0]),
    ]
    return VerifiedFile(
        "checkpoint",
        f"Checkpoint of the audit log at {number(checkpoint.size, 'entry')}",
        facts,
        [
            (
                f"On {moment(checkpoint.time)} the server signed that its audit log had this root "
                "at this size."
            )
        ],
        [wording.SERVER_KEY, wording.CRYPTOGRAPHY],
        [
            (
                "Which entries the log holds, and that others were shown the same log: compare "
                "checkpoints, and ask for proofs."
            )
        ],
    )


def _checkpoint_claims(content: Any) -> tuple[str, str]:
    checkpoint = Checkpoint.from_json(content)
    return checkpoint.federation, checkpoint.time
