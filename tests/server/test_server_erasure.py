"""Erasure at rest: after a deletion is receipted and folded, nothing that the server ever wrote
gives the sample back.

Not the files as they are, not old copies of them (backups, write-ahead logs, freed pages) with the
keys that are left, and not the digests in log and receipts, even for whoever has the current ledger
and a list of candidates.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from expunge import solve
from expunge.crypto import Envelope
from expunge.crypto.vault import Vault
from expunge.errors import ShreddedError
from expunge.evidence.digests import binding, salted
from expunge.server import ledger
from expunge.wire.request import OrderAnswer
from expunge.wire.token import secret_digest
from support.federation import Federation, read_message
from support.raw_bytes import found_in, needles, raw_bytes
from support.samples import SPEC, Sample, commitments_of, statistics_of


class Sealed(NamedTuple):
    """Something sealed, in some copy of the server's files."""

    what: str
    slot: int
    data: bytes
    context: bytes


def sealed_in(folder: Path) -> list[Sealed]:
    """Everything sealed that a copy of the server's folder holds."""
    with closing(sqlite3.connect(folder / "server.db")) as database:
        slots = dict(database.execute("SELECT generation, slot FROM generations"))
        found = []
        for generation, client, sequence, sealed, file in database.execute(
            "SELECT generation, client, sequence, sealed, file FROM journal"
        ):
            data = sealed if file is None else (folder / "sealed" / file).read_bytes()
            found.append(
                Sealed("message", slots[generation], data, f"journal:{client}:{sequence}".encode())
            )
        for slot, file in database.execute("SELECT slot, file FROM ledger"):
            found.append(Sealed("ledger", slot, (folder / "sealed" / file).read_bytes(), b"ledger"))
        for client, slot, file, account in database.execute(
            "SELECT client, slot, file, account FROM subledgers"
        ):
            found.append(
                Sealed(
                    "share",
                    slot,
                    (folder / "sealed" / file).read_bytes(),
                    b"subledger:" + client.encode(),
                )
            )
            found.append(Sealed("account", slot, account, b"account:" + client.encode()))
        generation, salt, basis = database.execute(
            "SELECT generation, salt, basis FROM state"
        ).fetchone()
        found.append(Sealed("salt", slots[generation], salt, b"salt"))
        found.append(Sealed("basis", slots[generation], basis, b"basis"))
        for table, column in (("orders", "sealed"), ("audits", "salt")):
            query = f"SELECT id, slot, {column} FROM {table} WHERE slot IS NOT NULL"  # noqa: S608 - our own names
            found += [
                Sealed(table, slot, data, f"{table[:-1]}:{name}".encode())
                for name, slot, data in database.execute(query)
            ]
    return found


def copied(federation: Federation, name: str) -> Path:
    """A copy of all that is on the disk now, as a backup program or a snapshot would have it; the
    vault apart.
    """
    place = federation.path.parent / name
    shutil.copytree(federation.path, place)
    (place / "server.vault").rename(place.with_suffix(".vault"))
    return place


def opens(vault: Vault, sealed: Sealed) -> bool:
    try:
        vault.unseal(sealed.slot, sealed.data, sealed.context)
    except ShreddedError:
        return False
    return True


def shredded(federation: Federation, copy: Path, *still: str) -> list[str]:
    """What in an old copy the present keys do not open any more.

    That the keys of then open everything is seen first.
    """
    everything = sealed_in(copy)
    with Vault.open(copy.with_suffix(".vault")) as vault:
        assert all(opens(vault, one) for one in everything)
    present = federation.service.state.vault
    left = {one.what for one in everything if opens(present, one)}
    assert left == set(still)
    return sorted({one.what for one in everything} - left)


