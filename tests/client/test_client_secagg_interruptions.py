"""What may happen meanwhile: amendments, rotations, two agents on one store, lost messages, and
others that are late.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from expunge import kinds
from expunge.client import Agent, SyncResult
from expunge.client.delivery import PendingError
from expunge.client.outbox import Composition
from expunge.client.secagg import Masked
from expunge.errors import CarrierError, EvidenceError, RefusedError
from expunge.evidence import Receipt
from expunge.wire import payloads
from support.masked_round import GATHER, Circle, drawn

PHASES = kinds.PHASES[:-1]  # in which a round can be interrupted


@pytest.fixture
def circle() -> Iterator[Circle]:
    with drawn() as one:
        yield one


# -- amendments and rotations ----------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_gamma_is_amended_in_the_middle_of_a_round(circle: Circle, phase: str) -> None:
    circle.everybody_adds()
    circle.until(phase)
    circle.federation.operator.command("amend", gamma=(0.75).hex())
    circle.go()
    assert circle.spec.gamma == 0.75
    circle.check_whole()
    assert len(circle.entries("aggregated")) == 1  # it is the same data: the round goes on


@pytest.mark.parametrize("phase", PHASES)
def test_labels_are_appended_in_the_middle_of_a_round(circle: Circle, phase: str) -> None:
    """The round begins anew, under the new labels; what was masked before goes out as it was."""
    circle.everybody_adds()
    circle.until(phase)
    circle.federation.operator.command("amend", labels=["no", "yes", "perhaps"])
    told = circle.pass_round()
    assert any("labels" in one.waiting for one in told.values()) or not circle.entries("aggregated")
    circle.go()
    circle.check_whole()
    assert len(circle.entries("aggregated")) == 1
    assert {store.spec.labels for store in circle.stores.values()} == {("no", "yes", "perhaps")}


def test_labels_are_appended_between_a_clients_question_and_its_turn(circle: Circle) -> None:
    """It learns at its next sync that they were."""
    circle.everybody_adds()
    circle.pass_round("c0", "c1")

    def amend(name: str) -> str:
        if name == "aggregate":
            circle.way.lose = lambda _: ""
            circle.federation.operator.command("amend", labels=["no", "yes", "perhaps"])
        return ""

    circle.way.lose = amend
    assert "the labels have been amended: sync again" in circle.sync("c2").waiting
    circle.go()
    circle.check_whole()


@pytest.mark.parametrize("phase", PHASES)
def test_the_server_rotates_its_key_in_the_middle_of_a_round(circle: Circle, phase: str) -> None:
    circle.everybody_adds()
    circle.until(phase)
    circle.federation.operator.command("rotate-key")
    done = circle.go()
    circle.check_whole()
    assert len(circle.entries("aggregated")) == 1
    assert {receipt.server for one in done.values() for receipt in one.receipts} == {
        circle.service.state.server_id
    }


def test_an_answer_by_a_retired_key_is_not_believed(circle: Circle) -> None:
    circle.everybody_adds()
    circle.sync("c0")
    old = circle.federation.server_key
    circle.federation.operator.command("rotate-key")
    circle.sync("c0")
    from expunge.crypto import Envelope  # noqa: PLC0415 - of a forger who has the old key

    circle.way.change["aggregate"] = lambda data: Envelope.signed(
        "standing", Envelope.from_bytes(data, "standing").unverified(), old
    ).to_bytes()
    with pytest.raises(EvidenceError):
        circle.sync("c0")
    circle.way.change.clear()
    circle.go()
    circle.check_whole()


# -- two agents ------------------------------------------------------------------------------------


def test_two_agents_on_one_store_take_turns_in_any_order(circle: Circle) -> None:
    circle.everybody_adds()
    twins = {name: [circle.agent(name), circle.agent(name)] for name in circle.names}
    for step in range(12):
        for name, agents in twins.items():
            agents[step % 2].sync()
            agents[(step // 2) % 2].sync()
            circle.offered.setdefault((name, 1), dict(circle.held[name]))
    circle.check_whole()
    assert len(circle.entries("aggregated")) == 1


def test_two_agents_on_every_store_in_threads(circle: Circle) -> None:
    circle.everybody_adds()
    for name in circle.names:
        circle.offered[name, 1] = dict(circle.held[name])
    problems: list[BaseException] = []
    done: list[SyncResult] = []

    def sync(agent: Agent) -> None:
        try:
            done.append(agent.sync())
        except BaseException as problem:  # told to the test
            problems.append(problem)

    agents = [
        circle.agent(name, patience=10.0, sleep=time.sleep)
        for name in circle.names
        for _ in range(2)
    ]
    threads = [threading.Thread(target=sync, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert problems == []
    circle.pass_round()
    circle.check_whole()
    assert len(circle.entries("aggregated")) == 1


def test_an_agent_that_hears_late_that_a_round_is_over_puts_nothing_of_the_next_one_back(
    circle: Circle,
) -> None:
    """Else the other agent would mask zeros under the number of its request."""
    circle.everybody_adds()
    circle.go()
    circle.forget("c0", [next(iter(circle.held["c0"]))])
    circle.everybody_adds("c1", "c2", "c3")
    first, second = circle.agent("c0"), circle.agent("c0")
    first.push()
    circle.restart_server()
    heard, free = threading.Event(), threading.Event()

    def answered(answer: bytes) -> bytes:
        _, content = payloads.open_unverified("standing", answer)
        if content["phase"] == "aborted" and threading.current_thread() is late:
            heard.set()
            free.wait(30)
        is_masking = content["phase"] == "masking" and content["content"] != ""
        if is_masking and content["actor"] == "c0" and not free.is_set():
            free.set()
            late.join(30)
        return answer

    circle.way.change["aggregate"] = answered
    late = threading.Thread(target=first.push)
    late.start()
    assert heard.wait(30)
    second.push()  # and hears in time that the round is over
    for _ in range(20):
        second.push()
        circle.pass_round("c1", "c2", "c3")
        circle.wait(GATHER if circle.phase == "joining" else 0.0)
        if len(circle.entries("aggregated")) == 2:
            break
    assert free.is_set()
    assert [one["deleted"] for one in circle.entries("aggregated")] == [0, 1]
    circle.offered["c0", 2] = dict(circle.held["c0"])
    circle.pass_round()
    circle.check_whole()


@pytest.mark.parametrize("phase", ["joining", "masking", "agreeing", "revealing"])
def test_an_agent_that_brings_what_has_been_settled_takes_part_in_nothing_and_ends_nothing(
    circle: Circle, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the client would never learn that what it has masked since was applied."""
    late: list[tuple[Masked, Composition]] = []
    deliver = Masked.deliver

    def delivered(self: Masked, composition: Composition) -> Receipt:
        if composition.sequence == 1:
            late[:] = [(self, composition)]
        return deliver(self, composition)

    circle.everybody_adds("c1", "c2", "c3", "c0")
    with monkeypatch.context() as patch:
        patch.setattr(Masked, "deliver", delivered)
        circle.go("c1", "c2", "c3", "c0")
    circle.everybody_adds()
    circle.until(phase)
    circle.sync("c0")
    agent, composition = late[0]
    assert circle.stores["c0"].participation.read() is not None
    with pytest.raises(PendingError):
        deliver(agent, composition)
    assert circle.stores["c0"].participation.read() is not None
    circle.go()
    circle.check_whole()


