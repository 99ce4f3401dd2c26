"""A clock that somebody sets: a jump ahead stamps nothing with a time to come, and is told."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.crypto import Envelope
from expunge.errors import EvidenceError, RefusedError
from expunge.evidence import published_head
from expunge.evidence.bundle import Bundle
from expunge.evidence.log import read_entry
from expunge.server.clock import TOLERANCE, SteadyClock, seconds_since_start
from expunge.server.clock_watch import ClockWatch
from expunge.server.service import Service
from expunge.wire.schema import time_seconds, time_text
from support.federation import NOW, Federation
from support.samples import SPEC

YEARS = 5 * 365 * 24 * 3600.0


class Machine:
    """A clock that can be set, and time that cannot."""

    def __init__(self) -> None:
        self.passed = 1000.0
        self.ahead = 0.0
        self.told: list[str] = []
        self.clock = SteadyClock(self.tell, self.wall, lambda: self.passed)

    def wall(self) -> float:
        return NOW + self.passed + self.ahead

    def tell(self, text: str, problem: BaseException | None) -> None:
        assert problem is None
        self.told.append(text)


@given(st.lists(st.tuples(st.floats(0.0, 1e6), st.floats(-1e9, 1e9, allow_nan=False)), max_size=20))
def test_time_never_passes_faster_than_it_does_but_for_small_steps(
    changes: list[tuple[float, float]],
) -> None:
    machine = Machine()
    before = machine.clock()
    for passed, ahead in changes:
        machine.passed += passed
        machine.ahead = ahead
        now = machine.clock()
        assert now - before <= passed + TOLERANCE + 1e-3
        assert now <= machine.wall() + 1e-3  # it is behind a clock that has jumped, or agrees
        before = now


def test_a_jump_ahead_is_told_once_and_over_when_the_clock_is_right_again() -> None:
    machine = Machine()
    machine.ahead = YEARS
    assert machine.clock() == machine.clock() == NOW + 1000.0
    assert machine.clock.ahead() == YEARS
    (told,) = machine.told
    assert "jumped ahead by 157680000 seconds" in told
    machine.ahead, machine.passed = 0.0, 1010.0
    assert machine.clock() == NOW + 1010.0
    assert machine.clock.ahead() == 0.0
    machine.ahead = YEARS
    assert machine.clock() == NOW + 1010.0
    assert len(machine.told) == 2


@pytest.mark.parametrize("step", [-YEARS, -1.0, 1.0, TOLERANCE - 1.0])
def test_small_steps_and_steps_back_are_followed(step: float) -> None:
    machine = Machine()
    machine.ahead = step
    assert machine.clock() == pytest.approx(NOW + 1000.0 + step)
    assert machine.told == []


def test_the_real_clocks_agree() -> None:
    clock = SteadyClock(lambda text, _: pytest.fail(text))
    assert clock.ahead() < 1.0
    assert seconds_since_start() <= seconds_since_start()


def test_a_running_server_is_not_taken_to_another_time(tmp_path: Path) -> None:
    machine = Machine()
    with Federation(tmp_path / "server", SPEC, clock=machine.clock) as federation:
        client = federation.enrol("clinic")
        client.send(federation.draw(3))
        machine.ahead = YEARS
        machine.passed += 10.0
        client.send(federation.draw(1))
        order = federation.operator.command("order", subject="p1", days=30)
        machine.ahead = 0.0
        machine.passed += 10.0
        client.send(federation.draw(1))
        times = [time_seconds(entry["time"]) for entry in federation.entries("changed")]
        assert times == [NOW + 1000, NOW + 1010, NOW + 1020]
        assert time_seconds(order["deadline"]) == NOW + 1010 + 30 * 24 * 3600


def test_a_server_that_was_ahead_says_so_when_it_starts(tmp_path: Path) -> None:
    """Its clock was ahead before it began, which it could not know."""
    machine = Machine()
    with Federation(tmp_path / "server", SPEC, clock=lambda: machine.wall() + YEARS) as federation:
        federation.enrol("clinic").send(federation.draw(3))
        federation.service.close()
        told: list[str] = []
        opened = Service.open(
            federation.path,
            clock=machine.wall,
            upkeep=False,
            report=lambda text, _: told.append(text),
        )
        with closing(opened) as service:
            (warning,) = told
            assert "stamped 157,680,000 seconds ahead of this machine's clock" in warning
            assert service.state.stamps_ahead() == YEARS
            last = read_entry(service.entries(0, service.state.log.size)[-1])
            assert service.state.now() == time_seconds(last["time"])
        federation.service = federation.opened()


def started_ahead(machine: Machine, path: Path) -> Federation:
    """A federation whose server was started with a clock five years ahead, for some requests, and
    then again with the right one.
    """
    federation = Federation(path / "server", SPEC, clock=machine.wall)
    client = federation.enrol("clinic")
    client.send(federation.draw(4))
    before = federation.operator.command("order", subject="p1", days=30)["order"]
    federation.token("late", "client")
    federation.close()
    machine.ahead = YEARS
    federation.service = federation.opened()
    machine.passed += 100.0
    client.send([], client.retained[:1])
    client.answer_order(before, client.retained[:1])
    federation.operator.command("order", subject="p2", days=30)
    federation.token("later", "client")
    federation.operator.command("audit")
    client.answer_audits()
    federation.service.upkeep.finish_audits()
    federation.close()
    machine.ahead = 0.0
    machine.passed += 100.0
    federation.service = federation.opened()
    return federation


def right_now(machine: Machine) -> str:
    return time_text(machine.wall())


def test_after_a_correction_everything_goes_on_from_the_right_time(tmp_path: Path) -> None:
    machine = Machine()
    with started_ahead(machine, tmp_path) as federation:
        client, operator = federation.clients["clinic"], federation.operator
        early = [client.send(federation.draw(1)) for _ in range(2)]
        assert time_seconds(early[-1].logged.entry["time"]) > machine.wall() + YEARS / 2
        machine.passed += 86400.0
        now = int(machine.wall())
        corrected = operator.command("correct-clock", time=right_now(machine))
        (entry,) = federation.entries("corrected")
        assert {name: entry[name] for name in corrected} == corrected
        assert corrected["ahead"] == YEARS - 100
        first = federation.entries()[corrected["first"]]
        assert first["kind"] == "changed"
        assert corrected["after"] == federation.entries()[corrected["first"] - 1]["time"]
        assert time_seconds(entry["time"]) == now

        machine.passed += 10.0
        receipt = client.send(federation.draw(1), client.retained[:1])
        assert time_seconds(receipt.logged.entry["time"]) == now + 10
        assert time_seconds(receipt.logged.entry["erased_by"]) == now + 10 + 60
        order = operator.command("order", subject="p3", days=30)
        assert time_seconds(order["deadline"]) == now + 10 + 30 * 86400
        assert federation.service.state.stamps_ahead() == 0
        federation.fold()
        federation.reopen()
        assert time_seconds(federation.service.status()["time"]) == now + 10
        for data in federation.dump()["answers"]:  # evidence of before still verifies
            if data[0] == "clinic":
                federation.read(data[3])
        federation.check()


def test_a_correction_brings_deadlines_and_tokens_nearer(tmp_path: Path) -> None:
    """As if they had been given when the last stamps were made, and never later than that."""
    machine = Machine()
    with started_ahead(machine, tmp_path) as federation:
        before, during = federation.operator.ask("orders")
        assert time_seconds(during["deadline"]) > machine.wall() + YEARS
        machine.passed += 3 * 86400.0
        federation.operator.command("correct-clock", time=right_now(machine))
        after = federation.operator.ask("show-order", order=during["order"])
        filed = NOW + 1200
        assert filed - 100 <= time_seconds(after["filed"]) <= filed
        assert time_seconds(after["deadline"]) - time_seconds(after["filed"]) == 30 * 86400
        kept = federation.operator.ask("show-order", order=before["order"])
        assert (kept["filed"], kept["deadline"]) == (before["filed"], before["deadline"])
        assert kept["state"] == "complete"
        assert time_seconds(kept["filed"]) <= time_seconds(kept["completed"]) <= filed
        expires = {row[1]: row[3] for row in federation.dump()["tokens"]}
        assert expires["late"] == NOW + 1000 + 7 * 86400
        assert filed - 100 <= expires["later"] - 7 * 86400 <= filed
        for order in (before["order"], during["order"]):
            envelope = Envelope.from_json(federation.operator.ask("bundle", order=order), "bundle")
            bundled = Bundle.read(envelope, federation.server_key.public).order
            shown = federation.operator.ask("show-order", order=order)
            assert [bundled.filed, bundled.deadline, bundled.completed] == [
                shown["filed"],
                shown["deadline"],
                shown["completed"],
            ]


def test_a_retired_key_signs_nothing_of_a_later_time(tmp_path: Path) -> None:
    """Also where the server's clock was ahead: whoever has stolen the key could claim any place in
    the log. Evidence of that time holds until the key is rotated; the head goes on to hold.
    """
    machine = Machine()
    with started_ahead(machine, tmp_path) as federation:
        client = federation.clients["clinic"]
        client.send(federation.draw(1))
        ahead = [data[3] for data in federation.dump()["answers"] if data[0] == "clinic"][-1]
        federation.operator.command("correct-clock", time=right_now(machine))
        federation.read(ahead)
        machine.passed += 10.0
        federation.operator.command("rotate-key")
        with pytest.raises(EvidenceError, match="was retired at"):
            federation.read(ahead)
        published_head.read(federation.service.head() or b"", federation.chain())
        after = client.send(federation.draw(1))
        assert after.logged.entry["time"] <= right_now(machine)
        published_head.read(federation.service.head() or b"", federation.chain())


def test_only_what_is_wrong_is_corrected(tmp_path: Path) -> None:
    machine = Machine()
    with started_ahead(machine, tmp_path) as federation:
        before = federation.dump()
        with pytest.raises(RefusedError, match="set the one that is wrong right"):
            federation.operator.command("correct-clock", time=time_text(machine.wall() + YEARS))
        with pytest.raises(RefusedError, match="the time"):
            federation.operator.command("correct-clock")
        federation.operator.command("correct-clock", time=right_now(machine))
        with pytest.raises(RefusedError, match="there is nothing to correct"):
            federation.operator.command("correct-clock", time=right_now(machine))
        assert federation.dump() != before


def test_a_key_that_was_rotated_while_the_clock_was_ahead_is_named(tmp_path: Path) -> None:
    machine = Machine()
    with started_ahead(machine, tmp_path) as federation:
        federation.operator.command("rotate-key")
        with pytest.raises(RefusedError, match="rotated while its clock was ahead"):
            federation.operator.command("correct-clock", time=right_now(machine))
        assert not federation.entries("corrected")


def test_a_second_correction_is_about_what_came_after_the_first(tmp_path: Path) -> None:
    machine = Machine()
    with started_ahead(machine, tmp_path) as federation:
        federation.operator.command("correct-clock", time=right_now(machine))
        federation.close()
        machine.ahead = 2 * YEARS
        federation.service = federation.opened()
        federation.clients["clinic"].send(federation.draw(1))
        federation.close()
        machine.ahead = 0.0
        federation.service = federation.opened()
        federation.operator.command("correct-clock", time=right_now(machine))
        entries = federation.entries()
        one, two = (entry for entry in entries if entry["kind"] == "corrected")
        assert entries[two["first"]]["kind"] == "changed"
        assert two["first"] > entries.index(one) > one["first"]
        assert two["ahead"] == 2 * YEARS


@pytest.mark.parametrize(
    ("differences", "ahead"),
    [
        ([], 0.0),
        ([YEARS], 0.0),
        ([YEARS, 0.0], 0.0),
        ([YEARS, YEARS], YEARS),
        ([0.0, 0.0, YEARS], 0.0),
        ([YEARS, 0.0, YEARS], YEARS),
        ([-YEARS, -YEARS, 0.0], -YEARS),
    ],
)
def test_a_clock_is_compared_with_those_of_most_who_ask(
    differences: list[float], ahead: float, tmp_path: Path
) -> None:
    machine, told = Machine(), list[str]()
    with Federation(tmp_path / "server", SPEC, clock=machine.wall) as federation:
        watch = ClockWatch(federation.service.state, lambda text, _: told.append(text))
        for number, difference in enumerate(differences):
            watch.hear(f"client-{number}", machine.wall() - difference)
        assert watch.ahead_of_clients() == pytest.approx(ahead, abs=1.0)
        watch.look()
        watch.look()
        assert len(told) == (ahead > TOLERANCE)
        for number in range(len(differences)):
            watch.hear(f"client-{number}", machine.wall())
        watch.look()
        assert len(told) == 2 * (ahead > TOLERANCE)


def test_a_server_that_starts_long_after_its_last_entry_asks_for_the_time(tmp_path: Path) -> None:
    machine, told = Machine(), list[str]()
    with Federation(tmp_path / "server", SPEC, clock=machine.wall) as federation:
        federation.service.close()
        machine.ahead = YEARS
        opened = Service.open(
            federation.path,
            clock=machine.wall,
            upkeep=False,
            report=lambda text, _: told.append(text),
        )
        with closing(opened):
            (warning,) = told
            assert "unless the server was stopped for as long, the clock is ahead" in warning
        federation.service = federation.opened()
