"""Liars that say now this and now that: marks of parts that change between rounds, a false part
whose sum was not signed, and clocks that were ahead. Nobody else is excluded, or waits for ever.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from expunge.client.round_policy import RoundPolicy
from expunge.client.trust import Peers
from expunge.crypto import Envelope
from expunge.errors import EvidenceError, FormatError
from expunge.secagg import Participant
from expunge.secagg.arbitration import Verdict, examine, verify_masked
from expunge.secagg.unmasking import Decision, rows
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
)
from server.test_server_lying_rounds import judged_of_puppets
from server.test_server_stalling import excluded, forget_one
from server.test_server_turns import is_deleting
from support.masked_round import GATHER, PHASE, Circle

YEARS = 20 * 365 * 86400

# -- marks -----------------------------------------------------------------------------------------


def saying(patch: pytest.MonkeyPatch, says: dict[str, Callable[[], bool]]) -> None:
    """These clients say in their joins whether they hide anybody as they like."""
    true = RoundPolicy.is_exposed

    def is_exposed(self: RoundPolicy, sequence: int) -> bool:
        said = says.get(self.name)
        return true(self, sequence) if said is None else said()

    patch.setattr(RoundPolicy, "is_exposed", is_exposed)


def rounds_of(circle: Circle, passes: int, names: list[str]) -> None:
    for _ in range(passes):
        circle.pass_round()
        circle.wait(GATHER if circle.phase == "joining" else PHASE / 2)
        circle.federation.clock.now += RULES.set_aside_after // 20
        if not is_deleting(circle, *names):
            return


def in_one_row(patch: pytest.MonkeyPatch, names: list[str], *liars: str) -> None:
    """Rounds get ids by which these are in one of two rows: liars can leave all other rounds."""
    true = secrets.token_hex

    def token_hex(size: int | None = None) -> str:
        while True:
            drawn = true(size)
            parts = frozenset((name, 1) for name in names)
            void = Decision("voided", drawn, parts, signers=frozenset(names), size=len(names))
            cut = rows(void, RULES)
            if any(set(liars) <= set(dict(row)) for row in cut):
                return drawn

    patch.setattr(secrets, "token_hex", token_hex)


@pytest.mark.parametrize("first", [True, False], ids=["marked first", "marked later"])
def test_two_liars_that_change_their_marks_are_excluded_alone(first: bool) -> None:
    """One lies in the second of two sums of the same eight, so that it is cut into rows of four:
    in theirs, the honest two would be few, or not, by which marks one goes.
    """
    with circle_of(8) as circle, pytest.MonkeyPatch.context() as patch:
        honest, liars = circle.names[:6], circle.names[6:]
        marked = [first]
        saying(patch, dict.fromkeys(liars, lambda: marked[0]))
        in_one_row(patch, circle.names, *liars)
        forget_one(circle, *circle.names)
        circle.until("revealing")
        circle.restart_server()
        marked[0] = not first
        with lying(circle, {liars[0]: negative}):
            rounds_of(circle, 90, honest)
        assert not is_deleting(circle, *honest)
        assert {name for names in excluded(circle) for name in names} <= set(liars)
        circle.check()


@pytest.mark.parametrize("number", range(3))
def test_marks_that_change_with_each_join_exclude_nobody_else(number: int) -> None:
    with circle_of(6) as circle, pytest.MonkeyPatch.context() as patch:
        honest, liars = circle.names[:4], circle.names[4:]
        asked = [number]

        def changing() -> bool:
            asked[0] += 1
            return bool(asked[0] // (number + 1) % 2)

        saying(patch, dict.fromkeys(liars, changing))
        forget_one(circle, *circle.names)
        circle.until("revealing")
        circle.restart_server()
        rounds_of(circle, 60, honest)
        assert not is_deleting(circle, *honest)
        assert {name for names in excluded(circle) for name in names} <= set(liars)
        circle.check()


def test_a_join_that_contradicts_says_why_it_was_left_out() -> None:
    with circle_of(6) as circle, pytest.MonkeyPatch.context() as patch:
        forget_one(circle, "c0")
        circle.until("revealing")
        circle.restart_server()
        saying(patch, {"c5": lambda: True})
        for _ in range(4):
            done = circle.pass_round()
            circle.wait(GATHER)
        assert not excluded(circle)
        assert "nothing in the log has made that so" in done["c5"].waiting
        assert "a sum without c5 would show what they changed" in done["c0"].waiting


# -- who did not sign ------------------------------------------------------------------------------


class NotSignedError(EvidenceError):
    pass


def unsigned(patch: pytest.MonkeyPatch, circle: Circle, liar: str) -> None:
    """A client masks its part and agrees to nothing."""
    true = Participant.on_survivors

    def on_survivors(self: Participant, told: bytes) -> bytes:
        if self.name == liar:
            raise NotSignedError("it does not sign")
        return true(self, told)

    patch.setattr(Participant, "on_survivors", on_survivors)


def until_judged(circle: Circle, liar: str) -> None:
    """A false sum, which the liar has not signed, and the verdict about it."""
    with pytest.MonkeyPatch.context() as patch, lying(circle, {liar: negative}):
        unsigned(patch, circle, liar)
        for _ in range(30):
            for name in circle.names:
                with suppress(NotSignedError):
                    circle.sync(name)
            circle.wait(GATHER if circle.phase == "joining" else PHASE / 2)
            if circle.entries("voided"):
                break
        until_disputed(circle)
    (entry,) = circle.entries("voided")
    assert liar not in entry["agreed"]
    dispute = dispute_of(circle)
    judged(circle, dispute, examine(dispute, ARBITER))


def barred(circle: Circle, name: str) -> frozenset[str]:
    return Peers.from_text(circle.stores[name].recall("peers")).barred


def test_a_liar_that_did_not_sign_its_sum_is_barred_by_all() -> None:
    """By what it has signed to have sent."""
    with circle_of(6) as circle:
        honest = [name for name in circle.names if name != "c2"]
        circle.everybody_adds()
        until_judged(circle, "c2")
        (entry,) = circle.entries("judged")
        assert (entry["version"], list(entry["masked"])) == (2, ["c2"])
        circle.go(*honest, passes=20)
        assert all(barred(circle, name) == {"c2"} for name in honest)
        assert not any(circle.stores[name].status().adding for name in honest)
        circle.check()


def test_a_verdict_about_those_that_signed_has_the_first_version() -> None:
    with circle_of(4) as circle, lying(circle, {"c2": negative}):
        circle.everybody_adds()
        until_disputed(circle)
        dispute = dispute_of(circle)
        judged(circle, dispute, examine(dispute, ARBITER))
        (entry,) = circle.entries("judged")
        assert "version" not in entry


Sent = dict[str, list[str]]  # header and signature by client, as the log shows them


def of_another_round(sent: Sent) -> Sent:
    return {"c0": sent["c0"]}


def of_another_client(sent: Sent) -> Sent:
    return {"c0": sent["c1"]}


def without_signature(sent: Sent) -> Sent:
    return {"c0": sent["c0"][:1]}


@pytest.mark.parametrize("lie", [of_another_round, of_another_client, without_signature])
def test_nobody_is_barred_by_what_it_has_sent_elsewhere(lie: Callable[[Sent], Sent]) -> None:
    """The server plays a round with its own keys, so that the arbiter finds c0 false, colluders
    sign its sum, and shows what c0 has sent in a real one.
    """
    with after_a_sum(5) as (circle, server):
        masked = lie(server.sent[0])
        judged_of_puppets(server, "c0", circle.names[1:], version=2, masked=masked)
        with pytest.raises(
            (EvidenceError, FormatError),
            match=r"masked vector|another round|a header",
        ):
            server.sum_of(*circle.names[1:], passes=8)
        assert len(server.sums) == 1
        assert barred(circle, "c1") == frozenset()


def test_what_was_sent_must_be_signed_by_its_client() -> None:
    with circle_of(6) as circle:
        circle.everybody_adds()
        until_judged(circle, "c2")
        (entry,) = circle.entries("judged")
        verdict = Verdict.read(Envelope.from_json(entry["verdict"], "verdict"), ARBITER.public)
        keys = {name: store.key.public for name, store in circle.stores.items()}
        verify_masked(entry["masked"], verdict, keys)
        with pytest.raises(EvidenceError):
            verify_masked(entry["masked"], verdict, keys | {"c2": keys["c1"]})
        with pytest.raises(EvidenceError, match="no masked vector of c2"):
            verify_masked(entry["masked"], verdict, {"c1": keys["c1"]})
        with pytest.raises(EvidenceError, match="another round"):
            verify_masked(entry["masked"], replace(verdict, roster="0" * 64), keys)


# -- clocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_was_ahead_when_a_sum_was_asked_for_puts_off_nothing(restarts: bool) -> None:
    """However often the server is started anew since, c4 has the time of the rules, and no more."""
    with circle_of(5) as circle:
        clock, rest = circle.federation.clock, circle.names[:4]
        forget_one(circle, *circle.names)
        circle.until("masking")
        clock.now += YEARS
        later = {"wall_clock": lambda: clock.now - YEARS}
        for _ in range(3):
            for name in circle.names:
                if circle.phase != "revealing":
                    circle.sync(name, **later)
        assert circle.phase == "revealing"
        circle.restart_server()
        clock.now -= YEARS
        for _ in range(10):
            if restarts:
                circle.restart_server()
            circle.go(*rest, passes=6)
            clock.now += RULES.set_aside_after // 5
        assert excluded(circle) == [["c4"]]
        assert not is_deleting(circle, *rest)


def test_nobody_is_excluded_early_since_the_clock_was_ahead_before() -> None:
    """What was stamped then is in the future, for years; a sum that is asked for later waits as
    long as others do.
    """
    with circle_of(5) as circle:
        clock, rest = circle.federation.clock, circle.names[:4]
        clock.now += YEARS
        circle.everybody_adds("c0")
        circle.go()
        clock.now -= YEARS
        for _ in range(12):  # some weeks
            circle.go(passes=2)
            clock.now += RULES.set_aside_after
        forget_one(circle, *circle.names)
        circle.until("revealing")
        circle.restart_server()
        for _ in range(4):
            circle.go(*rest, passes=4)
            clock.now += RULES.set_aside_after // 5
        assert excluded(circle) == []
        for _ in range(4):
            circle.go(*rest, passes=6)
            clock.now += RULES.set_aside_after // 5
        assert excluded(circle) == [["c4"]]
