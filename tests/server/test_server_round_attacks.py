"""Lies about which parts are hidden: no sums of several rounds, and no audit, show what one client
has changed; and clocks that were wrong for a moment keep nobody waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from expunge import Statistics
from expunge.client.round_policy import RoundPolicy
from expunge.crypto import Envelope, canonical
from expunge.errors import EvidenceError
from expunge.kinds import ClientStatus
from expunge.secagg import Contribution
from expunge.secagg.unmasking import Decision, rows
from expunge.server.secagg import SecureAggregation
from expunge.server.secagg_outcomes import Outcomes
from expunge.server.state import ServerState
from expunge.server.storage.tables import Membership
from expunge.wire import payloads
from expunge.wire.schema import time_text
from server.test_server_disputes import (
    RULES,
    after_a_sum,
    circle_of,
    lying,
    negative,
    until_opened,
)
from support.lying_rounds import LyingServer, lying_server, retold
from support.masked_round import GATHER, PHASE, SPEC, Circle, drawn

# -- sums that are added and subtracted ------------------------------------------------------------


def test_an_entry_about_the_silent_frees_nobody_before_its_time() -> None:
    """Else the sum of three others and five is agreed to by the five, and the three are free for
    another one with a ninth client, which the three sums show.
    """
    with circle_of(8) as circle:
        circle.everybody_adds()
        five, three = circle.names[:5], circle.names[5:]
        with lying_server(circle) as server:
            assert server.sum_of(*five)
            server.excluded(server.sums[0][0], *five)
            assert not server.sum_over([*three, *five], five)
            assert [len(parts) for parts, _ in server.sums] == [5]


@contextmanager
def colluding(name: str) -> Iterator[None]:
    """A client that takes part in whatever it is asked to."""
    with pytest.MonkeyPatch.context() as patch:
        for method, answer in (("require_roster", None), ("require_one_sum", None)):
            true = getattr(RoundPolicy, method)

            def either(self: Any, *given: Any, true: Any = true, answer: Any = answer) -> Any:
                return answer if given[0].name == name else true(self, *given)

            patch.setattr(RoundPolicy, method, either)
        patch.setattr(SecureAggregation, "wanted", lambda _: "change")  # no rebuild meanwhile
        yield


def test_a_late_receipt_frees_no_part_that_was_masked_since() -> None:
    """Two agents are on one store; the server answers the first one when the other one has gone
    on to the next round, whose sum a colluding client would show with another one.
    """
    with circle_of(4) as circle, ExitStack() as lies:
        circle.everybody_adds()
        lying = list[LyingServer]()

        def meanwhile() -> None:
            circle.pass_round()
            for name in circle.names:
                circle.forget(name, [next(iter(circle.held[name]))])
            server = lies.enter_context(lying_server(circle))
            lies.enter_context(colluding("c2"))
            assert server.sum_over(circle.names, ["c0", "c1", "c2"])
            circle.sync("c0")
            lying.append(server)

        def late(answer: bytes) -> bytes:
            _, content = payloads.open_unverified("standing", answer)
            if (content["actor"], content["phase"]) == ("c0", "done") and content["receipt"]:
                circle.way.change.clear()
                other = threading.Thread(target=meanwhile)
                other.start()
                other.join(60)
                assert not other.is_alive()
            return answer

        circle.way.change["aggregate"] = late
        first = circle.agent("c0")
        for _ in range(14):
            first.push()
            if lying:
                break
            circle.pass_round("c1", "c2", "c3")
            circle.wait(GATHER if circle.phase == "joining" else 0.0)
        (server,) = lying
        assert circle.stores["c0"].recall("revealed")
        assert not server.sum_of("c0", "c2", "c3")
        assert not server.exposed()


def test_few_that_are_left_of_two_sums_do_not_hide_a_third_client() -> None:
    """Of two sums of three, with a client that colludes and is forgotten, two are left each."""
    with circle_of(6) as circle:
        circle.everybody_adds()
        with lying_server(circle) as server, colluding("c5"):
            assert server.sum_of("c0", "c1", "c5")
            assert server.sum_of("c2", "c3", "c5")
            circle.federation.operator.command("forget-client", client="c5")
            everybody = circle.names[:5]
            assert not server.sum_over(everybody, everybody)
            said = {circle.sync(name).waiting for name in everybody}
            assert len(server.sums) == 2, said


def test_few_that_are_left_go_on_with_enough_others_and_say_so() -> None:
    """Those others are hidden without them."""
    with circle_of(6) as circle:
        circle.everybody_adds()
        circle.until("revealing", "c0", "c1", "c5")
        circle.restart_server()
        circle.pass_round("c0", "c1", "c5")
        circle.forget_client("c5")
        circle.go(passes=30)
        circle.check_whole()
        members = [one["client"] for one in circle.entries("aggregated")[1]["clients"]]
        assert members == circle.names


def test_excluded_clients_are_not_hidden_by_those_of_the_same_sum() -> None:
    """They come back, and agree to the sum of all but c5, who is neither silent nor excluded, with
    those that were not asked to agree to the sum of all.
    """
    with circle_of(9) as circle:
        circle.everybody_adds()
        asked, others = circle.names[:6], circle.names[:5] + circle.names[6:]
        with lying_server(circle) as server:
            assert server.sum_over(circle.names, asked)
            server.excluded(server.sums[0][0], *asked[:5])
            circle.federation.clock.now += RULES.set_aside_after
            assert not server.sum_over(others, others)
            assert server.exposed() == []


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
def test_an_exclusion_that_is_due_when_rows_were_summed_up_shows_nobody(is_first: bool) -> None:
    """The log excludes all but one of a row from the sum of all, before or after it calls that
    false. The row is summed up, and its last client is not asked to agree. When the time is up, it
    would go on with the other row if the exclusion counted then, and the three sums would show it.
    """
    with after_a_sum(8) as (circle, server):
        ((parts, _),), (round_of,) = server.sums, server.rounds
        voided = Decision(
            "voided",
            round_of["aggregation"],
            parts,
            signers=frozenset(round_of["agreed"]),
            size=round_of["size"],
        )
        cut = rows(voided, RULES)
        assert [len(row) for row in cut] == [4, 4]
        *out, last = sorted(name for name, _ in cut[0])
        if is_first:
            server.excluded(parts, *out)
        server.voided(parts, **round_of)
        assert server.sum_over([*out, last], out) != is_first  # nobody is hidden by the excluded
        server.excluded(parts, *out)
        circle.federation.clock.now += RULES.set_aside_after
        rest = [name for name in circle.names if name not in out]
        server.sum_of(*rest)
        assert not set(server.exposed()) & {part for part in parts if part[0] in rest}


def test_who_sends_everything_anew_knows_the_numbers_of_others() -> None:
    """c3 has come back after a restore; its number 3 is a change, and 4 is none."""
    with circle_of(6) as circle:
        back, away = ["c3", "c4", "c5"], ["c0", "c1", "c2"]
        state = circle.service.state
        with state.lock, state.changing() as now:
            state.append("restored", now, size=state.log.size, withheld=[])
            for name in circle.names:
                state.storage.actors.put(replace(state.actor(name), status="must-rejoin"))
        circle.go(*back, passes=20)
        circle.add("c3")
        with lying_server(circle) as server:
            assert server.sum_over(["c3", *away], away)
        circle.restart_server()
        circle.go(*back, passes=20)
        with lying_server(circle) as again:
            assert not again.sum_over([*away, "c3"], [*away, "c3"])
        ((parts, _),) = server.sums
        assert ("c3", 3) in parts
        assert again.sums == []


def test_a_restore_that_never_was_and_who_is_forgotten_after_it_show_nobody() -> None:
    """Three send everything anew, one of which colludes and is forgotten at once, as one that has
    not come back: the two that are left are in no sum but with enough others, and those in no
    other.
    """
    with circle_of(6) as circle, lying_server(circle) as server, colluding("c5"):
        state = circle.service.state
        server.log("restored", size=state.log.size, withheld=[])
        with state.changing():
            for name in circle.names:
                state.storage.actors.put(replace(state.actor(name), status="must-rejoin"))
        assert server.sum_of("c0", "c1", "c5")
        circle.federation.operator.command("forget-client", client="c5")
        assert len(circle.entries("forgotten")) == 1
        few, others = ["c0", "c1"], ["c2", "c3", "c4"]
        assert not server.sum_of(*few, "c2", passes=6)
        assert not server.sum_of("c0", *others, passes=6)
        assert server.sum_of(*few, *others)
        assert not server.sum_of(*others, passes=6)
        assert not server.sum_over([*few, "c2"], [*few, "c2"])
        assert [len(parts) for parts, _ in server.sums] == [3, 5]
        assert server.exposed() == []


# -- receipts and audits ---------------------------------------------------------------------------


def pretend(circle: Circle, names: Collection[str]) -> None:
    """An entry about these clients of the round under way, whose sum nobody has unmasked."""
    state, rounds = circle.service.state, circle.service.rounds
    current = None if rounds is None else rounds._round
    assert current is not None
    members = [current.members[name] for name in names]
    listed = [
        {"client": one.client, "sequence": one.sequence, "request": one.request} for one in members
    ]
    with state.lock, state.changing() as now:
        record = state.record
        index = state.append(
            "aggregated",
            now,
            aggregation=current.opening.round,
            clients=listed,
            added=2,
            deleted=0,
            round=record.round + 1,
            ledger_before=record.ledger_digest,
            ledger_after=record.ledger_digest,
            head=state.solved().head,
            spec=state.spec.digest,
            erased_by=time_text(now + 60),
            generation=record.generation,
        )
        text = canonical.encode(state.spec.to_dict()).decode("ascii")
        requests = [(one.client, one.sequence) for one in members]
        state.storage.rounds.apply(Membership(index, text), requests)


def before_masking(circle: Circle) -> None:
    circle.until("sharing")
    circle.sync("c0")


def masked(circle: Circle) -> None:
    circle.until("masking")
    for _ in range(2):
        circle.sync("c0")


def bound(circle: Circle) -> None:
    """c0 has agreed to the sum of all, which was unmasked, and has masked for it again."""
    with lying_server(circle) as server:
        assert server.sum_of(*circle.names)
        circle.until("agreeing")


@pytest.mark.parametrize(
    ("before", "listed", "problem"),
    [
        (before_masking, ["c0", "c1", "c2", "c3"], "has not masked"),
        (masked, ["c0"], "lists 1 clients"),
        (bound, ["c0", "c1", "c2", "c3"], "would differ from it by c4"),
    ],
)
def test_a_receipt_lists_those_to_whose_sum_its_client_could_have_agreed(
    before: Callable[[Circle], None], listed: list[str], problem: str
) -> None:
    """Else all of a round but c0 pretend that it never was, and an audit shows what c0 changed."""
    with circle_of(5) as circle:
        circle.everybody_adds()
        before(circle)
        pretend(circle, listed)
        circle.restart_server()
        with pytest.raises(EvidenceError, match=problem):
            circle.sync("c0")
        assert circle.stores["c0"].status().adding == 2


def auditing(circle: Circle, patch: pytest.MonkeyPatch, seen: list[Statistics]) -> None:
    """From now on the server audits, which its log does not show, and keeps what it sees."""

    def audit(_: Outcomes, opening: Any, sum_of: Contribution, members: Any) -> None:
        del opening, members
        seen.append(sum_of.statistics)

    asked = [{"audit": "ab" * 16, "salt": "00" * 32}]
    patch.setattr(Outcomes, "audit", audit)
    patch.setattr(SecureAggregation, "wanted", lambda _: "audit")
    circle.way.change["sync"] = retold(
        circle, "answer", lambda content: content.update(audits=asked)
    )


def test_nothing_is_erased_because_the_server_says_that_it_has_forgotten_a_client() -> None:
    """Else the client would hold less than the ledger counts of it, under the same number, and the
    next audit would show what.
    """
    with circle_of(5) as circle, pytest.MonkeyPatch.context() as patch:
        sample = next(iter(circle.held["c0"]))
        kept = circle.held["c0"][sample]
        circle.forget("c0", [sample])
        for status, problem in (("gone", "nothing is erased"), ("must-rejoin", "nothing is sent")):
            circle.way.change["sync"] = retold(
                circle, "answer", lambda content, said=status: content.update(status=said)
            )
            with pytest.raises(EvidenceError, match=problem):
                circle.sync("c0")
        assert circle.stores["c0"].status().deleting == 1
        seen = list[Statistics]()
        auditing(circle, patch, seen)
        for _ in range(8):
            circle.pass_round()
        circle.held["c0"][sample] = kept
        assert [one.digest for one in seen] == [circle.statistics(circle.held).digest]


def test_who_was_forgotten_is_not_taken_back_before_the_log_shows_a_restore() -> None:
    with circle_of(5) as circle:
        circle.federation.operator.command("forget-client", client="c0")
        assert circle.sync("c0").status == "gone"
        assert circle.stores["c0"].gone
        circle.way.change["sync"] = retold(
            circle, "answer", lambda content: content.update(status="must-rejoin")
        )
        with pytest.raises(EvidenceError, match="its log does not show that"):
            circle.sync("c0")
        assert circle.stores["c0"].gone


@pytest.mark.parametrize("is_read", [False, True])
def test_no_audit_leaves_out_who_has_not_come_since_a_restore_that_never_was(is_read: bool) -> None:
    """The log shows a restore, and that three have sent everything anew since, each under the
    number that it has. They have not, and keep out; also if they have read of the restore before.
    """
    with circle_of(5) as circle, pytest.MonkeyPatch.context() as patch:
        server, listed = LyingServer(circle), ["c0", "c1", "c2"]
        (entry,) = circle.entries("aggregated")[-1:]
        fields = entry | {
            "clients": [
                {"client": name, "sequence": circle.stores[name].sequence, "request": "0" * 64}
                for name in listed
            ]
        }
        circle.pass_round()
        server.log("restored", size=circle.service.state.log.size, withheld=[])
        if is_read:
            for name in listed:
                circle.agent(name)._delivery.readmit()  # it believes that
        for name in ("kind", "time", "version"):
            fields.pop(name, None)
        server.log("aggregated", **fields)
        true, seen = ServerState.clients, list[Statistics]()

        def clients(self: ServerState, *statuses: ClientStatus) -> list[str]:
            return listed if "active" in statuses else true(self, *statuses)

        patch.setattr(ServerState, "clients", clients)
        auditing(circle, patch, seen)
        circle.restart_server()
        for _ in range(8):
            told = circle.pass_round(*listed)
        assert not seen
        assert all(
            "sent everything anew since, which it has not" in one.waiting for one in told.values()
        )


def test_no_change_is_another_one_than_everything_after_a_restore_in_the_log() -> None:
    """Or by rounds of zeros a server would have any three of its choice be all that have come
    since, and audit them.
    """
    with circle_of(4) as circle, pytest.MonkeyPatch.context() as patch:
        server, chosen = LyingServer(circle), ["c0", "c1", "c2"]
        true, before = ServerState.clients, len(circle.entries("aggregated"))

        def clients(self: ServerState, *statuses: ClientStatus) -> list[str]:
            return chosen if "active" in statuses else true(self, *statuses)

        patch.setattr(ServerState, "clients", clients)
        server.log("restored", size=circle.service.state.log.size, withheld=[])
        circle.restart_server()
        circle.everybody_adds("c0")
        for _ in range(6):
            told = circle.pass_round(*chosen)
            circle.wait(GATHER)
        assert len(circle.entries("aggregated")) == before
        assert any("for less than everything" in one.waiting for one in told.values())


def test_by_two_restores_a_server_does_not_choose_whose_change_it_sees() -> None:
    """All have sent everything anew, and have deleted something since: only one is told that its
    number is used up, but all compose anew, since the log shows the second restore.
    """
    with circle_of(5) as circle, lying_server(circle) as server:

        def restored(*names: str) -> None:
            state = circle.service.state
            server.log("restored", size=state.log.size, withheld=[])
            for name in names:
                composed = circle.stores[name].outbox.composed()
                number = circle.stores[name].sequence if composed is None else composed.sequence
                with state.changing():
                    told = replace(state.actor(name), status="must-rejoin", sequence=number)
                    state.storage.actors.put(told)

        restored(*circle.names)
        assert server.sum_of(*circle.names)
        for name in circle.names:
            circle.forget(name, [next(iter(circle.held[name]))])
        restored("c3")
        assert server.sum_of(*circle.names)
        (first, _), (second, _) = server.sums
        assert first.isdisjoint(second)
        assert dict(first).keys() == dict(second).keys()


def test_no_audit_is_of_clients_that_know_other_parts_of_the_log() -> None:
    """c0 gets its receipt; the others hear that the round was aborted, and see the log as it was
    before.
    """
    with circle_of(5) as circle:
        circle.everybody_adds()
        audits, kept = list[Any](), circle.way.checkpoint()
        old = Envelope.from_bytes(kept, "checkpoint").unverified()

        def aborted(content: dict[str, Any]) -> None:
            if content["receipt"] is not None:
                content.update(phase="aborted", receipt=None, reason="somebody dropped out")

        def stale(content: dict[str, Any]) -> None:
            content.update(checkpoint=old, sequence=1, consistency=[])

        def sync(name: str) -> str:
            if name != "c0":
                circle.way.change = {
                    "aggregate": retold(circle, "standing", aborted),
                    "sync": retold(circle, "answer", stale),
                    "checkpoint": lambda _: kept,
                    "head": lambda _: None,
                }
            try:
                return circle.sync(name).waiting
            finally:
                circle.way.change = {}

        for name in circle.names:
            sync(name)  # all have the old log
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Outcomes, "audit", lambda *_: audits.append("seen"))
            for _ in range(6):
                for name in circle.names:
                    sync(name)
                circle.wait(GATHER if circle.phase == "joining" else 0.0)
            pending = [circle.stores[name].status().adding for name in circle.names]
            assert pending == [0, 2, 2, 2, 2]
            state = circle.service.state
            with state.changing():
                for name in circle.names[1:]:
                    state.storage.actors.put(replace(state.actor(name), sequence=1))
            circle.restart_server()
            circle.federation.operator.command("audit")
            said = set[str]()
            for _ in range(6):
                said |= {sync(name) for name in circle.names}
                circle.wait(GATHER if circle.phase == "joining" else PHASE / 4)
        assert audits == []
        assert any("than the log that this client is shown" in one for one in said)


# -- clocks that were ahead for a moment -----------------------------------------------------------

YEARS = 20 * 365 * 86400


@pytest.mark.parametrize("ahead", ["server", "c0"])
def test_a_clock_that_was_ahead_holds_up_nobody(ahead: str) -> None:
    """All have agreed to a sum by it, and c4 does not come back."""
    with circle_of(5) as circle, pytest.MonkeyPatch.context() as patch:
        clock, true = circle.federation.clock, circle.agent
        circle.everybody_adds()
        circle.until("masking")
        differ = -YEARS if ahead == "server" else 0
        clock.now -= differ

        def agent(name: str, **options: Any) -> Any:
            more = YEARS if name == ahead else differ
            return true(name, wall_clock=lambda: clock.now + more, **options)

        patch.setattr(circle, "agent", agent)
        circle.until("revealing")
        circle.restart_server()
        circle.pass_round()
        clock.now += differ
        patch.undo()
        rest = circle.names[:4]
        circle.go(*rest, passes=1)
        circle.time_is_up(*rest, times=2)
        circle.go(*rest, passes=10)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c4"]]
        assert not any(circle.stores[name].status().adding for name in rest)


def test_a_deletion_that_a_clock_ahead_has_noted_is_due_in_time() -> None:
    with drawn(4, spec=replace(SPEC, fewest_samples=6)) as circle:
        clock = circle.federation.clock
        for name in circle.names:
            circle.add(name, 8)
        circle.go()
        clock.now += YEARS
        circle.forget("c0", [next(iter(circle.held["c0"]))])
        clock.now -= YEARS
        circle.go(passes=4)
        assert circle.stores["c0"].status().deleting == 1
        clock.now += 8 * 86400
        circle.wait(PHASE)
        circle.go(passes=8)
        assert circle.stores["c0"].status().deleting == 0
        circle.check_whole()


@pytest.mark.parametrize("behind", ["server", "clients"])
def test_a_clock_that_is_behind_for_a_moment_excludes_nobody(behind: str) -> None:
    """All have agreed to a sum minutes ago; c3 and c4 do not come back at once."""
    with circle_of(5) as circle, pytest.MonkeyPatch.context() as patch:
        clock, true = circle.federation.clock, circle.agent
        circle.everybody_adds()
        rest = circle.names[:3]
        if behind == "server":
            circle.until("revealing")
            circle.restart_server()
            circle.pass_round()
            right, clock.now = clock.now, 1000
            circle.restart_server()
            later = {"wall_clock": lambda: max(clock.now, right)}
            patch.setattr(circle, "agent", lambda name, **given: true(name, **later, **given))
            circle.sync("c0")
            clock.now = right + 60
            for _ in range(4):
                circle.pass_round(*rest)
                circle.wait(GATHER)
            assert not circle.entries("excluded")
            circle.go(passes=20)
            assert not any(circle.stores[name].status().adding for name in circle.names)
            return
        with lying_server(circle) as server:
            assert server.sum_of(*circle.names)
            server.excluded(server.sums[0][0], "c4")
            assert not server.sum_of(*circle.names[:4])
            early = {"wall_clock": lambda: 1000.0}
            patch.setattr(circle, "agent", lambda name, **given: true(name, **early, **given))
            circle.pass_round(*circle.names[:4])
            patch.undo()
            assert not server.sum_of(*circle.names[:4])
            assert len(server.sums) == 1


# -- parts that were excluded ----------------------------------------------------------------------


@pytest.mark.parametrize("purpose", ["audit", "rebuild"])
def test_parts_that_were_excluded_and_applied_hold_up_no_round_of_all(purpose: str) -> None:
    """What is counted already need not be hidden."""
    with circle_of(6 if purpose == "rebuild" else 5) as circle:
        circle.everybody_adds()
        circle.until("revealing")
        circle.restart_server()
        circle.pass_round()
        rest = [name for name in circle.names if name not in ("c3", "c4")]
        circle.go(*rest, passes=2)
        circle.time_is_up(*rest, times=2)
        circle.go(*rest, passes=10)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c3", "c4"]]
        circle.go(passes=20)
        circle.check_whole()
        if purpose == "rebuild":
            circle.forget_client("c5")
        else:
            circle.federation.operator.command("audit")
        for _ in range(8):
            circle.pass_round()
            circle.wait(PHASE / 4)
        assert len(circle.entries("audited" if purpose == "audit" else "forgotten")) == 1


def test_who_was_excluded_and_hides_that_stops_nobody() -> None:
    """c2 has made a sum false, has opened nothing, and joins each round without its mark, in which
    the few that are left of that sum would refuse to be.
    """
    with circle_of(8) as circle, pytest.MonkeyPatch.context() as patch:
        few, others = circle.names[:2], circle.names[3:]
        for name in few:
            circle.forget(name, [next(iter(circle.held[name]))])
        with lying(circle, {"c2": negative}):
            until_opened(circle, (*few, "c2"), silent="c2")
        circle.time_is_up(*few)
        circle.pass_round(*few)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c2"]]
        cheats = {"is_exposed": False, "require_roster": None, "require_one_sum": None}
        for method, answer in cheats.items():
            true = getattr(RoundPolicy, method)

            def either(self: Any, *given: Any, true: Any = true, answer: Any = answer) -> Any:
                return answer if self._store.name == "c2" else true(self, *given)

            patch.setattr(RoundPolicy, method, either)
        circle.everybody_adds(*others)
        for _ in range(12):
            collector = circle.collector
            is_silent = collector is not None and collector.phase == "masking"
            circle.pass_round(*([] if is_silent else ["c2"]), *few, *others)
            circle.wait(GATHER if circle.phase == "joining" else PHASE / 4)
        assert not any(circle.stores[name].status().deleting for name in few)


def test_a_store_without_rosters_says_that_few_are_left() -> None:
    """As an earlier version left it, between two rounds."""
    with circle_of(6) as circle:
        circle.everybody_adds()
        some = ("c0", "c1", "c5")
        circle.until("revealing", *some)
        circle.restart_server()
        circle.pass_round(*some)
        for name in some[:2]:
            store = circle.stores[name]
            records = canonical.decode((store.recall("revealed") or "").encode())
            earlier = canonical.encode([record["parts"] for record in records]).decode()
            store.remember({"revealed": earlier, "rosters": "", "agreed": "", "vector": ""})
            store.participation.drop()
            circle.restart_client(name)
        circle.forget_client("c5")
        for _ in range(3):
            circle.everybody_adds("c2", "c3", "c4")
            circle.go(passes=20)
        assert not any(circle.stores[name].status().adding for name in circle.names)
