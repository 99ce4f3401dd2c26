"""Backups and what is restored from them: nothing that was deleted since comes back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from expunge.errors import RefusedError, ShreddedError, StoreError
from expunge.evidence import published_head
from expunge.server.backup import found, restore, write_backup
from expunge.server.service import Service
from expunge.server.storage.schema import MIGRATIONS
from expunge.server.storage.sqlite import SqliteStorage
from expunge.storage.sqlite import Database
from expunge.wire.request import OrderAnswer
from support.federation import NOW, Clock, Federation, make_key
from support.raw_bytes import needles, raw_bytes
from support.samples import SPEC


@pytest.fixture
def federation(tmp_path: Path):
    federation = Federation(tmp_path / "server", clock=Clock())
    federation.enrol("clinic").send(federation.draw(4))
    federation.enrol("lab").send(federation.draw(3), kind="gram")
    yield federation
    federation.close()


def lost_and_restored(
    federation: Federation, *, vault: bool = False, name: str = "first"
) -> list[str]:
    """The server's folder is lost; another is made from backup and signing key (and vault), and
    takes its place.
    """
    path, key = federation.path, federation.server_key
    federation.close()
    safe = path.parent / "safe"
    safe.mkdir()
    shutil.copy(path / "backups" / name, safe / name)
    shutil.copy(path / "server.vault", safe / "server.vault")
    shutil.rmtree(path)
    waiting = restore(
        path,
        safe / name,
        key,
        vault=safe / "server.vault" if vault else None,
        clock=federation.clock,
    )
    federation.service = federation.opened()
    return waiting


@pytest.mark.parametrize("vault", [False, True])
def test_what_was_deleted_after_the_backup_does_not_come_back(
    federation: Federation, vault: bool
) -> None:
    clinic, lab = federation.clients.values()
    operator, before = federation.operator, federation.service.state.log.size
    operator.command("backup", name="first")
    gone = clinic.retained[:2]
    clinic.send(federation.draw(1), gone)
    forgotten = needles(SPEC, gone)
    assert lost_and_restored(federation, vault=vault) == ["clinic", "lab"]
    operator.sequence -= 1  # the backup does not have the command that made it
    service = federation.service
    assert service.status()["samples"] == 0
    assert service.status()["clients"] == {
        "active": 0,
        "must-rejoin": 2,
        "barred": 0,
        "gone": 0,
    }
    (entry,) = federation.entries("restored")
    assert (entry["size"], entry["withheld"]) == (before, ["clinic", "lab"])
    heard = clinic.sync()
    assert (heard["status"], heard["sequence"]) == ("must-rejoin", 1)
    with pytest.raises(RefusedError) as refusal:
        service.request(clinic.request(federation.draw(1)))
    assert refusal.value.code == "must-rejoin"
    everything = list(clinic.retained)
    receipt = clinic.send(everything, reset=True)
    assert (receipt.sequence, receipt.logged.entry["reset"]) == (3, True)
    assert clinic.sync()["status"] == "active"
    lab.retained, held = [], lab.retained
    federation.check()
    lab.send(held, kind="gram", reset=True)
    federation.check()
    federation.fold()
    content = b"".join(raw_bytes(federation.path).values())
    assert not [what for what, needle in forgotten.items() if needle in content]
    clinic.send(federation.draw(1), clinic.retained[:1])
    federation.check()
    operator.command("backup", name="second")


def test_a_client_rejoins_with_any_later_number_once(federation: Federation) -> None:
    clinic = federation.clients["clinic"]
    federation.operator.command("backup", name="first")
    lost_and_restored(federation)
    held, service = list(clinic.retained), federation.service
    for sequence, code in ((1, "sequence-reused"), (0, "malformed")):
        with pytest.raises(RefusedError) as refusal:
            service.request(clinic.request(held, reset=True, sequence=sequence))
        assert refusal.value.code == code
    data = clinic.request(held, reset=True, sequence=40)
    answer = service.request(data)
    clinic.settled(answer, held, reset=True)
    assert service.request(data) == answer
    with pytest.raises(RefusedError) as refusal:
        service.request(clinic.request(held, reset=True, sequence=50))
    assert refusal.value.code == "sequence-gap"
    clinic.send((), clinic.retained[:1])
    assert clinic.sequence == 41


def test_a_client_that_does_not_come_back_is_not_there_and_can_be_forgotten(
    federation: Federation,
) -> None:
    federation.operator.command("backup", name="first")
    lost_and_restored(federation)
    federation.operator.sequence -= 1
    clinic, lab = federation.clients.values()
    clinic.send(list(clinic.retained), reset=True)
    lab.retained = []
    federation.check()
    assert federation.operator.command("forget-client", client="lab")["count"] == 0
    federation.check()


def test_a_client_may_leave_by_rejoining_with_nothing(federation: Federation) -> None:
    federation.operator.command("backup", name="first")
    lost_and_restored(federation)
    clinic, lab = federation.clients.values()
    clinic.send(reset=True, leave=True)
    lab.retained = []
    assert clinic.sync()["status"] == "gone"
    federation.check()


def test_log_receipts_and_enrolments_outlive_the_server(federation: Federation) -> None:
    clinic = federation.clients["clinic"]
    sample = federation.draw(1)
    data = clinic.request(sample)
    answer = federation.service.request(data)
    clinic.settled(answer, sample)
    entries = federation.entries()
    federation.operator.command("backup", name="first")
    lost_and_restored(federation)
    assert federation.entries()[: len(entries)] == entries
    assert (
        federation.service.request(data) == answer
    )  # what the backup knows to be answered is answered
    assert federation.entries()[-1]["kind"] == "restored"
    known = federation.service.state.record.generation
    federation.fold()
    assert (
        federation.entries("erased") == []
    )  # what the lost server's keys are up to, this one does not know
    clinic.retained = []
    clinic.send(federation.draw(1), reset=True)
    federation.fold()
    (erased,) = federation.entries("erased")
    assert (erased["first"], erased["generation"]) == (known, known)


@pytest.mark.parametrize("vault", [False, True])
def test_open_orders_after_a_restore(federation: Federation, vault: bool) -> None:
    """With the vault they go on; without it nobody knows any more whom they are about: they must be
    filed again.
    """
    operator = federation.operator
    order = operator.command("order", subject="somebody")["order"]
    done = operator.command("order", subject="somebody else")["order"]
    for client in federation.clients.values():
        client.send(orders=(OrderAnswer(done, 0),))
    operator.command("backup", name="first")
    lost_and_restored(federation, vault=vault)
    operator.sequence -= 1
    clinic, lab = federation.clients.values()
    waiting = clinic.sync()["orders"]
    state = operator.ask("show-order", order=order)["state"]
    assert operator.ask("show-order", order=done)["state"] == "complete"
    if vault:
        assert ([one["order"] for one in waiting], state) == ([order], "open")
        clinic.send(list(clinic.retained), reset=True)
        clinic.answer_order(order, clinic.retained[:1])
        lab.send(list(lab.retained), reset=True, orders=(OrderAnswer(order, 0),))
        assert operator.ask("show-order", order=order)["state"] == "complete"
        assert operator.ask("bundle", order=order)
    else:
        assert (waiting, state) == ([], "lost")
        assert federation.service.status()["orders"]["lost"] == 1
        operator.command("close-order", order=order)
        assert operator.ask("show-order", order=order)["state"] == "closed"
        again = operator.command("order", subject="somebody")["order"]
        assert [one["order"] for one in clinic.sync()["orders"]] == [again]


def test_an_order_closed_after_the_backup_is_not_opened_again(federation: Federation) -> None:
    """The vault of the day the server was lost no longer has the key of its subject."""
    operator = federation.operator
    order = operator.command("order", subject="somebody")["order"]
    operator.command("backup", name="first")
    for client in federation.clients.values():
        client.send(orders=(OrderAnswer(order, 0),))
    operator.command("close-order", order=order)
    lost_and_restored(federation, vault=True)
    assert federation.clients["clinic"].sync()["orders"] == []
    assert operator.ask("show-order", order=order)["state"] == "lost"


def test_an_audit_under_way_is_abandoned(federation: Federation) -> None:
    operator = federation.operator
    audit = operator.command("audit")["audit"]
    operator.command("backup", name="first")
    lost_and_restored(federation, vault=True)
    clinic, lab = federation.clients.values()
    assert clinic.sync()["audits"] == []
    assert operator.ask("show-audit", audit=audit)["result"] == "abandoned"
    for client in (clinic, lab):
        client.send(list(client.retained), reset=True)
    federation.service.upkeep.run_due()
    _, certificate = published_head.read(federation.service.head() or b"", federation.chain())
    assert certificate.audit is None
    operator.sequence -= 1
    again = operator.command("audit")["audit"]
    for client in (clinic, lab):
        client.answer_audits()
    federation.service.upkeep.run_due()
    assert operator.ask("show-audit", audit=again)["result"] == "equal"


def test_after_a_rotation_the_backup_needs_the_key_it_was_made_with(
    federation: Federation, tmp_path: Path
) -> None:
    federation.operator.command("backup", name="first")
    backup, old = federation.path / "backups" / "first", federation.server_key
    federation.operator.command("rotate-key")
    with pytest.raises(StoreError, match="signing key"):
        restore(tmp_path / "again", backup, federation.server_key)
    assert restore(tmp_path / "again", backup, old) == ["clinic", "lab"]


@pytest.mark.parametrize("case", ["no such file", "not a backup", "another key", "a folder in use"])
def test_restores_that_are_refused(federation: Federation, tmp_path: Path, case: str) -> None:
    federation.operator.command("backup", name="first")
    backup, key, place = (
        federation.path / "backups" / "first",
        federation.server_key,
        tmp_path / "again",
    )
    if case == "no such file":
        backup = tmp_path / "nothing"
    elif case == "not a backup":
        backup = tmp_path / "something"
        backup.write_bytes(b"something" * 1000)
    elif case == "another key":
        key = make_key()
    else:
        place.mkdir()
        (place / "precious").write_text("x")
    with pytest.raises(StoreError):
        restore(place, backup, key)
    assert not (place / "server.db").exists()
    assert restore(
        tmp_path / "right", federation.path / "backups" / "first", federation.server_key
    ) == ["clinic", "lab"]


@pytest.mark.parametrize("name", ["", "../escape", "a/b", ".hidden", "x" * 101, 7, None])
def test_a_backup_needs_a_plain_name(federation: Federation, name: object) -> None:
    before = federation.dump()
    with pytest.raises(RefusedError) as refusal:
        federation.operator.command("backup", **({"name": name} if name is not None else {}))
    assert refusal.value.code == "malformed"
    assert federation.dump() == before


def test_a_backup_is_never_overwritten(federation: Federation) -> None:
    federation.operator.command("backup", name="first")
    content = (federation.path / "backups" / "first").read_bytes()
    with pytest.raises(RefusedError) as refusal:
        federation.operator.command("backup", name="first")
    assert refusal.value.code == "name-taken"
    assert (federation.path / "backups" / "first").read_bytes() == content
    federation.operator.command("backup", name="second")
    assert sorted(path.name for path in (federation.path / "backups").iterdir()) == [
        "first",
        "second",
    ]


def test_a_backup_that_failed_does_not_take_its_name(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = federation.operator
    data = operator.envelope("backup", {"name": "first"}, operator.sequence + 1)
    transaction = Database.transaction
    monkeypatch.setattr(
        Database, "transaction", lambda _: (_ for _ in ()).throw(OSError("no room"))
    )
    with pytest.raises(RefusedError) as refusal:
        operator.offer(data)
    assert refusal.value.code == "storage"
    monkeypatch.setattr(Database, "transaction", transaction)
    assert operator.offer(data) == {"file": "first"}
    lost_and_restored(federation)


def test_a_mirror_of_the_vault_serves_when_the_server_is_lost(tmp_path: Path) -> None:
    mirror, key, path = tmp_path / "mirror.vault", make_key(), tmp_path / "server"
    found(path, SPEC, make_key().public, key=key, mirrors=[mirror])
    with pytest.raises(StoreError, match="exists already"):
        found(tmp_path / "other", SPEC, make_key().public, mirrors=[mirror])
    service = Service.open(path, mirrors=[mirror], upkeep=False)
    backup = write_backup(service.state.folder, "first")
    service.close()
    assert mirror.read_bytes() == (path / "server.vault").read_bytes()
    second = tmp_path / "second.vault"
    assert restore(tmp_path / "again", backup, key, vault=mirror, mirrors=[mirror, second]) == []
    Service.open(tmp_path / "again", mirrors=[mirror, second], upkeep=False).close()
    assert (
        mirror.read_bytes()
        == second.read_bytes()
        == (tmp_path / "again" / "server.vault").read_bytes()
    )


def test_opening_what_is_missing_or_in_use(federation: Federation, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no server"):
        Service.open(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="in use"):
        Service.open(federation.path)
    federation.close()
    key = (federation.path / "server.key").read_bytes()
    (federation.path / "server.key").write_bytes(make_key().pem)
    for _ in range(2):  # nor is it left locked
        with pytest.raises(StoreError, match="not the key"):
            Service.open(federation.path)
    (federation.path / "server.key").unlink()
    with pytest.raises(StoreError, match="missing"):
        Service.open(federation.path)
    (federation.path / "server.key").write_bytes(key)
    vault = (federation.path / "server.vault").read_bytes()
    (federation.path / "server.vault").write_bytes(vault[:64] + bytes(len(vault) - 64))
    with pytest.raises(ShreddedError):
        Service.open(federation.path)
    (federation.path / "server.vault").write_bytes(vault)
    federation.service = federation.opened()
    federation.check()


def test_a_database_of_a_newer_version_is_not_touched(federation: Federation) -> None:
    federation.close()
    path = federation.path / "server.db"
    newer = Database(path, [*MIGRATIONS, "CREATE TABLE future (x)"])
    newer.close()
    with pytest.raises(StoreError, match="newer"):
        Service.open(federation.path)
    federation.service = Federation(federation.path.parent / "other", clock=Clock(NOW)).service


@pytest.mark.parametrize("transaction", [1, 2])
def test_a_server_that_was_never_finished_says_so(tmp_path: Path, transaction: int) -> None:
    left = [2 * transaction - 1]

    def failing(_: str) -> None:
        left[0] -= 1
        if not left[0]:
            raise OSError("made to fail")

    with pytest.raises(OSError, match="made to fail"):
        found(
            tmp_path / "server",
            SPEC,
            make_key().public,
            storage=lambda path, _: SqliteStorage(path, failing),
        )
    with pytest.raises(StoreError, match="never finished"):
        Service.open(tmp_path / "server")
    with pytest.raises(StoreError, match="never finished"):  # nor is it left locked
        Service.open(tmp_path / "server")
