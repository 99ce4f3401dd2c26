"""`expunge client key`, `peers` and `pin`: whose keys a client believes in rounds of secure
aggregation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from expunge.cli import _command
from expunge.cli._agent import store_at
from expunge.cli._command import command
from expunge.cli._connect import carrier_to, read_store
from expunge.cli._evidence import key_from
from expunge.cli._options import at_option, client_option, output_option
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
from expunge.client import ClientStore
from expunge.client.overview import ClientOverview
from expunge.client.settings import pins_text, read_pins
from expunge.client.trust import LEFT, Peers
from expunge.crypto import PublicKey
from expunge.errors import FormatError, InputError
from expunge.storage.files import write_whole

_GROUP, _GROUPS = 4, 8  # hexadecimal digits that are read out at once, and such groups in a line


@command("key")
@client_option
@output_option("Write the PEM to this file.")
def own_key(folder: Path, output: Path | None) -> None:
    """Print this client's own public key, for other clients to pin.

    Its id is shown in groups of four digits, to compare by telephone with what others see in
    expunge client peers. Read-only; contacts no server. For the server's key, use expunge key.

    Example:
      expunge client key --dir hospital-a -o hospital-a.pub

    Next, at another client:
      expunge client pin hospital-a=hospital-a.pub --dir hospital-b
    """
    (name, public), _ = read_store(
        ClientOverview, folder, lambda store: (store.name, store.key.public)
    )
    if output is not None:
        write_whole(output, public.pem, mode=0o644)
    pem = public.pem.decode("ascii")
    Screen.current().result(
        {
            "name": name,
            "key": public.text,
            "id": public.id,
            "pem": pem,
            "file": None if output is None else str(output),
        },
        facts([("Client", name), ("Key id", spoken(public)), ("Key", public.text)]),
        line(),
        Text(pem.rstrip("\n"), no_wrap=True)
        if output is None
        else unwrapped(f"The key is in {output}.", indent=2),
    )


@command()
@client_option
@output_option("Write the keys to this file, for expunge client pin.")
@at_option
def peers(folder: Path, output: Path | None, at: str | None) -> None:
    """Show the keys that this client accepts from other clients.

    Rounds of secure aggregation use these keys. They come from the server's log, which the client
    reads and checks in full, up to its last sync. Pinned keys are stronger: once any key is pinned,
    only pinned clients are accepted in a round. Compare key ids with each client out of band,
    without the server. Exits with 3 if the log shows another key than the pinned one.

    Example:
      expunge client peers --dir hospital-a
      expunge client peers --dir hospital-a -o peers.json

    Next, after comparing the ids:
      expunge client pin peers.json --dir hospital-a
    """
    with store_at(folder) as store:
        log_peers, pins, own, name = (
            _known(store, at),
            read_pins(store.recall("pins")),
            store.key.public,
            store.name,
        )
    rows = [_peer(name, log_peers, pins) for name in sorted({*log_peers.keys, *pins})]
    if output is not None:
        keys = {peer["name"]: peer["key"] for peer in rows if peer["state"] not in LEFT}
        write_whole(output, (json.dumps(keys, indent=1) + "\n").encode("ascii"), mode=0o644)
    value = {
        "name": name,
        "id": own.id,
        "log": log_peers.frontier.size,
        "pinned": bool(pins),
        "peers": rows,
    }
    Screen.current().result(
        value | {"file": None if output is None else str(output)},
        title(f"Keys that {name} accepts in rounds of secure aggregation"),
        *_table(rows, name, own, pinned=bool(pins)),
        *(
            []
            if output is None
            else [unwrapped(f"The keys are in {output}.", Style.GOOD, indent=2)]
        ),
        *([] if pins or not rows else [_how_to_pin(folder, output)]),
    )
    if any(peer["differs"] for peer in rows):
        raise click.exceptions.Exit(_command.EVIDENCE)


def _known(store: ClientStore, at: str | None) -> Peers:
    """The peers in the log as far as this client follows it; the server is asked only for what has
    not been read.
    """
    size, root = store.checkpoint
    cached = Peers.from_text(store.recall("peers"))
    if cached.frontier.size == size:
        return cached
    with carrier_to(at or store.address, store.ca) as carrier:
        unverified = list[dict[str, Any]]()
        current = cached.read_on(
            carrier.entries, size, root, lambda entry, _: unverified.append(entry)
        )
    if not unverified:  # those are for who takes part in rounds, which reads them again
        store.remember({"peers": current.to_text()})
    return current


def _peer(name: str, log_peers: Peers, pins: Mapping[str, str]) -> dict[str, Any]:
    logged, pinned = log_peers.keys.get(name), pins.get(name)
    key = PublicKey.from_text(pinned or logged or "")
    differs = logged is not None and pinned is not None and logged != pinned
    where = "pin" if pinned is not None else "log"
    state = log_peers.states.get(name, "not enrolled")
    believed = (pinned is not None or not pins) and not differs and state not in LEFT
    return {
        "name": name,
        "key": key.text,
        "id": key.id,
        "state": state,
        "from": where,
        "differs": differs,
        "believed": believed,
    }


def _table(
    rows: list[dict[str, Any]], name: str, own: PublicKey, *, pinned: bool
) -> list[RenderableType]:
    listed = [
        (
            f"{peer['name']}{' (this one)' * (peer['name'] == name)}",
            spoken(PublicKey.from_text(peer["key"])),
            peer["state"],
            _origin(peer, pinned=pinned),
        )
        for peer in rows
    ]
    parts = [
        table(("Client", "Key id", "State", "Key from"), listed)
        if rows
        else line("None yet: sync first.", indent=2)
    ]
    if any(peer["name"] == name and peer["id"] != own.id for peer in rows):
        parts.append(
            line(
                "The log shows another key for this client than its own: do not use this server.",
                Style.BAD,
                indent=2,
            )
        )
    return parts


def _origin(peer: dict[str, Any], *, pinned: bool) -> Text:
    if peer["differs"]:
        return Text("pin; THE LOG HAS ANOTHER", style=Style.BAD)
    refused = pinned and peer["from"] == "log" and peer["state"] not in LEFT
    return Text("log; not pinned: refused", style=Style.WAITS) if refused else Text(peer["from"])


def _how_to_pin(folder: Path, output: Path | None) -> RenderableType:
    file = output or Path("peers.json")
    written = (
        []
        if output is not None
        else [f"expunge client peers --dir {typed(folder)} -o {typed(file)}"]
    )
    pinning = f"expunge client pin {typed(file)} --dir {typed(folder)}"
    return next_steps(
        *written, pinning, why="Compare each id with its client, for instance by telephone. Then:"
    )


@command()
@click.argument("given", nargs=-1, metavar="[FILE|NAME=KEY]...")
@client_option
@click.option("--clear", is_flag=True, help="Remove all pins; use the keys in the log again.")
def pin(given: tuple[str, ...], folder: Path, clear: bool) -> None:
    """Pin other clients' keys, after comparing them out of band.

    FILE is one that expunge client peers -o writes. KEY is a file that expunge client key -o
    writes, or a key in base64. From then on only pinned clients are accepted in a round of secure
    aggregation: pin new clients when they join. This client's own key is always pinned. Exits with
    3 if the log shows another key; the pin is kept, and this client joins no round with that key.

    Example:
      expunge client pin peers.json --dir hospital-a
      expunge client pin hospital-b=hospital-b.pub --dir hospital-a

    Next:
      expunge client peers --dir hospital-a
    """
    if bool(given) == clear:
        raise click.UsageError("give keys to pin, or --clear")
    with store_at(folder) as store:
        before, name = read_pins(store.recall("pins")), store.name
        after = {} if clear else before | {name: store.key.public.text}
        for text in given:
            for peer, key in _keys(text).items():
                if after.get(peer, key) != key:
                    whose = "its own" if peer == name else "pinned already"
                    raise InputError(
                        f"another key of {peer} is {whose}, and nothing was changed: remove all "
                        "pins with --clear first"
                    )
                after[peer] = key
        store.remember({"pins": pins_text(after)})
        log_peers = Peers.from_text(store.recall("peers"))
    different = sorted(peer for peer, key in after.items() if log_peers.keys.get(peer, key) != key)
    left_out = sorted(log_peers.active - set(after)) if after else []
    parts: list[RenderableType] = [
        line(
            f"{count(len(after), 'key')} pinned by {name}: {', '.join(sorted(after))}."
            if after
            else "No key is pinned.",
            Style.GOOD,
        )
    ]
    if left_out:
        parts.append(
            line(
                f"Rounds with clients that are not pinned are refused: {', '.join(left_out)}.",
                Style.WAITS,
                indent=2,
            )
        )
    if different:
        parts.append(
            line(
                f"THE LOG SHOWS ANOTHER KEY for {', '.join(different)}: join no round, and ask "
                "them.",
                Style.BAD,
                indent=2,
            )
        )
    Screen.current().result({"pins": after, "different": different, "not_pinned": left_out}, *parts)
    if different:
        raise click.exceptions.Exit(_command.EVIDENCE)


def _keys(text: str) -> dict[str, str]:
    """The keys in one argument, by name."""
    path = Path(text)
    if path.is_file():
        try:
            return read_pins(
                json.dumps(json.loads(path.read_bytes()), sort_keys=True, separators=(",", ":"))
            )
        except (ValueError, FormatError) as problem:
            raise FormatError(
                f"{path} is not a file of keys: expunge client peers -o FILE writes one ({problem})"
            ) from problem
    name, equals, key = text.partition("=")
    if not equals or not name or not key:
        raise InputError(
            f"{text!r:.80} is neither a file of keys nor NAME=KEY: nothing was changed"
        )
    try:
        return {
            name: key_from(Path(key)).text if Path(key).is_file() else PublicKey.from_text(key).text
        }
    except FormatError as problem:
        raise FormatError(
            f"the key given for {name} is neither a public key nor a file of one, and nothing was "
            f"pinned: {problem}"
        ) from problem


def spoken(key: PublicKey) -> Text:
    """The id of a key in groups of digits, as people read it to one another."""
    groups = [key.id[at : at + _GROUP] for at in range(0, len(key.id), _GROUP)]
    return Text(
        "\n".join(" ".join(groups[at : at + _GROUPS]) for at in range(0, len(groups), _GROUPS)),
        no_wrap=True,
    )
