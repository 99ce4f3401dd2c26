"""What evidence shows, what that rests on, and what it does not show, in plain words.

The sentences are for the page of a bundle and for `verify`; a `Finding` is what a file of evidence
says. The sentences of bundles are part of the page: whoever changes one that template 1 uses makes
a template 2. Text of unknown origin is made harmless before it is shown (`shown`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from expunge.evidence.bundle import Bundle, settled
from expunge.evidence.certificate import ASSUMPTIONS, MASKED_CLIENTS, Certificate
from expunge.evidence.log import Logged
from expunge.evidence.receipt import Receipt
from expunge.wire.schema import UNDISCLOSED

_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)

# Controls, invisible and direction characters, half surrogate pairs, tags. Written out rather than
# asked of Python's character database, which differs between versions: the page of a bundle must
# not.
_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\uffff"
    "\U000e0000-\U000e0fff]"
)


def moment(time: str) -> str:
    """2026-11-15T09:30:00Z as "15 November 2026, 09:30:00 UTC"."""
    return f"{int(time[8:10])} {_MONTHS[int(time[5:7]) - 1]} {time[:4]}, {time[11:19]} UTC"


def shown(text: str) -> str:
    """`text` with every character that has no honest picture of its own written out as its
    number.
    """
    return _HARMFUL.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text)


def samples(count: int) -> str:
    """As in "no samples", "1 sample", "2 samples"."""
    return number(count, "sample")


def number(count: int, noun: str) -> str:
    """A count with its noun, for nouns with a regular plural."""
    plural = noun.removesuffix("y") + "ies" if noun.endswith("y") else noun + "s"
    return f"{count or 'no'} {noun if count == 1 else plural}"


def listed(parts: Sequence[str]) -> str:
    """As in "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


STANDS = (
    "It cannot be taken back: every later checkpoint that is consistent with this one contains it."
)


@dataclass(frozen=True)
class Finding:
    """What a file of evidence that holds says, in plain words. Every string is safe to print."""

    kind: str
    title: str
    facts: list[tuple[str, str]]
    proved: list[str]
    assumptions: list[str]
    not_proved: list[str]


SERVER_KEY = (
    "The public key that this was verified with is the server's own, and was obtained "
    "from it by a way that can be trusted."
)
CRYPTOGRAPHY = ASSUMPTIONS[1]
HONEST_CLIENTS = (
    "Each client searched its own store honestly. That a client subtracts what it added is checked "
    "by the commitments made when samples were added, and by audits; whether it knew all samples "
    "of the subject is its own responsibility."
)
HONEST_SEARCH = (
    "Each client searched its own store honestly; whether it knew all samples of the "
    "subject is its own responsibility."
)
SOFTWARE = ASSUMPTIONS[2]
ONE_LOG = (
    "The server shows the same log to everybody; clients and auditors check this by "
    "comparing checkpoints."
)

NOT_THE_BACKBONE = (
    "Anything about the backbone: the head forgets; a backbone trained on the data does not."
)
NO_COPIES = (
    "That no copy was kept: of samples outside the clients' stores, or of statistics, heads and "
    "backups outside the server's store."
)
OLD_HEADS = "That heads published earlier, which others may have downloaded, are no longer in use."


def summary(bundle: Bundle) -> str:
    """The order and what came of it, in a few sentences."""
    order, asked = bundle.order, bundle.ordered
    clients = asked.entry["clients"]
    asked_of = number(len(clients), "client").capitalize()
    parts = [
        f"Erasure order {order.id} was filed on {moment(order.filed)}.",
        f"{asked_of} had to answer it by {moment(order.deadline)}.",
    ]
    waiting = sorted(set(clients) - settled(asked, bundle.entries))
    if waiting:
        parts.append(f"Not answered yet: {listed(waiting)}.")
    elif clients:
        parts.append("None is left to answer.")
    total, undisclosed = found_in(bundle.answers())
    so_far = "In all" if order.state == "complete" else "So far"
    if total or not undisclosed:
        parts.append(
            f"{so_far}, {samples(total)} of the subject {'was' if total == 1 else 'were'} found "
            "and deleted."
        )
    if undisclosed:
        carried = "has" if undisclosed == 1 else "have"
        parts.append(
            f"{so_far}, {number(undisclosed, 'client')} {carried} carried it out without "
            "disclosing how many samples."
        )
    if order.state == "complete":
        late = "" if order.completed <= order.deadline else ", after the deadline"
        parts.append(f"The order was complete on {moment(order.completed)}{late}.")
    else:
        past = ", and its deadline had passed" if order.state == "overdue" else ""
        parts.append(f"On {moment(bundle.time)} the order was not complete{past}.")
    return " ".join(parts)


