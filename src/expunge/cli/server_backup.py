"""What operators do for keys, backups and certificates: `expunge server rotate-key`, backup,
restore, accept-loss, renew-certificate.
"""

from __future__ import annotations

from pathlib import Path

import click

from expunge.cli import _connect
from expunge.cli._command import command
from expunge.cli._connect import OfficeConnection, layout_at_hand, office_at
from expunge.cli._evidence import rotations_from
from expunge.cli._options import (
    FILE,
    FOLDER,
    PATH,
    host_option,
    mirror_option,
    office_options,
    output_option,
    port_option,
    yes_option,
)
from expunge.cli._output import (
    Screen,
    Style,
    facts,
    line,
    next_steps,
    short_path,
    title,
    typed,
    unwrapped,
)
from expunge.crypto import Envelope, SigningKey
from expunge.errors import ExpungeError, InputError
from expunge.evidence.wording import moment
from expunge.federation.layout import Layout, url_of
from expunge.server import KEY
from expunge.storage.files import write_whole
from expunge.wire.schema import time_text


@command("rotate-key")
@output_option("Also write the signed rotation to this file.")
@yes_option
@office_options
def rotate_key(output: Path | None, yes: bool, office: Path | None, at: str | None) -> None:
    """Replace the server's signing key with a new one.

    Both keys sign the rotation, so that a verifier who trusts one key can trust the other. Bundles
    contain the rotations. To verify other files, older or newer, with a pinned key, keep the
    rotation file. If the federation's folder is on this machine, server.pub becomes the new key,
    and the rotation is written beside it (rotation-1.json and so on).

    A backup is made at once: to restore an earlier one, the rotation is needed as proof.

    Example:
      expunge server rotate-key -o rotation.json --office federation/operator

    Next:
      expunge verify receipt.json --key server.pub --rotation rotation.json
    """
    screen = Screen.current()
    screen.confirm("Retire the server's signing key and make a new one?", yes=yes)
    with office_at(office, at) as connection:
        result = connection.office.do("rotate-key", {})
        connection.office.federation_content()  # signed by the new key: the office takes it on
        backup_file = _backed_up(connection)
        layout, written = (
            layout_at_hand(connection),
            _write_keys(connection, layout_at_hand(connection)),
        )
    if output is not None:
        write_whole(
            output,
            Envelope.from_json(result["rotation"], "rotation").to_bytes() + b"\n",
            mode=0o644,
        )
    file = output or written
    rotation = typed(file or Path("rotation.json"))
    key_file = f"server/{KEY}" if layout is None else short_path(layout.server / KEY)
    screen.result(
        result | {"file": None if file is None else str(file), "backup": backup_file},
        title("The server has a new key"),
        facts(
            [
                ("Key", f"{connection.office.chain.newest.id[:16]}…"),
                (
                    "Rotation",
                    unwrapped(short_path(file))
                    if file
                    else "in the log, in bundles and at every client's next sync",
                ),
                *(
                    [("Public key", unwrapped(short_path(layout.public_key)))]
                    if layout is not None and written is not None
                    else []
                ),
            ]
        ),
        line(),
        unwrapped(f"Store a copy of {key_file} and of the rotation safely, with the old key."),
        *(
            [
                unwrapped(
                    f"Backed up to server/backups/{backup_file}, which needs the new key alone. "
                    "Copy it to another disk."
                )
            ]
            if backup_file
            else [line("Back up now (expunge server backup NAME).", Style.WAITS)]
        ),
        line(
            "To restore an earlier backup, give the new key, and this rotation as proof "
            "(--rotation): with the old key alone, no client that knows the rotation accepts the "
            "server. Send the rotation to everyone who has the old public key; clients receive it "
            "at their next sync.",
        ),
        next_steps(
            f"expunge verify {rotation} --key OLD.pub",
            f"expunge verify receipt.json --key OLD.pub --rotation {rotation}",
            why="Next, for everyone who has the old public key:",
        ),
    )


def _backed_up(connection: OfficeConnection) -> str:
    """A backup under the new key, since earlier ones need more than that; empty if it failed, which
    is told: the rotation stands.
    """
    name = f"rotation-{connection.office.chain.newest.id[:16]}"
    try:
        return str(connection.office.do("backup", {"name": name})["file"])
    except ExpungeError as problem:
        Screen.current().note(f"No backup could be made: {problem}")
        return ""


