"""Keys and heads, from the files and folders that people have.

What opens stores, and what computes, is imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from expunge.crypto import Envelope, PublicKey
from expunge.errors import FormatError, InputError
from expunge.evidence import Certificate, KeyChain, published_head

if TYPE_CHECKING:
    from expunge.client.overview import ClientOverview
    from expunge.ridge.head import Head

_PEM = b"-----BEGIN"


def key_from(path: Path) -> PublicKey:
    """The public key in a file: PEM, or the base64 of the raw bytes."""
    data = path.read_bytes()
    if data.lstrip().startswith(_PEM):
        return PublicKey.from_pem(data)
    try:
        return PublicKey.from_text(data.decode("ascii").strip())
    except (UnicodeDecodeError, FormatError) as problem:
        raise FormatError(
            f"{path} is not a public key: give the PEM file that expunge key DIR -o FILE writes"
        ) from problem


def rotations_from(paths: Iterable[Path]) -> list[Envelope]:
    """The rotations in some files."""
    return [
        Envelope.from_bytes(path.read_bytes().removesuffix(b"\n"), "rotation") for path in paths
    ]


def chains_from(folder: Path) -> list[KeyChain]:
    """The server's keys, as the folder of a federation, an office or a client knows them; a
    client's former servers come after.

    An office or client is looked for first: the operator's office lies in the federation's folder.
    """
    # Stores and offices: not for a key in a file.
    from expunge.cli._connect import read_store  # noqa: PLC0415
    from expunge.client.folder import ClientFolder  # noqa: PLC0415
    from expunge.client.overview import ClientOverview  # noqa: PLC0415
    from expunge.federation.layout import Layout  # noqa: PLC0415
    from expunge.office import Office  # noqa: PLC0415

    if (folder / "office.json").exists():
        with Office.open(folder, timeout=1.0) as office:
            return [office.chain]
    if ClientFolder.is_at(folder):
        return read_store(ClientOverview, folder, lambda store: store.chains())[0]
    if Layout.is_at(folder):
        layout = Layout.at(folder)
        return [KeyChain(layout.signing_key(), layout.rotations())]
    raise InputError(
        f"{folder} is not the folder of a federation, an office or a client: it holds no key"
    )


def fewest_samples_from(folder: Path) -> int:
    """The `fewest_samples` of the spec that a client's folder knows; 0 for other folders."""
    from expunge.cli._connect import read_store  # noqa: PLC0415 - not for a key in a file
    from expunge.client.folder import ClientFolder  # noqa: PLC0415
    from expunge.client.overview import ClientOverview  # noqa: PLC0415

    if not ClientFolder.is_at(folder):
        return 0
    return read_store(ClientOverview, folder, lambda store: store.spec.fewest_samples)[0]


def store_head(store: ClientOverview) -> tuple[bytes, Head, Certificate] | None:
    """The newest head that a client has fetched: its file, itself, and its certificate; checked."""
    data = store.head()
    if data is None:
        return None
    return data, *published_head.read_by_any(data, store.chains())


def head_from(path: Path, chains: Sequence[KeyChain]) -> Head:
    """The head in a file: a published one, whose certificate one of the chains must have signed, or
    an export.
    """
    data = path.read_bytes()
    if data.startswith(published_head.MAGIC):
        if not chains:
            raise InputError(
                f"{path} is a published head, signed by the server: to check it, give the server's "
                "public key (--key), or a folder that knows it (--trust)"
            )
        return published_head.read_by_any(data, chains)[0]
    from expunge.export import from_onnx, from_safetensors  # noqa: PLC0415 - brings arithmetic

    if path.suffix == ".safetensors":
        return from_safetensors(data)
    if path.suffix == ".onnx":
        return from_onnx(data)
    raise InputError(
        f"{path} is not a head: give a file that expunge head -o wrote, or an export that ends in "
        ".safetensors or .onnx"
    )
