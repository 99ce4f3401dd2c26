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

**Exposed** is a part of which the log says so: that its client was excluded from a sum (below), or
that so many others are gone from a sum with it that fewer than `fewest` are left; parts that were
exposed before do not count among these. The server may know such a part, or the sum of a few, so
it hides nobody. Its client says so in its signed join, since others do not know its sums. Law: of
the parts that are not exposed, each sum has `fewest` or more, and a quorum, as if there were no
others. So the argument above holds with the exposed parts taken away from all sums, whatever the
server knows of them; that needs four things.

- *A client is freed from a sum only by what it has checked itself*: departures, verdicts, and
  exclusions whose time has passed by its own clock. What is left of a sum is judged by the parts
  that were exposed when it agreed (`AgreedSum`). That others were excluded, as the log says, is
  believed at once where it makes a client ask for more (`shown`), and nowhere else: it takes parts
  away from those that count, and not from those of which a quorum must agree (`covering_quorum`).
- *Those that are left of a sum stay together*: a sum that follows has all of them, and the others
  that hide them, `fewest` at least, are from outside the earlier sum as it was. Otherwise two sums
  with the same clients, some of whom were not asked to agree to the first, could differ by one.
- *The quorum is counted without the exposed*: they are in several sums, and if they were a quorum
  by themselves, the others would be bound to none.
- *Rows are counted by signers that were not exposed* (below).

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
excluded, or is one of few that are left, is exposed, and may go on with its part in a sum with at
least `fewest` others. tests/secagg/test_secagg_stories.py plays random stories by these rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

from expunge.ridge.spec import Aggregation
from expunge.secagg.plan import quorum_of, share_of

Part = tuple[str, int]  # a client and its sequence number
MOST_UNEXPLAINED = 3  # false sums that are cut into rows, one after another, before one is opened


@dataclass(frozen=True)
class Decision:
    """What an entry of the log decides about a sum that was to be, or was, unmasked."""

    kind: Literal["voided", "judged", "excluded"]
    aggregation: str
    parts: frozenset[Part]
    out: frozenset[str] = frozenset()  # whose parts are left out of the next sum
    signers: frozenset[str] = frozenset()  # of a false sum: who had agreed to it, and hid others
    size: int = 0  # of its roster
    unexplained: int = 0  # false sums before it that nobody was found to have made false


@dataclass(frozen=True)
class Narrowed:
    """The parts that a client may agree to the sum of, and the round in which they are in dispute,
    if they are.
    """

    parts: frozenset[Part]
    disputed: str = ""


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
            now = Narrowed(own, decision.aggregation if len(cut) == 1 else "")
            continue
        left, was_false = (
            remaining(now.parts, decision.out),
            any(now.parts <= one for one in voided),
        )
        if len(left) < rules.fewest and not was_false:
            continue  # few may not go on without many, unless the sum was false, or one with it
        if client in decision.out:
            left = frozenset(part for part in now.parts if part[0] == client)
        now = Narrowed(left)
    return now


def remaining(parts: Iterable[Part], gone: Set[str]) -> frozenset[Part]:
    """The parts of clients that have not left."""
    return frozenset(part for part in parts if part[0] not in gone)


@dataclass(frozen=True)
class AgreedSum:
    """A sum that a client agreed to, or is bound by, and which of its parts hid nobody then."""

    parts: frozenset[Part]
    exposed: frozenset[Part] = frozenset()

    def is_few(self, rest: Set[Part], fewest: int) -> bool:
        """Whether those that are left of it, by the log, hide one another no longer.

        Judged by what was exposed when the client agreed: a later entry that says so of others
        would free clients from a sum that hides them.
        """
        return len(rest - self.exposed) < fewest


def may_follow(
    earlier: AgreedSum,
    rest: Set[Part],
    proposed: Set[Part],
    *,
    fewest: int,
    marked: Set[Part] = frozenset(),
    shown: Set[Part] = frozenset(),
) -> bool:
    """Whether a client that agreed to an earlier sum, of which the log has left the `rest`, may
    agree to this one: to the rest alone; or if that is few, to the rest and at least `fewest`
    others.

    Those others were not in the earlier sum, and are exposed neither by their own word (`marked`)
    nor by the log (`shown`). Who was in it, and is not in the rest, may come back exposed only.
    """
    if not earlier.is_few(rest, fewest):
        return proposed == rest
    is_apart = proposed & earlier.parts <= rest | marked
    return rest < proposed and is_apart and len(proposed - earlier.parts - marked - shown) >= fewest


