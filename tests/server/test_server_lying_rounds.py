"""Lies between rounds: what was masked once is not sent again with other content, nobody is barred
by a round that never was, and who leaves a round, or makes another one leave it, opens nobody.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from expunge.client.round_policy import RoundPolicy
from expunge.crypto import SigningKey, canonical
from expunge.errors import EvidenceError, RefusedError
from expunge.secagg import Contribution, Opening, Participant, parcels
from expunge.secagg.arbitration import Arbiter, Dispute, Verdict, examine
from expunge.secagg.collector import Collector
from expunge.secagg.messages import read_client_message, sign
from expunge.secagg.roster import Roster, survivors_message
from expunge.secagg.unmasking import Decision, rows
from expunge.server.secagg_outcomes import Outcomes
from expunge.wire import payloads
from server.test_server_disputes import (
    ARBITER,
    RULES,
    after_a_sum,
    circle_of,
    dispute_of,
    judged,
    lying,
    negative,
    until_disputed,
    until_voided,
    verdict_on,
)
from support.golden_secagg import until_masking
from support.lying_rounds import LyingServer, bad_parcels, lying_server, retold
from support.masked_round import GATHER, PHASE, Circle

TIME = "2026-01-01T00:00:00Z"


# -- a server that asks for another request in place of one that it has seen -----------------------


def must_rejoin(circle: Circle) -> None:
    """Say so to c0, in an answer to its sync."""
    change = retold(circle, "answer", lambda content: content.update(status="must-rejoin"))
    circle.way.change["sync"] = change


def refuse(circle: Circle) -> None:
    """Say so to c0, by refusing its turn."""

    def refused(_: bytes) -> bytes:
        raise RefusedError("must-rejoin", "the server was restored: sync")

    circle.way.change["aggregate"] = refused


@pytest.mark.parametrize("lie", [must_rejoin, refuse])
def test_what_was_masked_is_not_taken_back_because_the_server_says_so(
    lie: Callable[[Circle], None],
) -> None:
    """Two sums of the same parts would differ by what c0 has changed in between."""
    with after_a_sum(5) as (circle, server):
        if lie is refuse:
            circle.sync("c0")  # it hears that the round was aborted
            circle.restart_server()
        lie(circle)
        with pytest.raises(EvidenceError, match="its log does not show that"):
            circle.sync("c0")
        circle.way.change.clear()
        circle.forget("c0", [next(iter(circle.held["c0"]))])
        assert server.sum_of(*circle.names)
        (parts, first), (again, second) = server.sums
        assert again == parts
        assert np.array_equal(first, second)


def test_nothing_else_is_masked_under_a_number_nor_opened() -> None:
    """A client that was told that it was forgotten, and then that it was not, holds less than it
    has masked, if it is of a version that believed that.
    """
    with after_a_sum(5) as (circle, server):
        store = circle.stores["c0"]
        circle.sync("c0")
        store.outbox.release()
        store.remember({"gone": ""})
        circle.forget("c0", [list(circle.held["c0"])[-1]])
        circle.restart_server()
        assert not server.sum_of(*circle.names)
        ((parts, _),) = server.sums
        server.voided(parts, **server.rounds[0])
        circle.restart_server()
        said = [circle.sync("c0").waiting for _ in range(3)]
        assert any("it opens nothing" in one for one in said)


def test_no_number_comes_back_after_a_later_one_was_masked() -> None:
    """A server that has a client take back two requests, by two restores in its log, and then asks
    for the first number again.
    """
    with circle_of(5) as circle:
        circle.everybody_adds()
        circle.until("masking")
        circle.stores["c0"].remember({"masked": "3"})
        assert "has masked something under number 3" in circle.sync("c0").waiting
        assert circle.stores["c0"].recall("rosters") in (None, "")


def test_a_reset_that_was_masked_is_not_taken_back_either() -> None:
    """Not before the log shows that the server was restored once more."""
    with circle_of(5) as circle, lying_server(circle) as server:

        def restore() -> None:
            state = circle.service.state
            server.log("restored", size=state.log.size, withheld=[])
            with state.changing():
                for name in circle.names:
                    lost = replace(state.actor(name), status="must-rejoin")
                    state.storage.actors.put(lost)

        restore()
        assert server.sum_of(*circle.names)
        for name in circle.names:
            circle.sync(name)  # each hears that the round was aborted
        circle.restart_server()
        circle.forget("c0", [next(iter(circle.held["c0"]))])
        composed = circle.stores["c0"].outbox.composed()
        assert composed is not None
        state = circle.service.state
        with state.changing():  # as if it had seen c0's number
            claimed = replace(state.actor("c0"), sequence=composed.sequence)
            state.storage.actors.put(claimed)
        with pytest.raises(EvidenceError, match="its log does not show that"):
            circle.sync("c0")
        assert circle.stores["c0"].outbox.composed() == composed
        restore()
        circle.sync("c0")
        renewed = circle.stores["c0"].outbox.composed()
        assert renewed is not None
        assert renewed.sequence > composed.sequence


# -- a server that speaks of rounds that never were ------------------------------------------------


def puppets_dispute(circle: Circle, liar: str) -> Dispute:
    """A whole round among clients that the server plays, by the real code, in which one lies."""
    state, rules = circle.service.state, RULES
    keys = {name: SigningKey(secrets.token_bytes(32)) for name in circle.names}
    pins = {name: key.public for name, key in keys.items()}
    spec = circle.spec
    opening = Opening(
        state.federation, secrets.token_hex(16), "change", spec.data_digest, spec.labels_digest
    )
    puppets = {
        name: Participant.join(
            opening, rules, name=name, sequence=circle.stores[name].sequence + 1, key=key
        )
        for name, key in keys.items()
    }
    collector = Collector(opening, rules, pins.__getitem__)
    zero = Contribution.of(None, None, spec).vector()
    until_masking(collector, puppets, pins)
    for name, puppet in puppets.items():
        vector = zero.copy()
        vector[0, 0] += np.uint64(name == liar)
        collector.take(puppet.on_deliveries(collector.say(name) or b"", vector))
    collector.advance()
    made = Dispute(
        spec,
        state.federation,
        "impossible",
        frozenset(collector.included),
        collector.records(),
        {name: key.text for name, key in pins.items()},
    )
    openings = {liar: puppets[liar].open_part(None, None)}
    return Dispute.from_json(canonical.decode(canonical.encode(made.to_json())), openings)


@pytest.mark.parametrize("signed", [False, True], ids=["by nobody", "by a quorum without c0"])
def test_nobody_is_barred_by_a_round_that_it_was_never_in(signed: bool) -> None:
    """Not even with the signature of an honest arbiter, who has the keys from the server."""
    with after_a_sum(5) as (circle, server):
        judged_of_puppets(server, "c0", circle.names[1:] if signed else [])
        if signed:
            assert not server.sum_of(*circle.names[1:], passes=8)
        else:
            with pytest.raises(EvidenceError, match="0 clients have agreed, and 4 must"):
                server.sum_of(*circle.names[1:], passes=8)
        assert len(server.sums) == 1


def judged_of_puppets(server: LyingServer, liar: str, signers: list[str], **judged: object) -> None:
    """The log speaks of a round that never was, of the signatures of those that collude under its
    sum, and of an honest arbiter's verdict about it.
    """
    circle = server.circle
    dispute = puppets_dispute(circle, liar)
    verdict = verdict_on(dispute, examine(dispute, ARBITER).false)
    aggregation = Roster.read(dispute.records.roster).opening.round
    server.voided(
        dispute.parts,
        aggregation=aggregation,
        roster=dispute.records.digest,
        size=len(circle.names),
        agreed=agreements(circle, dispute, signers),
    )
    server.log("judged", aggregation=aggregation, verdict=verdict.to_json(), **judged)


def agreements(circle: Circle, dispute: Dispute, names: list[str]) -> dict[str, str]:
    """Signatures of clients that collude, under a sum that never was."""
    context, sequences = Roster.read(dispute.records.roster).context, dict(dispute.parts)
    survivors = hashlib.sha256(survivors_message(context, sequences)).hexdigest()
    signed = dict[str, str]()
    for name in names:
        header = {
            "client": name,
            "federation": context.federation,
            "kind": "agreed",
            "roster": context.roster,
            "round": context.round,
            "sequence": sequences[name],
            "survivors": survivors,
        }
        message = read_client_message(sign(header, b"", circle.stores[name].key))
        signed[name] = message.signed.signature.hex()
    return signed


def test_no_audit_shows_who_alone_has_a_receipt() -> None:
    """c0 gets its receipt, the others hear that the round was aborted: all of it is in the log."""
    with circle_of(5) as circle:
        circle.everybody_adds()
        audits = list[str]()

        def aborted(content: dict[str, Any]) -> None:
            if content["actor"] != "c0" and content["receipt"] is not None:
                content.update(phase="aborted", receipt=None, reason="somebody dropped out")

        circle.way.change["aggregate"] = retold(circle, "standing", aborted)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Outcomes, "audit", lambda *_: audits.append("seen"))
            for _ in range(30):
                circle.pass_round()
                circle.wait(GATHER if circle.phase == "joining" else 0.1)
            assert not circle.stores["c0"].status().adding
            assert circle.stores["c1"].status().adding
            state = circle.service.state
            with state.changing():  # it says that it knows of one request less
                for name in circle.names[1:]:
                    actor = state.actor(name)
                    state.storage.actors.put(replace(actor, sequence=actor.sequence - 1))
            circle.wait(PHASE)
            circle.restart_server()
            circle.federation.operator.command("audit")
            said = set[str]()
            for _ in range(12):
                said |= {done.waiting for done in circle.pass_round().values()}
                circle.wait(1.0)
        assert not audits
        assert any("gives no receipt for it" in one for one in said)


def test_a_restore_hides_no_entry_that_was_not_verified() -> None:
    """A verdict that no arbiter signed, about a sum that nobody did, and then `restored`."""
    with after_a_sum(5) as (circle, server):
        ((parts, _),) = server.sums
        round_id, roster = secrets.token_hex(16), secrets.token_hex(32)
        verdict = Arbiter(secrets.token_bytes(64)).sign(
            Verdict(circle.federation.id, round_id, roster, parts, {"c0": ""}, TIME)
        )
        signed = {"c0": "00" * 64}
        server.voided(parts, aggregation=round_id, roster=roster, size=5, agreed=signed)
        server.log("judged", aggregation=round_id, verdict=verdict.to_json())
        server.log("restored", size=circle.service.state.log.size, withheld=[])
        with pytest.raises(EvidenceError, match="1 clients have agreed, and 4 must"):
            server.sum_of(*circle.names[1:])
        assert len(server.sums) == 1


@pytest.mark.parametrize("forgotten", ["restored", "everything"])
def test_what_was_masked_by_an_earlier_version_is_taken_back_after_a_restore(
    forgotten: str,
) -> None:
    """Which did not note when the server had been restored last."""
    with circle_of(4) as circle:
        circle.everybody_adds()
        circle.until("agreeing")
        for store in circle.stores.values():
            kept = (store.recall(name) or "" for name in ("agreed", "peers"))
            times, peers = (canonical.decode(text.encode()) for text in kept)
            del times["restored"], peers["restored"], peers["applied"], peers["version"]
            agreed = canonical.encode(times).decode() if forgotten == "restored" else ""
            store.remember({"agreed": agreed, "peers": canonical.encode(peers).decode()})
        circle.seem_restored()
        for name in circle.names:
            circle.sync(name, accept_restored=True)
            composed = circle.stores[name].outbox.composed()
            assert composed is not None
            assert composed.reset


# -- a client that stops others, or has the server see what they change ----------------------------


@contextmanager
def a_false_sum() -> Iterator[Circle]:
    """Eight clients, each of which deletes a sample; c2 has made their sum false."""
    with circle_of(8) as circle:
        for name in circle.names:
            circle.forget(name, [next(iter(circle.held[name]))])
        with lying(circle, {"c2": negative}):
            until_voided(circle, 1)
        yield circle


def asks_for_news(circle: Circle, name: str) -> None:
    """And does nothing else."""
    store = circle.stores[name]
    question = {
        "actor": name,
        "federation": store.federation,
        "nonce": secrets.token_hex(32),
        "sequence": store.sequence,
        "size": store.checkpoint[0],
    }
    circle.service.sync(payloads.sign("question", question, store.key))


def test_who_syncs_and_joins_nothing_is_excluded_in_the_end() -> None:
    with a_false_sum() as circle:
        honest = [name for name in circle.names if name != "c2"]
        for _ in range(12):  # thrice the time after which the silent are excluded
            asks_for_news(circle, "c2")
            circle.go(*honest, passes=4)
            circle.federation.clock.now += RULES.set_aside_after // 4
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c2"]]
        assert not any(circle.stores[name].status().deleting for name in honest)
        circle.check()


def test_who_comes_and_joins_is_not_excluded_for_a_moment_of_absence() -> None:
    """A liar that has kept its row waiting for long joins when one of the others is away."""
    with a_false_sum() as circle:
        row = {name for name, _ in row_of(circle, "c2")}
        victim, *mates = sorted(row - {"c2"})
        others = [name for name in circle.names if name not in row]
        honest = [name for name in circle.names if name != "c2"]
        for _ in range(8):
            asks_for_news(circle, "c2")
            circle.everybody_adds(*others)
            circle.go(*honest, passes=4)
            circle.federation.clock.now += RULES.set_aside_after // 4 - 5
        for _ in range(3):  # a round of the others ends, and nobody has joined another
            circle.everybody_adds(*others)
            circle.go(*others, passes=12)
            if not circle.phase:
                break
            circle.pass_round(*honest)
        circle.wait(60.0)
        circle.federation.clock.now += 60
        for name in ("c2", "c2", *mates, *mates):
            circle.sync(name)
        circle.wait(GATHER)
        circle.sync(mates[0])
        assert all(victim not in entry["excluded"] for entry in circle.entries("excluded"))


def test_a_row_that_is_aborted_each_time_takes_turns_with_the_others() -> None:
    """The liar joins first, and masks nothing."""
    with a_false_sum() as circle:
        row = {name for name, _ in row_of(circle, "c2")}
        others = [name for name in circle.names if name not in row]
        for _ in range(30):
            if circle.phase in ("", "joining", "sharing"):
                circle.sync("c2")
            circle.pass_round(*(name for name in circle.names if name != "c2"))
            circle.wait(GATHER if circle.phase == "joining" else PHASE / 2)
        assert not any(circle.stores[name].status().deleting for name in others)


def test_a_row_that_waits_has_time_to_meet() -> None:
    """Rounds of others, one after another, would otherwise let its clients never meet."""
    with a_false_sum() as circle:
        first, *row = sorted(name for name, _ in row_of(circle, "c2"))
        others = [name for name in circle.names if name not in (first, *row)]
        circle.go(*others, passes=12)  # theirs is applied
        circle.everybody_adds(*others)
        circle.restart_server()
        for name in (*others, first) * 2:  # each hears that the last round is over, and joins
            circle.sync(name)
        circle.wait(GATHER)
        for name in row * 2:
            circle.sync(name)
        circle.wait(GATHER)
        circle.sync(first)
        assert circle.collector is not None
        assert set(circle.collector.clients) == {first, *row}


def test_what_is_left_of_a_sum_in_dispute_has_time_to_meet() -> None:
    """Its liar has been forgotten by the operator, without a verdict."""
    with a_false_sum() as circle:
        first, *row = sorted({name for name, _ in row_of(circle, "c2")} - {"c2"})
        others = [name for name in circle.names if name not in (first, *row, "c2")]
        with lying(circle, {"c2": negative}):
            circle.go(passes=30)
        assert len(circle.entries("voided")) == 2
        circle.forget_client("c2")
        circle.everybody_adds(*others)
        circle.pass_round(*others)
        circle.wait(PHASE)  # the rebuild gives way
        circle.go(*others, passes=12)  # it is their turn
        circle.everybody_adds(*others)
        for name in (*others, first):
            circle.sync(name)
        assert circle.phase == "joining"
        circle.wait(GATHER)
        for name in row:
            circle.sync(name)
        circle.wait(GATHER)
        circle.sync(first)
        assert circle.collector is not None
        assert set(circle.collector.clients) == {first, *row}


def test_a_row_that_waits_holds_up_nobody_for_longer_than_a_phase() -> None:
    with a_false_sum() as circle:
        first, *row = sorted(name for name, _ in row_of(circle, "c2"))
        others = [name for name in circle.names if name not in (first, *row)]
        circle.go(*others, first, passes=12)
        assert not any(circle.stores[name].status().deleting for name in others)


def row_of(circle: Circle, name: str) -> frozenset[tuple[str, int]]:
    """The parts that this client's part is summed up with, after the first false sum."""
    entry = circle.entries("voided")[0]
    decision = Decision(
        "voided",
        entry["aggregation"],
        frozenset((one["client"], one["sequence"]) for one in entry["clients"]),
        signers=frozenset(entry["agreed"]),
        size=entry["size"],
    )
    (row,) = (row for row in rows(decision, RULES) if name in dict(row))
    return row


