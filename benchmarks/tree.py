"""A tree of aggregators against a flat federation: what reaches the root, for up to 10,000 clients.

The root is the real service; its clients are keys that sign real requests. Clients of groups are
simulated: each is the statistics of a few samples, which its aggregator adds up.
"""

from __future__ import annotations

import secrets
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.data import Data
from benchmarks.measure import Row, progress, seconds
from expunge import Spec, Statistics
from expunge.crypto import SigningKey
from expunge.errors import EvidenceError
from expunge.federation import Federation
from expunge.kinds import RequestKind
from expunge.wire import payloads, request
from expunge.wire.messages import GramPart, Message
from expunge.wire.request import Header

_DIM = 64
_SAMPLES = 5  # of each client
_GROUP = 100  # clients
_SIZES = (100, 1_000, 10_000)
_FLAT = (100, 1_000)  # the sizes at which every client is enrolled at the root for real


@dataclass(frozen=True)
class _Measured:
    clients: int
    senders: int
    bytes: int  # received by the root
    milliseconds: float  # median of a request at the root
    largest: int  # bytes that one sender sends


def _leaves(spec: Spec, count: int, seed: int) -> list[Statistics]:
    random = np.random.default_rng(seed)
    return [
        Statistics.of(
            spec,
            random.standard_normal((_SAMPLES, _DIM)),
            random.integers(0, spec.columns, _SAMPLES),
        )
        for _ in range(count)
    ]


class _Root:
    """A root with enrolled keys."""

    def __init__(self, folder: Path, spec: Spec) -> None:
        self.federation = Federation.found(folder, spec)
        self.service = self.federation.carrier
        self._keys: list[tuple[str, SigningKey]] = []

    def enrol(self, count: int) -> None:
        for number in range(count):
            token, key = (
                self.federation.token(f"sender-{number}"),
                SigningKey(secrets.token_bytes(32)),
            )
            content = {
                "federation": token.federation,
                "key": key.public.text,
                "name": token.name,
                "spec": self.service.state.spec.data_digest,
                "token": token.secret,
            }
            self.service.enrol(payloads.sign("enrolment", content, key))
            self._keys.append((token.name, key))

    def send(self, number: int, sent: Statistics, kind: RequestKind) -> tuple[int, float]:
        """One request; its bytes, and how long it took at the root."""
        name, key = self._keys[number]
        spec = self.service.state.spec
        message = Message(kind, GramPart(sent), log=(1, bytes(32)) if kind == "group" else None)
        header = Header(
            federation=self.service.state.federation,
            client=name,
            sequence=1,
            nonce=secrets.token_hex(32),
            data_digest=spec.data_digest,
            labels_digest=spec.labels_digest,
            message=kind,
            added=sent.count,
        )
        commitments = [secrets.token_bytes(32) for _ in range(header.commitments[0])]
        data = request.write(header, commitments, [], message.to_bytes(spec), key)
        return len(data), seconds(lambda: self.service.request(data))

    def check(self, total: Statistics) -> None:
        if self.service.state.ledger.exact_statistics().digest != total.digest:
            raise EvidenceError("the root's ledger is not the sum of all clients")

    def close(self) -> None:
        self.federation.close()


def _measure(folder: Path, spec: Spec, leaves: list[Statistics], *, grouped: bool) -> _Measured:
    zero = Statistics.zero(spec)
    sent = (
        [sum(leaves[at : at + _GROUP], zero) for at in range(0, len(leaves), _GROUP)]
        if grouped
        else leaves
    )
    root = _Root(folder, spec)
    try:
        root.enrol(len(sent))
        told = [
            root.send(number, one, "group" if grouped else "gram")
            for number, one in enumerate(sent)
        ]
        root.check(sum(leaves, zero))
    finally:
        root.close()
    sizes = [size for size, _ in told]
    return _Measured(
        len(leaves),
        len(sent),
        sum(sizes),
        1e3 * statistics.median(each for _, each in told),
        max(sizes),
    )


def report(_: Data) -> tuple[str, list[Row]]:
    """What reaches the root, flat and through aggregators."""
    spec = Spec(dim=_DIM, labels=tuple(range(10)), messages=("gram", "group", "rows"))
    flat: dict[int, _Measured] = {}
    tree: dict[int, _Measured] = {}
    for size in _SIZES:
        leaves = _leaves(spec, size, size)
        with tempfile.TemporaryDirectory() as place:
            progress(f"a tree of aggregators: {size:,} clients in groups of {_GROUP}")
            tree[size] = _measure(Path(place) / "tree", spec, leaves, grouped=True)
            if size in _FLAT:
                progress(f"the same {size:,} clients without aggregators")
                flat[size] = _measure(Path(place) / "flat", spec, leaves, grouped=False)
    each = flat[_FLAT[-1]].bytes / _FLAT[-1]
    lines = [
        "## A tree of aggregators\n",
        (
            f"{_SAMPLES} samples at each client, d = {_DIM + 1}, c = 10; groups of {_GROUP}. Every "
            "client sends once, as statistics."
        ),
        (
            "The root's ledger was the sum of all clients, bit for bit, in every case. The flat "
            "figure for 10,000 clients follows"
        ),
        "from the bytes of one.\n",
        (
            "| clients | flat: requests | MB at the root | tree: requests | MB at the root | ms a "
            "request at the root |"
        ),
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for size, one in tree.items():
        received = flat[size].bytes if size in flat else each * size
        lines.append(
            f"| {size:,} | {size:,} | {received / 1e6:.1f}{'' if size in flat else ' (reckoned)'} "
            f"| {one.senders} | {one.bytes / 1e6:.2f} | {one.milliseconds:.1f} |"
        )
    last = _SIZES[-1]
    rows = [
        Row(
            "bytes at the root, 10,000 clients in a tree",
            "the same, flat",
            tree[last].bytes / 1e6,
            each * last / 1e6,
            "at most a fiftieth",
            holds=each * last >= 50 * tree[last].bytes,
            unit="MB",
        )
    ]
    return "\n".join(lines) + "\n", rows
