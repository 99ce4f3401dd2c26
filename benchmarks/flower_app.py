"""The apps that `benchmarks.flower` runs on Flower: Expunge, and beside it messages as many and as
large with which nothing is done, in turns.

The ServerApp changes the clients' stores, which are on the same machine, before it polls; only the
poll is timed. Then the bare messages go to the same nodes, in as many exchanges, each with as many
bytes as Expunge's had in either direction. A node imports Expunge only for what is Expunge's. The
figures are written to the file that the run's config names.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

Exchanges = dict[int, list[tuple[int, int]]]  # by node: bytes sent and received


@cache
def _words(count: int) -> NDArray[np.uint64]:
    return np.random.default_rng().integers(2**64, size=count, dtype=np.uint64)


def _records(size: int, wanted: int = 0) -> RecordDict:
    """Bytes that were never sent before: Flower sends what it knows by its digest alone."""
    words = _words(size // 8 + 1) ^ np.uint64(secrets.randbits(64))
    array = Array(dtype="uint8", shape=(size,), stype="bare.bytes", data=words.tobytes()[:size])
    return RecordDict(
        {"bare": ConfigRecord({"wanted": wanted}), "parts": ArrayRecord({"0": array})}
    )


def _size(records: RecordDict) -> int:
    arrays = (array for record in records.array_records.values() for array in record.values())
    return sum(len(array.data) for array in arrays)


def _bare(message: Message, _: Context) -> Message:
    return Message(_records(int(message.content["bare"]["wanted"])), reply_to=message)


def _expunge(message: Message, context: Context) -> Message:
    from expunge.transport.flower.client_app import client_app  # noqa: PLC0415 - not for bare messages

    return client_app()(message, context)


class _Counted:
    """A grid of some nodes that counts bytes, and learns which client a node has."""

    def __init__(self, grid: Grid, nodes: Iterable[int]) -> None:
        self._grid, self._nodes = grid, list(nodes)
        self.exchanges: Exchanges = {node: [] for node in self._nodes}
        self.clients: dict[int, str] = {}

    def get_node_ids(self) -> list[int]:
        return self._nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        given = list(messages)
        for message in given:
            self.exchanges[message.metadata.dst_node_id].append((_size(message.content), 0))
        identities: Iterable[str] = self._grid.push_messages(given)
        return identities

    def pull_messages(self, identities: Iterable[str]) -> Iterable[Message]:
        from expunge.transport.flower.messages import NodeMessage  # noqa: PLC0415
        from expunge.transport.flower.records import from_records  # noqa: PLC0415

        replies = list(self._grid.pull_messages(identities))
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"a node has failed: {reply.error.reason}")
            node = reply.metadata.src_node_id
            self.exchanges[node][-1] = (self.exchanges[node][-1][0], _size(reply.content))
            self.clients[node] = NodeMessage.read(from_records(reply.content)).client
        return replies


def _exchange_bare(grid: Grid, exchanges: Exchanges) -> None:
    """As many exchanges with as many bytes, and nothing done with them."""
    from expunge.transport.flower.server_app import Backoff  # noqa: PLC0415

    for step in range(max(map(len, exchanges.values()))):
        sizes = {node: parts[step] for node, parts in exchanges.items() if len(parts) > step}
        messages = [
            Message(_records(sent, received), node, "query.bare", ttl=600.0)
            for node, (sent, received) in sizes.items()
        ]
        waiting, backoff = set(grid.push_messages(messages)), Backoff(time.sleep)
        while waiting:
            replies = list(grid.pull_messages(list(waiting)))
            for reply in replies:
                node = reply.metadata.src_node_id
                if reply.has_error() or _size(reply.content) != sizes[node][1]:
                    raise RuntimeError(f"node {node} has not replied as it was asked to")
                waiting.discard(reply.metadata.reply_to_message_id)
            if replies:
                backoff.reset()
            else:
                backoff.wait()


def _main(grid: Grid, context: Context) -> None:
    from expunge.server.state import Settings  # noqa: PLC0415
    from expunge.transport.flower.config import RunConfig  # noqa: PLC0415
    from expunge.transport.flower.server import CallHandler  # noqa: PLC0415
    from expunge.transport.flower.server_app import connected, poll_nodes  # noqa: PLC0415
    from expunge.transport.local import LocalCarrier  # noqa: PLC0415

    config = context.run_config
    clients, folder = Path(str(config["bench-clients"])), Path(str(config["bench-server"]))
    carrier = LocalCarrier.open(folder, settings=Settings(erase_within=3600))

    def report(what: str, problem: BaseException) -> None:
        raise RuntimeError(what) from problem

    def poll(nodes: list[int]) -> tuple[float, _Counted]:
        counted, start = _Counted(grid, nodes), time.perf_counter()
        poll_nodes(counted, CallHandler(carrier, report), RunConfig(server=folder))
        return 1e3 * (time.perf_counter() - start), counted

    found: dict[str, Any] = {"request": [], "round": [], "exchanges": [], "bytes": []}
    try:
        nodes = connected(grid, int(config["bench-nodes"]), 120.0, time.monotonic, time.sleep)
        _, first = poll(nodes)
        names = first.clients
        _exchange_bare(grid, first.exchanges)  # both have been seen once
        turns = ("request",) * int(config["bench-requests"]) + ("round",) * int(
            config["bench-rounds"]
        )
        for turn, what in enumerate(turns):
            chosen = nodes if what == "round" else [nodes[turn % len(nodes)]]
            for node in chosen:
                _forget(clients / names[node], turn)
            ours, counted = poll(chosen)
            start = time.perf_counter()
            _exchange_bare(grid, counted.exchanges)
            found[what].append((ours, 1e3 * (time.perf_counter() - start)))
            found["exchanges"].append(sum(map(len, counted.exchanges.values())))
            found["bytes"].append(
                sum(sum(pair) for one in counted.exchanges.values() for pair in one)
            )
    finally:
        carrier.close()
    Path(str(config["bench-output"])).write_text(json.dumps(found))


def _forget(folder: Path, number: int) -> None:
    from expunge.client import ClientStore, Selection  # noqa: PLC0415

    with ClientStore.open(folder, timeout=10.0) as store:
        store.forget(Selection(ids=(f"image-{number}",)))


client = ClientApp()
server = ServerApp()
client.query("bare")(_bare)
client.query("expunge")(_expunge)
server.main()(_main)
