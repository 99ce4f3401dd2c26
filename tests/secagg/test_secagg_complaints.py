"""A holder that cannot use its parcel complains, its dealer answers, and the round goes on.

Law: whatever the server makes of parcels and complaints, an honest dealer answers for no share of
an honest holder.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.errors import EvidenceError, ProtocolError, RefusedError
from expunge.secagg import messages, parcels
from expunge.secagg.parcels import BadParcelError, Parcel
from expunge.secagg.roster import Roster
from support.secagg import OPENING, Room, draw_vectors, key_of, state_of, total
from support.secagg_refusals import ANN, BOB, CAT, resaid, retold, unmoved


def spoilt(room: Room, dealer: str, *holders: str) -> bytes:
    """The dealer's message of shares, of which these holders can open nothing."""
    data, neighbours = room.answer(dealer), [name for name in room.names if name != dealer]
    body = bytearray(messages.read_client_message(data).body)
    for holder in holders:
        body[neighbours.index(holder) * parcels.PARCEL_BYTES] ^= 1
    return resaid(data, key_of(dealer), bytes(body))


def at_masking(*holders: str) -> Room:
    """Five clients, of which ann has sealed something bad for these."""
    room = Room(draw_vectors(5))
    room.until("sharing")
    room.hear(ANN, spoilt(room, ANN, *holders))
    room.go()
    return room


def finish(room: Room) -> None:
    while room.collector.phase != "done":
        room.go()


def bad(room: Room, holder: str, deliveries: bytes | None = None) -> Mapping[str, Parcel]:
    """Whose parcels a holder cannot use."""
    told = room.told(holder) if deliveries is None else deliveries
    with pytest.raises(BadParcelError) as caught:
        room.participants[holder].on_deliveries(told, room.vectors[holder])
    return caught.value.parcels


def answer(room: Room, dealer: str, holder: str, content: bytes | None = None) -> bytes:
    """What a dealer says that has sealed something bad, and shows the shares all the same."""
    state = state_of(room.participants[dealer])
    roster = Roster.read(state.roster)
    seed, mask = (
        parcels.shares(roster, state.secrets, dealer, what)[holder] for what in ("seed", "mask")
    )
    header = {
        "client": dealer,
        "federation": OPENING.federation,
        "holder": holder,
        "kind": "justification",
        "roster": roster.digest,
        "round": OPENING.round,
        "sequence": 5,
    }
    return messages.sign(header, seed + mask if content is None else content, key_of(dealer))


def test_the_sum_is_exact_and_of_all_if_the_dealer_answers() -> None:
    room = at_masking(BOB, CAT)
    for holder in (BOB, CAT):
        complaint = room.participants[holder].complaint(bad(room, holder))
        room.hear(holder, complaint)
        room.hear(holder, complaint)  # the same again changes nothing
        assert room.collector.say(holder) is None
    for holder, waiting in ((BOB, {BOB, CAT}), (CAT, {CAT})):
        assert room.collector.silent == {*room.names} - waiting
        assert messages.read_client_message(room.told(ANN)).client == holder
        room.hear(ANN, answer(room, ANN, holder))
    finish(room)
    assert len(room.collector.included) == 5
    assert np.array_equal(room.collector.sum(), total(room.vectors.values()))


def test_who_does_not_answer_is_silent_and_who_waits_is_not() -> None:
    room = at_masking(BOB)
    room.hear(BOB, room.participants[BOB].complaint(bad(room, BOB)))
    for name in room.names:
        if name not in (ANN, BOB):
            room.hear(name, room.answer(name))
    deliveries = room.collector._deliveries(ANN)
    room.hear(ANN, room.participants[ANN].on_deliveries(deliveries, room.vectors[ANN]))
    assert room.collector.awaited == {ANN, BOB}
    assert room.collector.silent == {ANN}
    assert room.collector.unanswered == {BOB: {ANN}}


def test_an_answer_must_be_what_the_dealer_committed_to() -> None:
    room = at_masking(BOB)
    room.hear(BOB, room.participants[BOB].complaint(bad(room, BOB)))
    good = bytes(messages.read_client_message(answer(room, ANN, BOB)).body)
    for place in (0, 40):
        wrong = bytearray(good)
        wrong[place] ^= 1
        with pytest.raises(RefusedError, match="not the one it committed to") as caught:
            room.collector.take(answer(room, ANN, BOB, bytes(wrong)))
        assert caught.value.code == "wrong-share"
    with pytest.raises(RefusedError, match="complaint that client-02 has not made"):
        room.collector.take(answer(room, ANN, CAT))
    with pytest.raises(RefusedError, match="complaint that client-01 has not made"):
        room.collector.take(answer(room, CAT, BOB))
    assert room.collector.unanswered == {BOB: {ANN}}


