"""Heads from the files that they come in, and from a client's store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from expunge.client.overview import ClientOverview
from expunge.errors import InputError
from expunge.evidence import Certificate, KeyChain, published_head
from expunge.export import from_onnx, from_safetensors
from expunge.ridge.head import Head


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
    if path.suffix == ".safetensors":
        return from_safetensors(data)
    if path.suffix == ".onnx":
        return from_onnx(data)
    raise InputError(
        f"{path} is no head: give a file that expunge head -o wrote, or an export that ends in "
        ".safetensors or .onnx"
    )
