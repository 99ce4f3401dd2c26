"""A store that fails at any write, before or after it persisted: nothing is lost, nothing is
applied twice, and what was durable is answered by its receipt.

Each story is told once for every write in it. At the n-th write an error is raised; whoever asked
then offers the very same bytes again, to the same service or to one opened anew, until an answer
comes. At the end the ledger must be that of retraining, in memory and at rest, and the log must
hold everything exactly once.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from expunge.crypto.vault import VaultFile
from expunge.errors import CarrierError, RefusedError, StoreError
from expunge.evidence import published_head
from expunge.server import RESERVE, backup, ledger
from expunge.server.state import Settings
from expunge.server.storage import folder
from expunge.storage.files import write_whole
from expunge.wire.request import OrderAnswer
from expunge.wire.token import secret_digest
from support import seeds
from support.federation import Client, Federation, Party, Ticking, make_key, scratch, together
from support.raw_bytes import nothing_lingers
from support.samples import Sample

Answer = TypeVar("Answer")


class Faults:
    """Counts writes, and fails at one of them: database, sealed files (by the hook), vault and
    signing key.
    """

    def __init__(self) -> None:
        self.writes = 0
        self.fail_at = 0
        self.always = ""  # the place that fails every time
        self.struck = ""

    def __call__(self, place: str) -> None:
        self.writes += 1
        if self.writes == self.fail_at or place == self.always:
            self.struck = place
            raise OSError(errno.EIO, f"made to fail {place}")


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    faults, write = Faults(), VaultFile.write

    def failing(self: VaultFile, *arguments: Any) -> None:
        try:
            faults("before vault")
            write(self, *arguments)
            faults("after vault")
        except OSError as problem:
            raise StoreError(f"the vault cannot be written: {problem}") from problem

    def failing_whole(*arguments: Any) -> None:
        faults("before key")
        write_whole(*arguments)
        faults("after key")

    monkeypatch.setattr(VaultFile, "write", failing)
    monkeypatch.setattr(folder, "write_whole", failing_whole)
    monkeypatch.setattr(ledger, "LARGE_MESSAGE", 200)  # so that a few rows have a file of their own
    return faults


class Teller:
    """Tells a story to a federation, and insists."""

    def __init__(self, federation: Federation, faults: Faults, *, reopens: bool) -> None:
        self.federation = federation
        self.reopens = reopens
        self._faults = faults

    def restore(self, name: str) -> None:
        """Another server from a backup of this one: its own writes do not count."""
        federation, (writes, fail_at) = self.federation, (self._faults.writes, self._faults.fail_at)
        self._faults.fail_at = 0
        backup.restore(
            federation.path.parent / "again",
            federation.path / "backups" / name,
            federation.server_key,
        )
        self._faults.writes, self._faults.fail_at = writes, fail_at

    def insist(self, ask: Callable[[], Answer], *, upkeep: bool = False) -> Answer:
        """Ask until there is an answer.

        The service refuses for want of storage, or has no answer; only upkeep may just fail.
        """
        for _ in range(4):
            try:
                return ask()
            except RefusedError as refusal:
                if refusal.code != "storage":
                    raise
            except CarrierError:
                pass
            except (StoreError, OSError):
                if not upkeep:
                    raise
            if self.reopens:
                self.federation.service.close()
                self.federation.service = self.insist(self.federation.opened, upkeep=True)
        pytest.fail("no answer came, though only one write failed")

    def command(self, party: Party, action: str, /, **arguments: Any) -> Any:
        data = party.envelope(action, arguments, party.sequence + 1)
        return self.insist(lambda: party.offer(data))

    def send(
        self,
        client: Client,
        added: list[Sample],
        deleted: list[Sample],
        kind: str = "rows",
        **changes: Any,
    ) -> None:
        data = client.request(added, deleted, kind, **changes)
        answer = self.insist(lambda: self.federation.service.request(data))
        client.settled(answer, added, deleted)
        assert self.federation.service.request(data) == answer

    def enrol(self, name: str) -> Client:
        key, secret, federation = make_key(), "ab" * 32, self.federation
        self.command(
            federation.operator, "token", name=name, role="client", secret=secret_digest(secret)
        )
        data = federation.enrolment(name, key, secret, federation.spec.data_digest)
        self.insist(lambda: federation.service.enrol(data))
        federation.clients[name] = Client(federation, name, key)
        return federation.clients[name]

    def fold(self) -> None:
        self.insist(self.federation.fold, upkeep=True)


def stream(tell: Teller) -> None:
    """A client joins, adds, deletes as rows and as a Gram, and leaves; the journal is folded in
    between.
    """
    draw = tell.federation.draw
    client = tell.enrol("new")
    tell.send(client, draw(4), [])
    tell.send(client, draw(1), client.retained[:1], "gram")
    tell.fold()
    tell.send(client, draw(1), client.retained[:2])
    tell.fold()
    tell.send(client, [], list(client.retained), leave=True)


def orders(tell: Teller) -> None:
    """An order is filed, answered by deletion, and closed; an audit is asked for, answered and
    finished.
    """
    federation = tell.federation
    (client,) = federation.clients.values()
    order = tell.command(federation.operator, "order", subject="somebody")["order"]
    tell.send(client, [], client.retained[:2], orders=(OrderAnswer(order, 2),))
    assert federation.operator.ask("show-order", order=order)["state"] == "complete"
    audit = tell.command(federation.operator, "audit")["audit"]
    answer = client.audit_answer(client.sync()["audits"][0])
    tell.send(client, [], [], audits=(answer,))
    tell.insist(federation.finish_audits, upkeep=True)
    assert federation.operator.ask("show-audit", audit=audit)["result"] == "equal"
    tell.command(federation.operator, "close-order", order=order)
    tell.fold()
    assert [
        len(federation.entries(kind)) for kind in ("ordered", "answered", "completed", "audited")
    ] == [1, 1, 1, 1]


def reign(tell: Teller) -> None:
    """The operator amends the spec and forgets a client."""
    federation = tell.federation
    (client,) = federation.clients.values()
    tell.send(client, federation.draw(1), [])
    tell.command(
        federation.operator, "amend", gamma=(2.0).hex(), labels=["cat", "dog", "eel", "fox"]
    )
    federation.spec = federation.spec.with_gamma(2.0).with_labels("fox")
    tell.send(client, [], client.retained[:1], "gram")
    tell.command(federation.operator, "forget-client", client=client.name)
    client.retained = []
    assert [len(federation.entries(kind)) for kind in ("amended", "forgotten")] == [1, 1]


def keys(tell: Teller) -> None:
    """The server changes its key, twice, and makes a backup in between, from which another server
    can be restored.
    """
    federation = tell.federation
    (client,) = federation.clients.values()
    tell.command(federation.operator, "rotate-key")
    tell.send(client, federation.draw(1), client.retained[:1])
    tell.command(federation.operator, "backup", name="first")
    tell.restore("first")
    tell.command(federation.operator, "rotate-key")
    tell.fold()
    assert len(federation.entries("rotated")) == 2


STORIES = {story.__name__: story for story in (stream, orders, reign, keys)}


def everything_once(federation: Federation) -> None:
    """The log has each request and each command once, in order, and every answer in store is one of
    them.
    """
    counted: Counter[tuple[str, int]] = Counter()
    for entry in federation.entries():
        if entry["kind"] in ("changed", "commanded"):
            counted[
                entry["client" if entry["kind"] == "changed" else "actor"], entry["sequence"]
            ] += 1
    expected = {
        (client.name, number + 1)
        for client in federation.clients.values()
        for number in range(client.sequence)
    }
    expected |= {("operator", number + 1) for number in range(federation.operator.sequence)}
    assert counted == Counter(expected)
    last = {(client.name, client.sequence) for client in federation.clients.values()}
    last = {one for one in last | {("operator", federation.operator.sequence)} if one[1]}
    assert last <= {row[:2] for row in federation.dump()["answers"]} <= expected
    times = [entry["time"] for entry in federation.entries()]
    assert times == sorted(times)


def tell(
    story: Callable[[Teller], None],
    base: Federation,
    faults: Faults,
    fail_at: int,
    *,
    reopens: bool,
) -> bool:
    """Tell a story with one failing write; returns whether that write was ever reached."""
    faults.fail_at, faults.struck = 0, ""
    federation = base.twin(base.path.parent / f"twin-{fail_at}" / "server")
    try:
        faults.writes, faults.fail_at = 0, fail_at
        story(Teller(federation, faults, reopens=reopens))
        faults.fail_at = 0
        everything_once(federation)
        federation.check_settled()
        nothing_lingers(federation)
        leftovers = {file.name for file in federation.path.iterdir()} - {"backups"}
        assert leftovers <= {
            "lock",
            "sealed",
            "server.db",
            "server.db-shm",
            "server.db-wal",
            "server.key",
            "server.mark",
            "server.reserve",
            "server.vault",
        }
    finally:
        federation.service.close()
        shutil.rmtree(federation.path.parent)
    return bool(faults.struck)


@pytest.fixture
def base(faults: Faults) -> Iterator[Federation]:
    """A federation with one client, which each story takes up."""
    place = scratch()
    federation = Federation(place / "server", clock=Ticking(), hook=faults)
    federation.enrol("clinic").send(federation.draw(5))
    federation.close()
    yield federation
    shutil.rmtree(place)


@pytest.mark.parametrize("name", STORIES)
def test_a_write_that_fails_loses_nothing_and_repeats_nothing(
    name: str, base: Federation, faults: Faults
) -> None:
    """Every other write is followed by opening the server anew; which of them, is drawn by the
    run's seed.
    """
    fail_at, places, turn = 1, set(), seeds.chance(name).getrandbits(1)
    while tell(STORIES[name], base, faults, fail_at, reopens=bool(fail_at // 2 % 2 ^ turn)):
        places.add(faults.struck)
        fail_at += 1
    kinds = ("commit", "file", "mark", "vault", *(["key"] if name == "keys" else []))
    assert places == {f"{when} {what}" for when in ("before", "after") for what in kinds}


def test_a_store_that_fails_for_a_while(base: Federation, faults: Faults) -> None:
    """Nothing is taken meanwhile, everything can still be read, and afterwards all goes on."""
    with base.twin(base.path.parent / "twin") as federation:
        client, service = federation.clients["clinic"], federation.service
        sample, before = federation.draw(1), federation.dump()
        data = client.request(sample, client.retained[:1])
        faults.fail_at, faults.always = 0, "before commit"
        for _ in range(3):
            with pytest.raises(RefusedError, match="made to fail") as refusal:
                service.request(data)
            assert refusal.value.code == "storage"
            with pytest.raises(RefusedError, match="made to fail"):
                federation.operator.command("audit")
            with pytest.raises(OSError, match="made to fail"):
                federation.fold()
        assert client.sync()["sequence"] == client.sequence
        assert (
            published_head.read(service.head() or b"", federation.chain())[0] == service.state.head
        )
        assert federation.dump() == before
        federation.check()
        faults.always = ""
        client.settled(service.request(data), sample, client.retained[:1])
        federation.fold()
        federation.check()
        nothing_lingers(federation)


def test_a_store_that_cannot_even_be_read_for_a_while(
    base: Federation, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then memory is not what is at rest: nothing may be written from it, nor answered, until it
    has been read again.
    """
    with base.twin(base.path.parent / "twin") as federation:
        client, service = federation.clients["clinic"], federation.service
        sample, state = federation.draw(1), service.state
        data = client.request(sample, client.retained[:1])
        reload = state.ledger.reload

        def unreadable() -> None:
            raise OSError(errno.EIO, "made to fail reading")

        monkeypatch.setattr(state.ledger, "reload", unreadable)
        faults.always = "before commit"
        with pytest.raises(CarrierError):
            service.request(data)
        faults.always = ""
        with pytest.raises(CarrierError):
            service.request(data)
        with pytest.raises((OSError, StoreError)):
            federation.fold()
        with pytest.raises((RefusedError, CarrierError)):
            federation.operator.command("audit")
        monkeypatch.setattr(state.ledger, "reload", reload)
        federation.fold()
        federation.check()
        client.settled(service.request(data), sample, client.retained[:1])
        federation.check()
        federation.reopen()
        federation.check()


