"""Ring, shares, keys and masks: the laws that each states."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from flint import fmpz
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge import Statistics
from expunge.crypto import canonical
from expunge.errors import EvidenceError, FormatError, InputError
from expunge.exact import wide
from expunge.secagg import MaskedVector, keys, masks, shamir
from expunge.secagg.keys import Context, Private, Secrets
from expunge.secagg.roster import Graph
from support.samples import SPEC

CONTEXT = Context("f" * 32, "1" * 32, "a" * 64)


# -- the ring --------------------------------------------------------------------------------------


@given(st.integers(2, 40), st.integers(1, 19), st.binary(min_size=1, max_size=8))
def test_being_neighbours_is_mutual_and_even(clients: int, half: int, seed: bytes) -> None:
    names = [f"c{place}" for place in range(clients)]
    degree = min(2 * half, clients - 1)
    if degree < clients - 1 and degree % 2:
        degree -= 1
    graph = Graph(seed, names, degree)
    for name in names:
        near = graph.neighbours(name)
        assert len(set(near)) == len(near) == degree
        assert name not in near
        assert list(near) == sorted(near)
        assert all(name in graph.neighbours(other) for other in near)
    assert Graph(seed, names[::-1], degree).neighbours("c0") == graph.neighbours("c0")


def test_every_order_of_the_ring_is_as_likely_as_another() -> None:
    names = ["a", "b", "c", "d", "e"]
    counts = dict.fromkeys(itertools.combinations(names[1:], 2), 0)
    for seed in range(1200):
        counts[Graph(seed.to_bytes(4, "big"), names, 2).neighbours("a")] += 1
    assert all(
        abs(count - 200) < 6 * (1200 * 5 / 36) ** 0.5 for count in counts.values()
    )  # six pairs, each 1 in 6


@pytest.mark.parametrize("degree", [0, 3, 5])
def test_a_ring_that_cannot_be_is_refused(degree: int) -> None:
    with pytest.raises(InputError, match="5 clients cannot have"):
        Graph(b"", ["a", "b", "c", "d", "e"], degree)


# -- shares ----------------------------------------------------------------------------------------


def test_the_field_is_a_field() -> None:
    assert fmpz(shamir.PRIME).is_prime()
    assert shamir.PRIME > 2**256
    assert shamir.PRIME < 2 ** (8 * shamir.SHARE_BYTES)


@given(
    st.binary(min_size=32, max_size=32),
    st.integers(1, 6),
    st.integers(0, 4),
    st.randoms(use_true_random=False),
)
def test_any_threshold_of_shares_gives_the_secret(
    secret: bytes, threshold: int, more: int, random: Any
) -> None:
    stream = random.randbytes(shamir.COEFFICIENT_BYTES * (threshold - 1))
    shares = shamir.deal(secret, threshold, threshold + more, stream)
    for number, share in enumerate(shares, 1):
        assert shamir.deal(secret, threshold, len(shares), stream, only=number) == [share]
    chosen = random.sample(range(1, threshold + more + 1), threshold)
    assert shamir.recover({x: shares[x - 1] for x in chosen}, threshold) == secret


@given(st.sets(st.integers(1, 600), min_size=1, max_size=12))
def test_weights_give_the_value_at_0_of_every_power(holders: set[int]) -> None:
    """Lagrange's law, which fixes the weights: x^k is 1 at 0 for k = 0, and 0 for the others."""
    numbers = tuple(sorted(holders))
    weights = shamir._weights(numbers)
    for power in range(len(numbers)):
        total = sum(weight * x**power for weight, x in zip(weights, numbers, strict=True))
        assert total % shamir.PRIME == (power == 0)


def test_one_share_too_few_fits_every_secret() -> None:
    """For each secret there are coefficients that give the same shares: the bijection behind the
    law.
    """
    stream = bytes(range(96))
    shares = shamir.deal(bytes(32), 3, 3, stream)[:2]
    first, second = (int.from_bytes(share, "little") for share in shares)
    other = 12345
    # a x^2 + b x + other through both points: solve for a and b
    p = shamir.PRIME
    a = ((second - other) - 2 * (first - other)) * pow(2, -1, p) % p
    b = (first - other - a) % p
    coefficients = a.to_bytes(48, "little") + b.to_bytes(48, "little")
    assert shamir.deal(other.to_bytes(32, "little"), 3, 3, coefficients)[:2] == shares


