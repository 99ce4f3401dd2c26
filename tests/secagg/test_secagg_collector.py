"""What a server must not take in a round: each is refused with a clear error, and nothing has
changed.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from expunge.crypto import PublicKey, canonical
from expunge.errors import EvidenceError, ProtocolError, RefusedError
from expunge.secagg import Aborted, Collector, Participant, messages, parcels
from expunge.secagg.keys import Private, seal
from expunge.secagg.roster import Roster
from support.secagg import (
    OPENING,
    RULES,
    SPARSE,
    Room,
    draw_vectors,
    key_of,
    name_of,
    state_of,
    total,
)
from support.secagg_refusals import ANN, BOB, CAT, refused, resaid, retold, snapshot, unmoved


@pytest.mark.parametrize("phase", ["joining", "sharing", "masking", "agreeing", "revealing"])
def test_a_message_twice_is_taken_once_and_another_one_is_refused(phase: str) -> None:
    room = Room(draw_vectors(3))
    if phase == "joining":
        room.join()
        data = room.participants[ANN].message
        other = Participant.join(OPENING, RULES, name=ANN, sequence=5, key=key_of(ANN)).message
    else:
        room.until(phase)
        data = room.answer(ANN)
        room.hear(ANN, data)
        body = bytearray(messages.read_client_message(data).body) or bytearray(1)
        body[0] ^= 1
        other = resaid(data, key_of(ANN), bytes(body))
    before = snapshot(room.collector)
    assert room.collector.take(data) == ANN
    assert room.collector.take(memoryview(data)) == ANN
    assert snapshot(room.collector) == before
    refused(room, other, "sequence-reused", "only the first one counts")
    if phase == "joining":
        room.collector.advance()
    while room.collector.phase != "done":
        room.go()
    assert np.array_equal(room.collector.sum(), total(room.vectors.values()))
    assert room.collector.take(data) == ANN  # a late copy of what was taken is no mistake


def test_messages_out_of_turn_are_refused() -> None:
    full, room = Room(draw_vectors(4)), Room(draw_vectors(4))
    full.run()
    said = {
        messages.read_client_message(data).kind: data
        for way, name, data in full.transcript
        if way == "up" and name == ANN
    }
    for kind in ("shares", "masked", "agreed", "reveal"):
        refused(
            room,
            said[kind],
            "wrong-phase",
            f"the {kind} of client-00 is not expected while the round is at joining",
        )
    room.until("masking")
    refused(room, said["reveal"], "wrong-phase")
    refused(
        room,
        Participant.join(
            OPENING, RULES, name=name_of(3), sequence=1, key=key_of(name_of(3))
        ).message,
        "sequence-reused",
    )
    room.pins["late"] = key_of("late").public
    refused(
        room,
        Participant.join(OPENING, RULES, name="late", sequence=1, key=key_of("late")).message,
        "wrong-phase",
    )


def test_who_dropped_out_has_no_part_any_more() -> None:
    room = Room(draw_vectors(4))
    room.join()
    room.collector.advance()
    late = room.answer(ANN)
    room.go(without=[ANN])
    refused(room, late, "wrong-phase")
    room.go()
    room.hear(BOB, room.answer(BOB))
    header = messages.read_client_message(room.transcript[-1][2]).header
    forged = messages.sign(header | {"client": ANN}, b"", key_of(ANN))
    refused(room, forged, "not-allowed", "client-00 has no part in this round")


def test_a_late_masked_vector_is_not_taken_once_survivors_are_known() -> None:
    room = Room(draw_vectors(4))
    room.until("masking")
    late = room.answer(ANN)
    room.go(without=[ANN])
    refused(room, late, "wrong-phase", "wait for the next round")
    assert room.collector.say(ANN) is None


def test_an_old_round_cannot_be_replayed() -> None:
    old, room = (
        Room(draw_vectors(3)),
        Room(draw_vectors(3), opening=replace(OPENING, round="2" * 32)),
    )
    old.run()
    room.until("masking")
    for way, _, data in old.transcript:
        if way == "up":
            refused(room, data, "wrong-round", "is for round 00000000000000000000000000000001")
    stale = old.transcript[-1][2]
    refused(room, resaid(stale, key_of(CAT), round="2" * 32, kind="reveal"), "wrong-phase")
    masked = next(
        data
        for way, name, data in old.transcript
        if way == "up" and messages.read_client_message(data).kind == "masked"
    )
    refused(room, resaid(masked, key_of(ANN), round="2" * 32), "wrong-round", "another roster")
    roster = Roster.read(
        room.told(ANN)
        if room.collector.phase == "sharing"
        else state_of(room.participants[ANN]).roster
    ).digest
    refused(
        room,
        resaid(masked, key_of(ANN), round="2" * 32, roster=roster),
        "wrong-round",
        "other deliveries",
    )


def test_who_is_unknown_or_signs_with_another_key_is_refused() -> None:
    room = Room(draw_vectors(3))
    join = room.joining(ANN).message
    refused(
        room, resaid(join, key_of("eve")), "bad-signature", "client-00 is not signed by its key"
    )
    refused(
        room, resaid(join, key_of("eve"), client="eve"), "unknown-actor", "nobody of the name eve"
    )
    refused(room, resaid(join, key_of(ANN), federation="0" * 32), "wrong-federation")

    def nobody(name: str) -> PublicKey:
        raise RefusedError("gone", f"{name} has left")

    room.collector = Collector(OPENING, RULES, nobody)
    refused(room, join, "gone")


def test_joins_of_another_spec_rules_or_purpose_are_refused() -> None:
    room = Room(draw_vectors(3))
    for change, code in [
        ({"data_digest": "0" * 64}, "wrong-spec"),
        ({"labels_digest": "0" * 64}, "wrong-spec"),
        ({"purpose": "audit"}, "wrong-round"),
    ]:
        opening = replace(OPENING, **change)
        refused(
            room,
            Participant.join(opening, RULES, name=ANN, sequence=1, key=key_of(ANN)).message,
            code,
        )
    refused(
        room,
        Participant.join(OPENING, SPARSE, name=ANN, sequence=1, key=key_of(ANN)).message,
        "wrong-spec",
        "other rules",
    )


def test_a_join_with_a_key_of_small_order_is_refused() -> None:
    room = Room(draw_vectors(3))
    join = room.joining(ANN).message
    for name in ("cipher", "mask"):
        refused(
            room, resaid(join, key_of(ANN), **{name: "01" + "00" * 31}), "malformed", "small order"
        )


def test_malformed_bytes_are_refused() -> None:
    room = Room(draw_vectors(3))
    join = room.joining(ANN).message
    for data in (
        b"",
        join[:5],
        join[:-1],
        join + b"x",
        b"{}" + join,
        join.replace(b"said", b"told"),
    ):
        refused(room, data, "malformed")
    refused(room, join[:13] + b"\x03" + join[14:], "malformed", "version 3")
    refused(room, join[:13] + b"\x01" + join[14:], "malformed", "version 1 is refused: a server")
    for change in (
        {"more": 1},
        {"sequence": -1},
        {"mask": "xx"},
        {"spec": {}},
        {"rules": 5},
        {"kind": "gossip"},
        {"purpose": []},
    ):
        refused(room, resaid(join, key_of(ANN), **change), "malformed")
    refused(room, resaid(join, key_of(ANN), b"more"), "malformed", "4 where 0 are expected")
    for place in range(0, len(join), 7):
        altered = join[:place] + bytes([join[place] ^ 0x10]) + join[place + 1 :]
        with pytest.raises(RefusedError):
            room.collector.take(altered)
    room.until("sharing")
    shares = room.answer(ANN)
    refused(
        room,
        resaid(shares, key_of(ANN), bytes(145)),
        "malformed",
        "292 bytes, 145 are left",
    )
    refused(
        room, resaid(shares, key_of(ANN), sequence=6), "sequence-reused", "joined with number 5"
    )
    room.go()
    masked = room.answer(ANN)
    refused(room, resaid(masked, key_of(ANN), bytes(17)), "malformed", "16 bytes an entry")
    refused(room, resaid(masked, key_of(ANN), bytes(32)), "malformed", "2 entries")


def test_all_masked_vectors_have_one_length() -> None:
    room = Room(draw_vectors(3, 7))
    room.until("masking")
    room.hear(ANN, room.answer(ANN))
    room.vectors = draw_vectors(3, 8)
    refused(room, room.answer(BOB), "malformed", "has 8 entries, not 7")
    told = Room(draw_vectors(3, 7))
    told.collector = Collector(OPENING, RULES, told.pins.__getitem__, length=8)
    told.until("masking")
    refused(told, told.answer(ANN), "malformed", "has 7 entries, not 8")


def wrong_share(room: Room, reveal: bytes, shares: bytearray, match: str) -> RefusedError:
    """The refusal of these shares, which are one holder's."""
    return refused(room, resaid(reveal, key_of(BOB), bytes(shares)), "wrong-share", match)


