"""Parcels: how a dealer's shares travel to their holders, and how a holder finds out that one is
wrong.

A parcel needs no signature of its own: it is sealed under what the cipher keys of dealer and holder
have in common, which only the two can compute, and both keys are in signed joins. The message of
shares in which it came is signed as a whole, so the server can show who dealt what.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from expunge.errors import EvidenceError
from expunge.frame import Reader
from expunge.secagg import shamir
from expunge.secagg.keys import SEALED_MORE, Context, Private, Secrets, seal, stream, unseal
from expunge.secagg.messages import pieces
from expunge.secagg.roster import Roster
from expunge.secagg.shamir import SHARE_BYTES


class BadParcelError(EvidenceError):
    """A parcel that its holder cannot use: its dealer lies, or the server has altered it."""

    def __init__(self, message: str, dealer: str) -> None:
        super().__init__(message)
        self.dealer = dealer


_DIGEST_BYTES = 32
_SEALED_BYTES = 2 * SHARE_BYTES + SEALED_MORE
PARCEL_BYTES = _SEALED_BYTES + 2 * _DIGEST_BYTES


@dataclass(frozen=True)
class Parcel:
    """A dealer's two shares for one holder, sealed, with the digests that commit the dealer to
    them.
    """

    sealed: bytes
    seed: bytes  # digest of the share of the self seed
    mask: bytes  # digest of the share of the mask key

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Parcel:
        """The inverse of `to_bytes`."""
        reader = Reader(data, "a parcel")
        sealed = bytes(reader.take(_SEALED_BYTES, "the sealed shares"))
        seed, mask = reader.pieces(2, _DIGEST_BYTES, "their digests")
        reader.end()
        return cls(sealed, seed, mask)

    def to_bytes(self) -> bytes:
        """146 bytes."""
        return self.sealed + self.seed + self.mask


def parcels(body: memoryview, count: int, what: str) -> list[Parcel]:
    """Exactly `count` parcels."""
    return [Parcel.from_bytes(piece) for piece in pieces(body, count, PARCEL_BYTES, what)]


@dataclass(frozen=True)
class Dealt:
    """What a client says of its shares: a parcel for each neighbour, by name, and what commits it
    to its self seed.
    """

    parcels: tuple[Parcel, ...]
    seed: bytes  # commitment to the self seed
    own: bytes  # digest of its own share of it

    @property
    def header(self) -> dict[str, Any]:
        """What the header of its message says of them."""
        return {"own": self.own.hex(), "seed": self.seed.hex()}

    @property
    def body(self) -> bytes:
        """The body of its message."""
        return b"".join(parcel.to_bytes() for parcel in self.parcels)


def deal(roster: Roster, secrets: Secrets, name: str) -> Dealt:
    """A client's shares for its neighbours. Law: the same arguments give the same bytes."""
    context, cipher, dealt_parcels = roster.context, Private(secrets.cipher), []
    seed_shares, mask_shares = (
        _shares(roster, secrets.seed, secrets, name),
        _shares(roster, secrets.mask, secrets, name),
    )
    for holder in roster.neighbours(name):
        seed_share, mask_share = seed_shares[holder], mask_shares[holder]
        seed = share_digest(context, True, name, holder, seed_share)
        mask = share_digest(context, False, name, holder, mask_share)
        key = context.key(cipher.agreed(roster.join(holder).cipher, holder), "parcel", name, holder)
        dealt_parcels.append(Parcel(seal(key, seed_share + mask_share, seed + mask), seed, mask))
    own = share_digest(context, True, name, name, seed_shares[name])
    return Dealt(tuple(dealt_parcels), context.digest(secrets.seed, "seed", name), own)


def own_share(roster: Roster, secrets: Secrets, name: str) -> bytes:
    """A client's own share of its self seed."""
    return _shares(roster, secrets.seed, secrets, name, only=name)[name]


def _shares(
    roster: Roster, secret: bytes, secrets: Secrets, name: str, *, only: str | None = None
) -> dict[str, bytes]:
    """The shares of a client's self seed or mask key, by holder; or that of one holder alone."""
    holders, threshold = roster.holders(name), roster.plan.threshold
    use = "dealing seed" if secret == secrets.seed else "dealing mask"
    coefficients = stream(
        roster.context.key(secrets.dealing, use, name), shamir.COEFFICIENT_BYTES * (threshold - 1)
    )
    number = None if only is None else 1 + holders.index(only)
    shares = shamir.deal(secret, threshold, len(holders), coefficients, only=number)
    return dict(zip(holders if only is None else (only,), shares, strict=True))


def unpack(
    roster: Roster, cipher: Private, parcel: Parcel, *, dealer: str, holder: str
) -> tuple[bytes, bytes]:
    """The holder's shares of a dealer's self seed and mask key; BadParcelError names the dealer if
    anything is wrong with them.
    """
    context = roster.context
    key = context.key(cipher.agreed(roster.join(dealer).cipher, dealer), "parcel", dealer, holder)
    try:
        content = unseal(key, parcel.sealed, parcel.seed + parcel.mask, dealer)
    except EvidenceError as problem:
        raise BadParcelError(str(problem), dealer) from problem
    seed_share, mask_share = content[:SHARE_BYTES], content[SHARE_BYTES:]
    for is_seed, share, digest in (
        (True, seed_share, parcel.seed),
        (False, mask_share, parcel.mask),
    ):
        if share_digest(context, is_seed, dealer, holder, share) != digest:
            what = "self seed" if is_seed else "mask key"
            raise BadParcelError(
                f"{dealer} dealt {holder} a share of its {what} that is not the one it committed "
                "to",
                dealer,
            )
    return seed_share, mask_share


def share_digest(context: Context, is_seed: bool, dealer: str, holder: str, share: bytes) -> bytes:
    """What commits a dealer to one holder's share of its self seed, or else of its mask key."""
    return context.digest(share, "seed share" if is_seed else "mask share", dealer, holder)
