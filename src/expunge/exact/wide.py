"""Arrays of wide integers: the group Z/2^(64 L), vectorised.

A wide array has shape (L, *shape) and dtype uint64; limb 0 is the least significant. It represents
an array of `shape` of integers modulo 2^(64 L), read as signed (two's complement) whenever a sign
is needed. L = 2 is the 128-bit form in which statistics are kept; residuals use as many limbs as
their bound asks for.

Laws: `add` and `subtract` are exact inverses; every function is exact modulo 2^(64 L) and none
rounds, except `to_float`, which is within one part in 2^51.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from expunge.exact.threads import chunks

Wide = NDArray[np.uint64]
Int64 = NDArray[np.int64]
Float = NDArray[np.float64]

_LIMB = 64
_PIECE = 1 << 18  # entries


def zeros(shape: tuple[int, ...], limbs: int = 2) -> Wide:
    """The wide array of zeros."""
    return np.zeros((limbs, *shape), dtype=np.uint64)


def add_into(target: Wide, other: Wide) -> None:
    """target += other, modulo 2^(64 L)."""
    np.add(target[0], other[0], out=target[0])
    carry = target[0] < other[0]
    for limb in range(1, len(target)):
        total = target[limb] + other[limb]
        overflow = total < other[limb]
        if limb + 1 < len(target):
            np.add(total, carry, out=target[limb])
            carry = overflow | (target[limb] < total)
        else:
            np.add(total, carry, out=target[limb])


def subtract_into(target: Wide, other: Wide) -> None:
    """target -= other, modulo 2^(64 L)."""
    borrow = target[0] < other[0]
    np.subtract(target[0], other[0], out=target[0])
    for limb in range(1, len(target)):
        below = target[limb] < other[limb]
        total = target[limb] - other[limb]
        under = total < borrow
        np.subtract(total, borrow, out=target[limb])
        borrow = below | under


def add(left: Wide, right: Wide) -> Wide:
    """left + right."""
    result = left.copy()
    add_into(result, right)
    return result


def subtract(left: Wide, right: Wide) -> Wide:
    """left - right."""
    result = left.copy()
    subtract_into(result, right)
    return result


def negated(value: Wide) -> Wide:
    """-value."""
    return subtract(np.zeros_like(value), value)


def add_shifted(target: Wide, value: Int64, shift: int) -> None:
    """target += value * 2^shift, for signed 64-bit values and shift >= 0."""
    first, bits = divmod(shift, _LIMB)
    limbs = len(target)
    if first >= limbs:
        return
    low = (value << bits).view(np.uint64)
    np.add(target[first], low, out=target[first])
    if first + 1 == limbs:
        return
    carry = target[first] < low
    sign = value >> 63
    part = (value >> (_LIMB - bits) if bits else sign).view(np.uint64)
    for limb in range(first + 1, limbs):
        total = target[limb] + part
        overflow = total < part
        np.add(total, carry, out=target[limb])
        if limb + 1 < limbs:
            carry = overflow | (target[limb] < total)
            part = sign.view(np.uint64)


def shifted_left(value: Wide, bits: int, limbs: int | None = None) -> Wide:
    """value * 2^bits in `limbs` limbs (sign-extended first when there are more)."""
    result = extended(value, limbs if limbs is not None else len(value)).copy()
    whole, part = divmod(bits, _LIMB)
    if whole:
        remaining = max(len(result) - whole, 0)
        result[len(result) - remaining :] = result[:remaining].copy()
        result[: len(result) - remaining] = 0
    if part:
        for limb in range(len(result) - 1, 0, -1):
            result[limb] = (result[limb] << np.uint64(part)) | (
                result[limb - 1] >> np.uint64(_LIMB - part)
            )
        result[0] <<= np.uint64(part)
    return result


def shifted_right(value: Wide, bits: int) -> Wide:
    """floor(value / 2^bits) for signed values, in the same number of limbs."""
    limbs = len(value)
    whole, part = divmod(bits, _LIMB)
    source = extended(value, limbs + whole + 1)[whole:]
    if not part:
        return source[:limbs].copy()
    high = source[1 : limbs + 1] << np.uint64(_LIMB - part)
    return (source[:limbs] >> np.uint64(part)) | high


def extended(value: Wide, limbs: int) -> Wide:
    """The same signed values in more limbs; `value` itself when nothing is to be added."""
    if limbs <= len(value):
        return value[:limbs]
    sign = (value[-1].view(np.int64) >> 63).view(np.uint64)
    return np.concatenate([value, np.broadcast_to(sign, (limbs - len(value), *sign.shape))])


def low_bits(value: Wide, bits: int) -> Wide:
    """value modulo 2^bits, in 0 .. 2^bits - 1; there must be a spare bit above."""
    result = value.copy()
    whole, part = divmod(bits, _LIMB)
    if whole < len(result):
        result[whole] &= np.uint64((1 << part) - 1)
        result[whole + 1 :] = 0
    return result


def to_int64(value: Wide) -> Int64:
    """The values as signed 64-bit integers; they must fit."""
    signed: Int64 = value[0].view(np.int64)
    return signed


def to_float(value: Wide, exponent: int = 0) -> Float:
    """The signed values times 2^exponent as float64, within one part in 2^51 of each value."""
    flat = value.reshape(len(value), -1)
    result = np.empty(flat.shape[1])
    for part in chunks(flat.shape[1], 3):
        _to_float_into(flat[:, part].view(np.int64), result[part], exponent)
    return result.reshape(value.shape[1:])


def _to_float_into(limbs: Int64, out: Float, exponent: int) -> None:
    """Limbs are balanced first (read as signed, with a carry to the next), so that no two large
    terms cancel.
    """
    balanced: list[Int64] = []
    carry: NDArray[np.bool_] | bool = False
    for limb in limbs[:-1]:
        total = limb + carry if balanced else limb
        carry = (total < 0) | (carry & (limb == -1))
        balanced.append(total)
    np.add(limbs[-1], carry, out=out, dtype=np.float64)  # the carry may not fit the last limb
    for limb in reversed(balanced):
        out *= 2.0**_LIMB
        out += limb
    if exponent:
        np.ldexp(out, exponent, out=out)


def from_ints(values: Sequence[int], limbs: int = 2) -> Wide:
    """A one-dimensional wide array of Python integers, modulo 2^(64 L)."""
    mask = (1 << _LIMB) - 1
    columns = [[(int(value) >> (_LIMB * limb)) & mask for value in values] for limb in range(limbs)]
    return np.array(columns, dtype=np.uint64).reshape(limbs, len(values))


def to_ints(value: Wide) -> list[int]:
    """The signed values as Python integers, in row-major order."""
    flat = value.reshape(len(value), -1)
    totals: list[int] = flat[-1].view(np.int64).tolist()
    for limb in flat[-2::-1]:
        totals = [(high << _LIMB) + low for high, low in zip(totals, limb.tolist(), strict=True)]
    return totals


def to_bytes(value: Wide) -> bytes:
    """Row-major little-endian two's complement, 8 L bytes an entry."""
    return np.ascontiguousarray(np.moveaxis(value, 0, -1), dtype="<u8").tobytes()