def test_an_honest_dealer_answers_one_that_complains_of_what_it_sealed() -> None:
    """The holder lies, then: what it shows by that is its own."""
    room = at_masking()
    _, body = messages.read_server_message("deliveries", room.told(BOB))
    room.hear(BOB, room.participants[BOB].complaint({ANN: Parcel.from_bytes(body[:146])}))
    before = room.participants[ANN].to_bytes()
    said = room.participants[ANN].on_complaint(room.told(ANN), room.pins)
    assert said == room.participants[ANN].on_complaint(room.told(ANN), room.pins)
    assert room.participants[ANN].to_bytes() == before
    room.hear(ANN, said)
    finish(room)
    assert np.array_equal(room.collector.sum(), total(room.vectors.values()))


@given(st.integers(0, 145), st.integers(1, 255))
def test_an_honest_dealer_answers_for_nothing_that_the_server_altered(
    place: int, flip: int
) -> None:
    room = at_masking()
    deliveries = room.told(BOB)
    _, body = messages.read_server_message("deliveries", deliveries)
    altered = bytearray(body)
    altered[place] ^= flip
    found = bad(room, BOB, retold("deliveries", deliveries, bytes(altered)))
    complaint = room.participants[BOB].complaint(found)
    with pytest.raises(RefusedError, match="what it was not sent"):
        room.collector.take(complaint)
    unmoved(
        room.participants[ANN],
        EvidenceError,
        "did not seal: the server has altered it",
        lambda: room.participants[ANN].on_complaint(complaint, room.pins),
    )


def test_an_honest_dealer_answers_nobody_who_has_not_complained_of_it() -> None:
    room = at_masking()
    ann = room.participants[ANN]
    _, body = messages.read_server_message("deliveries", room.told(BOB))
    of_ann, of_cat = Parcel.from_bytes(body[:146]), Parcel.from_bytes(body[146:292])
    good = room.participants[BOB].complaint({ANN: of_ann})
    by_server = resaid(good, key_of("server"), of_ann.to_bytes())
    elsewhere = room.participants[BOB].complaint({CAT: of_cat})
    for data, why in [
        (by_server, "the signature is not by key"),
        (elsewhere, "does not complain of client-00"),
        (room.participants[BOB].message, "in the place of a complaint"),
        (room.participants[CAT].complaint({ANN: of_ann}), "did not seal"),
        (resaid(good, key_of(BOB), of_ann.to_bytes(), roster="0" * 64), "another"),
    ]:
        unmoved(ann, EvidenceError, why, lambda data=data: ann.on_complaint(data, room.pins))
    finish(room)
    with pytest.raises(ProtocolError):
        ann.on_complaint(good, room.pins)


@given(st.sampled_from([ANN, CAT]), st.booleans())
def test_nobody_complains_of_a_good_parcel_whatever_the_server_says_was_answered(
    dealer: str, zeros: bool
) -> None:
    """Otherwise an honest dealer would show its shares to all, and the server would have its
    secrets.
    """
    room = at_masking()
    deliveries = room.told(BOB)
    header, body = messages.read_server_message("deliveries", deliveries)
    header = {name: value for name, value in header.items() if name != "body"}
    true = bytes(messages.read_client_message(answer(room, dealer, BOB)).body)
    made_up = bytes(parcels.JUSTIFIED_BYTES) if zeros else true
    told = messages.write_server_message(header | {"justified": [dealer]}, bytes(body) + made_up)
    message = room.participants[BOB].on_deliveries(told, room.vectors[BOB])
    assert messages.read_client_message(message).kind == "masked"


def test_who_has_complained_masks_nothing_before_it_is_answered() -> None:
    """The arbiter would see other deliveries than those that it signed."""
    room = at_masking()
    deliveries = room.told(BOB)
    _, body = messages.read_server_message("deliveries", deliveries)
    room.hear(BOB, room.participants[BOB].complaint({ANN: Parcel.from_bytes(body[:146])}))
    masked = room.participants[BOB].on_deliveries(deliveries, room.vectors[BOB])
    with pytest.raises(RefusedError, match="waits for the answer"):
        room.collector.take(masked)


def test_after_its_time_no_complaint_is_answered_and_who_waits_is_awaited_no_longer() -> None:
    room = at_masking(BOB)
    room.hear(BOB, room.participants[BOB].complaint(bad(room, BOB)))
    room.collector.end_complaints()
    assert room.collector.awaited == {*room.names} - {BOB}
    assert room.collector.silent == {*room.names} - {BOB}
    with pytest.raises(RefusedError, match="answers too late"):
        room.collector.take(answer(room, ANN, BOB))
    for name in room.names:
        if name != BOB:
            told = room.collector._deliveries(name)
            room.hear(name, room.participants[name].on_deliveries(told, room.vectors[name]))
    assert room.collector.awaited == frozenset()
    assert room.collector.silent == {ANN}
