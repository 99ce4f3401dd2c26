"""Erasure orders, farewells and restored servers under secure aggregation."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from expunge import kinds
from expunge.client import ClientStore
from expunge.client.outbox import Outbox
from expunge.crypto import Envelope, canonical
from expunge.errors import CarrierError, EvidenceError, RefusedError, StoreError
from expunge.evidence import read_bundle, render_bundle, verify
from expunge.server.backup import restore
from expunge.wire.request import Header, write
from expunge.wire.schema import UNDISCLOSED
from server.test_server_disputes import lying, negative
from support.client_files import files_of
from support.evidence import altered
from support.masked_round import GATHER, PHASE, Circle, drawn

SUBJECT = "subject-17"


@pytest.fixture
def circle(circle_of_four: Circle) -> Circle:
    return circle_of_four


def order(circle: Circle) -> str:
    return str(circle.federation.operator.command("order", subject=SUBJECT)["order"])


def erased(circle: Circle, name: str, ids: list[str]) -> None:
    """The order has been carried out at a client."""
    for one in ids:
        del circle.held[name][one]


def carried_out(circle: Circle, samples: int) -> str:
    """An order about somebody of whom one client has samples, carried out in a round."""
    ids = circle.add("c0", samples, SUBJECT)
    circle.everybody_adds("c1", "c2")
    circle.go()
    number = order(circle)
    circle.everybody_adds("c1", "c2")
    erased(circle, "c0", ids)
    circle.go()
    return number


def test_an_order_is_carried_out_in_a_round_and_completes(circle: Circle) -> None:
    number = carried_out(circle, 3)
    circle.check_whole()
    told = circle.federation.operator.ask("show-order", order=number)
    assert told["state"] == "complete"
    assert {(answer["client"], answer["found"]) for answer in told["answers"]} == {
        (name, UNDISCLOSED) for name in circle.names
    }
    log = circle.federation.entries()
    answered = next(
        place
        for place, entry in enumerate(log)
        if entry["kind"] == "answered" and entry["client"] == "c0"
    )
    deleted = max(place for place, entry in enumerate(log) if entry["kind"] == "aggregated")
    assert answered > deleted  # a client says that it holds nothing any more once that is so


def test_an_order_about_samples_of_one_client_needs_no_other_changes(circle: Circle) -> None:
    """All take part in the round that deletes, and answer after it."""
    ids = circle.add("c0", 1, SUBJECT)
    circle.everybody_adds("c1", "c2")
    circle.go()
    number = order(circle)
    erased(circle, "c0", ids)
    done = circle.pass_round("c0", "c1")
    assert all("waits for" in one.waiting for one in done.values())
    told = circle.federation.operator.ask("show-order", order=number)
    assert (told["state"], told["waiting"]) == ("open", circle.names)
    circle.go()
    circle.check_whole()
    assert circle.federation.operator.ask("show-order", order=number)["state"] == "complete"
    *_, last = circle.entries("aggregated")
    assert [member["client"] for member in last["clients"]] == circle.names
    assert (last["added"], last["deleted"]) == (0, 1)


def test_an_order_about_nobody_is_answered_after_a_round_too(circle: Circle) -> None:
    number = order(circle)
    circle.go()
    circle.check_whole()
    assert circle.federation.operator.ask("show-order", order=number)["state"] == "complete"
    *_, last = circle.entries("aggregated")
    assert (last["added"], last["deleted"]) == (0, 0)
    rounds = len(circle.entries("aggregated"))
    circle.go()  # and then all is quiet
    assert (circle.phase, len(circle.entries("aggregated"))) == ("", rounds)


def test_an_order_that_comes_while_another_is_answered_waits_for_a_round_of_its_own(
    circle: Circle,
) -> None:
    """The request that answers the first one is no round, though it has a number."""
    first = order(circle)
    circle.until("revealing")
    second = str(circle.federation.operator.command("order", subject="somebody else")["order"])
    circle.go(passes=30)
    ask = circle.federation.operator.ask
    assert {ask("show-order", order=one)["state"] for one in (first, second)} == {"complete"}
    answers = [
        (entry["kind"], index)
        for index, entry in enumerate(circle.federation.entries())
        if entry["kind"] in ("aggregated", "ordered")
    ]
    last_order = max(index for kind, index in answers if kind == "ordered")
    assert any(kind == "aggregated" and index > last_order for kind, index in answers)


def seen_by_the_server(found: bool) -> tuple[list[Any], list[tuple[str, str]]]:
    """What log, tables and exchanges show of c0, which has three samples of the subject or none,
    and nothing else to change.
    """
    with drawn(seed=5) as circle:
        ids = circle.add("c0", 3, SUBJECT if found else "somebody else")
        circle.everybody_adds("c1", "c2")
        circle.go()
        number = order(circle)
        circle.everybody_adds("c1", "c2")
        if found:
            erased(circle, "c0", ids)
        said = len(circle.way.said)
        circle.go()
        circle.check_whole()
        exchanges = [
            (who, str(len(data))) for who, data in circle.way.said[said:] if b"{" not in data[:1]
        ]
        log = []
        for entry in circle.federation.entries():
            about = [member for member in entry.get("clients", []) if isinstance(member, dict)] or [
                entry
            ]
            log += [
                (
                    entry["kind"],
                    one.get("sequence"),
                    entry.get("found"),
                    entry.get("message"),
                    entry.get("round"),
                )
                for one in about
                if one.get("client") == "c0"
            ]
        answers = circle.federation.operator.ask("show-order", order=number)["answers"]
        log += [(one["client"], one["found"], one["sequence"]) for one in answers]
        tables = circle.federation.dump()
        log += [(name, len(rows)) for name, rows in sorted(tables.items())]
        return log, exchanges


def test_whether_something_was_found_does_not_show_at_the_server() -> None:
    """All that is stored and said of the client is the same."""
    (log, exchanges), (other, others) = seen_by_the_server(True), seen_by_the_server(False)
    assert log == other
    assert exchanges == others
    assert any(kind[0] == "answered" and kind[2] == UNDISCLOSED for kind in log if len(kind) == 5)


def answers_seen(phase: kinds.Phase, holder: str) -> list[Any]:
    """In which order rounds and answers are logged, and of whom, if an order about a client's
    samples is filed in this phase of a round.
    """
    with drawn(seed=3) as circle:
        for name in circle.names:
            circle.add(name, 2, SUBJECT if name == holder else "somebody else")
        circle.go()
        circle.everybody_adds("c1")
        circle.until(phase)
        begin = len(circle.federation.entries())
        order(circle)
        erased(circle, holder, list(circle.held[holder])[:2])
        for _ in range(16):
            circle.pass_round("c0", "c2", "c1", "c3")
            circle.wait(GATHER if circle.phase == "joining" else 0.0)
        circle.check_whole()
        return [
            (entry["kind"], [one["client"] for one in entry.get("clients", [])])
            if entry["kind"] == "aggregated"
            else (entry["kind"], entry.get("client"), entry.get("sequence"))
            for entry in circle.federation.entries()[begin:]
        ]


@pytest.mark.parametrize("phase", kinds.PHASES[:-1])
def test_who_hears_of_an_order_in_a_round_answers_as_all_do(phase: kinds.Phase) -> None:
    """A holder composes anew what it has joined with; when it answers, and which round it is in,
    does not show that.
    """
    views = [answers_seen(phase, holder) for holder in ("c0", "c2", "c3")]
    assert views[0] == views[1] == views[2]
    assert [entry[0] for entry in views[0]].count("answered") == 4


def test_the_bundle_of_an_order_verifies_offline(circle: Circle) -> None:
    number = carried_out(circle, 2)
    circle.federation.fold()
    page = render_bundle(
        Envelope.from_json(circle.federation.operator.ask("bundle", order=number), "bundle")
    )
    key = circle.federation.server_key
    finding = verify(page, key.public)
    assert ("State", "complete") in finding.facts
    assert any("Masks hide whose samples" in sentence for sentence in finding.not_proved)
    assert b"Masks hide whose samples" in page
    # Bundles from before that sentence still verify; where there are no masks, it is refused.
    earlier = altered(read_bundle(page), key, lambda content: content.update(template=1))
    assert b"Masks hide" not in render_bundle(earlier)
    assert ("State", "complete") in verify(render_bundle(earlier), key.public).facts
    assert any(
        "How many samples each of them deleted is disclosed to nobody" in sentence
        for sentence in finding.proved
    )
    with pytest.raises(EvidenceError):
        verify(page.replace(b"complete", b"complet3"), circle.federation.first_key.public)


# -- leaving ---------------------------------------------------------------------------------------


def test_a_client_that_leaves_deletes_in_a_round_and_says_farewell_afterwards(
    circle: Circle,
) -> None:
    circle.stores["c3"].leave()
    circle.held["c3"].clear()
    assert "waits for 2 more clients" in circle.sync("c3").waiting
    circle.everybody_adds("c0", "c1")
    circle.go()
    circle.check_whole()
    left = [entry for entry in circle.entries("changed") if entry["leave"]]
    assert [(entry["client"], entry["deleted"]) for entry in left] == [("c3", 0)]
    assert circle.service.state.actor("c3").status == "gone"
    circle.stores.pop("c3").close()
    circle.everybody_adds()
    circle.go()
    circle.check_whole()


def test_a_bundle_says_how_clients_left_that_gave_no_answer(circle: Circle) -> None:
    """How many samples they had, nobody knows: a farewell deletes none."""
    circle.everybody_adds()
    circle.go()
    circle.stores["c3"].leave()
    with circle.losing("request", "there"):
        for _ in range(16):
            with suppress(CarrierError):
                circle.pass_round("c0", "c1", "c2", "c3")
            circle.wait(GATHER if circle.phase == "joining" else 0.0)
    number = order(circle)
    circle.go()
    operator = circle.federation.operator
    page = render_bundle(Envelope.from_json(operator.ask("bundle", order=number), "bundle"))
    proved = verify(page, circle.federation.server_key.public).proved
    (left,) = (sentence for sentence in proved if "c3 left" in sentence)
    assert "said that it had deleted all that it had contributed" in left
    assert "0 samples" not in left


# -- restored servers ------------------------------------------------------------------------------


def restored(circle: Circle, backup: str | Path, name: str = "restored") -> None:
    """The server is lost, and comes back from a backup."""
    federation = circle.federation
    key, vault = federation.server_key, federation.path / "server.vault"
    federation.close()
    place = federation.path.parent / name
    restore(place, federation.path / "backups" / backup, key, vault=vault, clock=federation.clock)
    federation.path = place
    federation.service = federation.opened()
    federation.operator.sequence = federation.service.state.actor("operator").sequence


def test_a_restore_from_before_an_amendment_is_healed_by_the_same_amendment(
    circle: Circle,
) -> None:
    operator = circle.federation.operator
    operator.command("backup", name="first")
    operator.command("amend", labels=["no", "yes", "perhaps"])
    circle.everybody_adds()
    circle.go()
    restored(circle, "first")
    with pytest.raises(EvidenceError, match="must make the same amendment again; then sync"):
        circle.sync("c0", accept_restored=True)
    circle.federation.operator.command("amend", labels=["no", "yes", "perhaps"])
    for name in circle.names:
        circle.sync(name, accept_restored=True)
    circle.go()
    circle.check_whole()


def test_a_client_that_holds_nothing_any_more_rejoins_by_the_round_that_it_is_in(
    circle: Circle,
) -> None:
    """It joins with all that it holds, and forgets that: who rejoins by no round holds nothing."""
    circle.everybody_adds()
    circle.go()
    circle.federation.operator.command("backup", name="first")
    restored(circle, "first")
    assert circle.sync("c0", accept_restored=True).waiting
    circle.forget("c0", list(circle.held["c0"]))
    for name in circle.names:
        circle.sync(name, accept_restored=True)
    circle.go()
    circle.check_whole()
    (entry,) = circle.entries("aggregated")[-1:]
    assert [member["client"] for member in entry["clients"]] == circle.names
    assert not circle.entries("changed")


def test_two_restores_of_one_backup_in_one_second_are_two(circle: Circle) -> None:
    """What was masked in between is taken back only if the log shows the second one."""
    circle.federation.operator.command("backup", name="first")
    backup = circle.federation.path / "backups" / "first"
    restored(circle, backup)
    for _ in range(4):
        circle.pass_round()
        circle.wait(GATHER)
    circle.everybody_adds()
    circle.until("agreeing")
    circle.sync("c0")
    restored(circle, backup, "again")
    assert len({entry["id"] for entry in circle.entries("restored")}) == 1
    for _ in range(12):
        for name in circle.names:
            circle.sync(name, accept_restored=True)
        circle.wait(GATHER)
    circle.check_whole()


def test_after_a_restore_a_liar_can_be_forgotten_before_the_others_are_back(
    circle: Circle,
) -> None:
    """The ledger has nothing of it, so nobody has to add up anything; and they wait for that."""
    circle.everybody_adds()
    circle.go()
    circle.federation.operator.command("backup", name="first")
    restored(circle, "first")
    with lying(circle, {"c3": negative}):
        for _ in range(6):
            for name in circle.names:
                circle.sync(name, accept_restored=True)
            circle.wait(GATHER)
    assert len(circle.entries("voided")) == 1
    circle.forget_client("c3")
    assert [(entry["client"], entry["count"]) for entry in circle.entries("forgotten")] == [
        ("c3", 0)
    ]
    circle.go(passes=20)
    circle.check_whole()
    circle.federation.reopen()
    circle.check_whole()


def test_a_client_that_has_seen_what_was_lost_and_is_forgotten_learns_that(circle: Circle) -> None:
    circle.federation.operator.command("backup", name="first")
    circle.everybody_adds("c0")
    circle.go()
    circle.forget("c3", list(circle.held["c3"])[:1])
    restored(circle, "first")
    for _ in range(4):
        for name in circle.names[:3]:
            circle.sync(name, accept_restored=True)
        circle.wait(GATHER)
    circle.federation.operator.command("forget-client", client="c3")
    with pytest.raises(EvidenceError, match="accept it for this client"):
        circle.sync("c3")
    assert circle.sync("c3", accept_restored=True).status == "gone"
    assert circle.stores["c3"].status().deleting == 0


def test_a_store_of_an_earlier_version_knows_of_no_restore_and_goes_on(circle: Circle) -> None:
    """What it has noted of the log does not say which restore it has seen."""
    circle.federation.operator.command("backup", name="first")
    restored(circle, "first")
    for _ in range(4):
        for name in circle.names:
            circle.sync(name, accept_restored=True)
        circle.wait(GATHER)
    for store in circle.stores.values():
        noted = canonical.decode((store.recall("peers") or "").encode())
        older = {key: noted[key] for key in ("decisions", "frontier", "keys", "states")}
        store.remember({"peers": canonical.encode(older).decode(), "anew": "", "lost": ""})
    circle.everybody_adds()
    circle.go()
    circle.check_whole()


@pytest.mark.parametrize("ends", ["killed", "no space"])
def test_a_client_that_settles_everything_and_is_stopped_goes_on(
    circle: Circle, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its receipt and what it notes of that."""
    circle.seem_restored()
    circle.until("revealing")
    circle.pass_round()
    true, failures = Outbox.settle, iter([True])

    def settle(self: Outbox, *given: Any, **more: Any) -> None:
        true(self, *given, **more)
        if next(failures, False):
            raise StoreError("no space left") if ends == "no space" else KeyboardInterrupt

    monkeypatch.setattr(Outbox, "settle", settle)
    with pytest.raises((StoreError, KeyboardInterrupt)):
        circle.go()
    for name in circle.names:
        circle.restart_client(name)
    circle.everybody_adds()
    circle.go()
    circle.federation.operator.command("audit")
    circle.go()
    assert circle.entries("audited")
    assert not any(store.status().adding for store in circle.stores.values())


