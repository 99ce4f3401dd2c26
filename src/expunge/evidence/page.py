"""The page of a bundle, templates 1 to 4: one self-contained HTML file, made to be read and
printed by whoever has to be shown that an erasure order was carried out.

The file is a page for people with a signed envelope inside. The page is a pure function of the
bundle and of the envelope's bytes, on every platform and in every version: verification makes it
again and compares, so no byte of the file can be altered unseen. Law:
`read_bundle(render_bundle(envelope)) == envelope`, and `render_bundle(read_bundle(data)) == data`
for `data` that `read_bundle` takes.

So a template never changes, and neither do its sentences, which `verify` shows too; another page
is another template. Template 2 is template 1 with the order's reference, for orders that have one.
Templates 3 and 4 are 1 and 2 with a sentence about what masks do not hide, for orders under secure
aggregation; before there were these, such orders had the first two. All are pure ASCII (other
characters are written as references); they run and load nothing.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from expunge.crypto import Envelope
from expunge.errors import EvidenceError, FormatError
from expunge.evidence.bundle import MASKED, Bundle, settled
from expunge.evidence.certificate import Certificate, certified, unaudited
from expunge.evidence.log import Logged, binds_of
from expunge.evidence.wording import (
    NO_COPIES,
    NOT_THE_BACKBONE,
    OLD_HEADS,
    SEEN_SUMS,
    assumptions,
    found_in,
    hash_of,
    listed,
    moment,
    number,
    samples,
    shown,
    sums_since,
)
from expunge.kinds import BundledState
from expunge.wire.schema import UNDISCLOSED

BEFORE = b'<script type="application/json" id="evidence">'
AFTER = b"</script>"

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
html { font-size: 15px; }
body {
  margin: 0; background: #eef0f2; color: #1b1f24;
  font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main {
  max-width: 52rem; margin: 2rem auto; padding: 2.75rem 3.25rem;
  background: #fff; border: 1px solid #d5dade; border-radius: 4px;
}
header {
  display: flex; justify-content: space-between; align-items: flex-start; gap: 2rem;
  padding-bottom: 1rem; border-bottom: 2px solid #1b1f24;
}
h1 { margin: 0; font-size: 1.7rem; line-height: 1.2; }
header p { margin: .35rem 0 0; color: #525b65; }
.state { flex: none; padding: .3rem .8rem; border: 2px solid; border-radius: 3px; font-weight: 700; }
.complete { color: #0b6b3a; }
.open { color: #7a5200; }
.overdue { color: #a3161c; }
h2 { margin: 2rem 0 .6rem; font-size: 1.1rem; break-after: avoid; }
p, ul { margin: .5rem 0; }
ul { padding-left: 1.2rem; }
li { margin: .35rem 0; }
.summary { margin-top: 1.2rem; font-size: 1.07rem; }
table { width: 100%; border-collapse: collapse; font-size: .92rem; }
th, td { padding: .4rem .8rem .4rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #dde1e5; }
thead th { white-space: nowrap; border-bottom: 1px solid #1b1f24; font-size: .84rem; color: #3c444d; }
.facts th { width: 13.5rem; font-weight: 600; color: #3c444d; }
.number { text-align: right; padding-right: 1.4rem; font-variant-numeric: tabular-nums; }
code, .digest {
  font-family: ui-monospace, "Cascadia Mono", Menlo, Consolas, "Liberation Mono", monospace;
  font-size: .86em; overflow-wrap: anywhere;
}
.check {
  margin-top: 2rem; padding: .9rem 1.2rem; break-inside: avoid;
  border: 1px solid #aab2ba; border-left: 5px solid #1b1f24;
}
.check h2 { margin-top: 0; }
.check code { display: block; margin: .5rem 0; }
dl { margin: .5rem 0; font-size: .92rem; }
dt { float: left; clear: left; width: 6.5rem; font-weight: 600; color: #3c444d; }
dd { margin: 0 0 .3rem 6.5rem; }
tr, li, dd { break-inside: avoid; }
bdi { overflow-wrap: anywhere; white-space: pre-wrap; }
footer { margin-top: 2.2rem; padding-top: .8rem; border-top: 1px solid #dde1e5; color: #525b65; font-size: .84rem; }
@page { size: A4; margin: 17mm 18mm; }
@media print {
  html { font-size: 11.5px; }
  body { background: #fff; }
  h2 { margin-top: 1.5rem; }
  th, td { padding-top: .28rem; padding-bottom: .28rem; }
  li { margin: .25rem 0; }
  footer { margin-top: 1.4rem; }
  main { max-width: none; margin: 0; padding: 0; border: 0; }
}
@media (max-width: 44rem) {
  main { margin: 0; padding: 1.25rem; border: 0; }
  header { flex-direction: column; gap: .75rem; }
  .facts th { width: 8rem; }
  thead th { white-space: normal; }
  th, td, .number { padding-right: .5rem; }
}
"""
_WORDS = (
    ("Subject", "the person whose erasure was ordered."),
    ("Sample", "one labelled record that a client contributed to learning."),
    (
        "Client",
        (
            "an institution that holds samples. Its samples stay with it; the server gets numbers "
            "computed from them."
        ),
    ),
    (
        "Head",
        (
            "the part of the model that learns: weights computed from the sums over all samples "
            "that are retained."
        ),
    ),
    (
        "Backbone",
        (
            "the fixed part of the model, which turns a sample into numbers before any of this. It "
            "does not learn here."
        ),
    ),
    (
        "Ledger",
        (
            "the server&#8217;s exact sums over all retained samples. Deleting a sample subtracts "
            "exactly what adding it added."
        ),
    ),
    (
        "Journal",
        (
            "where the server keeps a request, encrypted, until it is part of the ledger. Then the "
            "key is destroyed."
        ),
    ),
    (
        "Audit log",
        (
            "the server&#8217;s append-only list of what it did. Nothing in it can be changed "
            "without changing its root."
        ),
    ),
    ("Receipt", "the server&#8217;s signed confirmation that a request of a client took effect."),
)
_STATES: dict[BundledState, str] = {"complete": "Complete", "open": "Open", "overdue": "Overdue"}


