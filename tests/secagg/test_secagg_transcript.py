"""What the server saw: every byte in both directions, and what can be made of it.

Clients are separate objects that exchange bytes only. The server here is curious, and tries.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pytest

from expunge.exact import wide
from expunge.exact.wide import Wide
from expunge.secagg import Contribution, MaskedVector, messages, parcels, shamir
from expunge.secagg.keys import Private, Secrets
from expunge.secagg.roster import Roster
from support.samples import SPEC, draw, statistics_of
from support.secagg import STEPS, Room, draw_vectors, name_of, state_of, total

DROPS = {"sharing": ["client-00"], "masking": ["client-03"], "revealing": ["client-05"]}
CLIENTS = 9


class Curious:
    """A round, and all that its server can make of the transcript."""

    def __init__(
        self, vectors: Mapping[str, Wide], drops: Mapping[str, list[str]], seed: str = "seed"
    ) -> None:
        self.room = Room(vectors, seed=seed)
        self.room.join()
        self.secrets: dict[str, Secrets] = {}  # what the server must not learn
        for name, participant in self.room.participants.items():
            assert state_of(participant).secrets is not None
            self.secrets[name] = state_of(participant).secrets
        self.room.collector.advance()
        gone: set[str] = set()
        for step in STEPS:
            gone |= set(drops.get(step, ()))
            self.room.go(without=gone)
        # From here on, bytes alone.
        self.transcript = self.room.transcript
        told = [
            data for way, _, data in self.transcript if way == "down" and b'"kind":"roster"' in data
        ]
        self.roster = Roster.read(told[0])
        self.said = {(message.kind, message.client): message for message in self._heard()}
        self.dealers = {client for kind, client in self.said if kind == "shares"}
        self.alive = {client for kind, client in self.said if kind == "masked"}

    def _heard(self) -> list[messages.ClientMessage]:
        return [
            messages.read_client_message(data) for way, _, data in self.transcript if way == "up"
        ]

    def revealed(self) -> dict[tuple[str, str], dict[int, bytes]]:
        """Shares by dealer and kind of secret, with the holder's number."""
        found: dict[tuple[str, str], dict[int, bytes]] = defaultdict(dict)
        for (kind, holder), message in self.said.items():
            if kind != "reveal":
                continue
            dealers = [name for name in self.roster.holders(holder) if name in self.dealers]
            for dealer, share in zip(
                dealers, messages.pieces(message.body, len(dealers), 33, ""), strict=True
            ):
                what = "seed" if dealer in self.alive else "mask"
                found[dealer, what][1 + self.roster.holders(dealer).index(holder)] = bytes(share)
        return found

    def opened(self, name: str) -> Wide:
        """A single client's masked vector without every mask that the server can compute."""
        context, revealed = self.roster.context, self.revealed()
        threshold = self.roster.plan.threshold
        plus = [context.self_key(shamir.recover(revealed[name, "seed"], threshold), name)]
        minus = []
        for other in self.roster.neighbours(name):
            if len(revealed.get((other, "mask"), {})) >= threshold:
                private = Private(shamir.recover(revealed[other, "mask"], threshold))
                key = context.pair_key(private, self.roster.join(name).mask, other, name)
                (plus if name < other else minus).append(key)
        return MaskedVector.from_bytes(self.said["masked", name].body).opened(plus, minus)


@pytest.fixture(scope="module")
def curious() -> Curious:
    rng = np.random.default_rng(3)
    names = [name_of(place) for place in range(CLIENTS)]
    parts = {
        name: Contribution.of(
            statistics_of(SPEC, draw(rng, 3)), statistics_of(SPEC, draw(rng, 1)), SPEC
        )
        for name in names
    }
    return Curious({name: part.vector() for name, part in parts.items()}, DROPS)


def test_the_curious_server_knows_the_sum_like_any_other(curious: Curious) -> None:
    """So that what follows fails by masks, not by mistakes of the one who tries."""
    assert curious.alive == set(curious.room.names) - {"client-00", "client-03"}
    vectors = curious.room.vectors
    assert np.array_equal(
        total(curious.opened(name) for name in curious.alive),
        total(vectors[name] for name in curious.alive),
    )


def test_no_secret_is_in_the_transcript_but_revealed_shares(curious: Curious) -> None:
    seen = b"\n".join(data for _, _, data in curious.transcript)
    revealed = {share for shares in curious.revealed().values() for share in shares.values()}
    assert all(share in seen for share in revealed)
    for name, secrets in curious.secrets.items():
        for secret in (secrets.cipher, secrets.mask, secrets.seed, secrets.dealing):
            assert secret not in seen
            assert secret[::-1] not in seen
            assert secret.hex().encode() not in seen
        seeds = parcels.shares(curious.roster, secrets, name, "seed")
        masks = parcels.shares(curious.roster, secrets, name, "mask")
        dealt = {*seeds.values(), *masks.values()}
        assert len(dealt) == 2 * len(curious.roster.holders(name))
        assert len(dealt & revealed) <= len(curious.roster.holders(name))
        assert not any(share in seen for share in dealt - revealed)


