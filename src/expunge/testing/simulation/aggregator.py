"""A simulated aggregator: a group's server that is a client of the server above."""

from __future__ import annotations

from typing import Any

from expunge.aggregator import Aggregator
from expunge.client import SyncResult, enrol
from expunge.client.scrub import scrub_client
from expunge.office import Office
from expunge.storage.files import sync_folder
from expunge.testing.simulation.parties import unrepaired
from expunge.testing.simulation.server import ServerParty
from expunge.testing.simulation.world import LawBrokenError
from expunge.wire.carrier import Carrier
from expunge.wire.token import Token

_UPSTREAM, _OFFICE = "upstream", "aggregator"


class AggregatorParty(ServerParty):
    """A group's server, and its store as a client of the server above: one machine."""

    above = f"{_UPSTREAM}/client.vault"
    vaults = (*ServerParty.vaults, above)

    def __init__(self, *arguments: Any, line: Carrier, **options: Any) -> None:
        """`line` is the way to the server above."""
        super().__init__(*arguments, **options)
        self.accepts_restored = False  # whether its people know that the server above was restored
        self.aggregator: Aggregator | None = None
        self._line = line

    def enrol(self, office: Token, above: Token) -> None:
        """Let it act in its group, and enrol it at the server above."""
        Office.enrol(self.path / _OFFICE, office, self.running, address="simulated").close()
        enrol(self.path / _UPSTREAM, above, self._line, message="group").close()
        sync_folder(self.path)
        self.stop()
        self.start()

    def start(self) -> None:
        """Start the service, and what forwards."""
        super().start()
        if self.aggregator is None and (self.path / _UPSTREAM).exists():
            try:
                self.aggregator = self._opened()
            except BaseException:
                self.stop()
                raise

    def _opened(self) -> Aggregator:
        return Aggregator(
            self.path,
            self._line,
            service=self.running,
            attempts=1,
            clock=self.clock.seconds,
            wall_clock=self.clock.wall,
        )

    def stop(self) -> None:
        """End both in good order."""
        aggregator, self.aggregator = self.aggregator, None
        try:
            if aggregator is not None:
                aggregator.close()
        finally:
            super().stop()

    def abandon(self) -> None:
        """It was killed."""
        self.aggregator = None
        super().abandon()

    def scrub(self, *, repair: bool) -> list[str]:
        """Of both stores."""
        above = unrepaired(scrub_client(self.path / _UPSTREAM, repair=repair))
        return super().scrub(repair=repair) + above

    @property
    def forwarding(self) -> Aggregator:
        """What forwards, which must be running."""
        if self.aggregator is None:
            raise LawBrokenError("simulation", f"{self.name} is not running")
        return self.aggregator

    def forward(self) -> SyncResult | None:
        """Bring up what the group has changed, and down what is new; None if that failed."""
        aggregator, accepts = self.forwarding, self.accepts_restored
        result = self.attempt("forward", lambda: aggregator.sync(accept_restored=accepts))
        if result is not None:
            self.world.coverage["forwarded"] += len(result.receipts)
            done = f"{len(result.receipts)} receipts, {len(result.orders)} orders"
            self.world.tell(self.name, f"forward: {done} {result.waiting}")
        self.follow()
        return result

    def needed_keys(self) -> dict[str, int]:
        """Above, its own, and that of what has been forwarded."""
        store = self.forwarding.upstream
        states = (store.forwarded.read(), store.forwarding.read())
        return super().needed_keys() | {self.above: 1 + sum(each is not None for each in states)}

    def replace_disk(self) -> None:
        """The server's folder is lost, with every key in it; what it is above stays."""
        for folder in (self.folder, *(mirror.parent for mirror in self._mirrors)):
            self.machine.remove_tree(folder)
        sync_folder(self.path)
        self.disk.forget_removed()
        self.keys = self.keys_of(self.above)
        self.machine = self._booted()
