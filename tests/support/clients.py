"""What tests of the client share: a small federation, a server in memory made of the real rules,
and a scan of raw bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge import Grid, Spec, Statistics
from expunge.client import ClientStore
from expunge.crypto import SigningKey
from expunge.errors import RefusedError
from expunge.ridge.sums import Sums
from expunge.server.rules import Account, judge, require_next, require_spec
from expunge.wire import messages, request
from expunge.wire.messages import GramPart, Part, RowsPart

FEDERATION = "0123456789abcdef" * 2
SERVER = SigningKey(b"\x05" * 32)
CLIENT = SigningKey(b"\x07" * 32)
SPEC = Spec(dim=4, labels=("cat", "dog", "eel"), grid=Grid(2, 30))
NOW = 1_790_000_000


def make_store(path: Path, spec: Spec = SPEC, **options: Any) -> ClientStore:
    return ClientStore.create(
        path / "store",
        federation=FEDERATION,
        name="ward-3",
        server=SERVER.public,
        spec=spec,
        key=CLIENT,
        **options,
    )


def features(
    count: int, seed: int = 0, dtype: Any = np.float32, dim: int = SPEC.dim
) -> NDArray[Any]:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(dtype)


def ids(count: int, prefix: str = "sample") -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


@dataclass
class Server:
    """Takes requests as the protocol says, by the real rules, and keeps nothing on disk.

    Receipts are plain texts.
    """

    spec: Spec = SPEC
    sequence: int = 0
    live: set[bytes] = field(default_factory=set)
    answers: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    headers: list[request.Header] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.account = Account.empty(self.spec)
        self.sums = Sums(self.spec)

    def offer(self, data: bytes) -> bytes:
        received = request.read(data)
        received.signed.verify(CLIENT.public)
        header = received.header
        if header.sequence in self.answers:
            digest, answer = self.answers[header.sequence]
            if digest != received.digest:
                raise RefusedError("sequence-reused", "another request of that number")
            return answer
        require_next(self.sequence, header.sequence)
        require_spec(self.spec, received)
        message = messages.read(
            self.spec, header.message, header.added, header.deleted, received.message
        )
        account, live = (
            (Account.empty(self.spec), set()) if header.reset else (self.account, self.live)
        )
        self.account = judge(self.spec, account, received, message, live.intersection)
        self.live = (live | set(received.added)) - set(received.deleted)
        self.sums = Sums(self.spec) if header.reset else self.sums
        for part, sign in ((message.added, 1), (message.deleted, -1)):
            self._change(part, sign)
        self.sequence = header.sequence
        self.headers.append(header)
        answer = json.dumps({"receipt": header.sequence, "request": received.digest}).encode()
        self.answers[header.sequence] = (received.digest, answer)
        return answer

    def _change(self, part: Part | None, sign: int) -> None:
        if isinstance(part, RowsPart):
            self.sums.change(part.rows, sign)
        elif isinstance(part, GramPart):
            self.sums.merge(part.statistics, sign)

    @property
    def statistics(self) -> Statistics:
        return Statistics.snapshot(self.sums)


def deliver(store: ClientStore, server: Server, **options: Any) -> request.Header | None:
    """Compose, offer and settle once; the header, or None if nothing was pending."""
    composition = store.outbox.composed() or store.outbox.compose(**options)
    if composition is None:
        return None
    receipt = server.offer(store.outbox.encode(composition))
    store.outbox.settle(composition.sequence, receipt)
    return server.headers[-1]


def traces(names: Iterable[str], rows: NDArray[Any], spec: Spec = SPEC) -> list[bytes]:
    """Everything by which samples could be recognised: names, and features as floats and as
    integers.
    """
    found = [name.encode() for name in names]
    for row in np.atleast_2d(rows):
        integers = np.rint(row.astype(np.float64) * 2.0**spec.grid.fraction_bits)
        forms = [
            row,
            row.astype(np.float32),
            row.astype(np.float64),
            integers,
            integers.astype(np.int64),
        ]
        found += [
            form[start : start + 2].tobytes() for form in forms for start in range(len(row) - 1)
        ]
    return found


def found_in(folder: Path, needles: Iterable[bytes]) -> list[tuple[str, bytes]]:
    """Which of the needles are in the raw bytes of which file."""
    contents = {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    return [
        (name, needle)
        for needle in needles
        for name, content in contents.items()
        if needle in content
    ]
