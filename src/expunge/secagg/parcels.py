"""Parcels: how a dealer's shares travel to their holders, and how a holder finds out that one is
wrong.

A parcel needs no signature of its own: it is sealed under what the cipher keys of dealer and holder
have in common, which only the two can compute, and both keys are in signed joins. The message of
shares in which it came is signed as a whole, so the server can show who dealt what.

A holder that cannot use a parcel complains of it, and signs the parcel that it was sent. Its dealer
answers by the two shares, in clear (`justified`), if the parcel is the one that it sealed; they
must fit the digests in the parcel, and the holder goes on with them. Law: an honest dealer shows
the server nothing by that, since the parcel that it sealed for an honest holder is never complained
of; what a lying holder has, the server may have anyhow. A dealer that seals something bad answers,
or is known to be silent: so nobody need find out who of the two lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from expunge.errors import EvidenceError, FormatError
from expunge.frame import Reader
from expunge.secagg import shamir
from expunge.secagg.keys import SEALED_MORE, Context, Private, Secrets, seal, stream, unseal
from expunge.secagg.messages import pieces
from expunge.secagg.roster import Roster
from expunge.secagg.shamir import SHARE_BYTES


class BadParcelError(EvidenceError):
    """Parcels that their holder cannot use: their dealers lie, or the server has altered them."""

    def __init__(self, message: str, parcels: Mapping[str, Parcel]) -> None:
        super().__init__(message)
        self.parcels = parcels  # by dealer, as they were delivered


Shared = Literal["seed", "mask"]  # which of a client's two secrets
_SHARED: tuple[Shared, Shared] = ("seed", "mask")
_DIGEST_BYTES = 32
_SEALED_BYTES = 2 * SHARE_BYTES + SEALED_MORE
PARCEL_BYTES = _SEALED_BYTES + 2 * _DIGEST_BYTES
JUSTIFIED_BYTES = 2 * SHARE_BYTES


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


@dataclass(frozen=True, repr=False)
class Dealing:
    """All that a client's message of shares follows from, and nothing by which it reads those of
    others. Keep secret.
    """

    mask: bytes
    seed: bytes
    dealing: bytes
    keys: tuple[bytes, ...]  # that seal its parcels, for each neighbour, by name

    @classmethod
    def of(cls, roster: Roster, secrets: Secrets, name: str) -> Dealing:
        """Of a client's secrets of the round."""
        cipher = Private(secrets.cipher)
        holders = roster.neighbours(name)
        keys = (_parcel_key(roster, cipher, holder, (name, holder)) for holder in holders)
        return cls(secrets.mask, secrets.seed, secrets.dealing, tuple(keys))

    def dealt(self, roster: Roster, name: str) -> Dealt:
        """The client's shares for its neighbours; FormatError unless there is a key for each."""
        context, holders, dealt_parcels = roster.context, roster.neighbours(name), []
        if len(self.keys) != len(holders):
            raise FormatError(f"{name} has {len(holders)} neighbours, not {len(self.keys)}")
        seed_shares, mask_shares = (shares(roster, self, name, what) for what in _SHARED)
        for holder, key in zip(holders, self.keys, strict=True):
            seed_share, mask_share = seed_shares[holder], mask_shares[holder]
            seed = share_digest(context, True, name, holder, seed_share)
            mask = share_digest(context, False, name, holder, mask_share)
            sealed = seal(key, seed_share + mask_share, seed + mask)
            dealt_parcels.append(Parcel(sealed, seed, mask))
        own = share_digest(context, True, name, name, seed_shares[name])
        return Dealt(tuple(dealt_parcels), context.digest(self.seed, "seed", name), own)


def deal(roster: Roster, secrets: Secrets, name: str) -> Dealt:
    """A client's shares for its neighbours. Law: the same arguments give the same bytes."""
    return Dealing.of(roster, secrets, name).dealt(roster, name)


def own_share(roster: Roster, secrets: Secrets, name: str) -> bytes:
    """A client's own share of its self seed."""
    return shares(roster, secrets, name, "seed", only=name)[name]


def _parcel_key(roster: Roster, cipher: Private, peer: str, way: tuple[str, str]) -> bytes:
    """The key of the parcel on its way from a dealer to a holder, one of whom is the peer."""
    return roster.context.key(cipher.agreed(roster.join(peer).cipher, peer), "parcel", *way)


def shares(
    roster: Roster, secrets: Secrets | Dealing, name: str, what: Shared, *, only: str | None = None
) -> dict[str, bytes]:
    """The shares of a client's self seed or mask key, by holder; or that of one holder alone."""
    holders, threshold = roster.holders(name), roster.plan.threshold
    secret = secrets.seed if what == "seed" else secrets.mask
    coefficients = stream(
        roster.context.key(secrets.dealing, f"dealing {what}", name),
        shamir.COEFFICIENT_BYTES * (threshold - 1),
    )
    number = None if only is None else 1 + holders.index(only)
    dealt = shamir.deal(secret, threshold, len(holders), coefficients, only=number)
    return dict(zip(holders if only is None else (only,), dealt, strict=True))


def unpack(
    roster: Roster, cipher: Private, parcel: Parcel, *, dealer: str, holder: str
) -> tuple[bytes, bytes]:
    """The holder's shares of a dealer's self seed and mask key; EvidenceError if anything is wrong
    with them.
    """
    key = _parcel_key(roster, cipher, dealer, (dealer, holder))
    content = unseal(key, parcel.sealed, parcel.seed + parcel.mask, dealer)
    return justified(roster, parcel, content, dealer=dealer, holder=holder)


def justification(
    roster: Roster, secrets: Secrets, parcel: Parcel, name: str, holder: str
) -> bytes:
    """A dealer's two shares for a holder that complains of this parcel; EvidenceError unless it is
    the one that it sealed for it.
    """
    holders = roster.neighbours(name)
    if holder not in holders:
        raise EvidenceError(f"{holder} holds no share of {name}, and complains of one")
    if deal(roster, secrets, name).parcels[holders.index(holder)] != parcel:
        raise EvidenceError(
            f"{holder} complains of a parcel that {name} did not seal: the server has altered it, "
            "and would learn shares by the answer. Nothing is answered"
        )
    seed, mask = (shares(roster, secrets, name, what, only=holder)[holder] for what in _SHARED)
    return seed + mask


def justified(
    roster: Roster, parcel: Parcel, content: bytes, *, dealer: str, holder: str
) -> tuple[bytes, bytes]:
    """The two shares, sealed or in clear, that are said to be those of a parcel; EvidenceError
    unless their dealer committed to them.
    """
    context = roster.context
    seed_share, mask_share = content[:SHARE_BYTES], content[SHARE_BYTES:]
    for is_seed, share, digest in (
        (True, seed_share, parcel.seed),
        (False, mask_share, parcel.mask),
    ):
        if share_digest(context, is_seed, dealer, holder, share) != digest:
            what = "self seed" if is_seed else "mask key"
            raise EvidenceError(
                f"{dealer} dealt {holder} a share of its {what} that is not the one it committed to"
            )
    return seed_share, mask_share


def share_digest(context: Context, is_seed: bool, dealer: str, holder: str, share: bytes) -> bytes:
    """What commits a dealer to one holder's share of its self seed, or else of its mask key."""
    return context.digest(share, "seed share" if is_seed else "mask share", dealer, holder)
