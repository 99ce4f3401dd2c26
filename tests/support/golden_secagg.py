"""The golden vectors of a round of secure aggregation: three clients, of which one drops out after
it has dealt its shares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expunge import Aggregation, Spec, Statistics
from expunge.crypto import PublicKey, SigningKey
from expunge.exact import wide
from expunge.secagg import Collector, Contribution, Opening, Participant
from expunge.secagg.arbitration import Arbiter, Dispute, Verdict, examine
from expunge.secagg.keys import Private
from expunge.secagg.messages import read_client_message, read_server_message
from expunge.secagg.parcels import parcels, share_digest, unpack
from expunge.secagg.roster import Roster
from expunge.secagg.unmasking import Decision, rows
from expunge.wire import payloads

RULES = Aggregation(fewest=2, dropouts=30, colluding=0)
SPEC = Spec(dim=1, labels=("no", "yes"), gamma=0.5, messages=("masked",), aggregation=RULES)
OPENING = Opening(
    "0123456789abcdef" * 2, "fedcba9876543210" * 2, "change", SPEC.data_digest, SPEC.labels_digest
)
NAMES = ("hospital-a", "hospital-b", "hospital-c")
KEYS = {name: SigningKey(bytes([number]) * 32) for number, name in enumerate(NAMES, start=1)}
SEQUENCES = {"hospital-a": 1, "hospital-b": 4, "hospital-c": 2}
GONE = "hospital-c"


def secrets_of(name: str) -> list[bytes]:
    """The four secrets that a client draws, in this order: cipher key, mask key, self seed, dealing
    seed.
    """
    return [
        hashlib.sha256(f"{what} of {name}".encode()).digest()
        for what in ("cipher", "mask", "seed", "dealing")
    ]


def statistics_of(name: str) -> tuple[Statistics, Statistics | None]:
    """Each client adds two samples; the second also deletes one."""
    number = NAMES.index(name)
    added = Statistics.of(SPEC, np.array([[0.5 + number], [-1.25]]), np.array([1, 0]))
    deleted = (
        Statistics.of(SPEC, np.array([[2.0]]), np.array([1])) if name == "hospital-b" else None
    )
    return added, deleted


def contribution_of(name: str) -> Contribution:
    return Contribution.of(*statistics_of(name), SPEC)


def joined(name: str, rules: Aggregation = RULES, *, exposed: bool = False) -> Participant:
    drawn = iter(secrets_of(name))
    return Participant.join(
        OPENING,
        rules,
        name=name,
        sequence=SEQUENCES[name],
        key=KEYS[name],
        exposed=exposed,
        random=lambda _: next(drawn),
    )


def exposed_roster() -> dict[str, Any]:
    """The same three join, and hospital-b says that its part hides nobody."""
    collector = Collector(OPENING, RULES, lambda name: KEYS[name].public)
    clients = {name: joined(name, exposed=name == "hospital-b") for name in NAMES}
    for client in clients.values():
        collector.take(client.message)
    collector.advance()
    return {"join": clients["hospital-b"].message.hex(), "roster": collector.roster.data.hex()}


@dataclass
class Round:
    """A round of the three clients, with all that was said and told in it."""

    clients: dict[str, Participant]
    collector: Collector
    roster: Roster
    said: dict[str, dict[str, str]]
    told: dict[str, Any]


def round_of(rules: Aggregation, vectors: dict[str, wide.Wide], gone: str = "") -> Round:
    """The round of these vectors, in which one may drop out after it has dealt its shares."""
    clients = {name: joined(name, rules) for name in NAMES}
    pins = {name: key.public for name, key in KEYS.items()}
    collector = Collector(OPENING, rules, pins.__getitem__)
    said: dict[str, dict[str, str]] = {name: {} for name in NAMES}
    told: dict[str, Any] = {}
    left = [name for name in NAMES if name != gone]

    def hear(name: str, data: bytes) -> None:
        said[name][read_client_message(data).kind] = data.hex()
        collector.take(data)

    for name in NAMES:
        hear(name, clients[name].message)
    collector.advance()
    roster = Roster.read(collector.say("hospital-a") or b"")
    told["roster"] = roster.data.hex()
    for name in NAMES:
        hear(name, clients[name].on_roster(roster.data, pins))
    collector.advance()
    told["deliveries"] = {name: (collector.say(name) or b"").hex() for name in NAMES}
    for name in left:
        hear(name, clients[name].on_deliveries(collector.say(name) or b"", vectors[name]))
    collector.advance()
    survivors = collector.say("hospital-a") or b""
    told["survivors"] = survivors.hex()
    for name in left:
        hear(name, clients[name].on_survivors(survivors))
    collector.advance()
    agreements = collector.say("hospital-a") or b""
    told["agreements"] = agreements.hex()
    for name in left:
        hear(name, clients[name].on_agreements(agreements, pins))
    collector.advance()
    return Round(clients, collector, roster, said, told)


def numbers(vector: wide.Wide) -> list[str]:
    """Entries modulo 2^128, as signed integers."""
    return [str(one) for one in wide.to_ints(vector)]


def aggregation() -> dict[str, Any]:
    made = round_of(RULES, {name: contribution_of(name).vector() for name in NAMES}, GONE)
    collector, roster = made.collector, made.roster
    turn = {
        "actor": "hospital-a",
        "aggregation": OPENING.round,
        "federation": OPENING.federation,
        "reset": False,
        "sequence": SEQUENCES["hospital-a"],
        "wait": 20,
    }
    return {
        "shows": (
            "a whole round of secure aggregation: hospital-c drops out after it has dealt "
            "its shares, and is not in the sum"
        ),
        "spec": SPEC.to_dict(),
        "opening": OPENING.to_json(),
        "identity_seeds": {
            name: (bytes([number]) * 32).hex() for number, name in enumerate(NAMES, start=1)
        },
        "sequences": SEQUENCES,
        "secrets": {
            name: dict(
                zip(
                    ("cipher", "mask", "seed", "dealing"),
                    (one.hex() for one in secrets_of(name)),
                    strict=True,
                )
            )
            for name in NAMES
        },
        "plan": {
            "degree": roster.plan.degree,
            "threshold": roster.plan.threshold,
            "quorum": roster.plan.quorum,
            "survivors": roster.plan.survivors,
        },
        "vectors": {name: numbers(contribution_of(name).vector()) for name in NAMES},
        "derived": _derived(roster, collector),
        "said": made.said,
        "told": made.told,
        "exposed": exposed_roster(),
        "turn": payloads.sign("turn", turn, KEYS["hospital-a"]).decode(),
        "included": collector.included,
        "sum": numbers(collector.sum()),
    }


def _derived(roster: Roster, collector: Collector) -> dict[str, Any]:
    """Keys and digests between hospital-a and hospital-b, to find out at which step another
    implementation differs.
    """
    context, own = roster.context, secrets_of("hospital-a")
    other = roster.join("hospital-b")
    cipher, mask = Private(own[0]), Private(own[1])
    parcel = collector._dealt["hospital-a"].parcels[
        roster.neighbours("hospital-a").index("hospital-b")
    ]
    holder = Private(secrets_of("hospital-b")[0])
    seed_share, mask_share = unpack(
        roster, holder, parcel, dealer="hospital-a", holder="hospital-b"
    )
    return {
        "roster_digest": roster.digest,
        "holders_of_hospital_a": list(roster.holders("hospital-a")),
        "agreed_by_cipher_keys": cipher.agreed(other.cipher, "hospital-b").hex(),
        "parcel_key_a_to_b": context.key(
            cipher.agreed(other.cipher, "hospital-b"), "parcel", "hospital-a", "hospital-b"
        ).hex(),
        "pair_mask_key_a_b": context.pair_key(mask, other.mask, "hospital-a", "hospital-b").hex(),
        "self_mask_key_a": context.self_key(own[2], "hospital-a").hex(),
        "seed_commitment_a": context.digest(own[2], "seed", "hospital-a").hex(),
        "seed_share_of_a_for_b": seed_share.hex(),
        "mask_share_of_a_for_b": mask_share.hex(),
        "digest_of_that_seed_share": share_digest(
            context, True, "hospital-a", "hospital-b", seed_share
        ).hex(),
    }


ARBITER = bytes(range(64))
LIAR = "hospital-b"


def until_masking(
    collector: Collector, clients: Mapping[str, Participant], pins: Mapping[str, PublicKey]
) -> None:
    """These clients join a round, and deal their shares."""
    for client in clients.values():
        collector.take(client.message)
    collector.advance()
    for name, client in clients.items():
        collector.take(client.on_roster(collector.say(name) or b"", pins))
    collector.advance()


def complained(rules: Aggregation, vector: wide.Wide) -> dict[str, str]:
    """A complaint of one client, the answer to it, and what the client is sent then."""
    clients = {name: joined(name, rules) for name in NAMES}
    pins = {name: key.public for name, key in KEYS.items()}
    collector = Collector(OPENING, rules, pins.__getitem__)
    until_masking(collector, clients, pins)
    told, body = read_server_message("deliveries", collector.say("hospital-a") or b"")
    sent = dict(zip(told["senders"], parcels(body, 2, "parcels"), strict=True))
    complaint = clients["hospital-a"].complaint({LIAR: sent[LIAR]})
    collector.take(complaint)
    justification = clients[LIAR].on_complaint(collector.say(LIAR) or b"", pins)
    collector.take(justification)
    deliveries = collector.say("hospital-a") or b""
    collector.take(clients["hospital-a"].on_deliveries(deliveries, vector))
    return {
        "complaint_of_hospital_a": complaint.hex(),
        "justification_of_hospital_b": justification.hex(),
        "deliveries_of_hospital_a": deliveries.hex(),
    }


def arbitration() -> dict[str, Any]:
    arbiter = Arbiter(ARBITER)
    rules = replace(RULES, arbiter=arbiter.public)
    spec = replace(SPEC, aggregation=rules)
    vectors = {name: contribution_of(name).vector() for name in NAMES}
    vectors[LIAR][0, 0] += np.uint64(1)
    made = round_of(rules, vectors)
    openings = {name: made.clients[name].open_part(*statistics_of(name)) for name in NAMES}
    dispute = Dispute(
        spec,
        OPENING.federation,
        "impossible",
        frozenset(SEQUENCES.items()),
        made.collector.records(),
        {name: key.public.text for name, key in KEYS.items()},
        openings,
    )
    verdict = Verdict(
        OPENING.federation,
        OPENING.round,
        made.roster.digest,
        dispute.parts,
        examine(dispute, arbiter).false,
        "2026-11-18T00:00:00Z",
    )
    many = frozenset((f"clinic-{number}", 1) for number in range(11))
    signers = frozenset(name for name, _ in many if name not in ("clinic-3", "clinic-10"))
    voided = Decision("voided", OPENING.round, many, signers=signers, size=12)
    cut = rows(voided, Aggregation(colluding=5))
    return {
        "shows": (
            "a round in which hospital-b masks another vector than that of its samples, what all "
            "three open to the arbiter, and its verdict; a complaint in such a round, and its "
            "answer; and the rows of a false sum of eleven"
        ),
        "arbiter_secret": ARBITER.hex(),
        "arbiter_public": arbiter.public,
        "dispute": dispute.to_json(),
        "openings": {name: data.hex() for name, data in openings.items()},
        "opened": {
            name: arbiter.open(made.roster, name, read_client_message(data).body).to_bytes().hex()
            for name, data in openings.items()
        },
        "complaint": complained(rules, vectors["hospital-a"]),
        "verdict": arbiter.sign(verdict).to_bytes().decode("ascii"),
        "rows": {
            "aggregation": OPENING.round,
            "clients": sorted(name for name, _ in many),
            "signers": sorted(signers),
            "size": 12,
            "fewest": 3,
            "colluding": 5,
            "rows": [sorted(name for name, _ in row) for row in cut],
        },
    }
