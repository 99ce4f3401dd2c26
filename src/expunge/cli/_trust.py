"""Which key to trust, from the folders that people have."""

from __future__ import annotations

from pathlib import Path

from expunge.cli._connect import read_store
from expunge.client.overview import ClientOverview
from expunge.errors import InputError
from expunge.evidence import KeyChain
from expunge.federation.layout import Layout
from expunge.office import Office


def chains_from(folder: Path) -> list[KeyChain]:
    """The server's keys, as the folder of a federation, an office or a client knows them; a
    client's former servers come after.

    An office or client is looked for first: the operator's office lies in the federation's folder.
    """
    if (folder / "office.json").exists():
        with Office.open(folder, timeout=1.0) as office:
            return [office.chain]
    if (folder / "client.db").exists():
        return read_store(ClientOverview, folder, lambda store: store.chains())[0]
    if Layout.is_at(folder):
        layout = Layout.at(folder)
        return [KeyChain(layout.signing_key(), layout.rotations())]
    raise InputError(
        f"{folder} is no folder of a federation, an office or a client: no key can be found there"
    )