def test_shares_are_refused_when_too_few_or_malformed() -> None:
    shares = dict(enumerate(shamir.deal(bytes(32), 2, 3, bytes(48)), 1))
    with pytest.raises(InputError, match="1 shares are too few"):
        shamir.recover({1: shares[1]}, 2)
    with pytest.raises(FormatError, match="33 bytes"):
        shamir.recover({1: shares[1], 2: b"\xff" * 33}, 2)
    with pytest.raises(FormatError, match="not dealt together"):
        shamir.recover({1: (shamir.PRIME - 1).to_bytes(33, "little")}, 1)
    with pytest.raises(InputError, match="cannot open"):
        shamir.deal(bytes(32), 3, 2, bytes(96))
    with pytest.raises(InputError, match="got 31"):
        shamir.deal(bytes(31), 1, 2, b"")


# -- keys ------------------------------------------------------------------------------------------


def test_keys_differ_by_use_round_roster_and_names() -> None:
    contexts = [
        CONTEXT,
        Context("e" * 32, "1" * 32, "a" * 64),
        Context("f" * 32, "2" * 32, "a" * 64),
        Context("f" * 32, "1" * 32, "b" * 64),
    ]
    uses = [("self mask", "a"), ("self mask", "b"), ("parcel", "a", "b"), ("parcel", "b", "a")]
    found = {context.key(bytes(32), *use) for context in contexts for use in uses}
    found |= {context.digest(bytes(32), *use) for context in contexts for use in uses}
    assert len(found) == 2 * len(contexts) * len(uses)


def test_the_context_is_canonical_json() -> None:
    text = CONTEXT._text("pair mask", "a-b.c", "d_e")
    prefix = b"expunge\x00aggregation\x00\x02"
    assert text == prefix + canonical.encode(
        ["pair mask", CONTEXT.federation, CONTEXT.round, CONTEXT.roster, "a-b.c", "d_e"]
    )


def test_a_pair_has_one_mask_key_from_either_side() -> None:
    ann, bob, eve = (Private(bytes([number]) * 32) for number in (1, 2, 3))
    key = CONTEXT.pair_key(ann, bob.public, "ann", "bob")
    assert key == CONTEXT.pair_key(bob, ann.public, "bob", "ann")
    assert key != CONTEXT.pair_key(eve, bob.public, "ann", "bob")


@pytest.mark.parametrize("point", sorted(keys._SMALL_ORDER))
def test_points_of_small_order_are_refused(point: int) -> None:
    raw = point.to_bytes(32, "little")
    with pytest.raises(
        ValueError, match="shared key"
    ):  # the list is right: the library refuses each as well
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(raw))
    for top in (0, 0x80):
        with pytest.raises(FormatError, match="small order"):
            keys.checked_public(raw[:-1] + bytes([raw[-1] | top]), "the key")
    with pytest.raises(EvidenceError, match="with eve"):
        Private(bytes(32)).agreed(raw, "eve")


def test_what_is_sealed_opens_only_unaltered() -> None:
    sealed = keys.seal(bytes(32), b"content", b"beside")
    assert keys.unseal(bytes(32), sealed, b"beside", "ann") == b"content"
    for key, data, beside in [
        (b"x" * 32, sealed, b"beside"),
        (bytes(32), sealed[:-1] + b"x", b"beside"),
        (bytes(32), sealed, b"else"),
    ]:
        with pytest.raises(EvidenceError, match="parcel of ann"):
            keys.unseal(key, data, beside, "ann")


def test_secrets_are_not_shown() -> None:
    drawn = Secrets.draw(lambda size: b"\x07" * size)
    assert "0707" not in repr(drawn)
    assert "\\x07" not in repr(drawn)
    assert Secrets.from_bytes(drawn.to_bytes()) == drawn
    with pytest.raises(FormatError, match="128 bytes"):
        Secrets.from_bytes(b"")


# -- masks -----------------------------------------------------------------------------------------


@given(
    st.integers(0, 2**32),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from([1, 2, 5, 8192, 8193, 20000]),
)
@settings(max_examples=25)
def test_masks_are_the_stream_and_come_off_again(
    seed: int, more: int, less: int, length: int
) -> None:
    vector = np.random.default_rng(seed).integers(0, 2**64, size=(2, length), dtype=np.uint64)
    plus, minus = (
        [bytes([1, place]) * 16 for place in range(more)],
        [bytes([2, place]) * 16 for place in range(less)],
    )
    before = vector.copy()
    masked = MaskedVector.of(vector, plus, minus)
    assert np.array_equal(vector, before)
    expected = vector.copy()
    for key in plus:
        wide.add_into(expected, wide.from_bytes(keys.stream(key, 16 * length), (length,)))
    for key in minus:
        wide.subtract_into(expected, wide.from_bytes(keys.stream(key, 16 * length), (length,)))
    assert masked.to_bytes() == masked.view == wide.to_bytes(expected)
    assert masked.view.readonly
    assert np.array_equal(MaskedVector.from_bytes(masked.to_bytes()).opened(plus, minus), vector)