def test_a_failure_between_two_requests_of_one_batch_tells_each_its_own_truth(
    base: Federation, faults: Faults
) -> None:
    """A batch is durable as a whole; who was not told is told by the receipt."""
    with base.twin(base.path.parent / "twin") as federation:
        client, other = federation.clients["clinic"], federation.enrol("lab")
        one, two = federation.draw(1), federation.draw(1)
        faults.always = "after commit"
        futures = together(
            federation.service,
            [client.request(one), other.request(two), other.request(two, sequence=7)],
        )
        answers = [futures[place].result() for place in (0, 1)]
        assert isinstance(futures[2].exception(), RefusedError)
        faults.always = ""
        client.settled(answers[0], one)
        other.settled(answers[1], two)
        federation.check()


def test_a_database_without_room(base: Federation) -> None:
    with base.twin(base.path.parent / "twin") as federation:
        client, database = federation.clients["clinic"], federation.service.state.storage.database
        sample = federation.draw(400)
        data = client.request(sample)
        pages = database.value("PRAGMA page_count")
        database.rows(f"PRAGMA max_page_count={pages}")
        before = federation.dump()
        with pytest.raises(RefusedError, match="full") as refusal:
            federation.service.request(data)
        assert refusal.value.code == "storage"
        assert str(database.path.parent) not in str(refusal.value)  # which is not for clients
        assert federation.dump() == before
        database.rows("PRAGMA max_page_count=1000000")
        client.settled(federation.service.request(data), sample)
        federation.check()