def hides_enough(
    proposed: Set[Part],
    roster: Set[Part],
    rules: Aggregation,
    *,
    marked: Set[Part] = frozenset(),
    shown: Set[Part] = frozenset(),
) -> bool:
    """Whether a sum in this roster hides its clients: `fewest` of them, and as many as must agree
    to it, are not exposed.
    """
    needed = max(rules.fewest, covering_quorum(roster, rules, marked))
    return len(proposed - marked - shown) >= needed


def covering_quorum(roster: Set[Part], rules: Aggregation, marked: Set[Part]) -> int:
    """How many clients that are not exposed must agree to a sum, of those in the roster that are
    not `marked`: all that collude may be among them.

    What the log says to be shown lowers nothing here: the server could say so of anybody.
    """
    return quorum_of(len(roster - marked), share_of(rules.colluding, len(roster)))


def without_silent(
    parts: Set[Part],
    unanswered: Mapping[str, Set[str]],
    aggregation: str,
    *,
    fewest: int,
    together: Iterable[Set[Part]] = (),
    exposed: Set[Part] = frozenset(),
) -> frozenset[Part]:
    """These parts without the dealers that left complaints of others among them unanswered, if
    enough are left; by client that complained, `unanswered` says of whom.

    Each set of `together` stays whole or goes whole: a sum without one of its parts would show it.
    Of two that complain of each other, the round decides which one goes.
    """
    complained: dict[str, set[str]] = {}  # by dealer
    for client, dealers in unanswered.items():
        for dealer in dealers:
            complained.setdefault(dealer, set()).add(client)
    left, hiding = frozenset(parts), frozenset(parts).difference(exposed, *together)
    owing = [unit for unit in _units(left, together) if any(name in complained for name, _ in unit)]
    owing.sort(key=lambda unit: hashlib.sha256(f"{aggregation} {min(unit)[0]}".encode()).digest())
    for unit in owing:
        rest = left - unit
        waiting = frozenset[str]().union(*(complained.get(name, ()) for name, _ in unit))
        if len(rest & hiding) >= fewest and not waiting.isdisjoint(dict(rest)):
            left = rest
    return left


def _units(parts: frozenset[Part], together: Iterable[Set[Part]]) -> list[frozenset[Part]]:
    """A partition of the parts: no set of `together` is in two of them."""
    units = [frozenset([part]) for part in parts]
    for bound in together:
        joint = [unit for unit in units if not unit.isdisjoint(bound)]
        if joint:
            units = [unit for unit in units if unit.isdisjoint(bound)]
            units.append(frozenset[Part]().union(*joint))
    return units


def choose(
    joined: Set[Part],
    attempts: Sequence[AgreedSum],
    *,
    gone: Set[str],
    rules: Aggregation,
    repeat: bool = True,
    disputed: Sequence[Set[Part]] = (),
    exposed: Set[Part] = frozenset(),
) -> frozenset[Part]:
    """A set of those that joined, after these attempts, to which all of them may agree.

    An attempt is repeated first, if all of it have joined, unless others are enough without it and
    it is not to be repeated now, or it is in dispute. Empty if more must join.
    """
    rests = [(attempt, remaining(attempt.parts, gone)) for attempt in attempts]
    free = frozenset(joined).difference(*(rest for _, rest in rests))
    few = [frozenset({part}) for part in sorted(free & exposed)]
    free -= exposed
    is_enough = len(free) >= rules.fewest
    if not repeat and is_enough:
        return free

    def agreeable(parts: frozenset[Part]) -> bool:
        return any(parts == attempt.parts for attempt in attempts) or all(
            follows(attempt, parts, gone=gone, rules=rules, exposed=exposed)
            for attempt in attempts
            if not parts.isdisjoint(attempt.parts)
        )

    for attempt, rest in rests:
        if rest <= joined and attempt.is_few(rest, rules.fewest):
            few.append(rest)
        elif rest <= joined and rest not in disputed and agreeable(rest):
            return rest
    if not is_enough:
        return frozenset()
    for rest in few:
        more = free | rest
        if agreeable(more) and hides_enough(more, more, rules, marked=exposed):
            free = more
    return free


def follows(
    attempt: AgreedSum,
    proposed: Set[Part],
    *,
    gone: Set[str],
    rules: Aggregation,
    exposed: Set[Part],
) -> bool:
    """Whether all clients of an attempt may agree to this sum, as the server knows them: by who
    says to be exposed now.
    """
    rest = remaining(attempt.parts, gone)
    return may_follow(attempt, rest, proposed, fewest=rules.fewest, marked=exposed)