def _write_keys(connection: OfficeConnection, layout: Layout | None) -> Path | None:
    """Bring the key files in the federation's folder up to date, if it is available; the file of
    the newest rotation.
    """
    if layout is None:
        return None
    chain = connection.office.chain
    # the chain has verified each
    return layout.write_keys(chain.newest, chain.in_order)[-1]


@command()
@click.argument("name")
@office_options
def backup(name: str, office: Path | None, at: str | None) -> None:
    """Back up the server to server/backups/NAME in the federation's folder.

    A backup holds enrolments, answers and the audit log. It holds nothing that must be forgettable:
    no ledger, no commitments. After a restore, clients send what they hold now. Keep copies of
    server.key elsewhere, and a mirror of server.vault if open orders must survive.

    Example:
      expunge server backup monday --office federation/operator
      cp federation/server/backups/monday /mnt/elsewhere/

    Next, when the server is lost:
      expunge server restore NEW --backup /mnt/elsewhere/monday --key server.key
    """
    with office_at(office, at) as connection:
        result = connection.office.do("backup", {"name": name})
        layout = layout_at_hand(connection)
    file = (
        f"server/backups/{result['file']}"
        if layout is None
        else short_path(layout.server / "backups" / result["file"])
    )
    where = f"{file}, on the server's machine" if layout is None else file
    Screen.current().result(
        result, unwrapped(f"Backed up to {where}. Copy it to another disk.", Style.GOOD)
    )


@command()
@click.argument("directory", type=FOLDER)
@click.option(
    "--backup",
    "source",
    type=PATH,
    required=True,
    help="The backup file; with --from, its name is enough.",
)
@click.option(
    "--key", type=FILE, required=True, help="The server's newest signing key (server.key)."
)
@click.option(
    "--rotation",
    "rotation_files",
    type=FILE,
    multiple=True,
    help="A rotation of the key since the backup, the proof for clients. Repeatable.",
)
@click.option(
    "--vault",
    type=FILE,
    help="A mirror of the server's vault: keeps open orders readable.",
)
@mirror_option(" from now on")
@click.option(
    "--from",
    "old",
    type=FOLDER,
    metavar="DIR",
    help="What is left of the old folder: reuses its addresses and tls.",
)
@click.option(
    "--tls", type=FOLDER, metavar="DIR", help="A copy of the old folder's tls, which clients trust."
)
@host_option("A name at which clients reach the server. Repeatable.")
@port_option("The port, with --host.")
def restore(
    *,
    directory: Path,
    source: Path,
    key: Path,
    rotation_files: tuple[Path, ...],
    vault: Path | None,
    mirrors: tuple[Path, ...],
    old: Path | None,
    tls: Path | None,
    hosts: tuple[str, ...],
    port: int,
) -> None:
    r"""Restore a lost server from a backup into the new folder DIRECTORY.

    The restored server starts with an empty ledger: each client sends what it holds at its next
    sync, so what was deleted after the backup stays deleted. The operator's office works as before:
    point it to the new folder with --at (once, if the old folder is gone). Clients trust the old
    TLS authority: give it with --tls or --from. Otherwise a new one is created, which they do not
    trust.

    If the key was rotated after the backup was made, give the newest key, and every rotation since
    with --rotation: clients that followed the rotation accept no other key, since a retired one may
    be in anybody's hands. Without the newest key, expunge audit --rebuild makes a new server from
    the clients.

    Example:
      expunge server restore new --backup safe/monday --key safe/server.key \
          --tls safe/tls --host server.example.org
      expunge server restore new --backup monday --key safe/server.key --from old

    Next:
      expunge serve new
      expunge client sync --dir CLIENT --accept-restored   # at each client
      expunge server status --office OFFICE --at new       # at the office
    """
    from expunge.federation.recovery import restore_federation  # noqa: PLC0415 - brings the whole server

    urls = tuple(url_of(host, port) for host in hosts) or (
        () if old is None else Layout(old.absolute()).urls
    )
    signing, authority = SigningKey.from_pem(key.read_bytes()), _authority(old, tls)
    made = restore_federation(
        directory,
        _backup_file(source, old),
        signing,
        vault=vault,
        mirrors=mirrors,
        rotations=rotations_from(rotation_files),
        urls=urls,
        hosts=hosts,
        authority=authority,
    )
    path, waiting = made.layout.path, made.waiting
    Screen.current().result(
        {
            "directory": str(path),
            "waiting": waiting,
            "urls": list(urls),
            "new_authority": made.new_authority,
        },
        unwrapped(f"Server restored in {path}", "bold"),
        facts(
            [
                ("Waiting for", ", ".join(waiting) or "none"),
                (
                    "Reached at",
                    unwrapped(
                        ", ".join(urls) or f"{path}, on this machine (--host NAME for others)"
                    ),
                ),
                *(
                    [("TLS", "a new authority, which existing clients do not trust")]
                    if made.new_authority
                    else []
                ),
            ]
        ),
        next_steps(
            f"expunge serve {typed(directory)}",
            "expunge client sync --dir CLIENT --accept-restored",
            f"expunge server status --office OFFICE --at {typed(path)}",
        ),
    )


