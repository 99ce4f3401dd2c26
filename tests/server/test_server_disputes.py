"""A client that lies, or stays silent, holds up nobody: false sums are voided, rows without the
liar are applied, the arbiter names it, and the others go on.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from expunge import Aggregation, Statistics
from expunge.client.secagg import Masked
from expunge.crypto import Envelope, SigningKey, canonical
from expunge.errors import EvidenceError, FormatError, RefusedError
from expunge.exact import wide
from expunge.kinds import PHASES
from expunge.ridge.sums import Sums
from expunge.secagg import Participant
from expunge.secagg.arbitration import Arbiter, Dispute, Examined, Verdict, examine
from expunge.secagg.messages import read_client_message
from expunge.secagg.unmasking import MOST_UNEXPLAINED, Decision, rows
from support.lying_rounds import LyingServer, lying_server
from support.masked_round import GATHER, PHASE, SPEC, Circle, settled, twin_of

ARBITER = Arbiter(bytes(range(64)))
RULES = Aggregation(fewest=3, arbiter=ARBITER.public, set_aside_after=3600)
WITH_ARBITER = replace(SPEC, aggregation=RULES)
WEEK = 7 * 24 * 3600


@contextmanager
def circle_of(clients: int, rules: Aggregation = RULES) -> Iterator[Circle]:
    with twin_of(settled(clients, replace(SPEC, aggregation=rules))) as circle:
        yield circle


Lie = Callable[[wide.Wide], None]


def negative(vector: wide.Wide) -> None:
    """One bit of the first sum of squares: it is negative."""
    vector[1, 0] ^= np.uint64(1 << 63)


def enormous(vector: wide.Wide) -> None:
    """A moment so large that no weight can be published."""
    vector[1, 10] += np.uint64(1 << 58)


def miscounted(vector: wide.Wide) -> None:
    """One more of a class is deleted than the class has less."""
    vector[0, -1] += np.uint64(1)


LIES = {"negative": negative, "enormous": enormous, "miscounted": miscounted}


@contextmanager
def lying(circle: Circle, lies: dict[str, Lie]) -> Iterator[None]:
    """These clients send something else than what they add and delete, and open the truth."""
    true = Participant.on_deliveries
    with pytest.MonkeyPatch.context() as patch:

        def masked(self: Participant, told: bytes, vector: wide.Wide) -> bytes:
            lie = lies.get(self.name)
            if lie is not None and self.opening.purpose == "change":
                vector = vector.copy()
                lie(vector)
            return true(self, told, vector)

        patch.setattr(Participant, "on_deliveries", masked)
        yield


def dispute_of(circle: Circle, number: int = -1) -> Dispute:
    """What the operator carries to the arbiter."""
    operator = circle.federation.operator
    aggregation = operator.ask("disputes")[number]["aggregation"]
    shown = operator.ask("show-dispute", aggregation=aggregation)
    openings = {
        name: base64.b64decode(operator.ask("show-opening", aggregation=aggregation, client=name))
        for name in shown["opened"]
    }
    return Dispute.from_json(canonical.decode(canonical.encode(shown["dispute"])), openings)


@contextmanager
def disputed(clients: int, lies: dict[str, Lie]) -> Iterator[tuple[Circle, Dispute]]:
    """A circle after a sum that these have made false, and what its operator carries to the
    arbiter.
    """
    with circle_of(clients) as circle:
        circle.everybody_adds()
        with lying(circle, lies):
            until_disputed(circle)
        yield circle, dispute_of(circle)


@contextmanager
def after_a_sum(clients: int) -> Iterator[tuple[Circle, LyingServer]]:
    """A circle whose server lies, and has unmasked the sum of what all of it add."""
    with circle_of(clients) as circle:
        circle.everybody_adds()
        with lying_server(circle) as server:
            assert server.sum_of(*circle.names)
            yield circle, server


def verdict_on(dispute: Dispute, false: dict[str, str]) -> Envelope:
    roster = read_roster(dispute)
    return ARBITER.sign(
        Verdict(
            dispute.federation,
            roster.opening.round,
            roster.digest,
            dispute.parts,
            false,
            "2026-01-01T00:00:00Z",
        )
    )


def read_roster(dispute: Dispute) -> Any:
    from expunge.secagg.roster import Roster  # noqa: PLC0415

    return Roster.read(dispute.records.roster)


def judged(circle: Circle, dispute: Dispute, examined: Examined) -> None:
    verdict = verdict_on(dispute, examined.false)
    circle.federation.operator.command("judge", verdict=verdict.to_json())


def all_have_opened(circle: Circle) -> bool:
    """Whether there is a dispute, and no client of it has yet to open its part."""
    disputes = circle.federation.operator.ask("disputes")
    return bool(disputes) and all(one["opened"] == one["clients"] for one in disputes)


def restarting_all(circle: Circle) -> None:
    """Each client is restarted after each sync until all have opened their parts, and some times
    more; so is the server, once the sum was called false.
    """
    after = 0
    for _ in range(40):
        for name in circle.names:
            circle.sync(name)
            circle.restart_client(name)
        circle.restart_server() if circle.entries("voided") else circle.wait(1.0)
        after += all_have_opened(circle)
        if after == 3:
            return
    raise AssertionError("not all have opened their parts")


def until_voided(circle: Circle, times: int) -> None:
    """Sync until as many sums were false, and not a moment longer."""
    for _ in range(40):
        circle.pass_round()
        if len(circle.entries("voided")) == times:
            return
        if circle.service.rounds.pulse()[1] < 1e9:
            circle.wait(GATHER)
    raise AssertionError("no sum was called false")


def until_opened(circle: Circle, names: Sequence[str], *, silent: str, false: int = 1) -> None:
    """These sync until so many sums were false, and then, but for the silent one, until they have
    opened their parts of the last one, and wait.
    """
    others, after = {name for name in names if name != silent}, 0
    for _ in range(60):
        is_false = len(circle.entries("voided")) >= false
        for name in names:
            if name != silent or not is_false:
                circle.sync(name)
        circle.wait(1.0)
        if is_false and others <= set(circle.federation.operator.ask("disputes")[-1]["opened"]):
            after += 1
        if after == 3:
            return
    raise AssertionError("not all have opened their parts")


def until_disputed(circle: Circle) -> None:
    """Sync until the clients have opened their parts, and wait."""
    for _ in range(12):
        circle.go(passes=8)
        if all_have_opened(circle):
            return
    raise AssertionError("not all have opened their parts")


# -- the arbiter -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_is_named_and_the_others_go_on(lie: str) -> None:
    with circle_of(4) as circle:
        circle.everybody_adds()
        before = circle.ledger()
        with lying(circle, {"c2": LIES[lie]}):
            until_disputed(circle)
        assert circle.ledger() == before
        (entry,) = circle.entries("voided")
        assert [member["client"] for member in entry["clients"]] == circle.names
        assert entry["reason"] == ("headless" if lie == "enormous" else "impossible")
        dispute = dispute_of(circle)
        examined = examine(dispute, ARBITER)
        assert list(examined.false) == ["c2"]
        assert "another vector" in examined.false["c2"]
        assert examined.missing == ()
        assert set(examined.counts.values()) == {(2, 0)}
        judged(circle, dispute, examined)
        circle.go("c0", "c1", "c3")
        assert circle.sync("c2").waiting
        counted = circle.counted()
        circle.check(counted)
        for name in ("c0", "c1", "c3"):
            assert counted[name] == circle.held[name]
        assert circle.service.status()["aggregation"]["barred"] == ["c2"]
        assert circle.service.status()["aggregation"]["disputes"] == []
        circle.forget_client("c2")
        circle.go(passes=30)
        circle.check_whole()


def test_a_liar_that_opens_what_it_sent_is_named_too() -> None:
    """Its statistics are those of no samples."""
    with circle_of(4) as circle:
        circle.everybody_adds()
        sums = Sums(circle.spec)
        sums.gram[1, 1] = np.uint64(1 << 62)  # products of features that are all zero
        forged = Statistics.snapshot(sums)
        with pytest.MonkeyPatch.context() as patch:
            true = Masked.statistics
            patch.setattr(
                Masked,
                "statistics",
                lambda self, *rest: (
                    (forged, None) if self._store.name == "c1" else true(self, *rest)
                ),
            )
            until_disputed(circle)
            examined = examine(dispute_of(circle), ARBITER)
        assert list(examined.false) == ["c1"]
        assert "the sum of no samples" in examined.false["c1"]


def test_honest_clients_are_never_found_false() -> None:
    """Nor if the sum is called false by a server that lies: then nobody is named, and nothing can
    be judged.
    """
    with circle_of(4) as circle:
        circle.everybody_adds()
        held = dict(circle.held["c0"])
        circle.forget("c0", [next(iter(held))])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(circle.service.state.ledger, "apply", _refuse)
            until_disputed(circle)
        dispute = dispute_of(circle)
        examined = examine(dispute, ARBITER)
        assert (examined.false, examined.missing) == ({}, ())
        assert examined.counts["c0"] == (2, 1)
        with pytest.raises(RefusedError, match="finds nobody false"):
            judged(circle, dispute, examined)


def _refuse(*_: object) -> None:
    from expunge.errors import NotAGramError  # noqa: PLC0415

    raise NotAGramError("a server that says so")


def test_an_honest_sum_that_leaves_no_head_may_be_accepted() -> None:
    with circle_of(4) as circle:
        circle.everybody_adds()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(circle.service.state), "solved", _headless(circle))
            until_disputed(circle)
        dispute = dispute_of(circle)
        assert dispute.reason == "headless"
        judged(circle, dispute, examine(dispute, ARBITER))
        circle.go()
        circle.check_whole()


def _headless(circle: Circle) -> Callable[..., Any]:
    true = type(circle.service.state).solved

    def solved(self: Any) -> Any:
        digests = true(self)
        return replace(digests, head="")

    return solved


# -- rows ------------------------------------------------------------------------------------------


def test_rows_without_the_liar_are_applied_at_once() -> None:
    """Nobody waits for the arbiter but those in the liar's row."""
    with circle_of(9) as circle:
        circle.everybody_adds()
        with lying(circle, {"c4": negative}):
            for _ in range(12):
                circle.go(passes=8)
                if all_have_opened(circle) and len(circle.entries("aggregated")) > 1:
                    break
        first, second = circle.entries("voided")
        parts = frozenset((member["client"], member["sequence"]) for member in first["clients"])
        assert set(first["agreed"]) == set(circle.names)
        cut = rows(
            Decision(
                "voided",
                first["aggregation"],
                parts,
                signers=frozenset(first["agreed"]),
                size=first["size"],
            ),
            RULES,
        )
        assert [len(row) for row in cut] == [5, 4]
        (bad,) = (row for row in cut if any(name == "c4" for name, _ in row))
        assert {member["client"] for member in second["clients"]} == {name for name, _ in bad}
        good = {name for row in cut for name, _ in row} - {name for name, _ in bad}
        applied = circle.entries("aggregated")[1]
        assert {member["client"] for member in applied["clients"]} == good
        for name in good:
            assert not circle.stores[name].status().adding
        dispute = dispute_of(circle)
        judged(circle, dispute, examine(dispute, ARBITER))
        circle.go(*(name for name in circle.names if name != "c4"))
        for name in circle.names:
            assert bool(circle.stores[name].status().adding) == (name == "c4")
        circle.check()