def byte_chunks(value: Wide) -> Iterator[memoryview]:
    """The pieces of `to_bytes`, one after another in the same memory: to be hashed or written, not
    kept.

    They are large enough that a thread which hashes them seldom asks for the interpreter's lock.
    """
    flat = value.reshape(len(value), -1)
    memory = np.empty((min(_PIECE, flat.shape[1]), len(value)), dtype="<u8")
    for start in range(0, flat.shape[1], _PIECE):
        piece = flat[:, start : start + _PIECE]
        part = memory[: piece.shape[1]]
        for limb, values in enumerate(piece):
            part[:, limb] = values
        yield part.data.cast("B")


def from_bytes(data: bytes | memoryview, shape: tuple[int, ...], limbs: int = 2) -> Wide:
    """The inverse of `to_bytes`."""
    flat = np.frombuffer(data, dtype="<u8").reshape(*shape, limbs)
    return np.ascontiguousarray(np.moveaxis(flat, -1, 0), dtype=np.uint64)


def balanced_digits(value: Wide, bits: int) -> list[Float]:
    """Balanced radix-2^bits digits as float64, least significant first: value = sum of digit_i *
    2^(bits i).

    Every digit lies between -2^(bits-1) and 2^(bits-1); there are as many as the largest value
    needs, none for zeros.
    """
    if len(value) == 1 and np.abs(value.view(np.int64)).max(initial=0) < 1 << 62:
        return _balanced_digits_of_int64(value[0].view(np.int64), bits)
    rest = extended(
        value, len(value) + 1
    ).copy()  # a digit may be negative, and the rest then larger than the value
    half, mask = np.uint64(1 << (bits - 1)), np.uint64((1 << bits) - 1)
    digits: list[Float] = []
    while rest.any():
        digit = ((rest[0] + half) & mask).view(np.int64) - np.int64(1 << (bits - 1))
        digits.append(digit.astype(np.float64))
        add_shifted(rest, -digit, 0)
        rest = shifted_right(rest, bits)
    return digits


def _balanced_digits_of_int64(value: Int64, bits: int) -> list[Float]:
    rest, half, mask = value, np.int64(1 << (bits - 1)), np.int64((1 << bits) - 1)
    result: list[Float] = []
    while rest.any():
        digit = ((rest + half) & mask) - half
        result.append(digit.astype(np.float64))
        rest = (rest - digit) >> np.int64(bits)
    return result


def digits(value: Wide, bits: int) -> list[Float]:
    """Radix-2^bits digits as float64, least significant first: value = sum of digit_i * 2^(bits i),
    for at most 53 bits.

    All lie between 0 and 2^bits - 1 but the last, which is signed. Unlike balanced ones they cost
    no carries.
    """
    count = -(-(largest_bits(value) + 1) // bits)
    last = (count - 1) * bits
    return [
        bits_of(value, low, low + bits, signed=low == last).astype(np.float64)
        for low in range(0, count * bits, bits)
    ]


def bits_of(value: Wide, low: int, high: int, *, signed: bool = False) -> Int64:
    """The bits from `low` up to `high`, of which there are at most 63, as integers of their own.

    They are not negative, unless `signed`: then the highest of them counts as a sign. Beyond the
    width of the value, its sign is repeated.
    """
    limb, offset = divmod(low, _LIMB)
    source = extended(value, max(len(value), (high - 1) // _LIMB + 1))
    part = source[limb] >> np.uint64(offset)
    if offset and high > (limb + 1) * _LIMB:
        part |= source[limb + 1] << np.uint64(_LIMB - offset)
    spare = np.uint64(_LIMB - (high - low))
    part <<= spare
    if not signed:
        part >>= spare
    result: Int64 = part.view(np.int64)
    if signed:
        result >>= np.int64(spare)
    return result


def largest_bits(value: Wide) -> int:
    """The least k such that every value lies strictly between -2^k and 2^k, or one more."""
    largest = float(np.abs(to_float(value)).max(initial=0.0))
    return int(np.frexp(largest * (1 + 2.0**-40))[1])
