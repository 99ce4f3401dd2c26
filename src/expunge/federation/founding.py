"""Founding: the folder of a new federation, with server, operator's office and certificates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from expunge.crypto import SigningKey
from expunge.errors import StoreError
from expunge.federation.layout import LOCAL_NAMES, Layout
from expunge.office import Office
from expunge.ridge.spec import Spec
from expunge.server.backup import found
from expunge.server.http.tls import make_tls
from expunge.storage.files import make_folder, remove, remove_tree, rename, sync_folder, write_whole
from expunge.storage.machine import machine_of
from expunge.transport.local import LocalCarrier

_KEY_BYTES = 32


def found_federation(
    directory: Path,
    spec: Spec,
    *,
    solver: str = "woodbury",
    hosts: Sequence[str] = (),
    urls: Sequence[str] = (),
    mirrors: Sequence[Path] = (),
) -> Layout:
    """A new federation, which appears whole or not at all."""
    layout = Layout(directory.absolute())
    if layout.path.exists() and (not layout.path.is_dir() or any(layout.path.iterdir())):
        raise StoreError(f"{directory} is not empty: choose another folder for the federation")
    for mirror in mirrors:
        if mirror.exists():
            raise StoreError(f"the mirror {mirror} exists already: name a file that does not")
    draft = Layout(layout.path.with_name(layout.path.name + ".new"))
    if draft.path.exists():  # left by a founding that was interrupted; nobody has ever heard of it
        remove_tree(draft.path)
    make_folder(draft.path)
    try:
        make_tls(draft.tls, tuple(dict.fromkeys((*hosts, *LOCAL_NAMES))))
        draft.write_settings(urls=urls, mirrors=mirrors)
        _fill(draft, str(layout.path), spec, solver)
        rename(draft.path, layout.path)
    except BaseException:
        remove_tree(draft.path)
        for mirror in mirrors:
            remove(mirror)
        raise
    sync_folder(layout.path.parent)
    return layout


def _fill(draft: Layout, address: str, spec: Spec, solver: str) -> None:
    """The server and its first operator's office."""
    operator, server = (SigningKey(machine_of(draft.path).random(_KEY_BYTES)) for _ in range(2))
    found(draft.server, spec, operator.public, solver=solver, key=server, mirrors=draft.mirrors)
    write_whole(draft.public_key, server.public.pem, mode=0o644)
    carrier = LocalCarrier.open(draft.server, mirrors=draft.mirrors)
    try:
        federation = carrier.state.federation
    finally:
        carrier.close()
    Office.create(
        draft.operator,
        name="operator",
        role="operator",
        federation=federation,
        server=server.public,
        address=address,
        ca=draft.ca,
        key=operator,
    ).close()