def test_a_liar_that_behaves_in_its_row_holds_up_nobody() -> None:
    with circle_of(8) as circle:
        circle.everybody_adds()
        with lying(circle, {"c4": negative}):
            until_voided(circle, 1)
        circle.go(passes=20)
        circle.check_whole()
        assert len(circle.entries("voided")) == 1
        assert [entry["added"] for entry in circle.entries("aggregated") if entry["added"]] == [
            16,
            8,
            8,
        ]


def test_a_liar_that_behaves_in_its_row_each_time_is_named_in_the_end() -> None:
    """Three false sums are cut into rows; the clients of the fourth open their parts at once."""
    with circle_of(6, replace(RULES, fewest=2)) as circle:
        for lies in range(1, MOST_UNEXPLAINED + 2):
            circle.everybody_adds()
            with lying(circle, {"c4": negative}):
                until_voided(circle, lies)
            circle.go(passes=20)
            assert bool(circle.federation.operator.ask("disputes")) == (lies > MOST_UNEXPLAINED)
            if lies <= MOST_UNEXPLAINED:
                circle.check_whole()
        until_disputed(circle)
        dispute = dispute_of(circle)
        assert {name for name, _ in dispute.parts} == set(circle.names)
        examined = examine(dispute, ARBITER)
        assert list(examined.false) == ["c4"]
        judged(circle, dispute, examined)
        circle.go(*(name for name in circle.names if name != "c4"))
        for name in circle.names:
            assert bool(circle.stores[name].status().adding) == (name == "c4")
        circle.check()
        circle.restart_server()
        entries = circle.entries("voided")
        assert len(entries) == MOST_UNEXPLAINED + 1