def found_in(answers: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """How many samples were found in all, and how many clients do not disclose it."""
    undisclosed = sum(answer["found"] == UNDISCLOSED for answer in answers)
    return sum(answer["found"] for answer in answers) + undisclosed, undisclosed


def proved(bundle: Bundle) -> list[str]:
    """What the server has signed and logged, beyond taking back."""
    order, size = bundle.order, bundle.checkpoint.size
    whom = "about this subject" if order.salt is not None else "(the log does not show about whom)"
    place = bundle.ordered.index
    sentences = [
        (
            f"Erasure order {order.id} {whom} is entry {place} of the federation's audit log of "
            f"{number(size, 'entry')}."
        )
    ]
    sentences += _answers(bundle)
    sentences += [_departure(logged) for logged in bundle.departures()]
    if order.state == "complete":
        last = bundle.found("completed")[0].index
        sentences.append(
            "Every client that had to answer has done so or is gone; the order is complete "
            f"(entry {last})."
        )
    if bundle.certificate is not None:
        sentences.append(certified(Certificate.unverified(bundle.certificate)))
    sentences += [
        _audit(bundle, logged)
        for logged in bundle.found("audited")
        if logged.entry["result"] == "equal"
    ]
    return sentences


def assumptions(*, masked: bool = False) -> list[str]:
    """What the sentences of `proved` rest on; `masked` where there is secure aggregation."""
    honest = [MASKED_CLIENTS, HONEST_SEARCH] if masked else [HONEST_CLIENTS]
    return [SERVER_KEY, CRYPTOGRAPHY, *honest, SOFTWARE, ONE_LOG]


def is_masked(bundle: Bundle) -> bool:
    """Whether the clients of a bundle's order change the ledger by secure aggregation."""
    if bundle.certificate is not None:
        return Certificate.unverified(bundle.certificate).spec.is_masked
    return any(answer["found"] == UNDISCLOSED for answer in bundle.answers())


def not_proved(bundle: Bundle) -> list[str]:
    """What nobody should read into a bundle."""
    sentences = [NOT_THE_BACKBONE, NO_COPIES, OLD_HEADS]
    if bundle.order.salt is None:
        sentences.append(
            "That the order in the log is about the subject named here: the salt of its digest is "
            "not in the bundle."
        )
    pending = [
        logged
        for logged in bundle.found("changed")
        if logged.entry["deleted"] and bundle.shredding(logged) is None
    ]
    if pending:
        last = max(logged.entry["erased_by"] for logged in pending)
        carried = listed(
            [
                f"request {logged.entry['sequence']} of {logged.entry['client']}"
                for logged in pending
            ]
        )
        sentences.append(
            f"That the journal which carried {carried} is erased yet: the server promised it by "
            f"{moment(last)}."
        )
    if bundle.order.state != "complete":
        sentences.append("That the subject is forgotten everywhere: the order is not complete.")
    if bundle.certificate is None:
        return [
            *sentences,
            "Anything about the current head: none could be published when the bundle was made.",
        ]
    return [*sentences, *unaudited(Certificate.unverified(bundle.certificate))]


def promise_of(what: str, due: str, now: str | None) -> str:
    """The server's promise to erase something at rest, as it stands now, if it is known when that
    is.
    """
    if now is None:
        return (
            f"The server promised that {what[0].lower()}{what[1:]} is erased at rest by "
            f"{moment(due)}."
        )
    if now < due:
        when = moment(due)
        return (
            f"{what} will be erased at rest by {when}; until then the server may hold it, "
            "encrypted, in its journal."
        )
    return f"{what} was due to be erased at rest by {moment(due)}."


def effects(receipt: Receipt) -> list[tuple[str, str]]:
    """What every receipt says of the round that it is of, and of itself."""
    entry = receipt.logged.entry
    return [
        ("Round", str(entry["round"])),
        ("Ledger before (salted)", entry["ledger_before"]),
        ("Ledger after (salted)", entry["ledger_after"]),
        ("Head (salted)", entry["head"] or "none could be published"),
        ("Log entry", f"{receipt.logged.index} of {receipt.checkpoint.size}"),
        ("Erased at rest by", moment(entry["erased_by"])),
        ("Federation", receipt.federation),
        ("Signed by key", receipt.server),
    ]


def not_proved_by_receipt() -> list[str]:
    """What nobody should read into a receipt."""
    later = (
        "That the erasure at rest has happened: the log's entry of kind 'erased' says so, "
        "which a bundle holds."
    )
    return [NOT_THE_BACKBONE, NO_COPIES, OLD_HEADS, later]


def certified(certificate: Certificate) -> str:
    """What a certificate says of its head."""
    held = f"the {samples(certificate.count)}" if certificate.count else "no samples"
    retained = f"{held} retained by {number(certificate.clients, 'client')}"
    name = f"The current head (digest {certificate.head[:16]}\u2026)"
    if certificate.exact:
        return (
            f"{name} is certified to be, bit for bit, the head that retraining from {retained} "
            "gives; its posterior is that of retraining, with Kullback-Leibler divergence 0."
        )
    return f"{name} is made in float64 arithmetic from {retained}. It is not claimed to be exact."


def unaudited(certificate: Certificate) -> list[str]:
    """What a certificate leaves open for want of an audit that found both sums equal."""
    what = "That the ledger equals what the clients hold"
    if certificate.audit is None:
        return [f"{what}: there has been no audit yet."]
    if certificate.audit["result"] != "equal":
        return [f"{what}: THE LAST AUDIT FOUND A DIFFERENCE."]
    return [
        (
            f"{what} now: the last audit, of {moment(certificate.audit['time'])}, is about what "
            "each held when it answered."
        )
    ]


def _answers(bundle: Bundle) -> list[str]:
    """What the clients found and deleted, which hold nothing, and what became of the journal that
    carried it.
    """
    found = [answer for answer in bundle.answers() if answer["found"] > 0]
    hidden = [answer["client"] for answer in bundle.answers() if answer["found"] == UNDISCLOSED]
    nothing = [answer["client"] for answer in bundle.answers() if not answer["found"]]
    sentences = []
    if found:
        each = listed([f"{samples(answer['found'])} by {answer['client']}" for answer in found])
        sentences.append(f"Samples of the subject were found and deleted: {each}.")
    if hidden:
        sentences.append(
            f"{listed(hidden)} confirmed, after the rounds of secure aggregation in which they "
            "delete, to hold nothing of the "
            "subject any more. How many samples each of them deleted is disclosed to nobody."
        )
    if nothing:
        sentences.append(f"Nothing of the subject was found by {listed(nothing)}.")
    if bundle.receipts:
        sentences.append(
            f"The server confirmed this by {number(len(bundle.receipts), 'signed receipt')}, "
            "which this file holds."
        )
    changes = [
        change
        for answer in found
        if (change := bundle.change(answer["client"], answer["sequence"])) is not None
    ]
    last = [shredding for change in changes if (shredding := bundle.shredding(change)) is not None]
    if changes and len(last) == len(changes):
        end = max(last, key=lambda logged: logged.index)
        when = moment(end.entry["time"])
        sentences.append(
            f"By {when} the server had shredded the journal that carried these deletions, as it "
            f"logged (entry {end.index})."
        )
    return sentences


def _departure(logged: Logged) -> str:
    entry, place = logged.entry, f"(entry {logged.index})"
    if entry["kind"] == "forgotten":
        all_of_it = (
            "its samples, whose number is not known"
            if entry["count"] == UNDISCLOSED
            else samples(entry["count"])
        )
        return (
            f"The client {entry['client']} vanished, and the server subtracted all that it had "
            f"contributed: {all_of_it} {place}."
        )
    return (
        f"The client {entry['client']} left with all that it had contributed: "
        f"{samples(entry['deleted'])} {place}."
    )


def _audit(bundle: Bundle, logged: Logged) -> str:
    after = all(change.index < logged.index for change in bundle.found("changed"))
    when = "with these deletions made" if after else "before the last of these deletions"
    if is_masked(bundle):
        return (
            f"On {moment(logged.entry['time'])}, {when}, every client had recomputed its "
            "statistics from its own store; their sum, added up by secure aggregation, was equal "
            f"to the ledger (entry {logged.index}): what retraining would start from."
        )
    return (
        f"On {moment(logged.entry['time'])}, {when}, every client had recomputed its statistics "
        "from its own store; each was equal to the client's share of the ledger when it answered, "
        f"and the shares add up to the ledger (entry {logged.index}): what retraining would start "
        "from."
    )


_ONLY_SUMS = (
    "The server learnt the sums over these clients and nothing of any single one, if it and those "
    "that collude with it follow the protocol and are no more than the spec's rules allow."
)
_WHOSE = (
    "How many samples this client itself added or deleted: nobody but the client can tell. Its own "
    "store says which of its samples took part in this request."
)


def round_finding(receipt: Receipt, now: str | None) -> Finding:
    """What a receipt of a round shows, what that rests on, and what it does not show."""
    entry, index = receipt.logged.entry, receipt.logged.index
    clients = [member["client"] for member in entry["clients"]]
    facts = [
        ("Client", receipt.client),
        ("Request", str(receipt.sequence)),
        ("Took effect", moment(entry["time"])),
        ("Secure aggregation over", number(len(clients), "client")),
        ("Clients included", listed(clients)),
        ("Added by all of them", samples(entry["added"])),
        ("Deleted by all of them", samples(entry["deleted"])),
        *effects(receipt),
    ]
    proved = [
        (
            f"The server confirmed that request {receipt.sequence} of {receipt.client} took effect "
            f"on {moment(entry['time'])}, in a round of secure aggregation with "
            f"{number(len(clients) - 1, 'other client')}: together {samples(entry['added'])} "
            f"added, {samples(entry['deleted'])} deleted."
        ),
        f"This is entry {index} of the federation's audit log. {STANDS}",
        promise_of("The sum of the round", entry["erased_by"], now),
    ]
    return Finding(
        "receipt",
        (
            f"Receipt for request {receipt.sequence} of {receipt.client}, in a round of "
            f"{number(len(clients), 'client')}"
        ),
        facts,
        proved,
        [SERVER_KEY, CRYPTOGRAPHY, MASKED_CLIENTS, SOFTWARE, ONE_LOG, _ONLY_SUMS],
        [*not_proved_by_receipt(), _WHOSE],
    )