def page(bundle: Bundle, envelope: bytes) -> bytes:
    """The bytes of the file, with the envelope's canonical bytes inside (base64, digits and names:
    they hold no markup).
    """
    order = bundle.order
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        (
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src '
            "'unsafe-inline'\">\n"
        ),
        (
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta '
            'name="robots" content="noindex">\n'
        ),
        (
            "<title>Evidence of erasure, order "
            f"{_text(order.id)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        ),
        (
            f"<header>\n<div>\n<h1>Evidence of erasure</h1>\n<p>Order {_text(order.id)}, as of "
            f"{moment(bundle.time)}</p>\n</div>\n"
        ),
        f'<div class="state {order.state}">{_STATES[order.state]}</div>\n</header>\n',
        f'<p class="summary">{_text(summary(bundle))}</p>\n',
        _order(bundle),
        _answers(bundle),
        _listed("What this file shows", proved(bundle)),
        _listed("What that rests on", rests_on(bundle)),
        _listed("What it does not show", not_proved(bundle)),
        _head(bundle),
        _log(bundle),
        _check(bundle),
        _words(),
        (
            "<footer>This page follows from the signed evidence inside this file, byte for byte; "
            "that evidence is not printed. "
        ),
        "It names the subject: keep it as you would keep the order.</footer>\n</main>\n",
    ]
    shell = "".join(parts).encode("ascii", "xmlcharrefreplace")
    return shell + BEFORE + envelope + AFTER + b"\n</body>\n</html>\n"


def _order(bundle: Bundle) -> str:
    order = bundle.order
    others = [f"{client}: {name}" for client, name in sorted(order.subjects.items())]
    rows = [
        ("Subject", f"<bdi>{_text(order.subject)}</bdi>"),
        *(
            [("Known to clients as", "<br>".join(f"<bdi>{_text(other)}</bdi>" for other in others))]
            if others
            else []
        ),
        *([("Reference", f"<bdi>{_text(order.reference)}</bdi>")] if order.reference else []),
        ("Filed", moment(order.filed)),
        ("Deadline", moment(order.deadline)),
        ("Complete", moment(order.completed) if order.completed else "not yet"),
        ("Federation", _digest(bundle.federation)),
    ]
    return _facts("The order", rows)