@pytest.mark.parametrize("is_behind", [False, True])
def test_an_agent_that_hears_less_than_another_has_seen_since_accuses_nobody(
    circle: Circle, is_behind: bool
) -> None:
    """The log is whole, and what the server has proved is for where the agent asked."""
    circle.everybody_adds()
    circle.go()
    circle.federation.token("somebody")
    store, state = circle.stores["c0"], circle.service.state

    def answered(answer: bytes) -> bytes:
        circle.way.change.clear()
        if is_behind:
            circle.federation.token("somebody-else")
        circle.agent("c0").sync()
        return answer

    circle.way.change["sync"] = answered
    circle.sync("c0")
    assert store.checkpoint[0] == state.log.size


def test_no_agent_takes_back_what_another_one_has_seen_of_the_log(circle: Circle) -> None:
    """It has asked for a proof of what its receipt shows, and the other one sees more meanwhile.
    Else a server could show this client an entry, and show everybody a log without it.
    """
    store, state = circle.stores["c0"], circle.service.state
    agent, others, seen = circle.agent("c0"), list[threading.Thread](), list[int]()

    def asks() -> None:
        with circle.losing("aggregate", "back"), suppress(CarrierError):
            circle.agent("c0").sync()

    def proved(proof: list[bytes]) -> list[bytes]:
        circle.way.change.clear()
        circle.federation.token("somebody")
        seen.append(state.log.size)  # by the other one, at the least
        others.append(threading.Thread(target=asks))
        others[0].start()
        others[0].join(0.5)  # it waits until this one has settled
        return proof

    def answered(answer: bytes) -> bytes:
        _, content = payloads.open_unverified("standing", answer)
        if content["actor"] == "c0" and content["receipt"] is not None:
            circle.way.change["consistency"] = proved
        return answer

    circle.way.change["aggregate"] = answered
    circle.everybody_adds()
    for _ in range(20):
        agent.push()
        for other in others:  # what it loses is nobody else's
            other.join(30)
        circle.pass_round("c1", "c2", "c3")
        circle.wait(GATHER if circle.phase == "joining" else 0.0)
    assert len(others) == 1
    assert store.sequence == 1
    assert store.checkpoint[0] >= seen[0]