def test_a_wrong_share_of_a_holder_is_named_and_not_used() -> None:
    room = Room(draw_vectors(5))
    room.until("revealing")
    reveal = room.answer(BOB)
    shares = bytearray(messages.read_client_message(reveal).body)
    shares[0] ^= 1
    problem = wrong_share(
        room, reveal, shares, "client-01 revealed a wrong share of the self seed of client-00"
    )
    assert problem.details == {"holder": BOB, "dealer": ANN}
    shares[0] ^= 1
    shares[33] ^= 1
    wrong_share(room, reveal, shares, "of the self seed of client-01")
    refused(room, resaid(reveal, key_of(BOB), bytes(shares[:-1])), "malformed")
    refused(
        room,
        resaid(reveal, key_of(BOB), survivors="0" * 64),
        "wrong-round",
        "another list of survivors",
    )
    room.go(without=[BOB])
    assert np.array_equal(room.collector.sum(), total(room.vectors.values()))


def test_agreements_to_other_survivors_or_with_a_body_are_refused() -> None:
    room = Room(draw_vectors(5))
    room.until("agreeing")
    agreed = room.answer(BOB)
    refused(
        room,
        resaid(agreed, key_of(BOB), survivors="0" * 64),
        "wrong-round",
        "client-01 agrees to another list of survivors",
    )
    refused(room, resaid(agreed, key_of(BOB), b"more"), "malformed", "4 where 0 are expected")
    for name in room.names[2:]:
        room.hear(name, room.answer(name))
    with pytest.raises(
        Aborted,
        match=r"3 of 5 clients agreed on who survived, but 4 must .client-00, client-01 did not",
    ):
        room.collector.advance()
    room.hear(BOB, agreed)  # it was slow, not lost
    room.collector.advance()
    room.go(without=[ANN])  # who survived and did not agree is in the sum all the same
    assert np.array_equal(room.collector.sum(), total(room.vectors.values()))