def test_a_sum_of_everything_binds_nobody_after_the_next_restore(circle: Circle) -> None:
    """Some have agreed to it; who was away then is in the next one."""
    circle.seem_restored()
    circle.until("revealing", "c0", "c1", "c2")
    circle.seem_restored()
    before = len(circle.entries("aggregated"))
    for _ in range(4):
        circle.pass_round()
        circle.wait(GATHER)
    circle.pass_round()
    rounds = [[one["client"] for one in entry["clients"]] for entry in circle.entries("aggregated")]
    assert rounds == [circle.names] * (before + 1)
    assert all(store.outbox.composed() is None for store in circle.stores.values())


def test_nobody_is_excluded_for_a_sum_from_before_a_restore(circle: Circle) -> None:
    """All send everything anew: nobody can repeat it."""
    circle.everybody_adds()
    circle.until("revealing")
    circle.restart_server()
    circle.federation.operator.command("backup", name="first")
    assert circle.service.state.storage.rounds.attempts()
    restored(circle, "first")
    assert not circle.service.state.storage.rounds.attempts()
    rules = circle.spec.aggregation
    assert rules is not None
    for _ in range(12):
        for name in circle.names[:2]:
            circle.sync(name, accept_restored=True)
        circle.federation.clock.now += rules.set_aside_after // 4
    for name in circle.names:
        circle.sync(name, accept_restored=True)
    circle.go()
    circle.check_whole()
    assert not circle.entries("excluded")