def test_no_vector_is_in_the_transcript(curious: Curious) -> None:
    seen = b"\n".join(data for _, _, data in curious.transcript)
    for vector in curious.room.vectors.values():
        entries = [wide.to_bytes(vector[:, place : place + 1]) for place in range(vector.shape[1])]
        large = [entry for entry in entries if len(entry.strip(b"\x00\xff")) > 4]
        assert len(large) >= 10
        assert not any(entry in seen for entry in large)


def test_of_each_client_one_kind_of_secret_at_most_can_be_opened(curious: Curious) -> None:
    revealed, threshold = curious.revealed(), curious.roster.plan.threshold
    for name in curious.roster.names:
        kinds = {what for dealer, what in revealed if dealer == name}
        assert kinds == (
            {"seed"} if name in curious.alive else {"mask"} if name in curious.dealers else set()
        )
    for name in curious.alive:
        assert len(revealed[name, "seed"]) >= threshold
        assert shamir.recover(revealed[name, "seed"], threshold) == curious.secrets[name].seed
    assert (
        shamir.recover(revealed["client-03", "mask"], threshold)
        == curious.secrets["client-03"].mask
    )


def test_a_single_vector_stays_masked_by_all_that_was_revealed(curious: Curious) -> None:
    vectors = curious.room.vectors
    again = Curious(vectors, DROPS, seed="another")
    for name in curious.alive:
        left = curious.opened(name)
        assert not np.array_equal(left, vectors[name])
        assert (left != vectors[name]).all(axis=0).sum() > 0.9 * left.shape[1]
        assert not np.array_equal(left, again.opened(name))
    for size in range(1, len(curious.alive)):  # nor does the sum of any of them but all
        for some in itertools.islice(itertools.combinations(sorted(curious.alive), size), 12):
            partial = total(curious.opened(name) for name in some)
            assert not np.array_equal(partial, total(vectors[name] for name in some))
    assert np.array_equal(curious.room.collector.sum(), again.room.collector.sum())


def test_two_runs_that_differ_in_inputs_only_differ_in_masked_vectors_only() -> None:
    """With the same randomness everything but the masked vectors is the same: nothing else depends
    on inputs.

    And these differ by the inputs' own difference, so that with uniform masks whose only known
    relation is that they cancel in the sum, inputs of the same sum are seen in the same way.
    """
    first = draw_vectors(5, 6)
    moved = draw_vectors(5, 6, seed=8)
    second = dict(first)
    for one, other in itertools.pairwise(sorted(first)):
        second[one] = wide.add(second[one], moved[one])
        second[other] = wide.subtract(second[other], moved[one])
    left, right = Curious(first, {}), Curious(second, {})
    assert np.array_equal(left.room.collector.sum(), right.room.collector.sum())
    for (way, name, mine), (_, _, other) in zip(left.transcript, right.transcript, strict=True):
        if way == "up" and messages.read_client_message(mine).kind == "masked":
            assert mine != other
            bodies = [
                MaskedVector.from_bytes(messages.read_client_message(data).body).opened([], [])
                for data in (mine, other)
            ]
            assert np.array_equal(
                wide.subtract(bodies[1], bodies[0]), wide.subtract(second[name], first[name])
            )
        else:
            assert mine == other


def test_the_view_is_explained_by_any_inputs_of_the_same_sum() -> None:
    """The bijection: for other inputs of the same sum there are pairwise masks that give the very
    same masked vectors.
    """
    vectors, other = draw_vectors(5, 6), draw_vectors(5, 6, seed=9)
    names = sorted(vectors)
    other[names[-1]] = wide.subtract(
        total(vectors.values()), total(other[name] for name in names[:-1])
    )
    curious = Curious(vectors, {})
    view = {
        name: curious.opened(name) for name in names
    }  # without self masks, which the server knows
    masks: dict[tuple[str, str], Wide] = {}
    for pair in itertools.combinations(names, 2):
        private = Private(curious.secrets[pair[0]].mask)
        key = curious.roster.context.pair_key(private, curious.roster.join(pair[1]).mask, *pair)
        masks[pair] = MaskedVector.of(wide.zeros((6,)), [key], []).opened([], [])

    def explained(inputs: Mapping[str, Wide], pads: Mapping[tuple[str, str], Wide]) -> bool:
        seen = {name: inputs[name].copy() for name in names}
        for (one, two), mask in pads.items():
            wide.add_into(seen[one], mask)
            wide.subtract_into(seen[two], mask)
        return all(np.array_equal(seen[name], view[name]) for name in names)

    assert explained(vectors, masks)
    assert not explained(other, masks)
    moved = dict(masks)
    for name in names[1:]:  # on the star around the first client
        moved[names[0], name] = wide.subtract(
            masks[names[0], name], wide.subtract(vectors[name], other[name])
        )
    assert explained(other, moved)


def test_masked_vectors_look_uniform() -> None:
    length = 1500
    zeros = {name_of(place): wide.zeros((length,)) for place in range(3)}
    curious = Curious(zeros, {})
    for name in zeros:
        for data in (bytes(curious.said["masked", name].body), wide.to_bytes(curious.opened(name))):
            bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8).reshape(length, 16), axis=1)
            assert np.abs(bits.sum(axis=0) - length / 2).max() < 6 * (length / 4) ** 0.5
            assert abs(int(bits.sum()) - 64 * length) < 6 * (32 * length) ** 0.5