# -- silence ---------------------------------------------------------------------------------------


def test_who_does_not_open_its_part_is_excluded_and_may_come_back() -> None:
    with circle_of(6) as circle:
        circle.everybody_adds()
        others = [name for name in circle.names if name != "c5"]
        with lying(circle, {"c2": negative}):  # c5 leaves when the sum has been unmasked
            until_opened(circle, circle.names, silent="c5")
        assert [one["opened"] for one in circle.federation.operator.ask("disputes")] == [others]
        circle.go(*others, passes=3)
        assert circle.entries("excluded") == []
        circle.time_is_up(*others)
        circle.go(*others, passes=20)
        (entry,) = circle.entries("excluded")
        assert entry["excluded"] == ["c5"]
        # The liar behaves by now: the sum of those that are left is applied.
        for name in others:
            assert not circle.stores[name].status().adding, name
        circle.check()
        circle.go(passes=20)
        circle.check_whole()


@pytest.mark.parametrize(
    ("clients", "phase"),
    [(5, "sharing"), (5, "masking"), (3, "agreeing")],
)
def test_who_leaves_every_repetition_is_excluded(clients: int, phase: str) -> None:
    """An aborted round can be repeated by the same clients only: one of them joins each time, and
    then is silent. (Of three, all must agree.)
    """
    rules = replace(RULES, fewest=3 if clients > 3 else 2)
    with circle_of(clients, rules) as circle:
        silent = circle.names[0]  # it syncs before the others have answered
        circle.everybody_adds()
        circle.until("revealing")
        circle.wait(PHASE)
        others = [name for name in circle.names if name != silent]

        def try_again(tries: int) -> None:
            for _ in range(tries):
                for name in circle.names:
                    reached = PHASES.index(circle.phase or "joining")
                    if name != silent or reached < PHASES.index(phase):
                        circle.sync(name)
                if len(circle.entries("aggregated")) > 1:
                    return
                circle.wait(GATHER if circle.phase == "joining" else PHASE / 4)

        try_again(12)
        assert len(circle.entries("aggregated")) == 1
        assert circle.entries("excluded") == []
        circle.time_is_up(*others)
        try_again(40)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [[silent]]
        for name in others:
            assert not circle.stores[name].status().adding, name
        circle.go(passes=20)
        circle.check_whole()