# -- patience --------------------------------------------------------------------------------------


def test_a_client_that_finds_a_round_under_way_waits_for_the_next_one_if_it_has_patience(
    circle: Circle,
) -> None:
    circle.everybody_adds()
    for name in ("c0", "c1", "c2"):
        circle.sync(name)
    circle.wait(10.0)
    circle.sync("c0")
    assert circle.phase == "sharing"
    assert "another round is under way: this client joins the next one" in circle.sync("c3").waiting
    steps = iter(range(40))

    def meanwhile(_: float) -> None:
        if next(steps) == 2:
            circle.everybody_adds("c0", "c1")
        circle.pass_round("c0", "c1", "c2")
        circle.wait(6.0)

    circle.offered["c3", 1] = dict(circle.held["c3"])
    # No time passes for it, so that only the steps above end its wait.
    agent = circle.agent("c3", patience=0.5, sleep=meanwhile, clock=lambda: 0.0)
    assert agent.sync().receipts
    circle.go()
    circle.check_whole()


def test_a_lost_message_is_sent_again_at_once(circle: Circle) -> None:
    circle.everybody_adds()
    lost = iter(["there", "back"] * 3)
    circle.way.lose = lambda name: next(lost, "") if name == "aggregate" else ""
    pauses: list[float] = []
    assert circle.sync("c0", attempts=8, sleep=pauses.append).waiting
    assert pauses
    circle.way.lose = lambda _: ""
    circle.go()
    circle.check_whole()


def test_without_a_way_to_the_server_the_error_is_the_carriers(circle: Circle) -> None:
    circle.everybody_adds()
    circle.until("masking")
    with circle.losing("aggregate", "there"), pytest.raises(CarrierError):
        circle.sync("c0")
    circle.go()
    circle.check_whole()


def test_what_a_refused_join_leaves_behind_is_nothing(circle: Circle) -> None:
    circle.everybody_adds()
    state = circle.service.state
    with state.changing():
        state.storage.actors.put(replace(state.actor("c0"), sequence=7))
    agent = circle.agent("c0")
    with pytest.raises(RefusedError) as problem:
        agent.push()
    assert problem.value.code == "sequence-reused"
    assert circle.stores["c0"].participation.read() is None


def test_only_wanted_messages_wake_those_who_wait(circle: Circle) -> None:
    """Or n clients that join one after another would have the server look n times for each of
    them.
    """
    rounds = circle.service.rounds
    circle.everybody_adds()
    circle.sync("c0")
    standing = rounds.turn(
        next(data for who, data in circle.way.said if who == "said" and data[:1] != b"{")
    )
    change = rounds.change_after(standing.version)
    circle.sync("c1")
    assert not change.done()
    circle.sync("c2")  # now there are enough, and the round may go on by itself
    assert change.done()
    for _ in range(50):
        rounds.change_after(rounds.turn(circle.way.said[0][1]).version).cancel()
    assert len(rounds._watching) <= 1  # nothing is kept for those who have stopped waiting
