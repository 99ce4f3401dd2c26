"""Enrolment: a new client's store and key, enrolled by a one-time token.

`rejoin` moves a store to the server that was rebuilt in the place of a lost one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from expunge.client.folder import ClientFolder
from expunge.client.store import ClientStore
from expunge.client.trust import Trust
from expunge.crypto import PublicKey
from expunge.errors import (
    BackboneError,
    EvidenceError,
    ProtocolError,
    SpecMismatchError,
    StoreError,
)
from expunge.evidence.rotation import read_federation
from expunge.ridge.spec import Spec
from expunge.storage.files import remove_tree
from expunge.wire.carrier import Carrier, CheckedCarrier
from expunge.wire.token import Token


def enrol(
    path: Path,
    token: Token,
    carrier: Carrier,
    *,
    address: str = "",
    mode: str = "cached",
    message: str = "",
    backbone: str | None = None,
    mirrors: Sequence[Path] = (),
) -> ClientStore:
    """Enrol a client by a one-time token, and create its store; after a lost answer, the same call
    again finishes the enrolment.

    The store, with its key, is kept until it is certain that the server has not taken the key in.

    Parameters
    ----------
    path : Path
        The folder of the new store: empty, not there, or left by an enrolment that got no answer.
    token : Token
        The token, for the role `client`.
    carrier : Carrier
        The way to the server.
    address : str, default ""
        Where the server is; empty for the token's first address.
    mode : {"cached", "recompute"}, default "cached"
        Whether the store keeps features, or computes them again from sources when needed.
    message : str, default ""
        The kind of messages to send: `"rows"`, `"gram"`, `"factor"`, `"masked"` or `"group"`; empty
        for `rows`, or what the spec allows. `rows` show every feature to the server.
    backbone : str or None, default None
        The fingerprint of the backbone that the client computes with, to be compared with the
        spec's.
    mirrors : sequence of Path, default ()
        Files to mirror the vault to, on other disks; none may exist.

    Returns
    -------
    ClientStore
        The new store, open.

    Raises
    ------
    ProtocolError
        The token is for an officer or operator.
    StoreError
        The folder is not empty, or is the store of another client.
    BackboneError
        The spec names another backbone.
    SpecError
        The spec does not allow this kind of messages.
    RefusedError
        The token is used, expired or another's, or the name is taken.
    CarrierError
        No answer came: call again with the same folder and token.
    EvidenceError
        The server is not the one that the token names.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from expunge import Spec
    >>> from expunge.client import enrol
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> token = federation.token("hospital-a")
    >>> store = enrol(Path(folder.name) / "hospital-a", token, federation.carrier)
    >>> store.name, store.message, store.spec == spec
    ('hospital-a', 'rows', True)
    >>> store.close()
    >>> federation.close()
    >>> folder.cleanup()
    """
    if token.role != "client":
        raise ProtocolError(
            f"the token of {token.name} is for an {token.role}, who has an office, not a store of "
            "samples"
        )
    path, carrier = Path(path), CheckedCarrier(carrier)
    doubtful = ClientFolder.is_at(path)  # an earlier attempt may have arrived
    if doubtful:
        store = ClientStore.open(path)
        name = store.name
        if store.recall("enrolled") == "1" or (name, store.federation) != (
            token.name,
            token.federation,
        ):
            store.close()
            raise StoreError(f"{path} is the store of client {name} already: choose another folder")
    else:
        spec, largest = _federation(token, carrier)
        if backbone is not None and backbone != spec.backbone:
            raise BackboneError(
                f"the federation's spec pins the backbone {spec.backbone!r:.80}, this client has "
                f"{backbone!r:.80}: use the same weights and preprocessing"
            )
        store = ClientStore.create(
            path,
            federation=token.federation,
            name=token.name,
            server=token.server,
            spec=spec,
            address=address or (token.urls[0] if token.urls else ""),
            ca=token.ca,
            mode=mode,
            message=message or _usual(spec),
            mirrors=mirrors,
            enrolled=False,
        )
        store.remember({"largest_request": str(largest)})
    try:
        token.redeem(
            store.key,
            carrier,
            spec=store.spec.data_digest,
            signer=lambda _: Trust(store, carrier).newest_key(),
            undo=None if doubtful else lambda: _remove(store),
        )
        store.remember({"enrolled": "1"})
    except BaseException:
        store.close()
        raise
    return store


def _federation(token: Token, carrier: Carrier) -> tuple[Spec, int]:
    """Spec and limits of the federation that a token is for, as its server says them."""
    content, _ = read_federation(carrier.federation(), token.server)
    if content["federation"] != token.federation:
        raise EvidenceError(
            f"the server is of federation {content['federation']}, the token is for "
            f"{token.federation}"
        )
    return Spec.from_dict(content["spec"]), int(content["limits"]["largest_request"])


def _remove(store: ClientStore) -> None:
    """Remove a store that was refused before anything was put into it."""
    status = store.status()
    store.close()
    if not (status.adding or status.live or status.deleting):
        remove_tree(store.path)


def _usual(spec: Spec) -> str:
    """The kind of messages that a client sends unless it chooses: not that of aggregators."""
    return (
        "rows"
        if "rows" in spec.messages
        else min(spec.messages, key=lambda kind: (kind == "group", kind))
    )


def rejoin(store: ClientStore, token: Token, carrier: Carrier, address: str) -> None:
    """Enrol the key of a store at another server, by a token for its name, and pin that server's
    key.

    The store keeps its samples, its receipts and its numbering; the server gets everything when it
    asks all clients to send again.
    """
    if token.role != "client" or token.name != store.name:
        raise ProtocolError(
            f"the token is for {token.role} {token.name}, the store is that of client {store.name}"
        )
    spec = federation_spec(token.server, carrier)
    try:
        spec.require_amends(store.spec)
    except SpecMismatchError as problem:
        raise SpecMismatchError(
            f"the rebuilt server has another spec than this client: {problem}"
        ) from problem
    token.redeem(
        store.key, carrier, spec=store.spec.data_digest, signer=lambda _: token.server, undo=None
    )
    outstanding = store.outbox.composed()
    if outstanding is not None:
        store.outbox.abandon(outstanding.sequence, "the server was lost")
    store.move(federation=token.federation, server=token.server, address=address, ca=token.ca)
    store.participation.drop()  # a round at the lost server is over
    store.remember({"peers": ""})  # they are read again, from the log of the rebuilt server
    if spec != store.spec:
        store.amend(spec)


def federation_spec(server: PublicKey, carrier: Carrier) -> Spec:
    """The spec of a federation, as the server whose key is pinned says it."""
    content, _ = read_federation(carrier.federation(), server)
    return Spec.from_dict(content["spec"])