def test_nobody_is_excluded_before_its_time_by_the_clients_clocks() -> None:
    """A server whose clock runs ahead, or that lies about it, gets no sum without somebody."""
    with circle_of(5) as circle:
        circle.everybody_adds()
        circle.until("revealing")
        circle.wait(PHASE)
        others = [name for name in circle.names if name != "c4"]
        true = circle.federation.clock.now
        circle.time_is_up(*others, wall_clock=lambda: true)
        said = set[str]()
        for _ in range(30):
            for name in others:
                said.add(circle.sync(name, wall_clock=lambda: true).waiting)
            circle.wait(GATHER)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c4"]]
        assert len(circle.entries("aggregated")) == 1
        assert any("would differ from it by c4" in one for one in said)


def test_too_few_cannot_exclude_others() -> None:
    """Of five, two that come when time is up do not go on without three."""
    with circle_of(5) as circle:
        circle.everybody_adds()
        circle.until("revealing")
        circle.wait(PHASE)
        circle.time_is_up("c0", "c1", times=2)
        for _ in range(10):
            circle.pass_round("c0", "c1")
            circle.wait(PHASE)
        assert circle.entries("excluded") == []
        circle.go(passes=20)
        circle.check_whole()


# -- a server that lies ----------------------------------------------------------------------------


