"""Which sums may be unmasked one after another, before one of them is applied.

A *part* is a client with the sequence number of its request: under one number a client masks one
vector, however many rounds that takes. A server that calls a round aborted after its sum was
unmasked, and asks for the sum of other parts, could subtract the two. So a client that has agreed
to a sum of some parts, its own among them, masks its part in no round of others, and agrees to no
other sum with it.

Law, on the complete graph: each sum that can be unmasked has a quorum that agreed to it. A client
of that quorum is in another such sum only if it had masked there before. Order the sums by when the
shares of their rounds were dealt: of any that are added and subtracted, the honest clients of the
quorum of the first one that still have a part in it, are in no other. So no combination shows one
client, nor fewer than the honest clients of one quorum: more than half of all honest ones.

Parts of clients that have left the federation are the exception: the others could never continue.
What such a client had sent is not hidden, as it is not by the rebuild that follows its departure,
and an operator can forget a client at will, by an entry of the log. Those that remain are summed up
without it; if they are fewer than the rules ask for, together with at least so many others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

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
    joined: Set[Part],
    attempts: Sequence[Set[Part]],
    *,
    gone: Set[str],
    fewest: int,
    repeat: bool = True,
) -> frozenset[Part]:
    """A set of those that joined, after these attempts, to which all of them may agree.

    An attempt is repeated first, if all of it have joined, unless others are enough without it and
    it is not to be repeated now. The set may be smaller than `fewest`: then more must join.
    """
    rests = [remaining(attempt, gone) for attempt in attempts]
    free = frozenset(joined).difference(*rests)
    if not repeat and len(free) >= fewest:
        return free

    def agreeable(parts: frozenset[Part]) -> bool:
        return parts in attempts or all(
            may_follow(attempt, parts, gone=gone, fewest=fewest)
            for attempt in attempts
            if not parts.isdisjoint(attempt)
        )

    for rest in rests:
        if len(rest) >= fewest and rest <= joined and agreeable(rest):
            return rest
    if len(free) >= fewest:
        for rest in rests:
            if len(rest) < fewest and rest <= joined and agreeable(free | rest):
                free |= rest
    return free