@pytest.mark.parametrize("is_leaving", [False, True])
def test_who_holds_nothing_and_leaves_after_a_restore_says_so(
    circle: Circle, is_leaving: bool
) -> None:
    """By a request, as always: the round by which it rejoins tells nobody that it leaves."""
    circle.forget("c3", list(circle.held["c3"]))
    circle.go()
    circle.federation.operator.command("backup", name="first")
    if is_leaving:
        circle.stores["c3"].leave()
    restored(circle, "first")
    if not is_leaving:
        circle.stores["c3"].leave()
    for _ in range(6):
        for name in circle.names:
            circle.sync(name, accept_restored=True)
        circle.wait(GATHER)
    assert [one["client"] for one in circle.entries("changed") if one["leave"]] == ["c3"]
    assert circle.service.state.actor("c3").status == "gone"


def test_a_reset_that_goes_by_no_round_is_refused(circle: Circle) -> None:
    """By it, a client would say that it holds nothing, or use up a number that others wait for."""
    circle.federation.operator.command("backup", name="first")
    circle.everybody_adds()
    circle.go()
    restored(circle, "first")
    store = circle.stores["c0"]
    header = Header(
        federation=store.federation,
        client="c0",
        sequence=store.sequence + 1,
        nonce="0" * 64,
        data_digest=circle.spec.data_digest,
        labels_digest=circle.spec.labels_digest,
        message="none",
        reset=True,
    )
    with pytest.raises(RefusedError, match="sent anew by a round") as caught:
        circle.service.request(write(header, [], [], b"", store.key))
    assert caught.value.code == "not-allowed"