def test_a_verdict_that_the_arbiter_did_not_sign_is_not_believed() -> None:
    """Neither by the server, nor by clients if the server believes it: it would open whom it
    likes.
    """
    with disputed(4, {"c2": negative}) as (circle, dispute):
        forged = Envelope.signed(
            "verdict",
            verdict_on(dispute, {"c0": "a lie"}).unverified(),
            circle.federation.server_key,
        )
        with pytest.raises(RefusedError, match="no verdict of the arbiter"):
            circle.federation.operator.command("judge", verdict=forged.to_json())
        (voided,) = circle.entries("voided")
        state = circle.service.state
        with state.changing() as now:  # a server that believes it all the same
            state.append("judged", now, aggregation=voided["aggregation"], verdict=forged.to_json())
        assert circle.entries("judged")
        with pytest.raises(EvidenceError, match="signed by key"):
            circle.sync("c1")


def test_a_verdict_about_another_roster_is_none_about_this_sum() -> None:
    """A server that shows the arbiter a round that never was, with keys of its own, gets a verdict;
    clients of the true round do not act on it.
    """
    with disputed(4, {"c2": negative}) as (circle, dispute):
        content = verdict_on(dispute, {"c0": "a lie"}).unverified() | {"roster": "0" * 64}
        signed = Envelope.signed("verdict", content, SigningKey(bytes(range(32, 64))))
        with pytest.raises(RefusedError, match="about another sum"):
            circle.federation.operator.command("judge", verdict=signed.to_json())
        state = circle.service.state
        aggregation = circle.entries("voided")[0]["aggregation"]
        with state.changing() as now:
            state.append("judged", now, aggregation=aggregation, verdict=signed.to_json())
        before = circle.ledger()
        said = {one.waiting for _ in range(6) for one in circle.pass_round("c1", "c3").values()}
        assert any("waits for the verdict" in one for one in said)
        assert circle.ledger() == before


def test_the_arbiter_notices_a_server_that_made_the_sum_false() -> None:
    """It told its clients of different dealers, so that masks do not cancel; or it shows other
    records than what clients signed.
    """
    with disputed(5, {"c2": negative}) as (_, dispute):
        records = dispute.records
        swapped = replace(records, masked=dict(records.masked) | {"c0": records.masked["c1"]})
        with pytest.raises(EvidenceError):
            examine(replace(dispute, records=swapped), ARBITER)
        without = {name: data for name, data in records.deliveries.items() if name != "c3"}
        with pytest.raises(EvidenceError, match="c3 was sent"):
            examine(replace(dispute, records=replace(records, deliveries=without)), ARBITER)
        openings = dict(dispute.openings) | {"c0": dispute.openings["c1"]}
        with pytest.raises(EvidenceError, match="signature"):
            examine(replace(dispute, openings=openings), ARBITER)
        with pytest.raises(EvidenceError, match="not for this arbiter"):
            examine(dispute, Arbiter(bytes(64)))


