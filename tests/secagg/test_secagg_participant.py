"""What a client must not believe in a round: each is refused with a clear error, and its state has
not changed.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from expunge.crypto import SigningKey
from expunge.errors import EvidenceError, FormatError, ProtocolError
from expunge.ridge.spec import Aggregation
from expunge.secagg import Participant, messages
from expunge.secagg.keys import Private
from expunge.secagg.roster import Join, Roster
from support.secagg import (
    OPENING,
    RING,
    RULES,
    SPARSE,
    Room,
    draw_vectors,
    key_of,
    signed_joins,
    state_of,
)
from support.secagg_refusals import ANN, BOB, CAT, retold, unmoved

# -- a roster that lies ----------------------------------------------------------------------------


@pytest.fixture
def sharing() -> Room:
    room = Room(draw_vectors(4))
    room.until("sharing")
    return room


def rewritten(
    room: Room, change: Callable[[dict[str, tuple[Join, bytes]]], None], **about: Any
) -> bytes:
    joins = signed_joins(room.told(ANN))
    change(joins)
    return Roster.write(
        about.get("opening", room.opening), about.get("rules", room.rules), list(joins.values())
    )


def test_a_key_in_the_middle_is_refused(sharing: Room) -> None:
    """The server answers for BOB with keys of its own, signed by a key of its own."""
    eve = SigningKey(b"e" * 32)
    forged = Join(BOB, 5, Private(b"1" * 32).public, Private(b"2" * 32).public)

    def middle(joins: dict[str, tuple[Join, bytes]]) -> None:
        joins[BOB] = (
            forged,
            eve.sign(forged.signed(sharing.opening, sharing.rules, b"").covered),
        )

    data, participant = rewritten(sharing, middle), sharing.participants[ANN]
    unmoved(
        participant,
        EvidenceError,
        "the join of client-01 in the roster is not signed by the key pinned for it",
        lambda: participant.on_roster(data, sharing.pins),
    )
    # With the server's own pins it would pass: so it is the pins that protect.
    copy.copy(participant).on_roster(data, sharing.pins | {BOB: eve.public})


def refuses_roster(sharing: Room, data: bytes, match: str) -> None:
    participant = sharing.participants[ANN]
    unmoved(participant, EvidenceError, match, lambda: participant.on_roster(data, sharing.pins))


def test_swapped_keys_are_refused(sharing: Room) -> None:
    def swap(joins: dict[str, tuple[Join, bytes]]) -> None:
        (bob, signature), (cat, _) = joins[BOB], joins[CAT]
        joins[BOB] = (replace(bob, mask=cat.mask), signature)

    refuses_roster(sharing, rewritten(sharing, swap), "join of client-01")


def test_unknown_names_and_changed_pins_are_refused(sharing: Room) -> None:
    participant, roster = sharing.participants[ANN], sharing.told(ANN)
    fewer = {name: key for name, key in sharing.pins.items() if name != CAT}
    unmoved(
        participant,
        EvidenceError,
        "client-02 is in the roster, but no key is pinned",
        lambda: participant.on_roster(roster, fewer),
    )
    other = sharing.pins | {CAT: key_of("other").public}
    unmoved(
        participant,
        EvidenceError,
        "join of client-02",
        lambda: participant.on_roster(roster, other),
    )


def test_the_clients_own_join_must_be_there_unchanged(sharing: Room) -> None:
    participant = sharing.participants[ANN]
    without = rewritten(sharing, lambda joins: joins.pop(ANN))  # type: ignore[arg-type, return-value]
    unmoved(
        participant,
        EvidenceError,
        "left out or replaced",
        lambda: participant.on_roster(without, sharing.pins),
    )
    other = Participant.join(OPENING, RULES, name=ANN, sequence=5, key=key_of(ANN))
    message = messages.read_client_message(other.message)

    def older(joins: dict[str, tuple[Join, bytes]]) -> None:
        joins[ANN] = (Join.from_header(message.header), message.signed.signature)

    data = rewritten(sharing, older)
    unmoved(
        participant,
        EvidenceError,
        "left out or replaced",
        lambda: participant.on_roster(data, sharing.pins),
    )


@pytest.mark.parametrize(
    ("about", "match"),
    [
        ({"opening": replace(OPENING, federation="0" * 32)}, "federation"),
        ({"opening": replace(OPENING, round="9" * 32)}, "round"),
        ({"opening": replace(OPENING, purpose="rebuild")}, "purpose 'rebuild' instead of 'change'"),
        ({"opening": replace(OPENING, data_digest="0" * 64)}, "data_digest"),
        ({"opening": replace(OPENING, labels_digest="0" * 64)}, "labels_digest"),
        ({"rules": Aggregation(fewest=2)}, "other rules"),
    ],
)
def test_a_roster_of_another_round_spec_or_rules_is_refused(
    sharing: Room, about: dict[str, Any], match: str
) -> None:
    refuses_roster(sharing, rewritten(sharing, lambda _: None, **about), match)


def test_a_roster_of_too_few_is_refused(sharing: Room) -> None:
    def drop(joins: dict[str, tuple[Join, bytes]]) -> None:
        del joins[BOB], joins[CAT]

    refuses_roster(sharing, rewritten(sharing, drop), "2 clients, fewer than the 3")


def test_a_malformed_roster_is_refused(sharing: Room) -> None:
    participant, roster = sharing.participants[ANN], sharing.told(ANN)
    clients = messages.read_server_message("roster", roster)[0]["clients"]
    bad = [
        roster[:-1],
        retold("roster", roster, clients=clients[::-1]),
        retold("roster", roster, clients=[clients[0], *clients[:-1]]),
        retold("roster", roster, clients=clients[:-1]),
        retold("roster", roster, clients="all"),
        retold("roster", roster, clients=[[name, -1] for name, _ in clients]),
        retold("roster", roster, bytes(128 * 4)),
    ]
    for data in bad:
        unmoved(
            participant,
            FormatError,
            None,
            lambda data=data: participant.on_roster(data, sharing.pins),
        )


def test_a_second_roster_is_refused(sharing: Room) -> None:
    participant = sharing.participants[ANN]
    participant.on_roster(sharing.told(ANN), sharing.pins)
    other = rewritten(sharing, lambda joins: joins.pop(CAT))  # type: ignore[arg-type, return-value]
    unmoved(
        participant,
        EvidenceError,
        "another roster",
        lambda: participant.on_roster(other, sharing.pins),
    )


# -- deliveries and survivors that lie -------------------------------------------------------------


def test_deliveries_that_cannot_be_are_refused() -> None:
    room = Room(draw_vectors(5))
    room.until("masking")
    participant, deliveries, vector = room.participants[ANN], room.told(ANN), room.vectors[ANN]
    body = bytes(messages.read_server_message("deliveries", deliveries)[1])
    cases: list[tuple[bytes, type[Exception], str]] = [
        (room.told(BOB), EvidenceError, "for client-01, not for client-00"),
        (retold("deliveries", deliveries, roster="0" * 64), EvidenceError, "not of this round"),
        (retold("deliveries", deliveries, round="9" * 32), EvidenceError, "not of this round"),
        (
            retold("deliveries", deliveries, body[:146], senders=["stranger"]),
            EvidenceError,
            "stranger cannot have dealt",
        ),
        (
            retold("deliveries", deliveries, body[:292], senders=[BOB, CAT]),
            EvidenceError,
            "2 neighbours of client-00 are left, too few",
        ),
        (
            retold("deliveries", deliveries, body[:146]),
            FormatError,
            "584 bytes, 146 are left",
        ),
        (
            retold("deliveries", deliveries, senders=[BOB, BOB, CAT, CAT]),
            FormatError,
            "name nobody twice",
        ),
        (deliveries[:-1], FormatError, "truncated or altered"),
        (state_of(participant).roster, FormatError, "deliveries was expected"),
    ]
    for data, error, match in cases:
        unmoved(
            participant, error, match, lambda data=data: participant.on_deliveries(data, vector)
        )
    unmoved(
        participant, FormatError, "shape", lambda: participant.on_deliveries(deliveries, vector[:1])
    )
    unmoved(
        participant,
        ProtocolError,
        "before the masked message",
        lambda: participant.on_survivors(deliveries),
    )


def test_another_vector_or_other_deliveries_are_refused_the_second_time() -> None:
    room = Room(draw_vectors(5))
    room.until("masking")
    participant, deliveries, vector = room.participants[ANN], room.told(ANN), room.vectors[ANN]
    participant.on_deliveries(deliveries, vector)
    stored = Participant.from_bytes(participant.to_bytes(), key_of(ANN), room.rules)
    other = vector.copy()
    other[0, 0] ^= np.uint64(1)
    header, body = messages.read_server_message("deliveries", deliveries)
    fewer = retold("deliveries", deliveries, bytes(body[146:]), senders=header["senders"][1:])
    for one in (participant, stored):
        unmoved(
            one,
            ProtocolError,
            "show their difference",
            lambda one=one: one.on_deliveries(deliveries, other),
        )
        unmoved(
            one, EvidenceError, "other deliveries", lambda one=one: one.on_deliveries(fewer, vector)
        )


def test_deliveries_before_a_roster_are_out_of_turn() -> None:
    room = Room(draw_vectors(3))
    participant = room.joining(ANN)
    unmoved(
        participant,
        ProtocolError,
        "before a roster",
        lambda: participant.on_deliveries(b"", room.vectors[ANN]),
    )


def test_survivors_that_cannot_be_are_refused() -> None:
    room = Room(draw_vectors(7))
    room.join()
    room.collector.advance()
    room.go(without=[CAT])  # CAT never dealt shares
    room.go(without=[BOB])
    participant, survivors = room.participants[ANN], room.told(ANN)
    alive = messages.read_server_message("survivors", survivors)[0]["clients"]
    assert alive == [ANN, *room.names[3:]]
    cases: list[tuple[bytes, type[Exception], str]] = [
        (
            retold("survivors", survivors, clients=[*alive, "stranger"]),
            EvidenceError,
            "stranger cannot have survived",
        ),
        (
            retold("survivors", survivors, clients=alive[1:]),
            EvidenceError,
            "client-00 is not among the survivors",
        ),
        (
            retold("survivors", survivors, clients=sorted([*alive, CAT])),
            EvidenceError,
            "client-02 cannot have survived: their shares",
        ),
        (
            retold("survivors", survivors, clients=alive[:3]),
            EvidenceError,
            "3 of 7 clients survived, fewer than the 5",
        ),
        (
            retold("survivors", survivors, clients=alive[:2]),
            EvidenceError,
            "2 of 7 clients survived",
        ),
        (retold("survivors", survivors, clients=[ANN]), EvidenceError, "1 of 7 clients survived"),
        (retold("survivors", survivors, clients=alive[::-1]), FormatError, "sorted"),
        (retold("survivors", survivors, b"x"), FormatError, "1 where 0 are expected"),
        (retold("survivors", survivors, roster="0" * 64), EvidenceError, "not of this round"),
    ]
    for data, error, match in cases:
        unmoved(participant, error, match, lambda data=data: participant.on_survivors(data))


def test_survivors_among_whom_too_few_hold_shares_are_refused() -> None:
    room = Room(draw_vectors(RING), SPARSE)
    room.until("agreeing")
    participant, survivors = room.participants[ANN], room.told(ANN)
    roster = Roster.read(state_of(participant).roster)
    assert (len(roster.neighbours(ANN)), roster.plan.threshold) == (10, 7)
    strangers = [name for name in roster.names if name not in roster.neighbours(ANN)]
    assert len(strangers) + 1 >= roster.plan.survivors
    alive = sorted([*strangers, roster.neighbours(ANN)[0]])
    data = retold("survivors", survivors, clients=alive)
    unmoved(
        participant,
        EvidenceError,
        "2 holders of the shares of client-00 survived, fewer than the 7",
        lambda: participant.on_survivors(data),
    )


def test_a_client_agrees_to_one_list_only() -> None:
    room = Room(draw_vectors(7))
    room.until("agreeing")
    participant, survivors = room.participants[ANN], room.told(ANN)
    agreed = participant.on_survivors(survivors)
    other = retold("survivors", survivors, clients=room.names[:-1])
    for _ in range(2):  # having agreed, and having revealed
        for one in (
            participant,
            Participant.from_bytes(participant.to_bytes(), key_of(ANN), room.rules),
        ):
            unmoved(
                one,
                EvidenceError,
                "agreed to another list of survivors",
                lambda one=one: one.on_survivors(other),
            )
            assert one.on_survivors(survivors) == agreed
        if room.collector.phase == "agreeing":
            room.go()
            participant.on_agreements(room.told(ANN), room.pins)


# -- agreements that lie ---------------------------------------------------------------------------


def test_agreements_that_cannot_be_are_refused() -> None:
    room = Room(draw_vectors(7))
    room.until("masking")
    room.go(without=[CAT])  # so that CAT is not among the survivors
    survivors = room.told(ANN)
    early = copy.copy(room.participants[ANN])
    room.go()
    participant, agreements = room.participants[ANN], room.told(ANN)
    header, body = messages.read_server_message("agreements", agreements)
    agreed, signatures = header["clients"], bytes(body)
    assert agreed == [ANN, BOB, *room.names[3:]]
    assert Roster.read(state_of(participant).roster).plan.quorum == 5
    swapped = signatures[64:128] + signatures[:64] + signatures[128:]
    altered = bytes([signatures[0] ^ 1]) + signatures[1:]
    invented = SigningKey(b"e" * 32).sign(b"")
    cases: list[tuple[bytes, type[Exception], str]] = [
        (
            retold("agreements", agreements, signatures[: 4 * 64], clients=agreed[:4]),
            EvidenceError,
            "4 of 7 clients agreed on who survived, but 5 must",
        ),
        (retold("agreements", agreements, b"", clients=[]), EvidenceError, "0 of 7 clients agreed"),
        (
            retold("agreements", agreements, signatures + invented, clients=sorted([*agreed, CAT])),
            EvidenceError,
            "client-02 cannot have agreed",
        ),
        (
            retold("agreements", agreements, signatures + invented, clients=[*agreed, "stranger"]),
            EvidenceError,
            "stranger cannot have agreed",
        ),
        (
            retold("agreements", agreements, signatures, clients=[agreed[0], *agreed[:-1]]),
            FormatError,
            "name nobody twice",
        ),
        (retold("agreements", agreements, swapped), EvidenceError, "agreement of client-00 is not"),
        (retold("agreements", agreements, altered), EvidenceError, "agreement of client-00 is not"),
        (retold("agreements", agreements, signatures[:-1]), FormatError, "truncated"),
        (retold("agreements", agreements, survivors="0" * 64), EvidenceError, "other survivors"),
        (retold("agreements", agreements, roster="0" * 64), EvidenceError, "not of this round"),
        (survivors, FormatError, "agreements was expected"),
    ]
    for data, error, match in cases:
        unmoved(
            participant,
            error,
            match,
            lambda data=data: participant.on_agreements(data, room.pins),
        )
    other = room.pins | {CAT: key_of("other").public}
    unmoved(
        participant,
        EvidenceError,
        "join of client-02",
        lambda: participant.on_agreements(agreements, other),
    )
    unmoved(
        early,
        ProtocolError,
        "before this client agreed",
        lambda: early.on_agreements(agreements, room.pins),
    )
    participant.on_agreements(agreements, room.pins)


def test_agreements_to_another_list_or_round_are_refused() -> None:
    """Signatures of other rounds, and of other lists of the same round, are worth nothing."""
    room, other = (
        Room(draw_vectors(7)),
        Room(draw_vectors(7), opening=replace(OPENING, round="2" * 32)),
    )
    for one in (room, other):
        one.until("revealing")
    _, body = messages.read_server_message("agreements", other.told(ANN))
    participant, agreements = room.participants[ANN], room.told(ANN)
    data = retold("agreements", agreements, bytes(body))
    unmoved(
        participant,
        EvidenceError,
        "agreement of client-00 is not signed",
        lambda: participant.on_agreements(data, room.pins),
    )
    split = Room(draw_vectors(7))
    split.until("agreeing")
    survivors = split.told(ANN)
    fewer = retold("survivors", survivors, clients=split.names[:-1])
    for name in split.names:
        told = survivors if name in (ANN, split.names[-1]) else fewer
        split.participants[name].on_survivors(told)
    signatures = b"".join(split.participants[name].message[-64:] for name in split.names[:-1])
    forged = retold(
        "agreements", agreements, signatures, clients=split.names[:-1], survivors=_digest(survivors)
    )
    unmoved(
        split.participants[ANN],
        EvidenceError,
        "agreement of client-01 is not signed",
        lambda: split.participants[ANN].on_agreements(forged, split.pins),
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_the_sum_of_fewer_than_the_rules_ask_for_cannot_be_had_even_by_a_server_without_rules() -> (
    None
):
    """A collector that asks for two finds that no client answers it: each checks the number for
    itself.
    """
    room = Room(draw_vectors(5))
    room.until("masking")
    for name in room.names[:2]:
        room.hear(name, room.answer(name))
    alive = room.names[:2]
    about = messages.read_server_message("deliveries", room.told(room.names[2]))[0]
    data = messages.write_server_message(
        {name: about[name] for name in ("federation", "roster", "round")}
        | {"clients": alive, "kind": "survivors"}
    )
    for name in alive:
        with pytest.raises(EvidenceError, match="2 of 5 clients survived, fewer than the 4"):
            room.participants[name].on_survivors(data)