def test_a_wrong_share_of_a_mask_key_is_named() -> None:
    room = Room(draw_vectors(5))
    room.until("masking")
    room.go(without=[ANN])
    room.go()
    reveal = room.answer(BOB)
    shares = bytearray(messages.read_client_message(reveal).body)
    shares[0] ^= 1
    wrong_share(room, reveal, shares, "of the mask key of client-00")


# -- a dealer that cheats --------------------------------------------------------------------------


def cheating(room: Room, dealer: str, *, committed: bool, which: int) -> bytes:
    """The dealer's message with a wrong share for every neighbour: committed to, or contrary to its
    commitment.
    """
    participant = room.participants[dealer]
    data = room.answer(dealer)
    secrets, roster = state_of(participant).secrets, Roster.read(state_of(participant).roster)
    assert secrets is not None
    cipher, body = Private(secrets.cipher), b""
    for place, holder in enumerate(roster.neighbours(dealer)):
        found = parcels.parcels(
            messages.read_client_message(data).body, len(roster.neighbours(dealer)), ""
        )[place]
        digests, shares = [found.seed, found.mask], [bytes([place + 1]) * 32 + b"\x00"] * 2
        if committed:
            digests[which] = parcels.share_digest(
                roster.context, which == 0, dealer, holder, shares[which]
            )
        key = roster.context.key(
            cipher.agreed(roster.join(holder).cipher, holder), "parcel", dealer, holder
        )
        other: parcels.Shared = "mask" if which == 0 else "seed"
        shares[1 - which] = parcels.shares(roster, secrets, dealer, other)[holder]
        body += parcels.Parcel(seal(key, b"".join(shares), b"".join(digests)), *digests).to_bytes()
    return resaid(data, key_of(dealer), body)


