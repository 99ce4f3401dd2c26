"""The simulated server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from expunge.crypto import PublicKey, SigningKey
from expunge.errors import CarrierError, ExpungeError, RefusedError
from expunge.ridge.spec import Spec
from expunge.server import KEY, VAULT
from expunge.server.backup import found, restore
from expunge.server.clock import TOLERANCE, SteadyClock
from expunge.server.requests import Offer
from expunge.server.scrub import scrub_server
from expunge.server.service import Service
from expunge.server.state import Settings
from expunge.server.storage.folder import OpenStorage
from expunge.storage.files import make_folder, sync_folder, write_whole
from expunge.testing.simulation.disk import CrashedError
from expunge.testing.simulation.parties import Party, keys_in, unrepaired
from expunge.testing.simulation.world import LawBrokenError, World

_T = TypeVar("_T")


@dataclass(frozen=True)
class Saved:
    """What an operator keeps elsewhere, so that a lost server can be restored."""

    backup: bytes
    key: bytes
    vault: bytes
    log: Sequence[bytes]
    amendments: int  # how many there had been


@dataclass(frozen=True)
class Promise:
    """Keys that must be gone by a time: what was sealed under them has been superseded."""

    until: float  # seconds of the world
    keys: frozenset[bytes]


class ServerParty(Party):
    """The server."""

    vaults: tuple[str, ...] = ("server/server.vault",)

    def __init__(
        self,
        world: World,
        name: str,
        path: Path,
        settings: Settings,
        storage: OpenStorage,
        *,
        mirrored: bool,
    ) -> None:
        super().__init__(world, name, path)
        self.folder = self.path / "server"
        self.settings = settings
        self.service: Service | None = None
        # What has been answered: the entries of the log that somebody may know of.
        self.log: list[bytes] = []
        self.promises: list[Promise] = []
        self.gammas: list[float] = []  # that it has had, by amendments
        self._storage = storage
        self._mirrors = (self.path / "mirror" / VAULT,) if mirrored else ()
        self._saved_log: Sequence[bytes] = ()  # of the backup that it was restored from
        self._round = 0
        self._begun = 0, 0.0  # the last stamp at the last start, and how far its clock was ahead

    # -- running -----------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether the service is running."""
        return self.service is not None

    @property
    def running(self) -> Service:
        """The service, which must be running."""
        if self.service is None:
            raise LawBrokenError("simulation", "the server is not running")
        return self.service

    def found(self, spec: Spec, operator: PublicKey) -> PublicKey:
        """Found the federation; its key."""
        key = SigningKey(self.machine.random(32))
        for mirror in self._mirrors:
            make_folder(mirror.parent)
        found(
            self.folder,
            spec,
            operator,
            key=key,
            mirrors=self._mirrors,
            clock=self.clock.wall,
            storage=self._storage,
        )
        sync_folder(self.path)
        return key.public

    def start(self) -> None:
        """Start the service."""
        if self.service is None:
            self.service = Service.open(
                self.folder,
                settings=self.settings,
                mirrors=self._mirrors,
                clock=SteadyClock(self._reported, self.clock.wall, self.clock.seconds),
                seconds=self.clock.seconds,
                report=self._reported,
                upkeep=False,
                threads=False,
                storage=self._storage,
            )
            self._require_log()
            record = self.service.state.record
            self._round = record.round
            self.promises = [self._promise()]
            self._begun = record.time, max(0.0, self.clock.ahead)

    def _reported(self, text: str, problem: BaseException | None) -> None:
        self.world.tell(self.name, text if problem is None else f"{text}: {problem}")
        if isinstance(problem, Exception) and not isinstance(problem, (ExpungeError, OSError)):
            raise LawBrokenError("errors", f"{text}: {problem!r}") from problem

    def stop(self) -> None:
        """End it in good order."""
        service, self.service = self.service, None
        self.promises = []
        if service is not None:
            service.close()

    def abandon(self) -> None:
        """It was killed."""
        self.service = None
        self.promises = []

    def scrub(self, *, repair: bool) -> list[str]:
        """As `expunge server scrub`."""
        return unrepaired(scrub_server(self.folder, mirrors=self._mirrors, repair=repair))

    # -- what it does ------------------------------------------------------------------------------

    def tick(self) -> None:
        """What the server does from time to time; then what it has promised by now is kept."""
        service = self.service
        if service is None or self.is_busy:
            return
        if self.attempt("upkeep", service.upkeep.run_due) is None or self.machine.has_trouble:
            self.promises = []  # a disk that fails keeps none
        due = [promise for promise in self.promises if promise.until <= self.world.time]
        if due and self.service is not None:
            held = self.note_keys()
            for promise in due:
                self.promises.remove(promise)
                self.world.count("law: erased by")
                if promise.keys & held:
                    raise LawBrokenError(
                        "erased by",
                        f"{len(promise.keys & held)} keys of what a request superseded are in the "
                        f"server's vault {self.settings.erase_within} seconds after it",
                    )

    def call(self, name: str, *arguments: Any, meanwhile: Callable[[], None]) -> Any:
        """What the server answers, as a carrier brings it."""
        if self.is_busy:
            raise CarrierError("the server does something else")
        offer = None
        if name == "request" and self.service is not None:
            offer = self._answered(name, lambda service: service.take(*arguments))
        meanwhile()
        if offer is not None:
            answer = self._answered(name, lambda service: _receipt(service, offer))
        else:
            answer = self._answered(name, lambda service: _answer(service, name, *arguments))
        self.follow()
        return answer

    def _answered(self, name: str, ask: Callable[[Service], _T]) -> _T:
        service = self.service
        if service is None:
            raise CarrierError("the server is not running")
        with self.at_work():
            try:
                answer = ask(service)
            except (RefusedError, CarrierError):
                raise
            except CrashedError:
                self.world.tell(self.name, f"crashed in {name}")
                self.crash(power=self.world.chance.random() < 0.7)
                raise CarrierError("the server has stopped") from None
            except (ExpungeError, OSError) as problem:
                self.world.tell(self.name, f"{name} failed: {problem}")
                self.world.count(f"server failed: {type(problem).__name__}")
                raise CarrierError("the server failed") from problem
            except Exception as problem:
                raise LawBrokenError("errors", f"the server, {name}: {problem!r}") from problem
        return answer

    def needed_keys(self) -> dict[str, int]:
        """What its files are sealed under."""
        return {self.vaults[0]: len(self.running.state.storage.files.slots())}

    # -- its log -----------------------------------------------------------------------------------

    def follow(self) -> None:
        """What has been answered is in the log from now on, and what it superseded must go."""
        service = self.service
        if service is None or self.machine.has_trouble:
            return
        size = service.state.log.size
        if size == len(self.log):
            return
        if size > len(self.log):
            self.log += service.entries(len(self.log), size)
        if service.state.record.round > self._round:
            self._round = service.state.record.round
            self.promises.append(self._promise())
            self._require_time(service.state.record.time)
        if self.gammas[-1:] != [service.state.spec.gamma]:
            self.gammas.append(service.state.spec.gamma)

    def _require_time(self, stamp: int) -> None:
        """No jump of the clock is followed while the server runs."""
        last, ahead = self._begun
        latest = max(last, self.world.time + ahead + TOLERANCE)
        self.world.count("law: time")
        if stamp > latest:
            raise LawBrokenError(
                "time", f"an entry is stamped {stamp - latest:.0f} seconds later than it can be"
            )

    def _require_log(self) -> None:
        """The log continues what anybody has seen."""
        service = self.service
        if service is None:
            return
        size = service.state.log.size
        if self._saved_log:  # of the backup's own entry, the backup does not know
            old, self._saved_log = self._saved_log, ()
            self.log = list(old[: size - 1])
        if size < len(self.log) or service.entries(0, len(self.log)) != self.log:
            raise LawBrokenError(
                "the log grows",
                f"it had {len(self.log)} entries that were answered, and has {size}, or others",
            )

    def _promise(self) -> Promise:
        """What is sealed now is superseded, if there is anything in the journal."""
        service = self.service
        if service is None:
            return Promise(self.world.time, frozenset())
        storage, slots = service.state.storage, set()
        if storage.journal.count():
            slots.add(storage.generations.slot(service.state.record.generation))
            ledger = storage.files.ledger()
            slots |= {ledger.slot} if ledger is not None else set()
            for client in storage.journal.clients(storage.journal.last()):
                share = storage.files.share(client)
                slots |= {share.slot} if share is not None else set()
        keys = keys_in((self.path / self.vaults[0]).read_bytes())
        sensitive = frozenset(key for slot, key in keys if slot in slots)
        return Promise(self.world.time + self.settings.erase_within, sensitive)

    # -- backups -----------------------------------------------------------------------------------

    def save(self, name: str) -> Saved:
        """What can be taken elsewhere of a backup that has just been made."""
        files = self.disk.copy()
        return Saved(
            files[f"server/backups/{name}"],
            files[f"server/{KEY}"],
            files[self.vaults[0]],
            tuple(self.log),
            len(self.gammas),
        )

    def can_be_restored(self, saved: Saved) -> bool:
        """Whether it still signs with the key that was saved."""
        key = self.path / "server" / KEY
        return key.exists() and key.read_bytes() == saved.key

    def restore(self, saved: Saved, *, with_vault: bool) -> None:
        """The machine is lost; another one begins with what was saved."""
        self.crash(power=False)
        self.replace_disk()
        elsewhere = self.path / "saved"
        make_folder(elsewhere)
        write_whole(elsewhere / "backup", saved.backup)
        write_whole(elsewhere / VAULT, saved.vault)
        for mirror in self._mirrors:
            make_folder(mirror.parent)
        restore(
            self.folder,
            elsewhere / "backup",
            SigningKey.from_pem(saved.key),
            vault=elsewhere / VAULT if with_vault else None,
            mirrors=self._mirrors,
            clock=self.clock.wall,
        )
        self.machine.remove_tree(elsewhere)  # only the backup's keeper has it from now on
        sync_folder(self.path)
        self.disk.forget_removed()
        self._saved_log, self.log = saved.log, []
        self.gammas = self.gammas[: saved.amendments]


def _answer(service: Service, name: str, *arguments: Any) -> Any:
    if name == "aggregate":  # nobody waits: the client comes again
        return service.turn(*arguments).data
    return getattr(service, name)(*arguments)


def _receipt(service: Service, offer: Offer) -> bytes:
    service.catch_up()
    if not offer.answer.done():
        raise CarrierError("the server was started anew")
    return offer.answer.result()
