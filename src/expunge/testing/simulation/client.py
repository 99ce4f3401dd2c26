"""A simulated client, and what its store must hold whatever happens to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from expunge.client import Agent, ClientStore, Selection, SyncResult, enrol
from expunge.client.scrub import scrub_client
from expunge.errors import RefusedError
from expunge.storage.files import make_folder, sync_folder
from expunge.storage.sqlite import IN_DOUBT
from expunge.testing.simulation.homes import Home
from expunge.testing.simulation.parties import Party, unrepaired
from expunge.testing.simulation.world import LawBrokenError, World
from expunge.wire.token import Token


@dataclass(frozen=True)
class Sample:
    """A sample as it was given to a store."""

    features: tuple[float, ...]
    label: str
    subject: str


Held = Mapping[str, Sample]  # by id


class ClientParty(Party):
    """A client. What it must hold is known: what was done, and while that is in doubt, what was
    attempted.
    """

    vaults = ("store/client.vault",)

    def __init__(
        self,
        world: World,
        name: str,
        path: Path,
        home: Home,
        ordered: set[str],
        *,
        mirrored: bool,
        lies: bool = False,
    ) -> None:
        """`home` is what it is a client of; `ordered` are the subjects about whom somebody has
        tried to file an order.
        """
        super().__init__(world, name, path)
        self.folder = self.path / "store"
        self.held: Held = {}
        self.store: ClientStore | None = None
        self.last = SyncResult("active")
        self.accepts_restored = False  # whether its people have heard that the server was restored
        self.copy: tuple[dict[str, bytes], Held] | None = None  # of its disk, from earlier
        self.is_old_copy = False
        self._told: Exception | None = None  # why the last sync failed
        self._mirrors = (self.path / "mirror" / "client.vault",) if mirrored else ()
        self.home = home
        self._carrier = home.line(name)
        self.lies = lies
        self._agent: Agent | None = None
        self._ordered = ordered
        self._attempted: list[Held] = []  # what it holds instead, if an attempt has succeeded
        self._drawn = 0

    @property
    def is_up(self) -> bool:
        """Whether the store is open."""
        return self.store is not None

    # -- running -----------------------------------------------------------------------------------

    def enrol(self, token: Token) -> None:
        """Make the store, and enrol it."""
        for mirror in self._mirrors:
            make_folder(mirror.parent)
        sync_folder(self.path)
        self._run(enrol(self.folder, token, self._carrier, mirrors=self._mirrors))
        sync_folder(self.path)

    def start(self) -> None:
        """Open the store; what was in doubt is not any more."""
        if self.store is None:
            self._run(ClientStore.open(self.folder))
            if self.compare():
                self._attempted = []

    def _run(self, store: ClientStore) -> None:
        self.store = store
        self._agent = Agent(
            store,
            self._carrier,
            attempts=1,
            clock=self.clock.seconds,
            wall_clock=self.clock.wall,
        )

    def stop(self) -> None:
        """Close the store."""
        store, self.store, self._agent = self.store, None, None
        if store is not None:
            store.close()

    def abandon(self) -> None:
        """It was killed."""
        self.store = self._agent = None

    def scrub(self, *, repair: bool) -> list[str]:
        """As `expunge client scrub`."""
        return unrepaired(scrub_client(self.folder, repair=repair))

    # -- changing ----------------------------------------------------------------------------------

    def fresh(self) -> tuple[str, Sample]:
        """A new sample, unlike any other, about somebody who has not been forgotten."""
        chance, spec = self.world.chance, self.open_store.spec
        self._drawn += 1
        subjects = [f"subject {number}" for number in range(12)]
        free = [subject for subject in subjects if subject not in self._ordered]
        features = tuple(chance.randrange(-(2**14), 2**14) / 2**10 for _ in range(spec.dim))
        sample = Sample(
            features,
            str(chance.choice(spec.labels or ("",))),
            chance.choice(free or [f"subject of step {self.world.step}"]),
        )
        return f"{self.name}-{self.world.step}-{self._drawn}", sample

    @property
    def open_store(self) -> ClientStore:
        """The store, which must be open."""
        if self.store is None:
            raise LawBrokenError("simulation", f"{self.name} is not running")
        return self.store

    def add(self, count: int) -> None:
        """Add new samples."""
        self._add(dict(self.fresh() for _ in range(count)))

    def _add(self, batch: Held) -> None:
        store = self.open_store

        def add() -> int:
            return store.add(
                list(batch),
                [sample.features for sample in batch.values()],
                [sample.label for sample in batch.values()],
                subjects=[sample.subject for sample in batch.values()],
                now=self.clock.wall(),
            )

        self._change(f"add {len(batch)}", add, {**self.held, **batch})

    def forget(self, ids: list[str]) -> None:
        """Delete samples by their ids."""
        store = self.open_store
        after = {id_: sample for id_, sample in self.held.items() if id_ not in ids}
        selection = Selection(ids=tuple(ids))
        now = self.clock.wall()
        self._change(f"forget {len(ids)}", lambda: store.forget(selection, now=now), after)

    def forget_subject(self, subject: str) -> None:
        """Delete the samples of a subject."""
        store = self.open_store
        after = {id_: sample for id_, sample in self.held.items() if sample.subject != subject}
        now = self.clock.wall()
        self._change(
            "forget a subject", lambda: store.forget(Selection(subject=subject), now=now), after
        )

    def correct(self, id_: str) -> None:
        """Give a sample another feature and label."""
        store, (_, fresh) = self.open_store, self.fresh()
        sample = Sample(fresh.features, fresh.label, self.held[id_].subject)

        def correct() -> bool:
            return store.correct(
                id_, feature=sample.features, label=sample.label, now=self.clock.wall()
            )

        self._change("correct", correct, {**self.held, id_: sample})

    def _change(self, what: str, action: Callable[[], object], after: Held) -> None:
        self._attempted.append(after)
        self.world.tell(self.name, what)
        if self.attempt(what.rstrip("0123456789 "), action) is not None:
            self.held, self._attempted = after, []
        elif self.is_up and IN_DOUBT not in str(self.failure) and self.compare():
            self._attempted.pop()  # it was refused, or failed, or is done all the same

    # -- syncing -----------------------------------------------------------------------------------

    @property
    def is_told_old(self) -> bool:
        """Whether the last sync said that this store is an old copy."""
        told = " ".join([str(self._told), *getattr(self._told, "__notes__", ())])
        words = ("it is an old copy", "does not continue the log")  # the latter after a restore
        return self.is_old_copy and any(each in told for each in words)

    @property
    def is_told_unknown(self) -> bool:
        """Whether the last sync said that the server, which was restored, knows no such client."""
        return (
            self.accepts_restored
            and isinstance(self._told, RefusedError)
            and self._told.code == "unknown-actor"
        )

    def add_again(self, held: Held) -> None:
        """Add the samples that another store of this client has held."""
        self._add(dict(held))

    @property
    def _running(self) -> Agent:
        if self._agent is None:
            raise LawBrokenError("simulation", f"{self.name} is not running")
        return self._agent

    def sync(self) -> SyncResult | None:
        """Bring what is pending to the server, and learn what is new; None if that failed."""
        agent, accepts = self._running, self.accepts_restored
        result = self.attempt("sync", lambda: agent.sync(accept_restored=accepts))
        if result is not None:
            self.last = result
            done = f"{len(result.orders)} orders {result.waiting}"
            self._brought(f"sync: {len(result.receipts)} receipts, {done}", len(result.receipts))
        else:
            self._brought("", 0)
        return result

    def push(self) -> None:
        """Bring what is pending to the server, and no more."""
        receipts = self.attempt("push", self._running.push)
        text = "" if receipts is None else f"push: {len(receipts)} receipts"
        self._brought(text, len(receipts or ()))

    def _brought(self, text: str, receipts: int) -> None:
        self._told = self.failure
        self.world.coverage["receipts"] += receipts
        if text:
            self.world.tell(self.name, text)
        if self.is_up:
            self.compare_counts()

    # -- old copies --------------------------------------------------------------------------------

    def keep_copy(self) -> None:
        """Copy the disk, to be put back later: while nothing runs that changes it."""
        if not self._attempted and not self.is_old_copy:
            self.stop()
            self.copy = self.disk.copy(), self.held
            self.start()

    def put_copy_back(self) -> None:
        """The disk is again what it was."""
        if self.copy is None:
            raise LawBrokenError("simulation", f"there is no copy of {self.name}")
        files, self.held = self.copy
        self.crash(power=False)
        for folder in sorted({name.partition("/")[0] for name in files}):
            self.disk.put_back(files, folder)
        self.disk.forget_removed()
        self.keys, self._attempted, self.copy = set(), [], None
        self.is_old_copy = True

    def adding(self) -> set[str]:
        """The samples that have not been sent."""
        listed = self.open_store.listed(Selection(everything=True))
        return {sample.names.id for sample in listed if sample.state == "adding"}

    # -- laws --------------------------------------------------------------------------------------

    def needed_keys(self) -> dict[str, int]:
        """One for each sample, and its own."""
        return {self.vaults[0]: 1 + len(self.held)}

    def compare(self) -> bool:
        """What the store holds is what was given to it; whether it could be read."""
        opened = self.attempt("look", lambda: self.open_store.opened(Selection(everything=True)))
        if opened is None:
            return False
        labels = self.open_store.spec.labels or ()
        stored: dict[str, Sample] = {}
        for listed, unsealed in opened:
            if listed.state in ("adding", "live"):
                feature, target = unsealed.content.feature, unsealed.content.target
                if feature is None or not isinstance(target, int):
                    raise LawBrokenError("nothing lost", f"a sample of {self.name} is incomplete")
                stored[listed.names.id] = Sample(
                    tuple(map(float, feature)), str(labels[target]), str(listed.names.subject)
                )
        for held in (self.held, *self._attempted):
            if self._explains(held, stored):
                self.held = stored
                return True
        raise LawBrokenError("nothing lost", self._difference(stored))

    def compare_counts(self) -> None:
        """The cheapest part of it, unless something was to be forgotten."""
        status = self.attempt("look", self.open_store.status)
        if status is not None and (
            self._attempted or status.adding + status.live != len(self.held)
        ):
            self.compare_ids()

    def compare_ids(self) -> None:
        """The cheap part of it: after a sync only what was ordered to be forgotten is missing."""
        if self._attempted:
            self.compare()
            return
        listed = self.attempt("look", lambda: self.open_store.listed(Selection(everything=True)))
        if listed is None:
            return
        ids = {sample.names.id for sample in listed if sample.state in ("adding", "live")}
        remaining = {id_: sample for id_, sample in self.held.items() if id_ in ids}
        if not ids <= self.held.keys() or not self._explains(self.held, remaining):
            raise LawBrokenError("nothing lost", self._difference(remaining))
        self.held = remaining

    def _explains(self, held: Held, stored: Held) -> bool:
        """Whether what is stored is what was held, without some subjects that were ordered."""
        missing = {sample.subject for id_, sample in held.items() if stored.get(id_) != sample}
        return missing <= self._ordered and stored == {
            id_: sample for id_, sample in held.items() if sample.subject not in missing
        }

    def _difference(self, stored: Held) -> str:
        missing = sorted(self.held.keys() - stored.keys())
        added = sorted(stored.keys() - self.held.keys())
        other = [id_ for id_ in stored if id_ in self.held and stored[id_] != self.held[id_]]
        return (
            f"the store of {self.name} lacks {missing}, has {added} that it should not have, and "
            f"holds {other} otherwise than they were given"
        )
