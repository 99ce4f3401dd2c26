"""Which masks are left in the sum of masked vectors, from the shares that clients revealed.

Law: with the shares that honest clients reveal, and of each client at least the threshold of holders, what is left in the sum
over the survivors is the self mask of every survivor, and the pairwise masks between survivors and neighbours that dealt shares
and then dropped out. Pairs of survivors have cancelled; who dropped out before dealing has no masks in anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from expunge.errors import FormatError
from expunge.privacy.aggregation import shamir
from expunge.privacy.aggregation.aborted import Aborted
from expunge.privacy.aggregation.keys import Private
from expunge.privacy.aggregation.parcel import Dealt
from expunge.privacy.aggregation.roster import Roster

_FEW = 5  # names in a list


@dataclass(frozen=True)
class Hearing:
    """All that the collector has heard: who dealt what, who survived, and who revealed which share of whom."""

    roster: Roster
    dealt: Mapping[str, Dealt]
    survivors: frozenset[str]
    revealed: Mapping[str, Mapping[str, bytes]]  # by holder, then by dealer

    def needed(self) -> list[str]:
        """Whose secrets must be opened: survivors, and dealers that dropped out but have neighbours among them."""
        near = (name for name in self.dealt if self.survivors.intersection(self.roster.neighbours(name)))
        return sorted(self.survivors.union(near))

    def holders(self, dealer: str, answering: frozenset[str]) -> list[str]:
        """Who of those answering holds a share of the secret that is to be opened."""
        return [
            name for name in self.roster.holders(dealer) if name in answering and (name != dealer or dealer in self.survivors)
        ]


def require_holders(hearing: Hearing, answering: frozenset[str], when: str) -> None:
    """Abort if some secret has fewer holders left than the threshold."""
    threshold = hearing.roster.plan.threshold
    counts = {name: len(hearing.holders(name, answering)) for name in hearing.needed()}
    lacking = [name for name, count in counts.items() if count < threshold]
    if lacking:
        raise Aborted(
            f"{when}, {threshold} shares are needed to open a mask, but there are fewer for {listed(lacking)} "
            f"({min(counts[name] for name in lacking)} for one of them): too many clients dropped out. Nothing was learnt or "
            "applied; open another round"
        )


def masks_left(hearing: Hearing) -> tuple[list[bytes], list[bytes]]:
    """The keys of the masks that were added, and of those that were subtracted, in the sum over the survivors."""
    require_holders(hearing, frozenset(hearing.revealed), "when shares were revealed")
    roster, plus, minus = hearing.roster, list[bytes](), list[bytes]()
    for name in hearing.needed():
        if name in hearing.survivors:
            plus.append(roster.context.self_key(_seed(hearing, name), name))
            continue
        private = _mask(hearing, name)
        for survivor in hearing.survivors.intersection(roster.neighbours(name)):
            key = roster.context.pair_key(private, roster.join(survivor).mask, name, survivor)
            (plus if survivor < name else minus).append(key)
    return plus, minus


def listed(names: list[str] | frozenset[str]) -> str:
    """Some names, and how many more there are."""
    ordered = sorted(names)
    return (
        ", ".join(ordered[:_FEW]) + (f" and {len(ordered) - _FEW} more" if len(ordered) > _FEW else "") if ordered else "nobody"
    )


def _seed(hearing: Hearing, name: str) -> bytes:
    seed = _recovered(hearing, name)
    if seed is None or hearing.roster.context.digest(seed, "seed", name) != hearing.dealt[name].seed:
        raise Aborted(_wrong(name, "self seed"))
    return seed


def _mask(hearing: Hearing, name: str) -> Private:
    raw = _recovered(hearing, name)
    if raw is None or (private := Private(raw)).public != hearing.roster.join(name).mask:
        raise Aborted(_wrong(name, "mask key"))
    return private


def _recovered(hearing: Hearing, dealer: str) -> bytes | None:
    numbers = {holder: number for number, holder in enumerate(hearing.roster.holders(dealer), 1)}
    holders = hearing.holders(dealer, frozenset(hearing.revealed))
    shares = {numbers[holder]: hearing.revealed[holder][dealer] for holder in holders}
    try:
        return shamir.recover(shares, hearing.roster.plan.threshold)
    except FormatError:  # the dealer is named by who asked
        return None


def _wrong(name: str, what: str) -> str:
    return (
        f"{name} dealt wrong shares: each is the one it committed to, but together they do not give its {what}. Nothing was "
        f"learnt or applied; look into {name} before opening another round with it"
    )
