"""What a server sees of one client under secure aggregation, beside what that client really sent; for the demo."""

from __future__ import annotations

from typing import Any, cast

from rich.console import RenderableType
from rich.text import Text

from expunge.cli.screen import QUIET, facts, line
from expunge.client import ClientStore
from expunge.exact import blas, wide
from expunge.privacy.aggregation import Contribution, Masked
from expunge.privacy.aggregation.speech import heard_said, introduced
from expunge.protocol.carrier import Carrier
from expunge.spec import Spec

_SHOWN = 24  # hexadecimal digits of 32


class Overheard:
    """Listens to one client's messages: `carrier` is its way to the server."""

    def __init__(self, carrier: Carrier, store: ClientStore) -> None:
        self.carrier = cast("Carrier", _Listening(carrier))
        self.store = store

    def shown(self) -> list[RenderableType]:
        """Some numbers of the client's first sum, as they are, and as they reached the server."""
        name, spec = self.store.name, self.store.spec
        masked = Masked.from_bytes(cast("_Listening", self.carrier).masked)
        truth = Contribution.of(self.store.statistics(), None, spec).vector()
        seen = wide.from_bytes(masked.to_bytes(), (masked.length,))
        rows: list[tuple[str, object]] = [
            (what, Text.assemble(f"{_integer(truth, place):>4}", (f"   the server saw {_digits(seen, place)}…", QUIET)))
            for what, place in _places(spec).items()
        ]
        told = f"What {name} sent, and what the server saw of it (numbers of 128 bits under masks that cancel in the sum):"
        return [line(), line(told, QUIET), facts(rows)]


class _Listening:
    """Whatever is asked of it, the carrier does itself."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.masked = b""  # the first masked vector that went over it

    def __getattr__(self, name: str) -> Any:
        return getattr(self._carrier, name)

    def aggregate(self, data: bytes) -> bytes:
        """A turn in a round."""
        if not self.masked and data[:1] != b"{" and introduced(data).kind == "masked":
            self.masked = bytes(heard_said(data).body)
        return self._carrier.aggregate(data)


def _places(spec: Spec) -> dict[str, int]:
    """Where some numbers that people understand stand in the vector."""
    before = blas.packed_length(spec.width) + spec.width * spec.columns + blas.packed_length(spec.columns)
    return {"Samples added": before + 1, f"Of label {(spec.labels or ('',))[0]}": before + 3 + spec.columns}


def _integer(vector: wide.Wide, place: int) -> int:
    return wide.to_ints(vector[:, place : place + 1])[0]


def _digits(vector: wide.Wide, place: int) -> str:
    low, high = (int(one) for one in vector[:, place])
    return f"{high:016x}{low:016x}"[:_SHOWN]
