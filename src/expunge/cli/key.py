"""`expunge key`: the server's public key."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from expunge.cli._command import command
from expunge.cli._evidence import chains_from
from expunge.cli._options import FOLDER, output_option
from expunge.cli._output import Screen, unwrapped
from expunge.storage.files import write_whole


@command()
@click.argument("directory", type=FOLDER)
@output_option("Write the PEM to this file.")
def key(directory: Path, output: Path | None) -> None:
    """Print the server's public key, as a federation, office or client folder records it.

    expunge verify --key takes this key. Give it to auditors and other verifiers through a channel
    that they trust: in person, on your website, in the contract.

    Example:
      expunge key federation -o server.pub

    Next:
      expunge verify order.html --key server.pub
    """
    chain = chains_from(directory)[0]
    public = chain.newest
    pem = public.pem.decode("ascii")
    if output is not None:
        write_whole(output, public.pem, mode=0o644)
    value = {
        "key": public.text,
        "id": public.id,
        "pem": pem,
        "pinned": chain.pinned.text,
        "file": None,
    }
    shown = (
        Text(pem.rstrip("\n"), no_wrap=True)
        if output is None
        else unwrapped(f"The server's public key is in {output} (id {public.id}).")
    )
    Screen.current().result(value | ({} if output is None else {"file": str(output)}), shown)