def _answers(bundle: Bundle) -> str:
    """What every client that was asked has answered."""
    rows = "".join(_answer(bundle, client) for client in bundle.ordered.entry["clients"])
    head = (
        '<tr><th>Client</th><th>Answered</th><th class="number">Deleted</th><th '
        'class="number">Request</th>'
        '<th class="number">Log entry</th><th>Journal erased</th></tr>'
    )
    return (
        "<h2>The clients&#8217; "
        f"answers</h2>\n<table>\n<thead>{head}</thead>\n<tbody>\n{rows}</tbody>\n</table>\n"
    )


def _answer(bundle: Bundle, client: str) -> str:
    """One row: the client's answer, its departure, or that there is none yet."""
    answer = next((each for each in bundle.answers() if each["client"] == client), None)
    gone = next(
        (logged for logged in bundle.departures() if logged.entry["client"] == client), None
    )
    time, deleted, request, position, erased = "not yet", "", "", "", ""
    if answer is not None:
        deleted = "not disclosed" if answer["found"] == UNDISCLOSED else str(answer["found"])
        time, request = moment(answer["time"]), str(answer["sequence"])
        change = bundle.change(client, answer["sequence"])
        position, erased = (
            ("", "") if change is None else (str(change.index), _erasure(bundle, change))
        )
    elif gone is not None:
        vanished = gone.entry["kind"] == "forgotten"
        time, deleted = (
            f"{'forgotten' if vanished else 'left'} on {moment(gone.entry['time'])}",
            "all",
        )
        position, erased = str(gone.index), "" if vanished else _erasure(bundle, gone)
    numbers = "".join(f'<td class="number">{value}</td>' for value in (deleted, request, position))
    return f"<tr><td>{_text(client)}</td><td>{time}</td>{numbers}<td>{erased}</td></tr>\n"


def _erasure(bundle: Bundle, change: Logged) -> str:
    """What became of the journal that carried a change."""
    shredding = bundle.shredding(change)
    if not change.entry["deleted"]:
        return "nothing to erase"
    if shredding is None:
        return f"promised by {moment(change.entry['erased_by'])}"
    return f"{moment(shredding.entry['time'])} (entry {shredding.index})"


def _head(bundle: Bundle) -> str:
    if bundle.certificate is None:
        return (
            "<h2>The head now</h2>\n<p>No head could be published when this bundle was made.</p>\n"
        )
    certificate = Certificate.unverified(bundle.certificate)
    spec, audit = certificate.spec, certificate.audit
    outcome = {"equal": "equal to the ledger", "different": "DIFFERENT from the ledger"}
    rows = [
        ("Digest of the head", _digest(certificate.head)),
        (
            "Made from",
            f"{number(certificate.count, 'sample')} of {number(certificate.clients, 'client')}",
        ),
        (
            "Exact",
            "yes, bit for bit" if certificate.exact else f"no: {_text(certificate.deviation)}",
        ),
        *(
            [("Error before rounding", f"at most {certificate.bound:.3g}")]
            if certificate.bound is not None
            else []
        ),
        ("Weights in units of", f"2<sup>{-spec.publication_bits}</sup>"),
        ("Solver", _text(certificate.solver)),
        ("Regularisation (gamma)", repr(spec.gamma)),
        ("Spec digest", _digest(spec.digest)),
        (
            "Last audit",
            "none yet"
            if audit is None
            else (
                f"{moment(audit['time'])}: recomputed by the clients, {outcome[audit['result']]} "
                f"(entry {audit['index']})"
            ),
        ),
        ("Certified", moment(certificate.time)),
    ]
    return _facts("The head now", rows)


def _log(bundle: Bundle) -> str:
    checkpoint = bundle.checkpoint
    rows = [
        ("Entries", str(checkpoint.size)),
        ("Root", _digest(checkpoint.root.hex())),
        ("Checkpoint of", moment(checkpoint.time)),
        (
            "Entries proved here",
            ", ".join(f"{logged.index} ({logged.entry['kind']})" for logged in _proved(bundle)),
        ),
    ]
    return _facts("The audit log", rows)


