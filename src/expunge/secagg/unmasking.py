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

**A false sum** is not repeated as it was, or one client that lies would stop all others for ever.
What follows is decided by entries of the log, which all clients read (`Decision`), and each makes
the set of parts smaller that a client may agree to (`narrowed`):

- *voided*: the sum was false, or could not be unmasked. Its parts are cut into rows (`rows`), the
  same for all who know the round, and each row is summed up by itself: those without the liar are
  applied. Of the clients that signed the sum, whose signatures are in the entry, each row has
  `fewest` that do not collude, even if all that do are in it. (Those that were not asked to sign
  may have agreed to another sum before, which could be subtracted.) So a row is not cut again.
  Parts that are too few for two rows, and those of a row, are in dispute: their clients open them
  to the arbiter. So are all parts of a false sum after `MOST_UNEXPLAINED` others that led to no
  dispute: a client that lies in each first sum, and never in its row, is named too.
- *judged*: the arbiter has named those whose parts were false; the others are summed up.
- *excluded*: some stayed silent for longer than the rules allow; the others are summed up, if they
  are `fewest` or more, or the sum was false.

Parts only get smaller, and each set is a union of atoms: whatever the server adds and subtracts is
a sum of rows, of parts found false, and of what was excluded. So it sees, beyond sums of `fewest`
clients or more, the parts of liars and of clients that were silent for too long, or were left with
fewer than `fewest` others. The latter is the price of going on without the silent; who has been
excluded, or is one of few that are left, may go on with its part in a sum with at least `fewest`
others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

from expunge.ridge.spec import Aggregation
from expunge.secagg.plan import share_of

Part = tuple[str, int]  # a client and its sequence number
MOST_UNEXPLAINED = 3  # false sums that are cut into rows, one after another, before one is opened


@dataclass(frozen=True)
class Decision:
    """What an entry of the log decides about a sum that was to be, or was, unmasked."""

    kind: Literal["voided", "judged", "excluded"]
    aggregation: str
    parts: frozenset[Part]
    out: frozenset[str] = frozenset()  # whose parts are left out of the next sum
    signers: frozenset[str] = frozenset()  # of a false sum: who had agreed to it
    size: int = 0  # of its roster
    unexplained: int = 0  # false sums before it that nobody was found to have made false


@dataclass(frozen=True)
class Narrowed:
    """The parts that a client may agree to the sum of, the round in which they are in dispute, if
    they are, and whether they were in a false sum.
    """

    parts: frozenset[Part]
    disputed: str = ""
    were_false: bool = False


def unexplained(entries: Iterable[Mapping[str, Any]]) -> int:
    """How many false sums these entries of the log show, in order, since a dispute was decided, by
    a verdict or by the exclusion of those that did not open their parts.
    """
    rounds, count = set[str](), 0
    for entry in entries:
        if entry["kind"] == "voided":
            rounds.add(entry["aggregation"])
            count += 1
        elif entry["kind"] == "restored":  # clients send everything anew
            rounds, count = set(), 0
        elif entry["kind"] in ("judged", "excluded") and entry["aggregation"] in rounds:
            count = 0
    return count