def test_nobody_but_the_arbiter_reads_an_opening() -> None:
    """The server keeps it sealed, and destroys it with the dispute."""
    with disputed(4, {"c2": negative}) as (circle, dispute):
        message = read_client_message(dispute.openings["c0"])
        roster = read_roster(dispute)
        with pytest.raises(EvidenceError, match="does not open"):
            Arbiter(bytes(64)).open(roster, "c0", message.body)
        opened = ARBITER.open(roster, "c0", message.body)
        contribution, _ = opened.contribution(circle.spec)
        expected = circle.statistics({"c0": _new(circle, "c0")})
        assert contribution.statistics.digest == expected.digest
        state = circle.service.state
        (record,) = state.storage.rounds.disputes()
        assert record.slot in state.vault.live()
        judged(circle, dispute, examine(dispute, ARBITER))
        assert record.slot not in state.vault.live()  # what was opened is gone with its key
        assert circle.federation.operator.ask("disputes") == []
        with pytest.raises(RefusedError, match="no such sum is in dispute"):
            circle.federation.operator.ask(
                "show-opening", aggregation=roster.opening.round, client="c0"
            )


def _new(circle: Circle, name: str) -> Any:
    held = circle.held[name]
    return {one: held[one] for one in list(held)[2:]}


# -- restarts --------------------------------------------------------------------------------------


def test_a_dispute_survives_restarts_of_all() -> None:
    with circle_of(4) as circle:
        circle.everybody_adds()
        with lying(circle, {"c2": negative}):
            restarting_all(circle)
        dispute = dispute_of(circle)
        judged(circle, dispute, examine(dispute, ARBITER))
        circle.restart_server()
        circle.go("c0", "c1", "c3")
        for name in ("c0", "c1", "c3"):
            assert not circle.stores[name].status().adding
        circle.check()


@pytest.mark.parametrize("heard", [0, 1])
def test_an_agent_that_was_left_behind_in_a_false_sum_loses_no_keys(heard: int) -> None:
    """Two agents are on one store; one has dealt shares, and hears when the other one has masked
    and revealed that the sum was false, before the other does, or after it.
    """
    with circle_of(4) as circle:
        circle.everybody_adds()
        store, held, free = circle.stores["c0"], threading.Event(), threading.Event()

        def lose(name: str) -> str:
            is_late = threading.current_thread() is late and store.participation.read() is not None
            if is_late and name == "aggregate" and circle.phase == "sharing":
                held.set()
                free.wait(30)
            return ""

        late = threading.Thread(target=circle.agent("c0").push)
        circle.until("sharing")
        circle.way.lose = lose
        late.start()
        assert held.wait(30)
        other = circle.agent("c0")
        with lying(circle, {"c2": negative}):
            for _ in range(20):
                other.push()
                circle.pass_round("c1", "c2", "c3")
                if circle.entries("voided"):
                    break
        for _ in range(heard):
            other.push()
        free.set()
        late.join(30)
        circle.way.lose = lambda _: ""
        until_disputed(circle)
        assert list(examine(dispute_of(circle), ARBITER).false) == ["c2"]


# -- amendments ------------------------------------------------------------------------------------


def test_labels_that_are_appended_in_a_dispute_make_nobody_false() -> None:
    """Parts are opened, and examined, under the spec of their round."""
    with circle_of(4) as circle:
        circle.everybody_adds()
        with lying(circle, {"c2": negative}):
            for _ in range(40):
                circle.pass_round()
                if circle.entries("voided"):
                    break
                circle.wait(1.0)
        circle.federation.operator.command("amend", labels=["no", "yes", "perhaps"])
        until_disputed(circle)
        dispute = dispute_of(circle)
        assert dispute.spec.labels == ("no", "yes")
        examined = examine(dispute, ARBITER)
        assert (list(examined.false), examined.missing) == (["c2"], ())
        judged(circle, dispute, examined)
        circle.go("c0", "c1", "c3")
        circle.check()
        for name in ("c0", "c1", "c3"):
            assert not circle.stores[name].status().adding


@pytest.mark.parametrize("content", [[], {}, {"false": ["c0"]}, {"false": {"c0": 1}}])
def test_a_verdict_that_is_none_is_refused_by_clients(content: Any) -> None:
    with circle_of(4) as circle:
        state = circle.service.state
        verdict = Envelope.signed("verdict", content, circle.federation.server_key)
        with state.changing() as now:
            state.append("judged", now, aggregation="0" * 32, verdict=verdict.to_json())
        circle.everybody_adds("c0", "c1", "c2")
        with pytest.raises(FormatError):
            circle.go("c0", "c1", "c2")