def _check(bundle: Bundle) -> str:
    return (
        '<section class="check">\n<h2>How to check this file</h2>\n'
        "<p>Do not take this page&#8217;s word for it. With Expunge installed and the "
        "server&#8217;s public key at "
        "hand, no network is needed:</p>\n<code>expunge verify THIS-FILE.html --key "
        "server.pub</code>\n"
        f"<p>It was signed with the key whose id is {_digest(bundle.server)}. "
        "Get the key from the server&#8217;s operator by a way that you trust. The check makes "
        "this page again from the signed "
        "evidence and compares every byte.</p>\n</section>\n"
    )


def _words() -> str:
    return (
        "<h2>Words used here</h2>\n<dl>\n"
        + "".join(f"<dt>{word}</dt><dd>{meaning}</dd>\n" for word, meaning in _WORDS)
        + "</dl>\n"
    )


def _proved(bundle: Bundle) -> list[Logged]:
    return sorted((*bundle.entries, *bundle.erased), key=lambda logged: logged.index)


def _facts(title: str, rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(
        f'<tr><th scope="row">{name}</th><td>{value}</td></tr>\n' for name, value in rows
    )
    return f'<h2>{title}</h2>\n<table class="facts">\n<tbody>\n{body}</tbody>\n</table>\n'


def _listed(title: str, sentences: Sequence[str]) -> str:
    return (
        f"<h2>{title}</h2>\n<ul>\n"
        + "".join(f"<li>{_text(sentence)}</li>\n" for sentence in sentences)
        + "</ul>\n"
    )


def _digest(value: str) -> str:
    return f'<span class="digest">{_text(value)}</span>'


def _text(value: str) -> str:
    """Any text as HTML that shows it and does nothing."""
    return html.escape(shown(value))


def summary(bundle: Bundle) -> str:
    """The order and what came of it, in a few sentences."""
    order, ordered = bundle.order, bundle.ordered
    clients = ordered.entry["clients"]
    asked_of = number(len(clients), "client").capitalize()
    parts = [
        f"Erasure order {order.id} was filed on {moment(order.filed)}.",
        f"{asked_of} had to answer it by {moment(order.deadline)}.",
    ]
    waiting = sorted(set(clients) - settled(ordered, bundle.entries))
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


def proved(bundle: Bundle) -> list[str]:
    """What the server has signed and logged, beyond taking back."""
    order, size = bundle.order, bundle.checkpoint.size
    whom = "about this subject" if order.salt is not None else "(the log does not show about whom)"
    position = bundle.ordered.index
    sentences = [
        (
            f"Erasure order {order.id} {whom} is entry {position} of the federation's audit log of "
            f"{number(size, 'entry')}."
        )
    ]
    sentences += _answer_sentences(bundle)
    is_masked = bundle.template in MASKED
    sentences += [_departure(logged, is_masked) for logged in bundle.departures()]
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


def not_proved(bundle: Bundle) -> list[str]:
    """What nobody should read into a bundle."""
    sentences = [NOT_THE_BACKBONE, NO_COPIES, OLD_HEADS]
    if bundle.template in MASKED:
        sentences.append(SEEN_SUMS)
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
    certificate = Certificate.unverified(bundle.certificate)
    return [*sentences, *unaudited(certificate), *sums_since(certificate.binds)]


def rests_on(bundle: Bundle) -> list[str]:
    """What the sentences that a bundle proves rest on."""
    entries = [logged.entry for logged in bundle.found("changed")]
    by_samples = any(binds_of(entry) == "samples" for entry in entries)
    return [
        *assumptions(masked=bundle.is_masked),
        *hash_of("samples" if by_samples else "sums"),
    ]


def _answer_sentences(bundle: Bundle) -> list[str]:
    """What the clients found and deleted, which hold nothing, and what became of the journal that
    carried it.
    """
    deletions = [answer for answer in bundle.answers() if answer["found"] > 0]
    hidden = [answer["client"] for answer in bundle.answers() if answer["found"] == UNDISCLOSED]
    nothing = [answer["client"] for answer in bundle.answers() if not answer["found"]]
    sentences = []
    if deletions:
        each = listed([f"{samples(answer['found'])} by {answer['client']}" for answer in deletions])
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
        for answer in deletions
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


def _departure(logged: Logged, is_masked: bool) -> str:
    entry, citation = logged.entry, f"(entry {logged.index})"
    if is_masked and entry["kind"] == "forgotten":
        return (
            f"The client {entry['client']} vanished, and what the other clients hold, added up by "
            f"secure aggregation, took the place of the ledger {citation}."
        )
    if is_masked:
        return (
            f"The client {entry['client']} left, and said that it had deleted all that it had "
            f"contributed, in a round of secure aggregation {citation}."
        )
    if entry["kind"] == "forgotten":
        all_of_it = (
            "its samples, whose number is not known"
            if entry["count"] == UNDISCLOSED
            else samples(entry["count"])
        )
        return (
            f"The client {entry['client']} vanished, and the server subtracted all that it had "
            f"contributed: {all_of_it} {citation}."
        )
    return (
        f"The client {entry['client']} left with all that it had contributed: "
        f"{samples(entry['deleted'])} {citation}."
    )


def _audit(bundle: Bundle, logged: Logged) -> str:
    after = all(change.index < logged.index for change in bundle.found("changed"))
    when = "with these deletions made" if after else "before the last of these deletions"
    if bundle.is_masked:
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


def render_bundle(envelope: Envelope) -> bytes:
    """Render the HTML page of a bundle, with the envelope inside; the same envelope gives the same
    bytes in every version.

    `Federation.bundle` and `expunge order bundle` call this. The page names the subject: it is
    personal data in the clear.

    Parameters
    ----------
    envelope : Envelope
        The envelope of kind `bundle`, as the question `bundle` of an office is answered.

    Returns
    -------
    bytes
        A self-contained HTML file (ASCII) that `verify` checks.

    Raises
    ------
    EvidenceError, FormatError
        The content is not a bundle, or contradicts itself. Signatures and proofs are not checked.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.crypto import Envelope
    >>> from expunge.evidence import read_bundle, render_bundle
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> order = federation.order("patient 12")
    >>> answer = federation.office.ask("bundle", {"order": order})
    >>> envelope = Envelope.from_json(answer, "bundle")
    >>> page = render_bundle(envelope)
    >>> page[:15]
    b'<!DOCTYPE html>'
    >>> read_bundle(page) == envelope
    True
    >>> federation.close()
    >>> folder.cleanup()
    """
    return page(Bundle.unverified(envelope), envelope.to_bytes())


def read_bundle(data: bytes) -> Envelope:
    """The envelope in a bundle's HTML page, if every byte of the page follows from it.

    Signatures and proofs are not checked: `Bundle.read` and `verify` do that.

    Parameters
    ----------
    data : bytes
        The content of the HTML file.

    Returns
    -------
    Envelope
        The envelope of kind `bundle`.

    Raises
    ------
    FormatError
        The file is not a bundle, or is truncated.
    EvidenceError
        The page is not the one that `render_bundle` makes of the envelope: it was altered.

    Examples
    --------
    >>> from expunge.evidence import read_bundle
    >>> read_bundle(b"<!DOCTYPE html><title>Another page</title>")
    Traceback (most recent call last):
    ...
    expunge.errors.FormatError: this HTML file has no evidence inside: ...

    `render_bundle` has an example with a real bundle.
    """
    if data.count(BEFORE) != 1:
        raise FormatError(
            "this HTML file has no evidence inside: it is not a bundle, or it was altered"
        )
    inside, closed, _ = data[data.index(BEFORE) + len(BEFORE) :].partition(AFTER)
    if not closed:
        raise FormatError("the evidence inside this bundle has no end: the file was cut off")
    envelope = Envelope.from_bytes(inside, "bundle")
    if render_bundle(envelope) != data:
        raise EvidenceError(
            "the page is not the one that follows from the evidence inside it: the file was altered"
        )
    return envelope