@given(
    st.lists(st.integers(-(2**127), 2**127 - 1), min_size=1, max_size=9),
    st.integers(0, 7),
    st.integers(0, 7),
    st.integers(1, 10),
    st.integers(1, 9),
)
def test_masks_are_the_same_by_any_blocks_and_groups(
    numbers: list[int], more: int, less: int, block: int, together: int
) -> None:
    """Entry by entry: the number, plus and minus the blocks of the streams, modulo 2^128."""
    plus, minus = (
        [bytes([1, place]) * 16 for place in range(more)],
        [bytes([2, place]) * 16 for place in range(less)],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masks, "BLOCK", block)
        patch.setattr(masks, "TOGETHER", together)
        masked = MaskedVector.of(wide.from_ints(numbers), plus, minus)
        twice = masked.copy()
        twice.absorb(masked)
        opened = masked.opened(plus, minus)
    for place, number in enumerate(numbers):
        expected = number + _block(plus, place) - _block(minus, place)
        assert _entry(masked, place) == expected % 2**128
        assert _entry(twice, place) == 2 * expected % 2**128
    assert wide.to_ints(opened) == numbers


def _block(stream_keys: list[bytes], place: int) -> int:
    """The sum of one entry's blocks."""
    streams = (keys.stream(key, 16 * (place + 1))[-16:] for key in stream_keys)
    return sum(int.from_bytes(block, "little") for block in streams)


def _entry(masked: MaskedVector, place: int) -> int:
    return int.from_bytes(masked.to_bytes()[16 * place : 16 * (place + 1)], "little")


@pytest.mark.parametrize("count", [254, 255, 600])
def test_carries_of_many_masks_are_counted(count: int) -> None:
    """More masks than a count of carries holds."""
    stream_keys = [place.to_bytes(32, "little") for place in range(count)]
    masked = MaskedVector.of(wide.from_ints([-1, 7]), stream_keys, [])
    for place, number in enumerate((-1, 7)):
        assert _entry(masked, place) == (number + _block(stream_keys, place)) % 2**128
    assert wide.to_ints(masked.opened(stream_keys, [])) == [-1, 7]


def test_the_bytes_of_a_masked_vector_are_not_written_to() -> None:
    data = bytearray(b"x" + bytes(32))
    masked = MaskedVector.from_bytes(memoryview(data)[1:])
    more = MaskedVector.of(wide.from_ints([1, 2]), [], [])
    with pytest.raises(ValueError, match="read-only"):
        masked.absorb(more)
    own = masked.copy()
    own.absorb(more)
    assert wide.to_ints(own.opened([], [])) == [1, 2]
    assert data == b"x" + bytes(32)


def test_sums_of_masked_vectors_open_to_the_sum() -> None:
    first, second = wide.from_ints([1, -2, 3]), wide.from_ints([10, 20, -30])
    running = MaskedVector.of(first, [b"a" * 32], [])
    running.absorb(MaskedVector.of(second, [b"b" * 32], [b"a" * 32]))
    assert wide.to_ints(running.opened([b"b" * 32], [])) == [11, 18, -27]


def test_a_masked_vector_is_no_statistics() -> None:
    masked: Any = MaskedVector.of(wide.zeros((3,)), [b"a" * 32], [])
    with pytest.raises(TypeError):
        Statistics.zero(SPEC) + masked
    with pytest.raises(TypeError):
        masked + Statistics.zero(SPEC)
    assert repr(masked) == "<Masked vector of 3 entries>"


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros((2, 0), np.uint64),
        np.zeros((3, 4), np.uint64),
        np.zeros((2, 4), np.int64),
        np.zeros(4, np.uint64),
    ],
)
def test_what_is_no_vector_is_not_masked(vector: Any) -> None:
    with pytest.raises(FormatError, match="shape"):
        MaskedVector.of(vector, [], [])


def test_masked_vectors_of_other_lengths_are_refused() -> None:
    with pytest.raises(FormatError, match="cannot be added"):
        MaskedVector.of(wide.zeros((3,)), [], []).absorb(MaskedVector.of(wide.zeros((4,)), [], []))
    for data in (b"", bytes(15), bytes(17)):
        with pytest.raises(FormatError, match="16 bytes an entry"):
            MaskedVector.from_bytes(data)


def test_masked_zeros_look_uniform() -> None:
    length = 4096
    masked = np.frombuffer(
        MaskedVector.of(wide.zeros((length,)), [b"k" * 32], [b"l" * 32]).to_bytes(), dtype=np.uint8
    )
    ones = np.unpackbits(masked.reshape(length, 16), axis=1).sum(axis=0)
    assert np.abs(ones - length / 2).max() < 6 * (length / 4) ** 0.5
