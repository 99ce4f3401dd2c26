"""`expunge order`: erasure orders, from a person's request to the bundle for the authority."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.text import Text

from expunge.cli import _command
from expunge.cli._command import group
from expunge.cli._connect import OfficeConnection, office_at
from expunge.cli._identifiers import LAST, Identifier, resolve
from expunge.cli._options import (
    NOT_DISCLOSED,
    disclosed,
    office_options,
    output_option,
    subject_text,
    yes_option,
)
from expunge.cli._output import (
    Screen,
    Style,
    count,
    facts,
    line,
    next_steps,
    table,
    title,
    typed,
    unwrapped,
)
from expunge.cli._pages import limit_options, note_rest, pages
from expunge.crypto import Envelope
from expunge.errors import InputError, UnknownSampleError
from expunge.evidence.wording import found_in, moment
from expunge.kinds import OrderState
from expunge.storage.files import write_whole
from expunge.wire.payloads import ORDER_DAYS

_RANK: dict[OrderState, int] = {"lost": 0, "overdue": 1, "open": 2, "complete": 3, "closed": 4}
_STYLE: dict[OrderState, str] = {
    "lost": Style.BAD,
    "overdue": Style.BAD,
    "open": Style.WAITS,
    "complete": Style.GOOD,
    "closed": "dim",
}
_NEWEST = 9  # orders that a message may name
_LOST = "the restored server no longer knows its subject: file it again"
_WITHOUT_EVIDENCE = (
    "the restored server no longer knows its subject, so no bundle can be written. What is left: "
    "each client's receipt of its answer (expunge client receipts NUMBER -o FILE). Or file the "
    "order again, for a bundle of what is held now"
)


@group()
def order() -> None:
    """Erasure orders: a person asks once, every client answers, a signed bundle documents it.

    A privacy officer files an order for a subject. At its next sync, each client deletes the
    samples that it holds of that subject (or answers that it holds none). The order is complete
    when all clients have answered.

    Example:
      expunge order file patient-4711 --office privacy-office
      expunge order list --office privacy-office
      expunge order bundle ORDER -o order.html --office privacy-office
    """


@order.command()
@click.argument("subject")
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=ORDER_DAYS,
    show_default=True,
    help="Days until the deadline.",
)
@click.option(
    "--known-as",
    "names",
    multiple=True,
    metavar="CLIENT=SUBJECT",
    help="The subject's id at one client. Repeatable.",
)
@click.option(
    "--reference",
    default="",
    metavar="TEXT",
    help=(
        "Your case reference, such as a ticket number. Nothing personal: it is not sealed, and "
        "remains after the order is closed."
    ),
)
@office_options
def file(
    *,
    subject: str,
    days: int,
    names: tuple[str, ...],
    reference: str,
    office: Path | None,
    at: str | None,
) -> None:
    """File an erasure order for SUBJECT at every client.

    SUBJECT is the id under which clients keep the person; - reads it from standard input, which
    keeps it out of the shell history. The server stores it sealed; the public log shows only a
    salted digest. The reference appears with the order in your listings and in the bundle; clients
    and the log do not see it.

    Example:
      expunge order file patient-4711 --office privacy-office
      expunge order file patient-4711 --reference DPO-2026-0815
      expunge order file patient-4711 --known-as clinic-b=B-0815

    Next:
      expunge client sync --dir CLIENT   # at each client: answer the order
      expunge order show ORDER           # show who has answered
    """
    arguments = {"subject": subject_text(subject), "subjects": _known_as(names), "days": days}
    arguments |= {"reference": reference} if reference else {}
    with office_at(office, at) as connection:
        filed = connection.office.do("order", arguments)
    Screen.current().result(
        _value(filed),
        title(f"Order {filed['order']} filed"),
        facts(
            [
                *_reference(filed),
                ("Deadline", moment(filed["deadline"])),
                ("Waiting for", _waiting(filed)),
            ]
        ),
        next_steps(
            f"expunge order show {_short(filed)} --office {typed(connection.office.path)}",
            (
                f"expunge order bundle {_short(filed)} -o order.html --office "
                f"{typed(connection.office.path)}"
            ),
            why="Clients answer at their next sync. Then:",
        ),
    )


@order.command("list")
@click.option(
    "--overdue",
    is_flag=True,
    help=f"Only overdue and lost orders; exits with {_command.NOT_YET} if there are any.",
)
@limit_options
@office_options
def list_(overdue: bool, limit: int, everything: bool, office: Path | None, at: str | None) -> None:
    """List the erasure orders: lost and overdue ones, and the newest others.

    An order is lost if the server was restored from a backup without the order or its subject: file
    it again.

    Example:
      expunge order list --overdue || mail -s overdue officer@example.org
      expunge order list --limit 10

    Next:
      expunge order show ORDER    # show who has yet to answer
    """
    with office_at(office, at) as connection:
        most = None if everything else limit
        filed, total = _listed(connection, most, overdue=True)
        if not overdue:
            newest, total = _listed(connection, most, overdue=False)
            filed = (filed + [entry for entry in newest if entry not in filed])[:most]
        unknown = _unknown(connection)
    orders = sorted(
        filed, key=lambda entry: (_RANK[entry["state"]], entry["deadline"], entry["order"])
    )
    referred = any(_reference(entry) for entry in orders)
    rows = [
        (
            _short(entry),
            *([entry.get("reference", "")] if referred else []),
            _state(entry),
            entry["deadline"][:10],
            _answered(entry),
            _found(entry),
        )
        for entry in orders
    ]
    columns = (
        "Order",
        *(["Reference"] if referred else []),
        "State",
        "Deadline",
        "Answers",
        "Samples deleted",
    )
    shown = table(columns, rows, right=("Answers", "Samples deleted"))
    screen = Screen.current()
    screen.result(
        {"orders": [_value(entry) for entry in orders], "total": total, "unknown": unknown},
        shown if orders else line("No overdue orders." if overdue else "No orders yet."),
    )
    note_rest(total, len(orders), "order")
    for entry in orders:
        if entry["state"] == "lost":
            screen.note(f"order {_short(entry)} is lost: {_LOST}")
    without = [_short(entry) for entry in orders if _is_without_evidence(entry)]
    if without:
        screen.note(f"complete, but without evidence: {', '.join(without)}: {_WITHOUT_EVIDENCE}")
    for order_id in unknown:
        screen.note(_unknown_note(order_id))
    if overdue and (orders or unknown):
        raise click.exceptions.Exit(_command.NOT_YET)


@order.command()
@click.argument("order_id", metavar="ORDER")
@office_options
def show(order_id: str, office: Path | None, at: str | None) -> None:
    """Show one order: its deadline, the clients' answers, and who has yet to answer.

    ORDER is the order's id, a prefix of it, its reference, or last. The subject is not shown; only
    the bundle names it. Under secure aggregation clients do not disclose how many samples each has
    found (null with --json).

    Example:
      expunge order show 3fa9 --office privacy-office

    Next:
      expunge order bundle ORDER -o order.html   # write the evidence to one file
    """
    with office_at(office, at) as connection:
        entry = connection.office.ask("show-order", {"order": whole_id(connection, order_id)})
    answers = [
        (answer["client"], _deleted(answer), moment(answer["time"]), answer["sequence"] or "none")
        for answer in entry["answers"]
    ]
    times = [
        *_reference(entry),
        ("State", _state(entry)),
        ("Filed", moment(entry["filed"])),
        ("Deadline", moment(entry["deadline"])),
    ]
    times += (
        [("Complete", moment(entry["completed"]))]
        if entry["completed"]
        else [("Waiting for", _waiting(entry))]
    )
    Screen.current().result(
        _value(entry),
        title(f"Order {entry['order']}"),
        facts(times),
        *([line(f"It is lost: {_LOST}.", Style.BAD, indent=2)] if entry["state"] == "lost" else []),
        *(
            [line(f"Complete, but {_WITHOUT_EVIDENCE}.", Style.BAD, indent=2)]
            if _is_without_evidence(entry)
            else []
        ),
        line(),
        table(("Client", "Deleted", "When", "Receipt"), answers)
        if answers
        else line("No client has answered yet.", indent=2),
    )


@order.command()
@click.argument("order_id", metavar="ORDER")
@output_option("The HTML file to write.", required=True)
@office_options
def bundle(order_id: str, output: Path, office: Path | None, at: str | None) -> None:
    """Write the evidence of an order, as an authority would ask for it, to one HTML file.

    The file is a readable page with the signed evidence inside: every client's receipt, its place
    in the audit log, the certificate of the head, the last audit. It names the subject: treat it as
    personal data. It is verified before it is written, and anyone can verify it again offline.
    Exits with 7 if the order is not complete yet; the file says so too. ORDER is as for expunge
    order show.

    Example:
      expunge order bundle 3fa9 -o order.html --office privacy-office

    Next:
      expunge verify order.html --key server.pub
      expunge order close 3fa9    # make the server forget the subject
    """
    from expunge.evidence import Bundle, render_bundle  # noqa: PLC0415 - no other command waits for them

    with office_at(office, at) as connection:
        whole = whole_id(connection, order_id)
        envelope = Envelope.from_json(connection.office.ask("bundle", {"order": whole}), "bundle")
        evidence = Bundle.read(
            envelope, connection.office.server, connection.office.chain.envelopes
        )
        data = render_bundle(envelope)
    write_whole(output, data)
    state = evidence.order.state
    Screen.current().result(
        {
            "order": whole,
            "state": state,
            "file": str(output),
            "receipts": len(evidence.receipts),
            "bytes": len(data),
        },
        unwrapped(f"{output}: evidence of order {whole}, {state}", "bold"),
        facts([("Receipts", len(evidence.receipts)), ("Size", f"{len(data):,} bytes")]),
        next_steps(
            f"expunge verify {typed(output)} --trust {typed(connection.office.path)}",
            (
                f"expunge order {'close' if state == 'complete' else 'show'} {whole[:8]} --office "
                f"{typed(connection.office.path)}"
            ),
            why="Next:"
            if state == "complete"
            else "Not all clients have answered yet: write the bundle again later. Next:",
        ),
    )
    if state != "complete":
        raise click.exceptions.Exit(_command.NOT_YET)


@order.command()
@click.argument("order_id", metavar="ORDER")
@yes_option
@office_options
def close(order_id: str, yes: bool, office: Path | None, at: str | None) -> None:
    """Make the server forget the subject of a complete order.

    Destroys the key under which the subject is sealed. No bundle can be written afterwards: write
    it first. If a restored server does not know an order, and you have filed it again, this command
    removes the old one from your office. ORDER is as for expunge order show.

    Example:
      expunge order close 3fa9 --office privacy-office
    """
    screen = Screen.current()
    with office_at(office, at) as connection:
        whole = _filed_unknown(connection, order_id)
        if whole:
            connection.office.drop_order(whole)
            screen.result(
                {"order": whole},
                line(f"Order {whole}, unknown to the server, removed from this office."),
            )
            return
        whole = whole_id(connection, order_id)
        screen.confirm(
            f"Forget the subject of order {whole}? No bundle can be written afterwards", yes=yes
        )
        closed = connection.office.do("close-order", {"order": whole})
    screen.result(closed, line(f"Order {whole} closed: the server has forgotten its subject."))


def whole_id(connection: OfficeConnection, given: str) -> str:
    """The id of the order that is named by its id, the beginning of it, its reference, or
    `last`.
    """
    named = connection.office.ask("orders", {"named": given}) if given not in ("", LAST) else []
    if not named:  # the newest one, or those that a message names
        named = reversed(_listed(connection, _NEWEST, overdue=False)[0])
    identifiers = [Identifier(entry["order"], entry.get("reference", "")) for entry in named]
    try:
        return resolve(given, identifiers, "order")
    except UnknownSampleError:
        unknown = [
            order_id
            for order_id in _unknown(connection)
            if given and order_id.startswith(given.lower())
        ]
        if unknown:
            raise UnknownSampleError(_unknown_note(unknown[0])) from None
        raise


def _listed(
    connection: OfficeConnection, most: int | None, *, overdue: bool
) -> tuple[list[dict[str, Any]], int]:
    """The newest orders, or the newest of those that are lost or overdue; and how many there are of
    them.
    """
    return pages(connection, "orders", most, "before", "order", overdue=overdue)


def _unknown(connection: OfficeConnection) -> list[str]:
    """The orders that were filed from this office, and that the server does not know: it was
    restored from before them.
    """
    filed = connection.office.filed
    unknown: list[str] = connection.office.ask("orders", {"unknown": filed}) if filed else []
    return unknown


def _filed_unknown(connection: OfficeConnection, beginning: str) -> str:
    """The id of the one order of this office that begins so and that the server does not know;
    empty if it is another.
    """
    matches = [
        order_id
        for order_id in _unknown(connection)
        if beginning and order_id.startswith(beginning.lower())
    ]
    return matches[0] if len(matches) == 1 else ""


def _unknown_note(order_id: str) -> str:
    return (
        f"order {order_id[:8]}, filed from this office, is unknown to the restored server: file "
        f"it again, then expunge order close {order_id[:8]}"
    )


def _known_as(names: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in names:
        client, equals, subject = text.partition("=")
        if not equals or not client or not subject or client in pairs:
            raise InputError("--known-as must be CLIENT=SUBJECT, and each client can be given once")
        pairs[client] = subject
    return pairs


def _short(entry: dict[str, Any]) -> str:
    return str(entry["order"])[:8]


def _reference(entry: dict[str, Any]) -> list[tuple[str, object]]:
    return [("Reference", entry["reference"])] if entry.get("reference") else []


def _state(entry: dict[str, Any]) -> Text:
    return Text(entry["state"], style=_STYLE[entry["state"]])


def _is_gone(answer: dict[str, Any]) -> bool:
    """Whether a client was forgotten by the operator before it answered: then no request of its own
    answers the order.
    """
    return int(answer["sequence"]) == 0


def _deleted(answer: dict[str, Any]) -> str:
    if _is_gone(answer):
        return "gone (forgotten by the operator)"
    deleted = disclosed(answer["found"])
    return NOT_DISCLOSED if deleted is None else count(deleted, "sample")


def _answered(entry: dict[str, Any]) -> str:
    gone = sum(_is_gone(answer) for answer in entry["answers"])
    text = f"{len(entry['answers']) - gone} of {len(entry['answers']) + len(entry['waiting'])}"
    return f"{text}, {gone} gone" if gone else text


def _found(entry: dict[str, Any]) -> str:
    total, hidden = found_in(entry["answers"])
    return (
        f"{total:,}"
        if not hidden
        else f"{total:,} and more, {NOT_DISCLOSED}"
        if total
        else NOT_DISCLOSED
    )


def _value(entry: dict[str, Any]) -> dict[str, Any]:
    """An order as JSON shows it: what clients found is null where they do not disclose it."""
    return entry | {
        "answers": [answer | {"found": disclosed(answer["found"])} for answer in entry["answers"]]
    }


def _is_without_evidence(entry: dict[str, Any]) -> bool:
    """Whether an order is complete, and nobody can write its bundle any more; servers of before
    this was told do not say.
    """
    return entry["state"] == "complete" and bool(entry.get("subject_lost"))


def _waiting(entry: dict[str, Any]) -> str:
    return ", ".join(entry["waiting"]) or "none"
