"""`expunge server`: what operators do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from expunge.cli.command import group
from expunge.cli.options import FILE, FOLDER, PATH, office_options, output_option, yes_option
from expunge.cli.reach import Reached, is_url, office_at
from expunge.cli.screen import GOOD, Screen, count, facts, line, next_steps, table, title
from expunge.cli.tokens import new_token
from expunge.embedded.place import Place
from expunge.errors import InputError
from expunge.evidence.wording import moment
from expunge.files import write_whole
from expunge.protocol.names import ROLES, time_text
from expunge.signing import Envelope, SigningKey
from expunge.spec import Spec


@group()
def server() -> None:
    """What operators do: let clients in, see how things stand, amend, back up, restore.

    An operator speaks from an office: a folder with a key, such as the one that expunge init makes (DIR/operator). Name it by
    --office or by the variable EXPUNGE_OFFICE. Every command is signed, numbered and written to the audit log.

    Example:
      export EXPUNGE_OFFICE=federation/operator
      expunge server token hospital-a
      expunge server status
    """


@server.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="client", show_default=True, help="What NAME will be.")
@click.option("--days", type=click.IntRange(1, 365), default=7, show_default=True, help="Days until the token expires.")
@click.option("--url", "urls", multiple=True, metavar="URL", help="Where NAME will reach the server. Repeatable.")
@output_option("Write the token to this file (readable by you alone) instead of showing it.")
@office_options
def token(
    *, name: str, role: str, days: int, urls: tuple[str, ...], output: Path | None, office: Path | None, at: str | None
) -> None:
    """Make a one-time token by which NAME can enrol.

    NAME stands in the public log: name an institution or an office, never a person. The token carries the server's address and
    public key, so that nothing has to be trusted on first use, and a secret: pass it on as you would a password.

    Example:
      expunge server token hospital-a -o hospital-a.token

    Next, at the client:
      expunge enroll hospital-a.token --dir hospital-a
    """
    with office_at(office, at) as reached:
        made = new_token(reached, name, role, urls or _addresses(reached, at), days)
    text = made[0].to_text()
    if output is not None:
        write_whole(output, text.encode("ascii") + b"\n")
    value = {"name": name, "role": role, "expires": made[1], "urls": list(made[0].urls), "token": text}
    where = str(output or "TOKEN")
    Screen.current().result(
        value | {"file": None if output is None else str(output)},
        title(f"A token for {name}, good once, until {moment(made[1])}"),
        facts([("Role", role), ("Leads to", ", ".join(made[0].urls)), *([] if output is None else [("File", output)])]),
        *([line(), Text(text, no_wrap=True, overflow="ignore")] if output is None else []),
        next_steps(f"expunge enroll {where} --dir {name}", why=f"Pass it to {name}, who types:"),
    )


def _addresses(reached: Reached, at: str | None) -> tuple[str, ...]:
    """Where a newcomer will find the server: where it was meant to be reached, or where we have reached it ourselves."""
    address = at or reached.office.address
    if is_url(address):
        return (address,)
    place = Place.at(Path(address))
    serving = place.serving()
    return place.urls or ((serving,) if serving else (str(place.path),))


@server.command()
@office_options
def clients(office: Path | None, at: str | None) -> None:
    """List everybody who is enrolled, with their samples.

    Example:
      expunge server clients --office federation/operator

    Next:
      expunge server forget-client NAME     a client that has vanished for good
    """
    with office_at(office, at) as reached:
        found = reached.office.ask("clients", {})
    rows = [(one["name"], one["role"], one["status"], one["samples"], one["sequence"], one["enrolled"][:10]) for one in found]
    columns = ("Name", "Role", "Status", "Samples", "Requests", "Enrolled")
    Screen.current().result({"clients": found}, table(columns, rows, right=("Samples", "Requests")))


@server.command()
@office_options
def status(office: Path | None, at: str | None) -> None:
    """Show how the federation stands: samples, clients, head, orders, audit.

    Example:
      expunge server status --office federation/operator
    """
    with office_at(office, at) as reached:
        told = reached.office.ask("status", {})
    present, orders, audit = told["clients"], told["orders"], told["audit"]
    gone = "".join(f", {present[state]} {state}" for state in ("must-rejoin", "gone") if present[state])
    Screen.current().result(
        told,
        title(f"Federation {told['federation']}"),
        facts(
            [
                ("Samples", f"{told['samples']:,}"),
                ("Clients", f"{present['active']} active{gone}"),
                ("Head", told["head"] or f"none: {told['headless']}"),
                ("Round", told["round"]),
                ("Audit log", f"{told['log']:,} entries"),
                ("To be erased at rest", f"{count(told['journal'], 'message')} in the journal"),
                ("Orders", ", ".join(f"{number} {state}" for state, number in orders.items() if number) or "none"),
                ("Last audit", "none yet" if audit is None else f"{audit['result']}, {moment(audit['time'])}"),
                ("Solver", told["solver"]),
                ("Spec", told["spec"]),
                ("Server key", told["key"]),
            ]
        ),
    )


@server.command()
@output_option("The file to write.")
@office_options
def spec(output: Path | None, office: Path | None, at: str | None) -> None:
    """Show or write the federation's spec: what every client must agree on.

    Example:
      expunge server spec -o spec.json

    Next:
      expunge init OTHER --spec spec.json      found another federation alike
    """
    with office_at(office, at) as reached:
        found = Spec.from_dict(reached.office.federation_content()["spec"])
    value = found.to_dict()
    if output is not None:
        write_whole(output, (json.dumps(value, indent=2) + "\n").encode(), mode=0o644)
    labels = "-" if found.labels is None else ", ".join(str(label) for label in found.labels)
    Screen.current().result(
        {"spec": value, "digest": found.digest, "file": None if output is None else str(output)},
        title(f"Spec {found.digest}"),
        facts(
            [
                ("Features", f"{found.dim}, {'and an intercept' if found.intercept else 'no intercept'}"),
                *([("Labels", labels)] if found.labels is not None else [("Outputs", found.outputs)]),
                ("gamma", f"{found.gamma:g}"),
                ("Grid", f"{found.grid.digits} digits, {found.grid.fraction_bits} fraction bits"),
                ("Published to", f"2^{-found.publication_bits}"),
                ("Messages", ", ".join(found.messages)),
                ("Backbone", found.backbone or "any: features are taken as they are given"),
            ]
        ),
    )


@server.command()
@click.option("--gamma", type=float, help="The ridge parameter.")
@click.option("--add-label", "labels", multiple=True, metavar="LABEL", help="Append a label. Repeatable.")
@click.option("--publication-bits", type=int, help="Weights are published as multiples of 2^-BITS.")
@click.option("--messages", metavar="KINDS", help="What clients may send: rows, gram or rows,gram.")
@yes_option
@office_options
def amend(
    *,
    gamma: float | None,
    labels: tuple[str, ...],
    publication_bits: int | None,
    messages: str | None,
    yes: bool,
    office: Path | None,
    at: str | None,
) -> None:
    """Amend the spec: another gamma, more labels, another precision, other messages.

    The amendment is signed and logged; clients see it at their next sync, and nobody sends anything again. Features, grid and
    backbone cannot be amended: found another federation for those.

    Example:
      expunge server amend --gamma 0.5 --office federation/operator
      expunge server amend --add-label otter
    """
    screen = Screen.current()
    with office_at(office, at) as reached:
        before = Spec.from_dict(reached.office.federation_content()["spec"])
        change: dict[str, Any] = {}
        if gamma is not None:
            change["gamma"] = before.with_gamma(gamma).to_dict()["gamma"]
        if publication_bits is not None:
            change["publication_bits"] = publication_bits
        if labels:
            change["labels"] = before.with_labels(*labels).to_dict()["labels"]
        if messages is not None:
            change["messages"] = sorted(part.strip() for part in messages.split(","))
        if not change:
            raise InputError("nothing is to be amended: give --gamma, --add-label, --publication-bits or --messages")
        screen.confirm(f"Amend {', '.join(change)} for the whole federation?", yes=yes)
        told = reached.office.do("amend", change)
        told |= {"head": reached.office.ask("status", {})["head"]}  # the result, which is kept, has a salted digest
    after = Spec.from_dict(told["spec"])
    screen.result(
        told | {"digest": after.digest},
        title("The spec is amended"),
        line(before.difference(after).replace(" here", " before").replace(" there", " now"), indent=2),
        facts([("Spec", after.digest), ("Head", told["head"] or "none")]),
        next_steps("expunge client sync --dir CLIENT", why="Each client takes it on at its next sync:"),
    )


@server.command("forget-client")
@click.argument("client")
@yes_option
@office_options
def forget_client(client: str, yes: bool, office: Path | None, at: str | None) -> None:
    """Forget a client that has vanished, with all that it ever added.

    Its share of the ledger is subtracted and destroyed. A client that still answers had better leave by itself
    (expunge client leave), which also empties its own store. It can never come back under the same name.

    Example:
      expunge server forget-client hospital-a --office federation/operator
    """
    screen = Screen.current()
    screen.confirm(f"Forget {client} and every sample that it added? This cannot be undone", yes=yes)
    with office_at(office, at) as reached:
        told = reached.office.do("forget-client", {"client": client})
    screen.result(told, line(f"{client} is forgotten: {count(told['count'], 'sample')} subtracted from the ledger.", GOOD))


@server.command("rotate-key")
@output_option("Write the signed rotation to this file, for expunge verify --rotation.")
@yes_option
@office_options
def rotate_key(output: Path | None, yes: bool, office: Path | None, at: str | None) -> None:
    """Let the server sign with a new key from now on.

    The old key names the new one and both sign that, so that whoever knows one of them can trust the other. Bundles contain the
    rotations; to verify older or newer files with a key that you have pinned, keep the rotation's file.

    Example:
      expunge server rotate-key -o rotation.json --office federation/operator

    Next:
      expunge verify receipt.json --key server.pub --rotation rotation.json
    """
    screen = Screen.current()
    screen.confirm("Retire the server's signing key and make a new one?", yes=yes)
    with office_at(office, at) as reached:
        told = reached.office.do("rotate-key", {})
        reached.office.federation_content()  # signed by the new key already: the office takes it on
    if output is not None:
        write_whole(output, Envelope.from_json(told["rotation"], "rotation").to_bytes() + b"\n", mode=0o644)
    screen.result(
        told | {"file": None if output is None else str(output)},
        title("The server has a new key"),
        facts([("Public key", told["key"]), ("Rotation", output or "in the log, in bundles and at every client's next sync")]),
    )


@server.command()
@click.argument("name")
@office_options
def backup(name: str, office: Path | None, at: str | None) -> None:
    """Back the server up to backups/NAME in its folder.

    A backup holds who is enrolled, what was answered, and the audit log; it holds nothing that must be forgettable: no
    ledger, no commitments. A restored server is told by its clients what they hold now. Keep server.key (and a mirror of
    server.vault, if open orders are to survive) in another place.

    Example:
      expunge server backup monday --office federation/operator

    Next, when the server is lost:
      expunge server restore NEW --backup backups/monday --key server.key
    """
    with office_at(office, at) as reached:
        told = reached.office.do("backup", {"name": name})
    Screen.current().result(told, line(f"Backed up to backups/{told['file']} in the server's folder.", GOOD))


@server.command()
@click.argument("directory", type=FOLDER)
@click.option("--backup", "source", type=FILE, required=True, help="The file that expunge server backup wrote.")
@click.option("--key", type=FILE, required=True, help="The server's signing key (server.key) as it was then.")
@click.option("--vault", type=FILE, help="A mirror of the server's vault, if there is one: keeps open orders readable.")
@click.option("--mirror", "mirrors", type=PATH, multiple=True, help="Mirror the vault to this file from now on. Repeatable.")
def restore(directory: Path, source: Path, key: Path, vault: Path | None, mirrors: tuple[Path, ...]) -> None:
    """Restore a lost server from a backup into the new folder DIRECTORY.

    It begins with an empty ledger: each client, at its next sync, sends what it holds now. So what was deleted since the backup
    was made stays deleted. The operator's office works as before: point it at the new place by --at.

    Example:
      expunge server restore federation2 --backup monday --key server.key

    Next:
      expunge serve federation2
      expunge client sync --dir CLIENT      at each client
    """
    from expunge.server.founding import restore as restored  # noqa: PLC0415 - brings the whole server

    place = Place(directory.absolute())
    signing = SigningKey.from_pem(key.read_bytes())
    waiting = restored(place.server, source, signing, vault=vault, mirrors=mirrors)
    write_whole(place.public_key, signing.public.pem, mode=0o644)
    place.write_settings(urls=(), mirrors=mirrors)
    Screen.current().result(
        {"directory": str(place.path), "waiting": waiting},
        title(f"The server is restored in {place.path}"),
        facts([("Clients that must send what they hold", ", ".join(waiting) or "none")]),
        next_steps(f"expunge serve {directory}", "expunge client sync --dir CLIENT"),
    )


@server.command("renew-certificate")
@click.argument("directory", type=FOLDER)
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="The names it is to be good for. [default: as before]")
def renew_certificate(directory: Path, hosts: tuple[str, ...]) -> None:
    """Renew the TLS certificate that expunge init made, by the same authority.

    Clients trust the authority, so they notice nothing; a running server takes it up within a minute.

    Example:
      expunge server renew-certificate federation
    """
    from expunge.server.http import tls  # noqa: PLC0415 - whoever brings a certificate of their own does without

    place = Place.at(directory)
    made = tls.renew_certificate(place.tls, hosts)
    expires = time_text(tls.expiry(made.certificate).timestamp())
    Screen.current().result(
        {"certificate": str(made.certificate), "expires": expires},
        line(f"The new certificate is good until {moment(expires)}.", GOOD),
    )