def test_a_disk_that_is_really_full(base: Federation) -> None:
    place = base.path.parent / "small"
    place.mkdir()
    if not run("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)):
        pytest.skip("file systems cannot be mounted here")
    base.settings = Settings(room=1 << 17)
    (base.path / RESERVE).unlink()  # it is for a larger disk
    try:
        with base.twin(place / "server") as federation:
            fill_up(federation, place / "filler")
    finally:
        run("umount", str(place))


def run(program: str, *arguments: str) -> bool:
    """Whether a program of the system is there and does its work."""
    found = shutil.which(program)
    return (
        bool(found)
        and not subprocess.run(  # noqa: S603
            [str(found), *arguments], capture_output=True, check=False
        ).returncode
    )


def fill_up(federation: Federation, filler: Path) -> None:
    """Fill the disk to the last byte, try everything, make room again."""
    client = federation.clients["clinic"]
    sample, more = federation.draw(1), federation.draw(200)
    data = client.request(sample, client.retained[:1])
    with filler.open("wb", buffering=0) as file:
        while file.write(bytes(1000)) == 1000:
            pass
    client.settled(insist(federation, filler, data), sample, client.retained[:1])
    federation.check()
    large = client.request(more)
    client.settled(insist(federation, filler, large), more)
    federation.check()
    filler.unlink()
    federation.reopen()
    federation.check()
    federation.fold()
    federation.check()
    nothing_lingers(federation)


def insist(federation: Federation, filler: Path, data: bytes) -> bytes:
    """Offer until there is room: what is refused has changed nothing, and the filler shrinks by and
    by.
    """
    for _ in range(150):
        before = federation.dump()
        try:
            return federation.service.request(data)
        except RefusedError as refusal:
            if refusal.code not in ("storage", "no-room"):
                raise
        assert federation.dump() == before
        try:
            federation.fold()
        except (OSError, StoreError, sqlite3.Error):
            federation.check()
        os.truncate(filler, max(0, filler.stat().st_size - 16384))
        federation.service.upkeep.look_at_room()
    pytest.fail("there is room again, but the request is still refused")
