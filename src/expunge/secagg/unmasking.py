"""Which sums may be unmasked one after another, before one of them is applied.

A *part* is a client with the sequence number of its request: under one number a client masks one
vector, however many rounds that takes. A server that calls a round aborted after its sum was
unmasked, and asks for the sum of other parts, could subtract the two. So a client that has agreed
to a sum of some parts, its own among them, agrees to no other one with its part:

Law: the sums that can be unmasked are over sets of which each has a quorum that agreed, and the
honest clients of these quorums are in no other set. So whatever a server adds up and subtracts, at
least the honest clients of one quorum, more than half of all honest ones of that round, are in it.

Parts of clients that have left the federation are the exception: the others could never continue.
What such a client had sent is not hidden, as it is not by the rebuild that follows its departure.
Those that remain are summed up without it; if they are fewer than the rules ask for, together with
at least so many others.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

Part = tuple[str, int]  # a client and its sequence number


def remaining(parts: Iterable[Part], gone: Set[str]) -> frozenset[Part]:
    """The parts of clients that have not left."""
    return frozenset(part for part in parts if part[0] not in gone)


def may_follow(earlier: Set[Part], proposed: Set[Part], *, gone: Set[str], fewest: int) -> bool:
    """Whether a client that agreed to an earlier sum may agree to this one."""
    rest = remaining(earlier, gone)
    if len(rest) >= fewest:
        return proposed == rest
    return rest < proposed and len(proposed - rest) >= fewest


def choose(
    joined: Set[Part], attempts: Iterable[Set[Part]], *, gone: Set[str], fewest: int
) -> frozenset[Part]:
    """The largest set of those that joined, after these attempts, to which all of them may agree.

    An attempt is repeated first, if all of it have joined. It may be smaller than `fewest`: then
    more must join.
    """
    free, small = set(joined), set[Part]()
    for attempt in attempts:
        rest = remaining(attempt, gone)
        if len(rest) >= fewest and rest <= joined:
            return rest
        free -= rest
        if len(rest) < fewest and rest <= joined:
            small |= rest
    return frozenset(free | small if len(free) >= fewest else free)
