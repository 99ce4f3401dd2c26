"""Maintenance: folding the journal into the ledger's files, and finishing audits; in the
background, one thing at a time.

Law of folding: within `erase_within` seconds of a request, no copy of its message, of the ledger
before it or of the salts of superseded digests can be read, because the keys they were sealed under
are destroyed. The log says so ("erased"). A crash at any point leaves either the old files or the
new ones in force; what is not in force is destroyed at the next start.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, RLock, Thread

from expunge.evidence.log import read_entry
from expunge.ridge.statistics import Statistics
from expunge.server.audits import Audits
from expunge.server.clock import Clock
from expunge.server.float_ledger import FloatSums
from expunge.server.ledger import Remains
from expunge.server.scrub import ServerScrub
from expunge.server.state import Basis, Digests, ServerState
from expunge.server.storage.tables import Erasure
from expunge.wire.schema import time_seconds

_PAUSE = 0.2  # seconds between looks at what there is to do
# Entries beyond which the journal is folded early: folding costs time, a long journal costs it at
# the next start.
LONGEST_JOURNAL = 20000
_AT_ONCE = 256  # entries of the log
_FIRST_SCRUB = 3600.0  # seconds after the start, at most: a server may be restarted every day


class StoppedError(Exception):
    """The server is stopping, in the middle of a scrub."""


@dataclass(frozen=True)
class Scrubbed:
    """The last scrub: when it ended, by the clock for durations, and how much was damaged."""

    ended: float
    damaged: int


class Maintenance:
    """What has to be done now and then. `working` is held while files are rewritten."""

    def __init__(
        self,
        state: ServerState,
        audits: Audits,
        report: Callable[[str, BaseException | None], None],
        seconds: Clock = time.monotonic,
        look_at_clock: Callable[[], None] = lambda: None,
    ) -> None:
        self._state = state
        self._look_at_clock = look_at_clock
        self._audits = audits
        self._report = report
        self._seconds = seconds
        self.working = RLock()
        self._stop = Event()
        self._thread = Thread(target=self._run, name="upkeep", daemon=True)
        self._scrubber = Thread(target=self._scrub_again, name="scrub", daemon=True)
        self.scrubbed: Scrubbed | None = None
        with state.lock:
            state.ledger.clean()
            state.pace.found(self._promised_before())
        self.look_at_room()
        # When there was first something to fold; unknown for what an earlier process left.
        self._since: float | None = -math.inf if self._pending() else None

    def _promised_before(self) -> list[int]:
        """What the receipts of the requests in the journal have promised, as the log says."""
        log, (_, erased), promised = self._state.log, self._generations(), list[int]()
        end = log.size if self._entries() else 0
        while end:
            start = max(0, end - _AT_ONCE)
            for entry in reversed([read_entry(data) for data in log.entries(start, end)]):
                if entry["kind"] in ("changed", "aggregated"):
                    if entry["generation"] <= erased:
                        return promised
                    if entry["added"] or entry["deleted"]:
                        promised.append(time_seconds(entry["erased_by"]))
            end = start
        return promised

    def start(self) -> None:
        """Begin to look after things."""
        self._thread.start()
        if self._state.settings.scrub_every:
            self._scrubber.start()

    def stop(self) -> None:
        """Stop after the current work."""
        self._stop.set()
        for thread in (self._thread, self._scrubber):
            if thread.is_alive():
                thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE):
            try:
                self.run_due()
            except Exception as problem:
                self._report("upkeep failed", problem)
                self._stop.wait(5.0)

    def run_due(self) -> None:
        """Do what is due."""
        self.look_at_room()
        self._look_at_clock()
        if self._is_due():
            begun = self._seconds()
            self.fold()
            self._since = (
                begun if self._pending() else None
            )  # what came in meanwhile has waited since then at the most
        self.finish_audits()
        if self._state.ledger.has_remains:
            with self.working, self._state.lock:
                self._state.ledger.clean()

    def look_at_room(self) -> None:
        """Keep the reserve, and say so if the disk is full, or is not any more."""
        news = self._state.room.look()
        if news:
            self._report(news, None)

    # -- scrubs ------------------------------------------------------------------------------------

    def _scrub_again(self) -> None:
        every = self._state.settings.scrub_every
        pause = min(_FIRST_SCRUB, every)
        while not self._stop.wait(pause):
            try:
                self.scrub()
            except StoppedError:
                return
            except Exception as problem:
                self._report("scrub failed", problem)
            pause = every

    def scrub(self) -> int:
        """Read everything in the store, beside the requests, which do not wait; report what is
        damaged, and return how much that is.
        """
        result = ServerScrub(self._state.folder, progress=self._go_on, still=self.working).run()
        damage = [each for each in result.findings if not each.repaired]
        for each in damage:
            self._report(f"scrub found damage: {each.what}: {each.text}. {each.remedy}", None)
        self._report(f"scrub finished: {len(damage) or 'nothing'} damaged", None)
        self.scrubbed = Scrubbed(self._seconds(), len(damage))
        return len(damage)

    def _go_on(self, *_: object) -> None:
        if self._stop.is_set():
            raise StoppedError

    def since_scrub(self) -> float | None:
        """Seconds since the last scrub ended; None before the first."""
        return None if self.scrubbed is None else self._seconds() - self.scrubbed.ended

    # -- audits ------------------------------------------------------------------------------------

    def finish_audits(self) -> None:
        """Compare and log, for every audit that all have answered."""
        if self._audits.answered():
            with self.working:  # and check again: another thread may have finished them
                for audit in self._audits.answered():
                    self._report(f"audit finished: {self._audits.finish(audit)}", None)

    def _is_due(self) -> bool:
        """Whether to fold, by a clock that cannot be set."""
        if not self._pending():
            self._since = None
            return False
        if self._since is None:
            self._since = self._seconds()
        return self._entries() > LONGEST_JOURNAL or self._state.pace.is_due(self._since)

    def _pending(self) -> bool:
        """Whether there is something to fold, or a fold that failed before it was done."""
        ended, erased = self._generations()
        return bool(self._entries()) or ended > erased

    def _entries(self) -> int:
        return self._state.storage.journal.count()

    def _generations(self) -> tuple[int, int]:
        """The last generation that has ended, and the last one that was logged as erased."""
        last = self._state.storage.generations.last_erasure()
        return self._state.record.generation - 1, 0 if last is None else last.generation

    def fold(self) -> None:
        """Bring the journal into the files and destroy the keys of all that they replace; take up
        again what has failed.
        """
        state, ledger = self._state, self._state.ledger
        journal = state.storage.journal
        with self.working:
            state.room.use()
            with state.lock:
                state.require_sound()
                entries = self._entries()
                if journal.holds(state.record.generation):
                    self._begin_generation()
                ended, erased = self._generations()
                if ended <= erased:
                    return
                state.pace.begin()
                number, position = state.record.round, journal.last()
                statistics = ledger.solver.statistics
            try:
                with ledger.drafting():
                    remains = self._rewrite(position, statistics if entries else None)
                    self._destroy_generations(ended, remains)
                self._log_erasure(ended, number)
            except BaseException:
                state.pace.fail()
                with state.lock:
                    ledger.has_remains = True
                    ledger.remove_orphans()
                    state.storage.make_room()
                raise

    def _rewrite(self, position: int, statistics: Statistics | FloatSums | None) -> Remains:
        """New files for the ledger, unless it has not changed, and for every client with entries in
        the journal; returns what they have left.

        Requests go on meanwhile: they wait for no file, but for the rows of some clients.
        """
        state, ledger, remains = self._state, self._state.ledger, Remains()
        if statistics is not None:
            put_in_force = ledger.write_ledger(statistics, position)
            with state.changing():
                left = put_in_force()
                ledger.set_aside(left)
            remains.add(left)
        clients = state.storage.journal.clients(position)
        for put_in_force in ledger.fold_clients(clients, position, lambda: state.room.is_short):
            with state.changing():
                left = put_in_force()
                ledger.set_aside(left)
            remains.add(left)
            if state.room.is_short:
                with state.lock:
                    ledger.remove_orphans()
                    state.storage.make_room()
        return remains

    def _begin_generation(self) -> None:
        """From now on messages are sealed under a new key.

        A digest that builds on sums of before does not outlive the old one: with its salt and the
        ledger of now, it would tell what was deleted. The sums of now are digested in its place.
        """
        state = self._state
        (slot,) = state.vault.new()
        record, basis = state.record, state.basis()
        if basis.position is None:
            digests = Digests(record.ledger_digest, record.head_digest, state.salt(), basis)
        else:
            digests = state.digests_of(Basis(state.ledger.digest()(), None, basis.live))
        with state.changing() as now:
            state.begin_generation(slot, digests)
            if basis.position is not None:
                state.append(
                    "digested",
                    now,
                    round=record.round,
                    count=state.ledger.solver.count,
                    ledger=digests.ledger,
                    head=digests.head,
                )

    def _destroy_generations(self, last: int, remains: Remains) -> None:
        """Nothing refers to these generations: destroy their keys, and what else remains."""
        state, generations = self._state, self._state.storage.generations
        with state.changing():
            first = self._generations()[1] + 1
            slots = {generations.slot(each) for each in range(first, last + 1)} - {None}
            generations.end(last)
            keys = Remains({slot for slot in slots if slot is not None})
            state.ledger.set_aside(keys)
        remains.add(keys)
        state.ledger.destroy(remains)

    def _log_erasure(self, last: int, number: int) -> None:
        """Record that these generations, which end with round `number`, are destroyed."""
        state, generations = self._state, self._state.storage.generations
        with state.lock:
            first = self._generations()[1] + 1
            if state.ledger.has_remains:
                state.ledger.clean()
            else:
                state.storage.forget_overwritten()
            with state.changing() as now:
                index = state.append("erased", now, first=first, generation=last, round=number)
                generations.erased(Erasure(last, index))
            late = state.pace.end(now)
        if late.requests:
            self._report(
                f"{late.requests:,} requests were erased later than their receipts promised, by up "
                f"to {late.seconds:,} seconds: the server was stopped meanwhile, or the disk is "
                "too slow for so many clients. Receipts promise what can be kept from now on",
                None,
            )
