"""The server's side of a round of secure aggregation, alone in a process of its own: so its seconds
and memory are its own.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from expunge.crypto import PublicKey
from expunge.ridge.spec import Aggregation
from expunge.secagg import Collector, Opening

_MEBI = 1 << 20


class CollectorProcess:
    """A collector that is spoken to as if it were here.

    `seconds` adds up what each kind of call has taken there.
    """

    def __init__(self, opening: Opening, rules: Aggregation, keys: Mapping[str, PublicKey]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        texts = {name: key.text for name, key in keys.items()}
        self._process = context.Process(
            target=_collect, args=(theirs, opening, rules, texts), daemon=True
        )
        self.seconds: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._process.start()
        self._ask("", "reset")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()
        self._process.join()

    def _ask(self, counted: str, name: str, *arguments: Any) -> Any:
        self._connection.send((name, arguments))
        value, seconds = self._connection.recv()
        if isinstance(value, Exception):
            raise value
        self.seconds[counted] += seconds
        return value

    def take(self, counted: str, data: bytes) -> None:
        """Hear a client's message."""
        self._ask(counted, "take", data)

    def say(self, counted: str, client: str) -> bytes:
        """What a client must know."""
        told: bytes = self._ask(counted, "say", client)
        return told

    def advance(self, counted: str) -> None:
        """On to the next phase."""
        self._ask(counted, "advance")

    def sum(self) -> Any:
        """The sum of those included."""
        return self._ask("", "sum")

    def peak(self) -> float:
        """By how many MiB its memory has grown at most since it began."""
        return float(self._ask("", "peak"))


def _collect(
    connection: Connection, opening: Opening, rules: Aggregation, keys: dict[str, str]
) -> None:
    known = {name: PublicKey.from_text(text) for name, text in keys.items()}
    collector, memory = Collector(opening, rules, known.__getitem__), _Memory()
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        begun = time.perf_counter()
        try:
            value = getattr(memory if name in ("reset", "peak") else collector, name)(*arguments)
        except Exception as problem:  # reported to the caller
            value = problem
        connection.send((value, time.perf_counter() - begun))


class _Memory:
    """The memory of this process, as the kernel counts it."""

    def __init__(self) -> None:
        self._before = 0.0

    def reset(self) -> None:
        """Count from here."""
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._before = self._read("VmRSS")

    def peak(self) -> float:
        """MiB more than then, at most."""
        return self._read("VmHWM") - self._before

    def _read(self, name: str) -> float:
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
        return next(
            float(line.split()[1]) * 1024 / _MEBI for line in lines if line.startswith(name)
        )
