"""A clock that somebody sets: a jump ahead stamps nothing with a time to come, and is told."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.evidence.log import read_entry
from expunge.server.clock import TOLERANCE, SteadyClock, seconds_since_start
from expunge.server.service import Service
from expunge.wire.schema import time_seconds
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