def _backup_file(given: Path, old: Path | None) -> Path:
    """The backup that is meant: a file, or the name of one in the old folder."""
    if given.is_file():
        return given
    named = None if old is None else old / "server" / "backups" / given.name
    if named is not None and given.name == str(given) and named.is_file():
        return named
    raise InputError(
        f"there is no backup {given}: give the file (expunge server backup writes "
        "DIR/server/backups/NAME), or its name and --from DIR"
    )


def _authority(old: Path | None, tls: Path | None) -> Path | None:
    """The folder whose certificates are to be used again."""
    if tls is not None and not (tls / "ca.pem").exists():
        raise InputError(f"{tls} is not a copy of a federation's tls folder: it has no ca.pem")
    left = None if old is None else old / "tls"
    return tls or (left if left is not None and (left / "ca.pem").exists() else None)


@command("accept-loss")
@click.argument("directory", type=FOLDER)
@yes_option
def accept_loss(directory: Path, yes: bool) -> None:
    """Accept that the server in DIRECTORY has lost the end of its audit log.

    A server that finds less in its log than anybody was told of does not start: what is missing may
    be deletions that were receipted. Try a whole copy of server.db and server.db-wal first, or a
    backup. With this command the server goes on with what is left, as one that was restored: it
    starts with an empty ledger, and each client sends what it holds at its next sync. So no
    deletion is undone. Commands that were lost must be given again, such as orders and amendments.

    Example:
      expunge server accept-loss federation

    Next:
      expunge serve federation
      expunge client sync --dir CLIENT --accept-restored   # at each client
    """
    from expunge.federation.recovery import accept_loss as accept  # noqa: PLC0415 - brings the whole server

    screen = Screen.current()
    screen.confirm("Go on without what is lost, and ask every client for what it holds?", yes=yes)
    accepted = accept(directory, timeout=_connect.PATIENCE)
    layout, waiting = accepted.layout, accepted.waiting
    screen.result(
        {"directory": str(layout.path), "lost": accepted.lost, "waiting": waiting},
        unwrapped(f"The server in {layout.path} goes on with what was left", "bold"),
        facts(
            [
                (
                    "Lost",
                    "an unknown number of entries of the log"
                    if accepted.lost is None
                    else f"{accepted.lost:,} of the log's last entries",
                ),
                ("Waiting for", ", ".join(waiting) or "none"),
            ]
        ),
        next_steps(
            f"expunge serve {typed(directory)}",
            "expunge client sync --dir CLIENT --accept-restored",
        ),
    )


@command("renew-certificate")
@click.argument("directory", type=FOLDER)
@host_option("A name that it is valid for. Repeatable. [default: as before]")
def renew_certificate(directory: Path, hosts: tuple[str, ...]) -> None:
    """Renew the TLS certificate that expunge init created, with the same authority.

    Clients trust the authority, so nothing changes for them. A running server loads the new
    certificate within a minute.

    Example:
      expunge server renew-certificate federation
    """
    from expunge.server.http import tls  # noqa: PLC0415 - not needed with a certificate of one's own

    layout = Layout.at(directory)
    made = tls.renew_certificate(layout.tls, hosts)
    expires = time_text(tls.expiry(made.certificate).timestamp())
    Screen.current().result(
        {"certificate": str(made.certificate), "expires": expires},
        line(f"The new certificate is valid until {moment(expires)}.", Style.GOOD),
    )