def test_a_second_join_of_a_client_is_late_and_no_error(circle: Circle) -> None:
    """It has lost its part in the round that it has joined."""
    circle.everybody_adds()
    circle.sync("c0")
    circle.stores["c0"].participation.drop()
    assert "has sent another join in this round" in circle.sync("c0").waiting
    circle.go()
    circle.wait(PHASE)
    circle.go()
    circle.check_whole()


def test_clients_rejoin_a_restored_server_by_a_round_with_resets(circle: Circle) -> None:
    circle.federation.operator.command("backup", name="first")
    circle.everybody_adds()
    circle.forget("c0", list(circle.held["c0"])[:1])
    circle.go()
    circle.add("c2")  # pending when the server is lost
    restored(circle, "first")
    assert circle.service.state.ledger.exact_statistics().count == 0
    done: dict[str, Any] = {}
    for _ in range(8):
        for name in circle.names:
            done[name] = circle.sync(name, accept_restored=True)
    circle.check_whole()
    assert {circle.service.state.actor(name).status for name in circle.names} == {"active"}
    entry = circle.entries("aggregated")[-1]
    assert [member["client"] for member in entry["clients"]] == circle.names
    circle.everybody_adds()
    circle.go()
    circle.check_whole()


@pytest.mark.parametrize("phase", ["joining", "sharing", "masking", "revealing"])
def test_a_server_that_is_lost_in_the_middle_of_a_round_is_restored(
    circle: Circle, phase: str
) -> None:
    circle.federation.operator.command("backup", name="first")
    circle.everybody_adds()
    circle.until(phase)
    restored(circle, "first")
    for _ in range(12):
        for name in circle.names:
            circle.sync(name, accept_restored=True)
    circle.check_whole()


