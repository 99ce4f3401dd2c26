"""Shamir's secret sharing over the integers modulo the prime 2^256 + 297.

Law: any `threshold` of the shares of a secret give it back, and any fewer are independent of it
(for coefficients that are uniform). The holder with number x = 1, 2, ... has the value at x of a
polynomial whose value at 0 is the secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate, repeat
from math import prod
from operator import sub

from expunge.errors import FormatError, InputError

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
COEFFICIENT_BYTES = 48  # reduced modulo the prime, they are uniform within 2^-127


def deal(
    secret: bytes, threshold: int, holders: int, stream: bytes, *, only: int | None = None
) -> list[bytes]:
    """The shares of holders 1 .. `holders`, or that of one of them alone.

    `stream`: COEFFICIENT_BYTES random bytes for each of threshold - 1 coefficients.
    """
    if len(secret) != SECRET_BYTES or len(stream) != COEFFICIENT_BYTES * (threshold - 1):
        raise InputError(
            f"a secret of {SECRET_BYTES} bytes and {COEFFICIENT_BYTES * (threshold - 1)} random "
            f"ones are needed, got {len(secret)} and {len(stream)}"
        )
    if not 1 <= threshold <= holders:
        raise InputError(
            f"{threshold} of {holders} shares cannot open a secret: choose between 1 and {holders}"
        )
    pieces = (
        stream[at : at + COEFFICIENT_BYTES] for at in range(0, len(stream), COEFFICIENT_BYTES)
    )
    coefficients = [int.from_bytes(piece, "little") % PRIME for piece in pieces]
    constant = int.from_bytes(secret, "little")
    shares = []
    for x in range(1, holders + 1) if only is None else [only]:
        value = 0
        for coefficient in coefficients:
            value = (value + coefficient) * x % PRIME
        shares.append(((value + constant) % PRIME).to_bytes(SHARE_BYTES, "little"))
    return shares


def recover(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret behind the shares of these holders, by number; the first `threshold` are used.

    Shares that were not dealt together give other bytes, or FormatError: what is recovered must be
    checked by who knows it.
    """
    if len(shares) < threshold:
        raise InputError(
            f"{len(shares)} shares are too few to recover a secret: {threshold} are needed"
        )
    chosen = tuple(sorted(shares)[:threshold])
    values = [_value(shares[x]) for x in chosen]
    secret = (
        sum(weight * value for weight, value in zip(_weights(chosen), values, strict=True)) % PRIME
    )
    if secret >> (8 * SECRET_BYTES):
        raise FormatError("these shares were not dealt together: what they give is no secret")
    return secret.to_bytes(SECRET_BYTES, "little")


def _value(share: bytes) -> int:
    value = int.from_bytes(share, "little")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise FormatError(
            f"a share must be {SHARE_BYTES} bytes of a number below 2^256 + 297, got {len(share)} "
            "bytes"
        )
    return value


@lru_cache(maxsize=1024)
def _weights(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's coefficients at 0; the same holders are asked again and again.

    That of x is the product of all holders over x times the product of the differences of the
    others to x. One inverse, of the product of all divisors, does for all of them; numbers are
    small, so that their products are faster without a remainder after every factor.
    """
    divisors = [
        x * prod(map(sub, holders[:place] + holders[place + 1 :], repeat(x))) % PRIME
        for place, x in enumerate(holders)
    ]
    before = list(accumulate(divisors, lambda left, right: left * right % PRIME, initial=1))
    rest = prod(holders) * pow(before.pop(), -1, PRIME) % PRIME
    weights = []
    for divisor, product in zip(reversed(divisors), reversed(before), strict=True):
        weights.append(product * rest % PRIME)
        rest = rest * divisor % PRIME
    return tuple(reversed(weights))
