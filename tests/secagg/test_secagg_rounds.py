"""Rounds of secure aggregation: the sum is exact, whoever drops out and whenever; or there is
none.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge import Statistics
from expunge.errors import EvidenceError, FormatError, ProtocolError, SpecMismatchError
from expunge.exact import wide
from expunge.ridge.spec import Aggregation
from expunge.secagg import Aborted, Contribution, Opening, Participant, plan, read_preamble
from expunge.secagg.plan import share_of
from support.samples import SPEC, draw, statistics_of
from support.secagg import (
    OPENING,
    RING,
    RULES,
    SPARSE,
    STEPS,
    Room,
    draw_vectors,
    key_of,
    name_of,
    state_of,
    total,
)

NEVER = "never"
WHEN = st.sampled_from([NEVER, NEVER, NEVER, *STEPS])


def dropped(when: dict[str, str]) -> dict[str, list[str]]:
    return {step: [name for name, step_of in when.items() if step_of == step] for step in STEPS}


def outcome(room: Room, drops: dict[str, list[str]]) -> wide.Wide | str:
    """The sum, or why there is none."""
    try:
        return room.run(drops)
    except Aborted as aborted:
        return aborted.reason


@given(st.lists(WHEN, min_size=3, max_size=9), st.integers(1, 40), st.integers(0, 2**32))
@settings(max_examples=40)
def test_the_sum_is_exact_or_there_is_none(when: list[str], length: int, seed: int) -> None:
    clients = len(when)
    room = Room(draw_vectors(clients, length, seed))
    by_name = {name_of(place): step for place, step in enumerate(when)}
    included = [name for name, step in by_name.items() if step not in ("sharing", "masking")]
    gone, allowed = clients - when.count(NEVER), clients - plan(RULES, clients).survivors
    found = outcome(room, dropped(by_name))
    if isinstance(found, str):
        assert gone > allowed or len(included) < RULES.fewest
        assert "Nothing was learnt" in found
        with pytest.raises(ProtocolError, match="no sum"):
            room.collector.sum()
        return
    assert clients - len(included) <= allowed
    assert len(included) >= RULES.fewest
    assert room.collector.included == [(name, 5) for name in sorted(included)]
    assert np.array_equal(found, total(room.vectors[name] for name in included))


@pytest.mark.long
@given(st.integers(RING, RING + 20), st.integers(0, 2**32), st.data())
@settings(max_examples=2)
def test_the_sum_is_exact_on_a_ring_that_is_not_complete(
    clients: int, seed: int, data: st.DataObject
) -> None:
    room = Room(draw_vectors(clients, 3, seed), SPARSE, seed=str(seed))
    assert plan(SPARSE, clients).degree < clients - 1
    names = data.draw(st.permutations(room.names))[: share_of(SPARSE.dropouts, clients)]
    when = {name: data.draw(st.sampled_from(STEPS)) for name in names}
    found = outcome(room, dropped(when))
    if isinstance(found, str):  # these rules allow for that one time in four
        assert "shares are needed to open a mask" in found
        return
    included = [name for name in room.names if when.get(name) not in ("sharing", "masking")]
    assert [name for name, _ in room.collector.included] == included
    assert np.array_equal(found, total(room.vectors[name] for name in included))


@pytest.mark.parametrize("clients", [3, 10, 40])
def test_the_sum_over_those_included_has_the_digest_of_the_plain_sum(clients: int) -> None:
    rng = np.random.default_rng(clients)
    names = [name_of(place) for place in range(clients)]
    parts = {
        name: (statistics_of(SPEC, draw(rng, 4)), statistics_of(SPEC, draw(rng, 2)))
        for name in names
    }
    room = Room({name: Contribution.of(*parts[name], SPEC).vector() for name in names})
    out = names[: clients - plan(RULES, clients).survivors]
    third = len(out) // 3
    found = Contribution.from_vector(
        SPEC, room.run({"sharing": out[:third], "masking": out[third:-1], "revealing": out[-1:]})
    )
    kept = [name for name, _ in room.collector.included]
    plain = sum((parts[name][0] - parts[name][1] for name in kept), Statistics.zero(SPEC))
    assert found.statistics.digest == plain.digest
    assert (found.added, found.deleted) == (4 * len(kept), 2 * len(kept))
    assert set(out[third:-1]).isdisjoint(kept)
    assert set(out[-1:]) <= set(kept)


@pytest.mark.parametrize("step", STEPS)
def test_three_clients_are_enough_but_none_may_vanish(step: str) -> None:
    """Of three, one may collude: two that agree are no quorum, and two shares open nothing."""
    room = Room(draw_vectors(3))
    assert np.array_equal(room.run(), total(room.vectors.values()))
    with pytest.raises(Aborted):
        Room(draw_vectors(3)).run({step: [name_of(1)]})


def test_of_four_clients_one_may_vanish_at_the_end() -> None:
    room = Room(draw_vectors(4))
    assert np.array_equal(room.run({"revealing": [name_of(1)]}), total(room.vectors.values()))


def test_phases_show_who_is_awaited_and_what_to_say() -> None:
    room = Room(draw_vectors(4), Aggregation(dropouts=30))
    collector = room.collector
    assert (collector.phase, collector.awaited, collector.say(name_of(0)), collector.included) == (
        "joining",
        frozenset(),
        None,
        [],
    )
    room.join()
    assert collector.clients == tuple(room.names)
    collector.advance()
    assert (collector.phase, collector.awaited) == ("sharing", frozenset(room.names))
    assert collector.say("stranger") is None
    room.go(without=[name_of(3)])
    assert (collector.phase, collector.awaited) == ("masking", frozenset(room.names[:3]))
    assert collector.say(name_of(3)) is None
    room.go()
    assert (collector.phase, collector.say(name_of(3))) == ("agreeing", None)
    room.go()
    assert (collector.phase, collector.say(name_of(3))) == ("revealing", None)
    room.go()
    assert (collector.phase, collector.awaited, collector.say(name_of(0))) == (
        "done",
        frozenset(),
        None,
    )
    assert all(room.participants[name].included == collector.included for name in room.names[:3])
    assert room.participants[name_of(3)].included is None
    with pytest.raises(ProtocolError, match="done"):
        collector.advance()


# -- too few ---------------------------------------------------------------------------------------


def test_too_few_that_joined_may_be_waited_for() -> None:
    room = Room(draw_vectors(3))
    room.join(room.names[:2])
    with pytest.raises(
        Aborted, match=r"2 clients joined \(client-00, client-01\), but the rules ask for 3"
    ):
        room.collector.advance()
    assert room.collector.phase == "joining"
    room.join(room.names[2:])
    room.collector.advance()
    for _ in STEPS:
        room.go()
    assert np.array_equal(room.collector.sum(), total(room.vectors.values()))


@pytest.mark.parametrize(
    ("step", "what"), [("sharing", "dealt shares"), ("masking", "sent masked vectors")]
)
def test_too_many_drop_outs_abort_and_are_named(step: str, what: str) -> None:
    room = Room(draw_vectors(10))
    with pytest.raises(
        Aborted,
        match=(
            f"6 of 10 clients {what}, but the rules ask for 7 .client-00, client-01, client-02, "
            "client-03"
        ),
    ):
        room.run({step: room.names[:4]})
    assert room.collector.phase == step
    for name in room.names[:4]:  # they were slow, not lost
        room.hear(name, room.answer(name))
    room.collector.advance()


def test_too_few_revealed_shares_abort_and_may_be_waited_for() -> None:
    room = Room(draw_vectors(5))
    room.until("revealing")
    answers = {name: room.answer(name) for name in room.names}
    for name in room.names[:3]:
        room.hear(name, answers[name])
    with pytest.raises(
        Aborted, match="4 shares are needed to open a mask, but there are fewer for client-00"
    ):
        room.collector.advance()
    assert room.collector.awaited == frozenset(room.names[3:])
    room.hear(room.names[4], answers[room.names[4]])
    room.collector.advance()
    assert np.array_equal(room.collector.sum(), total(room.vectors.values()))


# -- the participant's state -----------------------------------------------------------------------


def restored(room: Room) -> None:
    for name, participant in room.participants.items():
        data = participant.to_bytes()
        room.participants[name] = Participant.from_bytes(data, key_of(name), room.rules)
        assert room.participants[name].to_bytes() == data


@pytest.mark.parametrize(
    "drops", [{}, {"sharing": ["client-00"], "masking": ["client-04"], "revealing": ["client-02"]}]
)
def test_participants_stored_at_every_phase_say_the_same_bytes(drops: dict[str, list[str]]) -> None:
    plain, stored = Room(draw_vectors(8)), Room(draw_vectors(8))
    expected = plain.run(drops)
    stored.join()
    stored.collector.advance()
    gone: set[str] = set()
    for step in STEPS:
        restored(stored)
        gone |= set(drops.get(step, ()))
        stored.go(without=gone)
    assert stored.transcript == plain.transcript
    assert np.array_equal(stored.collector.sum(), expected)


def test_every_answer_may_be_asked_for_again() -> None:
    room = Room(draw_vectors(3))
    room.join()
    participant, vector = room.participants[name_of(0)], room.vectors[name_of(0)]
    join = participant.message
    assert participant.join_digest == hashlib.sha256(join).hexdigest()
    room.collector.advance()
    roster = room.told(name_of(0))
    assert {name for name, _ in Participant.parts_in(roster)} == set(room.names)
    shares = participant.on_roster(roster, room.pins)
    assert participant.on_roster(roster, room.pins) == participant.message == shares
    room.go()
    deliveries = room.told(name_of(0))
    masked = participant.on_deliveries(deliveries, vector)
    assert participant.on_deliveries(deliveries, vector) == participant.message == masked
    assert participant.on_roster(roster, room.pins) == shares
    again = Participant.from_bytes(participant.to_bytes(), key_of(name_of(0)), room.rules)
    assert again.message == b""
    assert again.on_deliveries(deliveries, vector) == again.message == masked
    room.go()
    survivors = room.told(name_of(0))
    agreed = participant.on_survivors(survivors)
    assert participant.on_survivors(survivors) == participant.message == agreed
    room.go()
    agreements = room.told(name_of(0))
    reveal = participant.on_agreements(agreements, room.pins)
    assert participant.on_agreements(agreements, room.pins) == participant.message == reveal
    assert participant.on_survivors(survivors) == agreed
    assert participant.join_digest == hashlib.sha256(join).hexdigest()


def test_the_last_state_has_no_secrets() -> None:
    room = Room(draw_vectors(4))
    room.join()
    drawn = {name: state_of(participant).secrets for name, participant in room.participants.items()}
    room.collector.advance()
    for _ in STEPS[:-1]:
        room.go()
    held = {name: state_of(participant).held for name, participant in room.participants.items()}
    room.go()
    for name, participant in room.participants.items():
        data, secrets = participant.to_bytes(), drawn[name]
        assert secrets is not None
        for secret in (secrets.cipher, secrets.mask, secrets.seed, secrets.dealing):
            assert secret not in data
            assert secret.hex().encode() not in data
        mask_shares = [held[name][at + 33 : at + 66] for at in range(0, len(held[name]), 66)]
        assert len(mask_shares) == 3
        assert not any(share in data for share in mask_shares)
        restored_one = Participant.from_bytes(data, key_of(name), room.rules)
        assert restored_one.included == room.collector.included
        with pytest.raises(ProtocolError, match="no secrets"):
            restored_one.on_deliveries(b"", room.vectors[name])


def test_a_damaged_or_foreign_state_is_refused() -> None:
    room = Room(draw_vectors(3))
    room.join()
    data = room.participants[name_of(0)].to_bytes()
    for place in (0, 30, len(data) // 2, len(data) - 1):
        with pytest.raises(FormatError):
            Participant.from_bytes(
                data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :],
                key_of(name_of(0)),
                RULES,
            )
    with pytest.raises(FormatError, match=r"a participant.s state are truncated"):
        Participant.from_bytes(data[:5], key_of(name_of(0)), RULES)
    with pytest.raises(FormatError, match="version 3"):
        Participant.from_bytes(data[:20] + b"\x03" + data[21:], key_of(name_of(0)), RULES)
    with pytest.raises(EvidenceError, match="joined with key"):
        Participant.from_bytes(data, key_of(name_of(1)), RULES)
    with pytest.raises(SpecMismatchError, match="amended"):
        Participant.from_bytes(data, key_of(name_of(0)), SPARSE)


# -- bytes -----------------------------------------------------------------------------------------


def test_messages_introduce_themselves() -> None:
    room = Room(draw_vectors(3))
    room.run()
    kinds = [
        read_preamble(data).kind
        for direction, name, data in room.transcript
        if direction == "up" and name == name_of(1)
    ]
    assert kinds == ["join", "shares", "masked", "agreed", "reveal"]
    found = read_preamble(room.transcript[0][2])
    assert (found.federation, found.round, found.client, found.sequence) == (
        OPENING.federation,
        OPENING.round,
        name_of(0),
        5,
    )
    with pytest.raises(FormatError, match="not a message of a round"):
        read_preamble(b"{}")


def test_the_bytes_of_a_whole_round_are_these() -> None:
    """Other programs speak this too: a change of any byte is a new version."""
    room = Room(draw_vectors(6))
    room.run({"masking": [name_of(2)], "revealing": [name_of(4)]})
    digest = hashlib.sha256(b"".join(data for _, _, data in room.transcript)).hexdigest()
    assert digest == "98ac2a336e509fff90e1c6c395c71cffccc98eb5cc8852d1be9cd9f8c85024ca"


def test_an_opening_is_whole_or_refused() -> None:
    assert Opening.from_json(OPENING.to_json()) == OPENING
    for name, value in {
        "federation": "x",
        "round": "0" * 31,
        "purpose": "fun",
        "data_digest": "",
        "labels_digest": 5,
    }.items():
        with pytest.raises(FormatError):
            Opening.from_json(OPENING.to_json() | {name: value})
    with pytest.raises(FormatError, match="wrong keys"):
        Opening.from_json({})


def test_large_vectors_are_exact_too() -> None:
    room = Room(draw_vectors(3, 40_000))
    found = room.run()
    assert np.array_equal(found, total(room.vectors.values()))
    assert wide.to_ints(found[:, -1:]) == wide.to_ints(total(room.vectors.values())[:, -1:])