@pytest.fixture(params=["in the journal", "in files"])
def federation(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Two clients; messages in the journal itself, or in files of their own as large ones are."""
    if request.param == "in files":
        monkeypatch.setattr(ledger, "LARGE_MESSAGE", 1)
    with Federation(tmp_path / "server", seed=3) as federation:
        federation.enrol("clinic").send(federation.draw(6))
        federation.enrol("lab").send(federation.draw(4), kind="gram")
        yield federation


@pytest.mark.parametrize("kind", ["rows", "gram"])
def test_no_file_holds_what_was_deleted(federation: Federation, kind: str) -> None:
    client = federation.clients["clinic"]
    gone = client.retained[:1]
    wanted = needles(SPEC, gone)
    data = client.request((), gone, kind)
    assert any(
        needle in data for needle in wanted.values()
    )  # the needles are good: the request itself has them
    client.settled(federation.service.request(data), (), gone)
    assert found_in(federation.path, wanted) == []
    federation.fold()
    assert found_in(federation.path, wanted) == []
    federation.service.head()
    federation.reopen()
    assert found_in(federation.path, wanted) == []
    assert data[-40:] not in b"".join(raw_bytes(federation.path).values())


def test_not_even_what_is_retained_lies_open(federation: Federation) -> None:
    """The ledger of one sample is that sample's Gram: it is nowhere in plain, and the message in
    the journal neither.
    """
    for name in ("clinic", "lab"):
        client = federation.clients[name]
        client.send((), client.retained[1:] if name == "clinic" else list(client.retained))
    wanted = needles(SPEC, federation.retained())
    assert len(federation.retained()) == 1
    assert found_in(federation.path, wanted) == []
    federation.fold()
    federation.check()
    assert found_in(federation.path, wanted) == []


def test_old_copies_do_not_open_with_the_keys_that_are_left(federation: Federation) -> None:
    client = federation.clients["clinic"]
    added = copied(federation, "added")
    federation.fold()
    folded = copied(federation, "folded")
    client.send((), client.retained[:1])
    deleted = copied(federation, "deleted")
    assert {one.what for one in sealed_in(deleted)} == {
        "message",
        "ledger",
        "share",
        "account",
        "salt",
        "basis",
    }
    federation.fold()
    assert shredded(federation, added) == ["basis", "message", "salt"]
    # The share of the client that did not change stays in force, and with it its key.
    changed = [one for one in sealed_in(deleted) if not one.context.endswith(b":lab")]
    assert not any(opens(federation.service.state.vault, one) for one in changed)
    assert shredded(federation, folded, "share", "account") == ["basis", "ledger", "salt"]
    federation.check()


def test_the_log_says_when_it_is_done_and_keeps_its_word(federation: Federation) -> None:
    client = federation.clients["clinic"]
    receipt = client.send((), client.retained[:1])
    entry = receipt.logged.entry
    federation.fold()
    erased = federation.entries("erased")
    assert [
        one
        for one in erased
        if one["generation"] >= entry["generation"] and one["round"] >= entry["round"]
    ]
    assert entry["erased_by"] >= erased[-1]["time"]
    assert federation.service.state.vault.live() == {one.slot for one in sealed_in(federation.path)}


def test_a_round_after_the_generation_ended_is_not_said_to_be_erased(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, state = federation.clients["clinic"], federation.service.state
    write_ledger = state.ledger.write_ledger
    numbers = []

    def meanwhile(*arguments: object):
        numbers.append(client.send(federation.draw(1)).logged.entry["round"])
        return write_ledger(*arguments)

    monkeypatch.setattr(state.ledger, "write_ledger", meanwhile)
    federation.fold()
    assert federation.entries("erased")[-1]["round"] == numbers[0] - 1
    federation.check()


def test_a_forgotten_client_is_erased_without_waiting_for_another_request(
    federation: Federation,
) -> None:
    federation.fold()
    before = copied(federation, "before")
    wanted = needles(SPEC, federation.clients["lab"].retained)
    federation.operator.command("forget-client", client="lab")
    del federation.clients["lab"]
    still = [one for one in sealed_in(before) if opens(federation.service.state.vault, one)]
    assert {one.context for one in still} == {b"subledger:clinic", b"account:clinic"}
    assert found_in(federation.path, wanted) == []
    federation.check()
    assert (
        federation.entries("erased")[-1]["generation"]
        == federation.service.state.record.generation - 1
    )


def candidates_in(federation: Federation, deleted: Sample, count: int = 200) -> list[str]:
    """Which digests that fit the deleted sample, or any of many others, stand in the server's
    files, as text or as bytes.

    Whoever has the ledger could recognise the sample by them.
    """
    state = federation.service.state
    current, salt = state.ledger.solver.statistics, state.salt()
    live = state.basis().live
    content = b"".join(raw_bytes(federation.path).values())
    logged = b"".join(federation.service.entries(0, state.log.size))
    present = {
        bytes.fromhex(text.decode()) for text in re.findall(rb"[0-9a-f]{64}", content + logged)
    }
    found = []
    for sample in [deleted, *federation.draw(count - 1)]:
        one = statistics_of(federation.spec, [sample])
        ledger, head = (current + one).digest, solve(current + one).digest
        plain = {"sample": one.digest, "ledger": ledger, "head": head}
        plain |= {f"salted {kind}": salted(kind, salt, plain[kind]) for kind in ("ledger", "head")}
        plain["binding"] = binding(salt, ledger, live, current.count)
        found += [
            kind
            for kind, digest in plain.items()
            if bytes.fromhex(digest) in present or bytes.fromhex(digest) in content
        ]
    return found


def test_neither_log_nor_receipts_pick_the_deleted_sample_out_of_candidates(
    federation: Federation,
) -> None:
    """Also when that sample's head was current while the spec was amended, an audit ran and heads
    were published.
    """
    operator, client = federation.operator, federation.clients["clinic"]
    operator.command("amend", gamma=(0.75).hex())
    federation.spec = federation.spec.with_gamma(0.75)
    operator.command("audit")
    for each in federation.clients.values():
        each.answer_audits()
    federation.finish_audits()
    assert federation.service.head() is not None
    gone = client.retained[:1]
    while_it_was_there = federation.service.state.head
    client.send((), gone)
    federation.fold()
    federation.check()
    assert while_it_was_there == solve(
        statistics_of(federation.spec, [*federation.retained(), *gone])
    )
    assert candidates_in(federation, gone[0]) == []


def test_a_plain_digest_would_be_found(federation: Federation) -> None:
    """The test above can fail: it looks into rows, envelopes and files."""
    gone = federation.clients["clinic"].retained[0]
    federation.clients["clinic"].send((), [gone])
    federation.fold()
    before = solve(
        federation.service.state.ledger.solver.statistics + statistics_of(SPEC, [gone])
    ).digest
    hidden = Envelope.signed("result", {"head": before}, federation.server_key).to_bytes()
    with federation.service.state.storage.database.transaction() as changes:
        query = "UPDATE answers SET answer = ? WHERE actor = 'operator' AND sequence = ?"
        assert changes.run(query, (hidden, federation.operator.sequence)) == 1
    assert candidates_in(federation, gone, 2) == ["head"]


def test_until_the_fold_the_sums_of_before_can_be_tested_and_then_no_longer(
    federation: Federation,
) -> None:
    """The test above can fail: a digest that binds samples builds on the sums of before, and salt
    and basis are there until their key is destroyed.
    """
    client, state = federation.clients["clinic"], federation.service.state
    federation.fold()
    gone = client.retained[:1]
    before = state.ledger.solver.statistics.digest
    client.send((), gone)
    assert (state.record.binds, state.basis().sums) == ("samples", before)
    assert candidates_in(federation, gone[0], 2) == ["binding"]
    federation.fold()
    assert (state.record.binds, state.basis().position) == ("sums", None)
    assert state.basis().sums == state.ledger.solver.statistics.digest != before
    assert candidates_in(federation, gone[0], 2) == []
    assert (
        found_in(federation.path, {"digest": before.encode(), "bytes": bytes.fromhex(before)}) == []
    )


def test_officers_have_the_sums_digested_and_what_was_deleted_erased_at_rest(
    federation: Federation,
) -> None:
    """By a command; again, it changes nothing, and answers the same."""
    officer, client = federation.officer(), federation.clients["clinic"]
    state = federation.service.state
    federation.fold()
    added = copied(federation, "added")
    gone = client.retained[:1]
    client.send((), gone)
    assert (state.record.binds, state.storage.journal.count()) == ("samples", 1)
    told = officer.command("fold")
    assert (state.record.binds, state.storage.journal.count()) == ("sums", 0)
    assert told == {
        "ledger": federation.entries("digested")[-1]["ledger"],
        "round": state.record.round,
        "samples": 9,
    }
    (entry,) = federation.entries("commanded")[-1:]
    assert (entry["action"], entry["summary"]) == ("fold", {"round": state.record.round})
    assert candidates_in(federation, gone[0], 2) == []
    assert "ledger" in shredded(federation, added, "share", "account")
    assert officer.command("fold") == told
    federation.check()


def test_the_salt_of_current_digests_is_there_for_auditors_and_opens_them(
    federation: Federation,
) -> None:
    state = federation.service.state
    head = state.head
    assert head is not None
    for _ in range(2):
        assert state.record.ledger_digest == salted(
            "ledger", state.salt(), state.ledger.solver.statistics.digest
        )
        assert state.record.head_digest == salted("head", state.salt(), head.digest)
        federation.fold()  # which seals the same salt anew
    entry = federation.entries("changed")[-1]
    assert (entry["ledger_after"], entry["head"]) == (
        state.record.ledger_digest,
        state.record.head_digest,
    )


def test_an_audits_salt_is_gone_once_it_no_longer_fits(federation: Federation) -> None:
    federation.operator.command("audit")
    during = copied(federation, "during")
    for client in federation.clients.values():
        client.answer_audits()
    federation.finish_audits()
    client = federation.clients["clinic"]
    client.send((), client.retained[:1])
    federation.fold()
    assert "audits" in shredded(federation, during)


def test_who_an_order_is_about_stays_sealed_and_is_gone_when_it_is_closed(
    federation: Federation,
) -> None:
    subject, at_lab = "Ada Byron, 1815-12-10", "patient 0042"
    order = federation.operator.command("order", subject=subject, subjects={"lab": at_lab})["order"]
    wanted = {"subject": subject.encode(), "at the lab": at_lab.encode()}
    assert federation.clients["clinic"].sync()["orders"][0]["subject"] == subject
    assert federation.clients["lab"].sync()["orders"][0]["subject"] == at_lab
    assert found_in(federation.path, wanted) == []
    for client in federation.clients.values():
        client.send(orders=(OrderAnswer(order, 0),))
    federation.fold()
    before = copied(federation, "before")
    federation.operator.command("close-order", order=order)
    assert [
        one.what for one in sealed_in(before) if not opens(federation.service.state.vault, one)
    ] == ["orders"]
    assert found_in(federation.path, wanted) == []


def test_the_secret_of_a_token_is_not_kept(federation: Federation) -> None:
    secret = federation.token("ward")
    assert (
        found_in(federation.path, {"text": secret.encode(), "bytes": bytes.fromhex(secret)}) == []
    )
    assert found_in(federation.path, {"digest": secret_digest(secret).encode()}) != []


def test_a_backup_holds_nothing_that_must_be_forgettable(federation: Federation) -> None:
    client = federation.clients["clinic"]
    live = commitments_of(SPEC, client.retained)
    federation.operator.command("backup", name="first")
    backups = federation.path / "backups"
    assert found_in(federation.path, {"commitment": live[0]}) != []
    assert found_in(backups, {f"commitment {number}": one for number, one in enumerate(live)}) == []
    assert found_in(backups, needles(SPEC, federation.retained())) == []
    with closing(sqlite3.connect(backups / "first")) as database:
        tables = ("ledger", "subledgers", "journal", "commitments", "generations", "tokens")
        counts = {
            table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
            for table in tables
        }
        assert counts == dict.fromkeys(tables, 0)
        assert database.execute("SELECT salt, basis FROM state").fetchone() == (b"", b"")


def test_receipts_and_logs_have_counts_and_digests_and_no_more(federation: Federation) -> None:
    client = federation.clients["clinic"]
    data = client.request(federation.draw(1), client.retained[:1])
    message = read_message(SPEC, data)
    answer = federation.service.request(data)
    entry = Envelope.from_bytes(answer, "receipt").unverified()["entry"]
    assert message.added is not None
    fixed = {
        "kind",
        "time",
        "client",
        "sequence",
        "request",
        "message",
        "added",
        "deleted",
        "leave",
        "reset",
        "round",
        "spec",
        "version",
        "binds",
        "base",
    }
    digests = {"added_commitments", "deleted_commitments", "ledger_before", "ledger_after", "head"}
    assert set(entry) == fixed | digests | {"orders", "audits", "erased_by", "generation"}
    assert all(re.fullmatch(r"[0-9a-f]{64}", entry[name]) for name in digests | {"request"})
