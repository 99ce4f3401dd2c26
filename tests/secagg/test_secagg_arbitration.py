"""What the arbiter finds out about the shares that clients dealt: whoever dealt others than its
keys give is named, and nobody else.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge import Aggregation, Spec, Statistics
from expunge.errors import EvidenceError, FormatError
from expunge.secagg import Aborted, Contribution, Opening, Participant
from expunge.secagg.arbitration import Arbiter, Dispute, examine
from expunge.secagg.messages import read_client_message, sign
from expunge.secagg.participant import ParticipantState
from support.secagg import Room, key_of, name_of
from support.wrong_shares import changed, dealing_wrong, opening_wrong

ARBITER = Arbiter(bytes(range(64)))
RULES = Aggregation(fewest=3, arbiter=ARBITER.public)
SPEC = Spec(dim=1, labels=("no", "yes"), gamma=0.5, messages=("masked",), aggregation=RULES)
OPENING = Opening("f" * 32, "0" * 31 + "1", "change", SPEC.data_digest, SPEC.labels_digest)
LIAR = name_of(1)
SECRETS = ("keys", "mask", "seed", "dealing")


def statistics(place: int) -> Statistics:
    return Statistics.of(SPEC, np.array([[0.5 + place], [-1.25]]), np.array([1, 0]))


def room_of(clients: int, seed: str = "seed") -> Room:
    vectors = {
        name_of(place): Contribution.of(statistics(place), None, SPEC).vector()
        for place in range(clients)
    }
    return Room(vectors, RULES, OPENING, seed)


def dispute_of(room: Room) -> Dispute:
    """The sum of a room's round, called irrecoverable, with the openings of all of its clients."""
    openings = {
        name: room.participants[name].open_part(statistics(room.names.index(name)), None)
        for name, _ in room.collector.included
    }
    return Dispute(
        SPEC,
        OPENING.federation,
        "irrecoverable",
        frozenset(room.collector.included),
        room.collector.records(),
        {name: key.text for name, key in room.pins.items()},
        openings,
    )


def carried(dispute: Dispute) -> Dispute:
    """As the arbiter reads it."""
    return Dispute.from_json(dispute.to_json(), dispute.openings)


def disputed_after(lie: str) -> Dispute:
    """A round in which the liar shares out something else than this secret."""
    room = room_of(5)
    with dealing_wrong(LIAR, lie):
        if lie == "seed":
            with pytest.raises(Aborted, match=f"{LIAR} dealt wrong shares") as caught:
                room.run()
            assert caught.value.culprit == LIAR
        else:
            room.run()  # its mask key is needed only if it drops out
    return dispute_of(room)


@pytest.mark.parametrize("lie", ["seed", "mask"])
def test_who_dealt_other_shares_than_its_keys_give_is_named(lie: str) -> None:
    examined = examine(carried(disputed_after(lie)), ARBITER)
    assert list(examined.false) == [LIAR]
    assert "dealt other shares" in examined.false[LIAR]
    assert examined.missing == ()


@pytest.mark.parametrize("lie", ["seed", "mask"])
@pytest.mark.parametrize("opened", SECRETS)
def test_no_false_secret_that_it_opens_explains_them(lie: str, opened: str) -> None:
    """Not even the one that it has shared out."""
    with opening_wrong(LIAR, opened):
        examined = examine(disputed_after(lie), ARBITER)
    assert list(examined.false) == [LIAR]


@pytest.mark.parametrize("opened", SECRETS)
def test_who_opens_another_secret_than_its_own_is_named(opened: str) -> None:
    room = room_of(4)
    room.run()
    with opening_wrong(LIAR, opened):
        dispute = dispute_of(room)
    assert list(examine(dispute, ARBITER).false) == [LIAR]


def test_who_takes_another_mask_key_than_it_joined_with_is_named() -> None:
    """It deals, masks and opens that key: only its join differs."""
    room = room_of(4)
    room.join()
    room.collector.advance()
    with dealing_wrong(LIAR, "mask"):
        room.go()
    state = ParticipantState.from_bytes(room.participants[LIAR].to_bytes())
    assert state.secrets is not None
    other = replace(state, secrets=changed(state.secrets, "mask"))
    room.participants[LIAR] = Participant(other, key_of(LIAR))
    for _ in range(3):
        room.go()
    examined = examine(dispute_of(room), ARBITER)
    assert list(examined.false) == [LIAR]
    assert "the mask key is not the one that it joined with" in examined.false[LIAR]


@given(st.integers(4, 9), st.integers(0, 2**32), st.data())
@settings(max_examples=20)
def test_honest_clients_are_never_named(clients: int, seed: int, data: st.DataObject) -> None:
    """Whoever drops out, and whatever the server calls the sum."""
    room = room_of(clients, str(seed))
    room.join()
    room.collector.advance()
    gone = data.draw(st.sampled_from(room.names))
    step = data.draw(st.sampled_from(["sharing", "masking", "never"]))
    room.go(without=[gone] if step == "sharing" else [])
    room.go(without=[] if step == "never" else [gone])
    room.go()
    room.go()
    examined = examine(carried(dispute_of(room)), ARBITER)
    assert (examined.false, examined.missing) == ({}, ())


def test_a_server_that_hides_or_swaps_what_was_dealt_is_noticed() -> None:
    dispute = disputed_after("seed")
    records = dispute.records
    without = {name: signed for name, signed in records.shares.items() if name != LIAR}
    swapped = dict(records.shares) | {LIAR: records.shares[name_of(0)]}
    confused = dict(records.shares) | {LIAR: records.masked[LIAR]}
    altered = dict(records.shares) | {LIAR: replace(records.shares[LIAR], signature=bytes(64))}
    for shares, match in (
        (without, f"does not show the header of the message of shares of {LIAR}"),
        (swapped, "signature"),
        (altered, "signature"),
    ):
        with pytest.raises(EvidenceError, match=match):
            examine(replace(dispute, records=replace(records, shares=shares)), ARBITER)
    with pytest.raises((EvidenceError, FormatError)):
        examine(replace(dispute, records=replace(records, shares=confused)), ARBITER)


def test_disputes_and_openings_of_version_1_are_refused_and_nobody_is_named() -> None:
    dispute = disputed_after("seed")
    with pytest.raises(FormatError, match="has version 1, this is version 2"):
        Dispute.from_json(dispute.to_json() | {"version": 1}, {})
    name = name_of(0)
    message = read_client_message(dispute.openings[name])
    first = {key: value for key, value in message.header.items() if key != "version"}
    for header in (first, first | {"version": 1}):
        opening = sign(header, message.body, key_of(name))
        with pytest.raises(FormatError, match="version"):
            examine(replace(dispute, openings=dict(dispute.openings) | {name: opening}), ARBITER)