@pytest.mark.parametrize("what", ["audit", "rebuild"])
def test_what_was_wanted_before_the_server_was_lost_does_not_keep_clients_from_rejoining(
    circle: Circle, what: str
) -> None:
    if what == "audit":
        circle.federation.operator.command("audit")
    else:
        circle.forget_client("c3")
    circle.federation.operator.command("backup", name="first")
    circle.pass_round()
    restored(circle, "first")
    for _ in range(12):
        for name in circle.names:
            circle.sync(name, accept_restored=True)
        circle.wait(1.0)
    circle.check_whole()
    circle.federation.operator.command("audit")
    circle.go(passes=30)
    assert circle.entries("audited")[-1]["result"] == "equal"


def test_one_that_comes_back_late_rejoins_with_others_that_change(circle: Circle) -> None:
    circle.federation.operator.command("backup", name="first")
    restored(circle, "first")
    for _ in range(8):
        for name in ("c0", "c1", "c2"):
            circle.sync(name, accept_restored=True)
        circle.wait(2.0)
    circle.everybody_adds("c0", "c1")
    for _ in range(8):
        for name in circle.names:
            circle.sync(name, accept_restored=True)
        circle.wait(2.0)
    circle.check_whole()


def test_a_client_with_nothing_left_rejoins_without_a_round(circle: Circle) -> None:
    """Also if it had asked for a round before, when it still had something."""
    circle.federation.operator.command("backup", name="first")
    restored(circle, "first")
    circle.sync("c3", accept_restored=True)
    circle.forget("c3", list(circle.held["c3"]))
    assert circle.sync("c3").status == "active"
    for _ in range(10):
        for name in circle.names:
            circle.sync(name, accept_restored=True)
        circle.wait(PHASE / 4)
    circle.check_whole()
    circle.everybody_adds()
    circle.go()
    circle.check_whole()


def test_an_old_copy_of_a_store_does_not_go_on(circle: Circle) -> None:
    """It does not know what it has masked since it was made, and could mask something else under
    the same number. A new client takes its place.
    """
    circle.everybody_adds()
    circle.until("sharing")
    store = circle.stores["c0"]
    with files_of(store) as files:
        files.database.copy_to(circle.path / "copy.db")
    circle.wait(PHASE)
    circle.sync("c0")  # the round is aborted
    store.close()
    (circle.path / "copy.db").replace(store.path / "client.db")
    for name in ("client.db-wal", "client.db-shm"):
        (store.path / name).unlink(missing_ok=True)
    with pytest.raises(StoreError, match="Have the operator forget this client"):
        ClientStore.open(store.path, restored=True)
    circle.federation.operator.command("forget-client", client="c0")
    del circle.stores["c0"], circle.held["c0"]
    circle.enrol("c9")
    circle.add("c9")
    circle.go(passes=30)
    circle.check_whole()