def rows(
    voided: Decision, rules: Aggregation, earlier: Iterable[Set[Part]] = ()
) -> list[frozenset[Part]]:
    """A partition of the parts of a false sum, in an order that the round decides: as many rows as
    have `fewest` and all colluders' parts of signers each, of about the same size. One row if they
    were in an `earlier` false sum, since they are a row then, or what is left of one; and if too
    many false sums are unexplained, and there is an arbiter who could explain them.
    """
    is_cut = any(voided.parts <= parts for parts in earlier)
    if is_cut or (rules.arbiter and voided.unexplained >= MOST_UNEXPLAINED):
        return [voided.parts]
    smallest = rules.fewest + share_of(rules.colluding, voided.size)
    count = max(1, len(voided.signers) // smallest)

    def place(part: Part) -> tuple[bool, bytes]:
        digest = hashlib.sha256(f"{voided.aggregation} {part[0]}".encode()).digest()
        return part[0] not in voided.signers, digest

    ordered = sorted(voided.parts, key=place)
    return [frozenset(ordered[index::count]) for index in range(count)]


def narrowed(
    agreed: Set[Part], client: str, decisions: Iterable[Decision], rules: Aggregation
) -> Narrowed:
    """What is left of the parts that a client agreed to the sum of, after these decisions."""
    now, voided = Narrowed(frozenset(agreed)), list[frozenset[Part]]()
    for decision in decisions:
        earlier = list(voided)
        voided += [decision.parts] if decision.kind == "voided" else []
        if decision.parts != now.parts:
            continue
        if decision.kind == "voided":
            cut = rows(decision, rules, earlier)
            (own,) = (row for row in cut if any(name == client for name, _ in row))
            now = Narrowed(own, decision.aggregation if len(cut) == 1 else "", were_false=True)
        elif len(left := remaining(now.parts, decision.out)) < rules.fewest and not now.were_false:
            continue  # few may not go on without many, unless the sum was false
        elif client in decision.out:
            own = frozenset(part for part in now.parts if part[0] == client)
            now = Narrowed(own, were_false=now.were_false)
        else:
            now = Narrowed(left, were_false=now.were_false)
    return now


def remaining(parts: Iterable[Part], gone: Set[str]) -> frozenset[Part]:
    """The parts of clients that have not left."""
    return frozenset(part for part in parts if part[0] not in gone)


def may_follow(
    earlier: Set[Part],
    proposed: Set[Part],
    *,
    gone: Set[str],
    fewest: int,
    shown: Set[Part] = frozenset(),
) -> bool:
    """Whether a client that agreed to an earlier sum may agree to this one.

    Parts that were excluded before may be `shown` to the server by their exclusion, and hide
    nobody.
    """
    rest = remaining(earlier, gone)
    if len(rest - shown) >= fewest:
        return proposed == rest
    return rest < proposed and len(proposed - rest - shown) >= fewest


def separated(
    parts: Set[Part], complaints: Mapping[str, Set[str]], aggregation: str, fewest: int
) -> frozenset[Part]:
    """These parts without some clients of whom others complain, or that complain, so that no two
    are left that cannot be in one round; all of them, if too few would be left.

    Of two, the one goes with whom more others cannot be, and else one that the round decides: so
    a client that makes others complain, or complains of them, keeps nobody out for long.
    """
    left = {part[0]: part for part in parts}

    def rank(name: str) -> tuple[int, bytes]:
        digest = hashlib.sha256(f"{aggregation} {name}".encode()).digest()
        return len(complaints.get(name, ())), digest

    for name in sorted(left, key=rank, reverse=True):
        if not complaints.get(name, frozenset()).isdisjoint(left):
            del left[name]
    return frozenset(left.values()) if len(left) >= fewest else frozenset(parts)


def choose(
    joined: Set[Part],
    attempts: Sequence[Set[Part]],
    *,
    gone: Set[str],
    fewest: int,
    repeat: bool = True,
    disputed: Sequence[Set[Part]] = (),
    shown: Set[Part] = frozenset(),
) -> frozenset[Part]:
    """A set of those that joined, after these attempts, to which all of them may agree.

    An attempt is repeated first, if all of it have joined, unless others are enough without it and
    it is not to be repeated now, or it is in dispute. The set may be smaller than `fewest`: then
    more must join.
    """
    rests = [remaining(attempt, gone) for attempt in attempts]
    free = frozenset(joined).difference(*rests)
    is_enough = len(free - shown) >= fewest
    if not repeat and is_enough:
        return free

    def agreeable(parts: frozenset[Part]) -> bool:
        return parts in attempts or all(
            may_follow(attempt, parts, gone=gone, fewest=fewest, shown=shown)
            for attempt in attempts
            if not parts.isdisjoint(attempt)
        )

    for rest in rests:
        if (
            len(rest - shown) >= fewest
            and rest <= joined
            and rest not in disputed
            and agreeable(rest)
        ):
            return rest
    if is_enough:
        for rest in rests:
            if len(rest - shown) < fewest and rest <= joined and agreeable(free | rest):
                free |= rest
    return free