@pytest.mark.parametrize(("which", "what"), [(0, "self seed"), (1, "mask key")])
def test_a_share_that_was_not_committed_to_is_refused_by_its_holder(which: int, what: str) -> None:
    room = Room(draw_vectors(5))
    room.until("sharing")
    room.hear(ANN, cheating(room, ANN, committed=False, which=which))
    room.go()
    deliveries = room.told(BOB)
    unmoved(
        room.participants[BOB],
        EvidenceError,
        f"client-00 dealt client-01 a share of its {what} that is not the one it committed to",
        lambda: room.participants[BOB].on_deliveries(deliveries, room.vectors[BOB]),
    )


@pytest.mark.parametrize(("which", "what", "out"), [(0, "self seed", []), (1, "mask key", [ANN])])
def test_shares_that_were_not_dealt_together_name_their_dealer(
    which: int, what: str, out: list[str]
) -> None:
    room = Room(draw_vectors(5))
    room.until("sharing")
    room.hear(ANN, cheating(room, ANN, committed=True, which=which))
    room.go()
    room.go(without=out)
    room.go()
    with pytest.raises(Aborted, match=f"client-00 dealt wrong shares: .* do not give its {what}"):
        room.go(without=[ANN])
    with pytest.raises(ProtocolError, match="no sum yet"):
        room.collector.sum()


def test_an_altered_parcel_names_its_dealer() -> None:
    room = Room(draw_vectors(5))
    room.until("masking")
    participant, deliveries = room.participants[BOB], room.told(BOB)
    _, body = messages.read_server_message("deliveries", deliveries)
    for place in (0, 90, 140, 146):  # sealed bytes, each digest; then the next parcel
        altered = bytearray(body)
        altered[place] ^= 1
        told = retold("deliveries", deliveries, bytes(altered))
        whose = "client-00" if place < 146 else "client-02"
        unmoved(
            participant,
            EvidenceError,
            f"the parcel of {whose} does not open",
            lambda t=told: participant.on_deliveries(t, room.vectors[BOB]),
        )
    swapped = bytes(body[146:292]) + bytes(body[:146]) + bytes(body[292:])
    told = retold("deliveries", deliveries, swapped)
    unmoved(
        participant,
        EvidenceError,
        "does not open",
        lambda: participant.on_deliveries(told, room.vectors[BOB]),
    )


def test_headers_are_canonical_and_bodies_are_covered() -> None:
    room = Room(draw_vectors(3))
    room.run()
    for way, _, data in room.transcript:
        start = 13 + 5
        size = int.from_bytes(data[14:18], "little")
        header = canonical.decode(data[start : start + size])
        body = data[start + size + (64 if way == "up" else 0) :]
        assert header["body"] == hashlib.sha256(body).hexdigest()