def test_who_cannot_use_a_parcel_is_not_excluded() -> None:
    """By the sums with and without it, an honest server would see its part; c2 is, since it does
    not answer.
    """
    with a_false_sum() as circle:
        mates = sorted(name for name, _ in row_of(circle, "c2") if name != "c2")
        with bad_parcels("c2", mates[0]):
            for _ in range(40):
                circle.pass_round()
                circle.wait(GATHER if circle.phase == "joining" else PHASE / 2)
                if circle.entries("excluded"):
                    break
                circle.federation.clock.now += RULES.set_aside_after // 20
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c2"]]
        honest = [name for name in circle.names if name != "c2"]
        circle.everybody_adds(*honest)
        circle.go(*honest, passes=40)
        assert not any(circle.stores[name].status().deleting for name in honest)
        circle.check()


def test_a_false_mark_has_nobody_else_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that are left of its row, c2 says that it hides nobody, and is left out by that: the
    others go on without it when its time is up.
    """
    with a_false_sum() as circle:
        away, *mates = sorted(name for name, _ in row_of(circle, "c2") if name != "c2")
        rest = [name for name in circle.names if name != away]
        true = RoundPolicy.is_exposed

        def is_exposed(self: RoundPolicy, sequence: int) -> bool:
            return self.name == "c2" or true(self, sequence)

        monkeypatch.setattr(RoundPolicy, "is_exposed", is_exposed)
        for number in range(90):
            if number % 12 == 0:
                circle.everybody_adds(*(name for name in rest if name not in ("c2", *mates)))
            circle.pass_round(*rest)
            circle.wait(GATHER if circle.phase == "joining" else PHASE / 2)
            circle.federation.clock.now += RULES.set_aside_after // 20
            if not any(circle.stores[name].status().deleting for name in mates):
                break
        excluded = {name for entry in circle.entries("excluded") for name in entry["excluded"]}
        assert excluded == {away, "c2"}
        assert not any(circle.stores[name].status().deleting for name in mates)
        circle.check()


def test_who_is_in_no_round_complains_of_nobody() -> None:
    with circle_of(8) as circle:
        rest = circle.names[:7]
        circle.everybody_adds(*rest)
        circle.until("sharing", *rest)
        collector = circle.collector
        assert collector is not None

        def complain(name: str, roster: str, **more: Any) -> str:
            header = {
                "client": name,
                "dealers": ["c0"],
                "federation": circle.federation.id,
                "kind": "complaint",
                "roster": roster,
                "round": collector.opening.round,
                "sequence": circle.stores[name].sequence + 1,
            }
            body = bytes(parcels.PARCEL_BYTES)
            with pytest.raises(RefusedError) as caught:
                circle.service.aggregate(sign(header | more, body, circle.stores[name].key))
            return caught.value.code

        for name in ("c7", "c6"):  # one that is in no round, and one before it was sent anything
            assert complain(name, "0" * 64) == "wrong-phase"
        circle.until("masking", *rest)
        assert complain("c7", collector.roster_digest) == "not-allowed"
        name = min(collector.awaited - {"c0"})
        assert complain(name, collector.roster_digest) == "wrong-round"  # it was sent another one
        assert complain(name, collector.roster_digest, dealers=["c7"]) == "wrong-round"
        assert complain(name, collector.roster_digest, dealers=[]) == "malformed"


# -- what is in the ledger of those that cannot be asked -------------------------------------------


def test_an_order_waits_for_a_client_that_is_barred() -> None:
    """What it holds is in the ledger until it has been forgotten."""
    with circle_of(6) as circle:
        circle.add("c2", 1, subject="ann")
        circle.go()
        circle.everybody_adds()
        with lying(circle, {"c2": negative}):
            until_disputed(circle)
        dispute = dispute_of(circle)
        judged(circle, dispute, examine(dispute, ARBITER))
        honest = [name for name in circle.names if name != "c2"]
        circle.go(*honest)
        order = circle.federation.operator.command("order", subject="ann")["order"]
        circle.federation.operator.command("order", subject="bob", subjects={"c2": "robert"})
        circle.go(*honest, passes=20)

        def shown() -> dict[str, Any]:
            answer: dict[str, Any] = circle.federation.operator.ask("show-order", order=order)
            return answer

        assert (shown()["state"], shown()["waiting"]) == ("open", ["c2"])
        circle.federation.operator.command("forget-client", client="c2")
        later = circle.federation.operator.command("order", subject="ann")["order"]
        listed = circle.federation.operator.ask("show-order", order=later)
        assert "c2" in listed["waiting"]
        circle.stores.pop("c2").close()
        for _ in range(6):
            circle.go(*honest, passes=10)
            circle.wait(PHASE)
        assert shown()["state"] == "complete"
        assert len(circle.entries("forgotten")) == 1


def test_who_asks_for_an_audit_hears_which_client_must_be_forgotten_first() -> None:
    with circle_of(5) as circle:
        circle.everybody_adds()
        with lying(circle, {"c4": negative}):
            until_disputed(circle)
        dispute = dispute_of(circle)
        judged(circle, dispute, examine(dispute, ARBITER))
        honest = [name for name in circle.names if name != "c4"]
        circle.go(*honest)
        circle.federation.operator.command("audit")
        told = circle.pass_round(*honest)
        reason = (
            "an audit waits until the operator has forgotten c4: what a barred client holds is in "
            "the ledger, and it is in no sum"
        )
        assert {one.waiting for one in told.values()} == {reason}
        circle.add("c0")
        assert "it waits for 2 more clients" in circle.sync("c0").waiting
        circle.restart_server()  # what is pending waits for something else
        assert circle.sync("c0").waiting == (
            "the server does not know this round, because it was started anew. Nothing was "
            f"changed: the next sync goes on; {reason}"
        )
        circle.forget_client("c4")
        for _ in range(4):
            circle.go(*honest, passes=10)
            circle.wait(PHASE)
        assert [entry["result"] for entry in circle.entries("audited")] == ["equal"]
