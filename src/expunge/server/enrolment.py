"""Enrolment: an actor's key is taken in by a one-time token."""

from __future__ import annotations

from typing import Any

from expunge.crypto import PublicKey
from expunge.errors import FormatError, RefusedError
from expunge.server.audits import Audits
from expunge.server.state import ServerState
from expunge.wire import payloads
from expunge.wire.schema import checked_digest
from expunge.wire.token import secret_digest


def enrol(core: ServerState, audits: Audits, content: dict[str, Any], key: PublicKey) -> bytes:
    """Take a new actor in; the same enrolment again is answered again."""
    name = content["name"]
    try:
        token = secret_digest(checked_digest(content["token"], "the secret of the token"))
    except FormatError as problem:
        raise RefusedError("bad-token", str(problem)) from problem
    with core.changing() as (connection, now):
        known = core.database.row(
            "SELECT key, token, role, status FROM actors WHERE name = ?", (name,)
        )
        if known is not None:
            if (known[0], known[1]) != (key.text, token):
                raise name_taken(name, known[3], "is enrolled already, with another key or token")
            return _enrolled(core, name, known[2], key)
        row = core.database.row("SELECT name, role, expires FROM tokens WHERE digest = ?", (token,))
        if row is None or row[0] != name or row[2] < now:
            raise RefusedError(
                "bad-token",
                (
                    f"the token is not good for {name}: used, expired, or for somebody else. Ask "
                    "for another"
                ),
            )
        role = row[1]
        if role == "client" and content["spec"] != core.spec.data_digest:
            raise RefusedError(
                "wrong-spec",
                f"{name} computes with the data spec {content['spec']!r:.18}…, the federation with "
                f"{core.spec.data_digest[:16]}…: dim, grid, intercept and backbone fingerprint "
                "must be the same",
            )
        holder = core.database.row("SELECT name, status FROM actors WHERE key = ?", (key.text,))
        if holder is not None:
            raise name_taken(
                holder[0], holder[1], "is enrolled already, with that key: make another"
            )
        connection.execute("DELETE FROM tokens WHERE digest = ?", (token,))
        connection.execute(
            "INSERT INTO actors VALUES (?, ?, ?, 'active', 0, ?, ?, NULL)",
            (name, role, key.text, now, token),
        )
        core.append(connection, "enrolled", now, name=name, role=role, key=key.text)
        if role == "client":
            audits.client_joined(connection, name)
    core.version += 1
    return _enrolled(core, name, role, key)


def name_taken(name: str, status: str, why: str) -> RefusedError:
    """The refusal of a name or key that is somebody's, or was a client's that is gone: the log
    still speaks of it.
    """
    if status == "gone":
        why = (
            "was a client that has left or was forgotten, and never comes back: enrol by "
            "another name, in a new folder"
        )
    return RefusedError("name-taken", f"{name} {why}")


def _enrolled(core: ServerState, name: str, role: str, key: PublicKey) -> bytes:
    content = {
        "federation": core.federation,
        "key": key.text,
        "log": core.log.size,
        "name": name,
        "role": role,
        "sequence": core.actor(name).sequence,
        "server": core.folder.key.public.text,
        "spec": core.spec.to_dict(),
    }
    return payloads.sign("enrolled", content, core.folder.key)
