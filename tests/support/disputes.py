"""A federation in a folder, one of whose clients has made a masked sum false."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from expunge.exact.wide import Wide
from expunge.federation import Federation as Embedded
from expunge.secagg import Participant
from support.cli import Federation
from support.printed import run

RULES = ("--dim", 3, "--labels", "cat,dog", "--secure-aggregation")
NAMES = ("a", "b", "c", "d")
LIAR = "c"


@contextmanager
def liar() -> Iterator[None]:
    """A client that sends something else than what it adds, and opens the truth."""
    with pytest.MonkeyPatch.context() as patch:
        true = Participant.on_deliveries

        def false(self: Participant, told: bytes, vector: Wide) -> bytes:
            if self.name == LIAR:
                vector = vector.copy()
                vector[1, 0] ^= np.uint64(1 << 63)
            return true(self, told, vector)

        patch.setattr(Participant, "on_deliveries", false)
        yield


def sync(federation: Federation, *, without: str = "", times: int = 8) -> None:
    """All clients sync some times, in one process."""
    with Embedded.open(federation.folder) as embedded:
        for _ in range(times):
            for name in NAMES:
                if name != without:
                    embedded.client(name).sync()


def lied_to(path: Path, lie: Callable[[], AbstractContextManager[None]] = liar) -> Federation:
    """The federation in this folder, with its arbiter beside it, after this lie."""
    run("arbiter", "create", path / "arbiter")
    federation = Federation.found(path, *RULES, "--arbiter", path / "arbiter" / "arbiter.pub")
    with Embedded.open(federation.folder) as embedded:
        for number, name in enumerate(NAMES):
            store = embedded.client(name).store
            store.add([f"{name}{number}"], [[1.0, number, 0.5]], ["cat"], now=0)
    with lie():
        sync(federation)
    return federation
