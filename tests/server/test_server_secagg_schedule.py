"""Rounds on a schedule: everybody takes part in every window, and nobody outside of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from expunge import Aggregation, kinds
from expunge.client import Agent, Selection, SyncResult
from expunge.secagg import read_preamble
from expunge.secagg.schedule import Schedule
from expunge.server.backup import restore
from expunge.wire import payloads
from expunge.wire.schema import UNDISCLOSED
from support.federation import NOW
from support.masked_round import GATHER, PHASE, SPEC, Circle, drawn

EVERY, WINDOW = 3600, 300
SCHEDULED = replace(SPEC, aggregation=Aggregation(fewest=3, every=EVERY, window=WINDOW))
BEGIN = NOW // EVERY * EVERY + EVERY  # of the first window
SUBJECT = "subject-17"


class Scheduled(Circle):
    """A circle whose clocks, the server's and the clients', are set together."""

    def at(self, seconds: float, window: int = 0) -> None:
        """Go to a second of a window, counted from its beginning."""
        wanted = BEGIN + window * EVERY + seconds
        passed = wanted - self.federation.clock.now
        assert passed >= 0, "clocks do not go back"
        self.pass_time(passed)

    def pass_time(self, seconds: float) -> None:
        self.federation.clock.now += seconds
        self.federation.seconds.now += seconds

    def meet(self, *names: str, passes: int = 12) -> dict[str, SyncResult]:
        """Sync these again and again, within seconds, until none of them is in a round."""
        done = self.pass_round(*names)
        for _ in range(passes):
            self.pass_time(1)
            stores = [self.stores[name] for name in names or self.names]
            if not any(store.participation.read() for store in stores):
                break
            done = {
                name: done[name].followed_by(one) for name, one in self.pass_round(*names).items()
            }
        return done

    def turns(self) -> int:
        return len(self.way.said)

    def rounds(self) -> list[list[str]]:
        """Who was in the rounds that took effect."""
        return [
            [member["client"] for member in entry["clients"]]
            for entry in self.entries("aggregated")
        ]


def scheduled(clients: int = 3, **options: Any) -> Any:
    return drawn(clients, make=Scheduled, **({"spec": SCHEDULED} | options))


@pytest.fixture
def circle() -> Iterator[Scheduled]:
    with scheduled() as one:
        yield one


def order(circle: Circle, **options: Any) -> str:
    return str(circle.federation.operator.command("order", subject=SUBJECT, **options)["order"])


# -- windows ---------------------------------------------------------------------------------------


def test_outside_of_windows_nobody_asks_for_a_round_and_changes_wait(circle: Scheduled) -> None:
    circle.at(WINDOW + 60)
    circle.add("c0")
    before = circle.turns()
    done = circle.pass_round()
    assert circle.turns() == before
    assert "the next round begins on" in done["c0"].waiting
    assert "and is joined for 5m" in done["c0"].waiting
    assert not done["c1"].waiting  # it has nothing that could wait
    assert circle.phase == ""


def test_windows_open_though_the_log_is_stamped_ahead(circle: Scheduled) -> None:
    """The server was started with a clock that was a day ahead, and then put right: times in the
    log stand still for that day, but deletions do not wait for it.
    """
    clock, day = circle.federation.clock, 86400
    circle.at(WINDOW + 60)
    clock.now += day
    circle.restart_server()
    order(circle)
    clock.now -= day
    circle.restart_server()
    for window in (1, 2):
        circle.at(10, window=window)
        circle.add("c0")
        circle.meet()
        assert len(circle.rounds()) == window
    circle.check_whole()


def test_in_a_window_everybody_joins_and_one_change_takes_effect(circle: Scheduled) -> None:
    circle.at(10)
    circle.add("c0")
    done = circle.meet()
    assert circle.rounds() == [["c0", "c1", "c2"]]
    assert len(done["c0"].receipts) == 1
    circle.check_whole()


def test_an_idle_client_begins_a_round_and_a_round_of_zeros_changes_nothing(
    circle: Scheduled,
) -> None:
    circle.at(0)
    circle.everybody_adds()
    circle.meet()
    circle.at(0, window=1)
    before = circle.ledger()
    circle.sync("c2")
    assert circle.phase == "joining"
    circle.meet()
    assert circle.rounds() == [["c0", "c1", "c2"]] * 2
    digest, number, head = circle.ledger()
    assert (digest, number, head) == (before[0], before[1] + 1, before[2])
    assert circle.entries("aggregated")[-1]["added"] == 0


def test_a_client_takes_part_once_in_a_window(circle: Scheduled) -> None:
    circle.at(0)
    circle.everybody_adds()
    circle.meet()
    said = circle.turns()
    circle.add("c1")
    done = circle.pass_round()
    assert circle.turns() == said
    assert "has been in the round of this window" in done["c1"].waiting
    circle.at(0, window=1)
    circle.meet()
    circle.check_whole()


def test_joining_ends_with_the_window_if_somebody_stays_away() -> None:
    with scheduled(4) as circle:
        circle.at(0)
        circle.everybody_adds("c0", "c1", "c2")
        circle.pass_round("c0", "c1", "c2")
        circle.pass_time(WINDOW - 1)
        circle.pass_round("c0", "c1", "c2")
        assert circle.phase == "joining"  # long after rounds without a schedule would have begun
        assert GATHER < WINDOW - 1
        circle.pass_time(1)
        circle.meet("c0", "c1", "c2")
        assert circle.rounds() == [["c0", "c1", "c2"]]
        circle.check_whole()


def test_a_client_that_comes_late_is_told_when_the_next_round_is(circle: Scheduled) -> None:
    circle.at(0)
    circle.everybody_adds()
    circle.meet()
    circle.enrol("c3")
    circle.add("c3")
    circle.pass_time(WINDOW - 60)  # the window is open, but its round has taken effect
    assert "the next round begins on" in circle.sync("c3").waiting
    assert circle.phase == ""
    circle.at(0, window=1)
    circle.meet()
    assert circle.rounds()[-1] == ["c0", "c1", "c2", "c3"]
    circle.check_whole()


@pytest.mark.parametrize("joined", [1, 2])
def test_a_window_with_too_few_clients_ends_and_binds_nobody(
    circle: Scheduled, joined: int
) -> None:
    names = circle.names[:joined]
    circle.at(0)
    circle.everybody_adds(*names)
    circle.pass_round(*names)
    assert circle.phase == "joining"
    circle.at(WINDOW)
    before = circle.ledger()
    waiting = circle.sync("c0").waiting
    assert f"{joined} of the 3 clients that a round needs joined" in waiting
    assert "the next round begins on" in waiting
    assert (circle.phase, circle.ledger()) == ("", before)
    assert circle.service.state.storage.rounds.attempts() == []
    for name in names:
        circle.sync(name)
        assert circle.stores[name].participation.read() is None
        assert circle.stores[name].recall("masked") is None
    circle.add("c0")  # what waits can still grow
    circle.at(0, window=1)
    circle.meet()
    circle.check_whole()


def test_later_phases_go_on_after_the_window_and_into_the_next(circle: Scheduled) -> None:
    circle.at(WINDOW - 2)
    circle.everybody_adds()
    circle.pass_round()
    circle.pass_round()
    assert circle.phase not in ("", "joining")
    circle.at(WINDOW + 30)
    circle.meet()
    circle.check_whole()


def test_a_round_that_runs_into_the_next_window_ends_first(circle: Scheduled) -> None:
    circle.at(WINDOW - 2)
    circle.everybody_adds()
    circle.until("masking")
    circle.federation.clock.now = BEGIN + EVERY + 1  # clients come late, the phase is patient
    circle.meet(passes=20)
    circle.check_whole()
    assert circle.rounds()[0] == circle.names
    circle.meet()
    assert len(circle.rounds()) == 2  # and in the same window there is room for the next


def test_a_round_that_is_aborted_is_repeated_in_the_same_window(circle: Scheduled) -> None:
    """Of three nobody may drop out."""
    circle.at(0)
    circle.everybody_adds()
    circle.until("masking")
    circle.pass_time(PHASE)
    done = circle.sync("c0")
    assert "Nothing was changed" in done.waiting
    circle.meet(passes=20)
    circle.check_whole()
    assert circle.federation.clock.now < BEGIN + WINDOW


def test_windows_that_nobody_comes_to_cost_nothing(circle: Scheduled) -> None:
    circle.at(0)
    circle.everybody_adds()
    circle.meet()
    log, said = len(circle.federation.entries()), circle.turns()
    circle.at(WINDOW + 61, window=24)
    assert circle.service.rounds is not None
    assert circle.service.rounds.is_between_rounds
    circle.pass_round()
    assert (len(circle.federation.entries()), circle.turns()) == (log, said)


def test_a_round_that_only_one_came_to_does_not_hold_up_a_later_window(circle: Scheduled) -> None:
    circle.at(0)
    circle.add("c0")
    circle.sync("c0")
    circle.at(5, window=7)
    circle.meet(passes=20)
    circle.check_whole()
    assert len(circle.rounds()) == 1


@pytest.mark.parametrize("seconds", range(1, 12))
def test_a_round_that_is_opened_as_the_window_ends_has_no_other_end(
    circle: Scheduled, seconds: int
) -> None:
    """The clock goes on by a second whenever the server looks at it."""
    circle.at(WINDOW - seconds)
    circle.add("c0")
    federation, clock = circle.federation, circle.federation.clock
    is_ticking = True

    def tick() -> float:
        clock.now += is_ticking
        return clock.now

    federation.service.close()
    federation.service = federation.opened(schedule=tick)
    circle.sync("c0")
    rounds = circle.service.rounds
    assert rounds is not None
    assert rounds._round is None or rounds._round.window == BEGIN
    is_ticking = False
    circle.pass_time(WINDOW)
    circle.sync("c0")
    assert (circle.phase, circle.rounds()) == ("", [])


def test_windows_may_adjoin() -> None:
    spec = replace(SPEC, aggregation=Aggregation(fewest=3, every=600, window=600))
    with scheduled(spec=spec) as circle:
        circle.everybody_adds()
        circle.meet()
        circle.check_whole()
        circle.add("c0")
        assert circle.sync("c0").waiting
        circle.pass_time(600)
        circle.meet()
        circle.check_whole()


# -- restarts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", kinds.PHASES[:-1])
def test_a_server_restarted_in_any_phase_opens_the_round_anew(
    circle: Scheduled, phase: str
) -> None:
    circle.at(0)
    circle.everybody_adds()
    circle.until(phase)
    circle.restart_server()
    assert "started anew" in circle.sync("c0").waiting
    circle.meet(passes=20)
    circle.check_whole()
    assert len(circle.rounds()) == 1
    assert circle.federation.clock.now < BEGIN + WINDOW


@pytest.mark.parametrize("phase", kinds.PHASES[:-1])
def test_a_server_restarted_after_the_window_opens_a_round_in_the_next(
    circle: Scheduled, phase: str
) -> None:
    circle.at(WINDOW - 20)
    circle.everybody_adds()
    circle.until(phase)
    circle.at(WINDOW + 61)
    circle.restart_server()
    for name in circle.names:
        circle.sync(name)  # it learns that the round is lost
        assert circle.sync(name).waiting
    assert (circle.phase, circle.rounds()) == ("", [])
    circle.at(0, window=1)
    circle.meet(passes=20)
    circle.check_whole()


def test_a_server_restarted_after_its_round_opens_no_other_for_those_who_were_in_it(
    circle: Scheduled,
) -> None:
    circle.at(0)
    circle.everybody_adds()
    circle.meet()
    circle.restart_server()
    circle.pass_round()
    assert circle.phase == ""
    assert len(circle.rounds()) == 1


def test_a_client_reopened_in_a_round_goes_on(circle: Scheduled) -> None:
    circle.at(0)
    circle.add("c0")
    circle.until("masking")
    for name in circle.names:
        circle.restart_client(name)
    circle.meet()
    for name in circle.names:
        circle.restart_client(name)
    said = circle.turns()
    circle.pass_round()
    assert circle.turns() == said  # they know that they have been in this window's round
    circle.check_whole()


def test_clients_rejoin_a_restored_server_in_a_window(circle: Scheduled) -> None:
    circle.at(0)
    circle.everybody_adds()
    circle.meet()
    federation = circle.federation
    federation.operator.command("backup", name="first")
    key, vault = federation.server_key, federation.path / "server.vault"
    federation.close()
    place = federation.path.parent / "restored"
    restore(place, federation.path / "backups" / "first", key, vault=vault, clock=federation.clock)
    federation.path = place
    federation.service = federation.opened()
    circle.at(WINDOW + 100)
    for name in circle.names:
        assert "next round" in circle.sync(name, accept_restored=True).waiting
    circle.at(0, window=1)
    for _ in range(9):
        for name in circle.names:
            circle.sync(name, accept_restored=True)
    circle.check_whole()


# -- clocks and lies -------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [-60, -1, 1, 60])
@pytest.mark.parametrize("second", [0, WINDOW // 2, WINDOW - 10])
def test_a_client_whose_clock_is_off_by_a_minute_takes_part(
    circle: Scheduled, ahead: int, second: int
) -> None:
    circle.at(second)
    circle.everybody_adds()
    clock = circle.federation.clock
    for _ in range(9):
        circle.sync("c0", wall_clock=lambda: clock() + ahead)
        circle.pass_round("c1", "c2")
    circle.check_whole()
    assert len(circle.rounds()) == 1


@pytest.mark.parametrize("ahead", [-400, -61, 361, 1800])
def test_a_client_whose_clock_is_wrong_waits_and_says_what_time_it_has(
    circle: Scheduled, ahead: int
) -> None:
    circle.at(0)
    circle.add("c0")
    clock, said = circle.federation.clock, circle.turns()
    waiting = circle.sync("c0", wall_clock=lambda: clock() + ahead).waiting
    assert waiting.startswith("by this client's clock it is ")
    assert circle.turns() == said


def test_a_client_that_is_early_waits_for_the_server_to_open_the_window(circle: Scheduled) -> None:
    circle.at(-30)
    circle.add("c0")
    assert "the next round begins on" in circle.sync("c0").waiting
    assert circle.phase == ""
    (_, answer) = circle.way.said[-1]
    _, content = payloads.open_unverified("standing", answer)
    assert (content["phase"], content["opening"]) == ("closed", None)
    assert circle.service.rounds is not None
    assert circle.service.rounds.pulse()[1] == 30
    circle.at(0)
    circle.meet()
    circle.check_whole()


@pytest.fixture
def cheat(circle: Scheduled) -> None:
    """A server that opens rounds whenever it likes: by its clock it is always in a window, and in
    another one after each round.
    """
    federation = circle.federation
    federation.service.close()
    federation.service = federation.opened(
        schedule=lambda: float(BEGIN + 1 + EVERY * len(circle.rounds()))
    )


@pytest.mark.usefixtures("cheat")
@pytest.mark.parametrize("second", [WINDOW + 60, WINDOW + 61, EVERY // 2, EVERY - 61])
def test_a_server_that_opens_rounds_off_schedule_gets_no_join(
    circle: Scheduled, second: int
) -> None:
    circle.at(second)
    circle.everybody_adds()
    said = circle.turns()
    done = circle.pass_round()
    assert all("the next round begins on" in one.waiting for one in done.values())
    assert circle.turns() == said
    assert circle.phase == ""


@pytest.mark.usefixtures("cheat")
def test_a_server_that_answers_after_the_window_gets_no_join(circle: Scheduled) -> None:
    """It holds its answer back until the window is over; the client looks at its clock again."""
    circle.at(0)
    circle.add("c0")

    def late(answer: bytes) -> bytes:
        circle.federation.clock.now = BEGIN + WINDOW + 60
        return answer

    circle.way.change["aggregate"] = late
    assert "by this client's clock" in circle.sync("c0").waiting
    kinds_said = [data[:1] for who, data in circle.way.said if who == "said"]
    assert kinds_said == [b"{"]  # a question, and no join
    assert circle.stores["c0"].participation.read() is None


@pytest.mark.usefixtures("cheat")
def test_a_server_that_opens_a_second_round_in_a_window_gets_no_join(circle: Scheduled) -> None:
    circle.at(0)
    circle.everybody_adds()
    for _ in range(9):
        circle.pass_round()
    assert len(circle.rounds()) == 1
    said = circle.turns()
    circle.everybody_adds()
    circle.pass_round()
    assert circle.turns() == said


# -- what the server sees --------------------------------------------------------------------------


class View:
    """All that a server sees of its clients: who calls what, when, with how many bytes, and what
    it says of itself in the clear.
    """

    def __init__(self, circle: Scheduled) -> None:
        self._circle = circle
        self.seen: list[tuple[Any, ...]] = []

    def of(self, name: str) -> Any:
        view, circle = self, self._circle

        class Watched:
            def __getattr__(self, call: str) -> Any:
                def carry(*arguments: Any) -> Any:
                    view.seen.append(
                        (circle.federation.clock(), name, call, *map(_described, arguments))
                    )
                    return getattr(circle.way, call)(*arguments)

                return carry

        return Watched()


def _described(argument: Any) -> Any:
    if not isinstance(argument, bytes):
        return type(argument).__name__
    if not argument.startswith(b"{"):
        claims = read_preamble(argument) if b"\x00said\x00" in argument[:13] else None
        return (len(argument), claims and (claims.kind, claims.sequence))
    for kind in ("turn", "question"):
        try:
            _, content = payloads.open_unverified(kind, argument)
        except ValueError:
            continue
        hidden = ("nonce", "aggregation", "federation", "actor")
        return kind, len(argument), {key: content[key] for key in content if key not in hidden}
    return len(argument)


def seen_by_the_server(holder: str, how: str) -> list[tuple[Any, ...]]:
    """What it sees from when `holder` has to delete one sample: by an order, by its own will, or,
    as `holder` is nobody, not at all; "waits" if these are too few to go out at once.
    """
    spec = replace(SCHEDULED, fewest_samples=3 if how == "order that waits" else 0)
    with scheduled(seed=7, spec=spec) as circle:
        circle.at(0)
        for name in circle.names:
            circle.add(name, 2, SUBJECT if name == holder and how != "own will" else "other")
            circle.add(name, 2)
        circle.meet()
        circle.at(WINDOW + 100)
        if how != "own will":
            order(circle, days=1)
        elif holder:
            circle.stores[holder].forget(Selection(ids=[next(iter(circle.held[holder]))]))
        view = View(circle)
        for window in range(7 if how == "order that waits" else 2):
            for second in (0, 40, 80, 120, 160, 200, 240, 1800):
                circle.at(second + (WINDOW + 200 if not window else 0), window)
                for name in circle.names:
                    circle.pass_time(1)
                    now = circle.federation.clock
                    Agent(circle.stores[name], view.of(name), wall_clock=now, attempts=1).sync()
        last = circle.entries("aggregated")[-1]
        assert last["deleted"] == (0 if not holder else 2 if how != "own will" else 1)
        return view.seen


@pytest.mark.parametrize("how", ["order", "order that waits", "own will"])
def test_what_the_server_sees_is_the_same_whoever_holds_the_sample(how: str) -> None:
    views = {
        holder: seen_by_the_server(holder, how)
        for holder in ("c0", "c1", "c2", *([""] if how == "own will" else []))
    }
    first = views["c0"]
    assert all(view == first for view in views.values())
    calls = [entry[2] for entry in first]
    assert calls.count("aggregate") > 3 * 6


def test_an_order_about_one_sample_at_one_of_three_clients_completes(circle: Scheduled) -> None:
    """Nobody else ever changes anything; all sync every quarter of an hour."""
    circle.at(0)
    circle.everybody_adds()
    (sample,) = circle.add("c1", 1, SUBJECT)
    circle.meet()
    number, filed = order(circle, days=1), circle.federation.clock.now
    del circle.held["c1"][sample]
    ask = circle.federation.operator.ask
    while ask("show-order", order=number)["state"] == "open":
        circle.pass_time(900 - (circle.federation.clock.now % 900))
        circle.meet()
    told = ask("show-order", order=number)
    assert told["state"] == "complete"
    assert circle.federation.clock.now - filed < 2 * EVERY
    assert {answer["found"] for answer in told["answers"]} == {UNDISCLOSED}
    assert circle.rounds()[-1] == circle.names
    circle.check_whole()


@pytest.mark.parametrize(("every", "days"), [(1, 1), (1, 3), (7, 8)])
def test_an_order_that_waits_for_more_samples_goes_out_before_its_quarter_ends(
    every: int, days: int
) -> None:
    """Not in the first window after it: where windows are far apart, that may be too late."""
    rules = Aggregation(fewest=3, every=every * 86400, window=WINDOW)
    with scheduled(spec=replace(SPEC, fewest_samples=4, aggregation=rules)) as circle:
        clock = circle.federation.clock
        begin = int(clock.now) // rules.every * rules.every + rules.every
        circle.pass_time(begin - clock.now)
        for name in circle.names:
            circle.add(name, 4)
        circle.add("c1", 1, SUBJECT)
        circle.meet()
        due = days * 86400 // 4
        circle.pass_time(begin + rules.every - due + 3600 - clock.now)
        number = order(circle, days=days)
        circle.pass_round()
        circle.pass_time(begin + rules.every - clock.now)
        circle.meet()
        assert circle.federation.operator.ask("show-order", order=number)["state"] == "complete"
        assert circle.entries("aggregated")[-1]["deleted"] == 1


# -- audits and rebuilds ---------------------------------------------------------------------------


@pytest.mark.parametrize("second", [0, WINDOW + 600])
def test_an_audit_needs_no_window_and_comes_after_the_changes_of_one(
    circle: Scheduled, second: int
) -> None:
    circle.at(0)
    circle.everybody_adds()
    circle.meet()
    circle.at(second, window=1)
    circle.federation.operator.command("audit")
    circle.go(passes=30)
    assert [entry["result"] for entry in circle.entries("audited")] == ["equal"]
    assert len(circle.rounds()) == (2 if second == 0 else 1)


@pytest.mark.parametrize("second", [0, WINDOW + 600])
def test_a_rebuild_needs_no_window(second: int) -> None:
    with scheduled(4) as circle:
        circle.at(0)
        circle.everybody_adds()
        circle.meet()
        circle.at(second, window=1)
        circle.forget_client("c3")
        circle.go(passes=30)
        assert [entry["client"] for entry in circle.entries("forgotten")] == ["c3"]
        circle.check()


def test_an_audit_that_lacks_a_client_does_not_hold_up_changes() -> None:
    """A window belongs to changes, however long an audit waits."""
    with scheduled(4) as circle:
        circle.at(WINDOW + 100)
        circle.federation.operator.command("audit")
        circle.everybody_adds("c0", "c1", "c2")
        for name in ("c0", "c1", "c2"):
            assert circle.sync(name).waiting
        assert circle.phase == "joining"
        circle.at(0, window=1)
        for second in range(0, WINDOW, 20):
            circle.at(second, window=1)
            circle.pass_round("c0", "c1", "c2")
        circle.at(WINDOW, window=1)
        circle.meet("c0", "c1", "c2")
        assert circle.rounds() == [["c0", "c1", "c2"]]


def test_the_schedule_of_a_circle_is_the_schedule_of_its_spec(circle: Scheduled) -> None:
    assert Schedule.of(circle.spec.aggregation) == Schedule(EVERY, WINDOW)
