"""The plan of a round: how many neighbours a client has, how many of their shares open a secret,
and how many clients must agree on who survived.

Every party computes the plan from the rules and the number n of clients in the roster. Of these, d
= ceil(dropouts% of n) may drop out at any phase, and c = min(n - 1, ceil(colluding% of n)) may do
and show whatever the server likes.

Clients are placed on a ring in random order (roster.py); the neighbours of a client are the k/2
next to it on either side, or all others when k = n - 1. A client's self seed is shared among its k
neighbours and itself, its mask key among its k neighbours; t shares open either. A share of its own
seed reveals nothing before the client itself gives it away among the survivors.

**Quorum.** q = floor((n + c)/2) + 1 clients must have signed one list of survivors before any share
is revealed. Two lists of q signatures have 2q - n > c signers in common, so an honest one among
them; but an honest client signs one list. So all shares that honest clients reveal are for one
list.

**Threshold.** Let x of a client's neighbours collude. The server, who tells each client which of
its neighbours dealt shares and all who survived, opens its vector with t shares of its self seed
and a secret behind each pairwise mask. With one list, the client cannot be among the survivors and
have its mask key opened; so the t - 1 dealers that it asks for are opened instead, at least t - 1 -
x of them honest and outside the list, where they reveal nothing. Then at most k - (t - 1) + x
shares of its seed are left, which are too few if

    2t > k + 1 + x

The same count holds for a group of survivors that is to be cut off from the others: whoever is told
of a surviving neighbour that dealt it no shares does not agree.

On the complete graph, k = n - 1 and x <= c, so that t = max(q, n - d) does. The fewest survivors
are max(fewest, t), so where n is small, fewer than d may drop out: n - t.

Up to 128 clients the graph is complete. Beyond, write X(m) for the number of marked clients among k
drawn from n - 1 of which m are marked (hypergeometric). A degree k < n - 1 is taken if there is a t
such that

    completion:  (n - d) P[X(d) >= k + 2 - t]  +  d P[X(d-1) >= k + 1 - t]  <=  2^-completion_bits
    security:    (n - c) P[X(c) >= 2t - k - 1]
                 +  n(n-1)/2 · (c+d)(c+d-1)···(c+d-k+1) / n(n-1)···(n-k+1)  <=  2^-security_bits

and the plan is the smallest even k of that kind with its largest t, or else the complete graph.
(Beyond 512 neighbours degrees a hundredth apart are searched by bisection.) The fewest survivors
are max(fewest, q, n - d).

- Completion adds up, over survivors and drop-outs, the chance that fewer than t holders of a
  client's shares are left.
- The first term of security adds up, over honest clients, the chance that so many of a client's
  neighbours collude that its threshold is too low. (That is so if t of them collude, too.)
- The second bounds the chance that the honest survivors are not connected, in which case the server
  would learn one sum for each part. On a ring, parts are separated by two runs of at least k/2
  clients that collude or drop out; there are at most n(n-1)/2 pairs of places for the beginnings of
  such runs, and k given places are all taken by the c + d with the quotient above. A client without
  honest surviving neighbours is the special case of two runs that meet it from both sides.

Both are union bounds, so the true probabilities are smaller. They assume that who colludes and who
drops out does not depend on the order of the ring, which follows from a hash of all joins. A server
that chooses who drops out is not covered by the second term: where d >= k it can cut a run of
neighbours out of a sparse ring, and learn the sum of that run, which has at least t clients. On the
complete graph it cannot. Nor are colluders covered who choose their keys, or a server who chooses
whom to let into the roster, after looking at many outcomes.

All probabilities are computed by decimal arithmetic that rounds up, which is the same on every
machine. Degrees that miss a promise by more than a hundredth are passed over by float64, whose
error is thousands of times smaller; so the plan does not depend on it.

An `Opening` is what a round is before any client has joined it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, Context, Decimal
from functools import lru_cache
from typing import Any

from expunge import kinds
from expunge.errors import InputError
from expunge.ridge.spec import Aggregation
from expunge.wire import schema

_CHECK = schema.objects(
    {
        "federation": schema.federation,
        "round": schema.drawn_id,
        "purpose": schema.one_of(*kinds.PURPOSES),
        "data_digest": schema.digest,
        "labels_digest": schema.digest,
    }
)


@dataclass(frozen=True)
class Opening:
    """One round: its federation, its own id, what it is for, and the spec under which vectors are
    made.
    """

    federation: str
    round: str
    purpose: kinds.Purpose
    data_digest: str
    labels_digest: str

    def __post_init__(self) -> None:
        _CHECK(asdict(self), "the opening of a round")

    def to_json(self) -> dict[str, Any]:
        """A JSON value; `from_json` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Opening:
        """The inverse of `to_json`; FormatError for anything else."""
        return cls(**_CHECK(value, "the opening of a round"))


_UP = Context(prec=40, rounding=ROUND_CEILING, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
_ZERO, _ONE = Decimal(0), Decimal(1)
_COMPLETE = 128  # up to so many clients all are neighbours
_FINE = 512  # up to here every even degree is tried
_NEGLIGIBLE = 1e-12  # of a sum, next to the margin
_MARGIN = 1.01  # by which float64 must show that a promise is missed; its error is below 1e-6


@dataclass(frozen=True)
class Plan:
    """What follows from the rules for one number of clients."""

    degree: int  # neighbours of a client
    threshold: int  # shares that open a secret
    quorum: int  # clients that must agree on the survivors
    survivors: int  # the fewest clients whose sum is opened
    colluders: int  # colluding clients that learn no more than the sum


@lru_cache(maxsize=256)
def plan(rules: Aggregation, clients: int) -> Plan:
    """The plan for a round of this many clients: the same for every party."""
    if clients < 2:
        raise InputError(
            f"a round of {clients} clients has nothing to hide among: two at least are needed"
        )
    dropped = share_of(rules.dropouts, clients)
    colluding = min(clients - 1, share_of(rules.colluding, clients))
    quorum = quorum_of(clients, colluding)
    degree = _sparse_degree(rules, clients, dropped, colluding) if clients > _COMPLETE else 0
    if degree:
        threshold = _threshold(rules, clients, degree, dropped)
        survivors = max(rules.fewest, quorum, clients - dropped)
        return Plan(degree, threshold, quorum, survivors, colluding)
    threshold = max(quorum, clients - dropped)
    return Plan(clients - 1, threshold, quorum, max(rules.fewest, threshold), colluding)


def quorum_of(clients: int, colluders: int) -> int:
    """More than half of so many clients, even without half of those that collude."""
    return (clients + colluders) // 2 + 1


def _sparse_degree(rules: Aggregation, clients: int, dropped: int, colluding: int) -> int:
    """The smallest degree that keeps both promises; 0 if only the complete graph does."""

    def enough(degree: int) -> bool:
        threshold = _threshold(rules, clients, degree, dropped)
        failure = security_failure(clients, degree, threshold, dropped, colluding)
        return threshold > 0 and failure <= _power(rules.security_bits)

    degree = next(filter(enough, _possible(rules, clients, dropped, colluding)), 0)
    if degree:
        return degree
    coarse = _coarse(clients)
    index = bisect_left(coarse, True, key=enough)
    return coarse[index] if index < len(coarse) else 0


def _possible(rules: Aggregation, clients: int, dropped: int, colluding: int) -> Iterator[int]:
    """The even degrees that may keep both promises: without those that certainly do not.

    Law: a degree that is left out fails. Completion grows with the threshold, and security failure
    falls, so no threshold up to `highest` is safe if that one is not; and none above it completes.
    """
    others = clients - 1
    completes = _MARGIN * 2.0**-rules.completion_bits
    is_safe = _MARGIN * 2.0**-rules.security_bits
    apart, highest = clients * (clients - 1) / 2, 0  # the chance that survivors are not connected
    for degree in range(2, min(others, _FINE + 1), 2):
        for index in (degree - 2, degree - 1):
            apart *= max(0, dropped + colluding - index) / (clients - index)
        if apart > is_safe:
            continue

        def stuck(threshold: int, degree: int = degree) -> float:
            stays = _tail(others, dropped, degree, degree + 2 - threshold)
            leaves = _tail(others, dropped - 1, degree, degree + 1 - threshold) if dropped else 0.0
            return (clients - dropped) * stays + dropped * leaves

        while highest < degree and stuck(highest + 1) <= completes:
            highest += 1
        while highest > 0 and stuck(highest) > completes:
            highest -= 1
        opened = _tail(others, colluding, degree, 2 * highest - degree - 1)
        if highest and (clients - colluding) * opened + apart <= is_safe:
            yield degree


def share_of(percent: int, clients: int) -> int:
    """`percent` per cent of the clients, rounded up."""
    return -(-percent * clients // 100)


def completion_failure(clients: int, degree: int, threshold: int, dropped: int) -> Decimal:
    """A bound on the chance that some secret cannot be opened when `dropped` clients drop out."""
    stays = _UP.multiply(
        Decimal(clients - dropped),
        _at_least(tails(clients - 1, dropped, degree), degree + 2 - threshold),
    )
    if not dropped:
        return stays
    leaves = _UP.multiply(
        Decimal(dropped), _at_least(tails(clients - 1, dropped - 1, degree), degree + 1 - threshold)
    )
    return _UP.add(stays, leaves)


def security_failure(
    clients: int, degree: int, threshold: int, dropped: int, colluding: int
) -> Decimal:
    """A bound on the chance that more than the sum is learnt, on a graph that is not complete."""
    chance = _at_least(tails(clients - 1, colluding, degree), 2 * threshold - degree - 1)
    opened = _UP.multiply(Decimal(clients - colluding), chance)
    return _UP.add(opened, _disconnected(clients, degree, dropped + colluding))


@lru_cache(maxsize=16)
def tails(others: int, marked: int, degree: int) -> tuple[Decimal, ...]:
    """P[X >= x] for x = 0 .. degree, rounded up, where X counts the marked among `degree` drawn
    from `others`.
    """
    clear = others - marked
    least, most = max(0, degree - clear), min(degree, marked)
    # P[X = least]: that none of those drawn is marked, or that all the clear ones are drawn
    mass = _ONE
    for index in range(min(clear, degree)):
        mass = _UP.divide(
            _UP.multiply(mass, Decimal(max(clear, degree) - index)), Decimal(others - index)
        )
    masses = [mass]
    for x in range(least, most):
        mass = _UP.multiply(mass, Decimal((marked - x) * (degree - x)))
        mass = _UP.divide(mass, Decimal((x + 1) * (clear - degree + x + 1)))
        masses.append(mass)
    probabilities = [_ZERO] * (degree - most)
    total = _ZERO
    for term in reversed(masses):
        total = min(_ONE, _UP.add(total, term))
        probabilities.append(total)
    return (*[_ONE] * least, *reversed(probabilities))


def _tail(others: int, marked: int, degree: int, x: int) -> float:
    """P[X >= x] as in `tails`, by float64: summed upwards until the rest does not matter."""
    clear, most = others - marked, min(degree, marked)
    if x <= max(0, degree - clear):
        return 1.0
    if x > most:
        return 0.0
    ways = _log_ways(marked, x) + _log_ways(clear, degree - x) - _log_ways(others, degree)
    mass = total = math.exp(ways)
    while x < most and mass > total * _NEGLIGIBLE:
        mass *= (marked - x) * (degree - x) / ((x + 1) * (clear - degree + x + 1))
        total += mass
        x += 1
    return min(1.0, total)


def _log_ways(total: int, chosen: int) -> float:
    """The logarithm of the number of ways to choose so many."""
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)


def _at_least(chances: tuple[Decimal, ...], x: int) -> Decimal:
    return _ONE if x <= 0 else chances[x] if x < len(chances) else _ZERO


def _disconnected(clients: int, degree: int, gone: int) -> Decimal:
    chance = Decimal(clients * (clients - 1) // 2)
    for index in range(min(degree, gone + 1)):
        chance = _UP.divide(_UP.multiply(chance, Decimal(gone - index)), Decimal(clients - index))
    return chance


def _coarse(clients: int) -> list[int]:
    """Degrees from the fine ones to the complete graph's, each about a hundredth larger."""
    degrees, degree = [], _FINE
    while (degree := degree + 2 * (degree // 256)) < clients - 1:
        degrees.append(degree)
    return degrees


def _threshold(rules: Aggregation, clients: int, degree: int, dropped: int) -> int:
    """The largest threshold with which the round completes; 0 if there is none."""
    allowed = _power(rules.completion_bits)
    low, high = 0, degree
    while low < high:
        middle = (low + high + 1) // 2
        if completion_failure(clients, degree, middle, dropped) <= allowed:
            low = middle
        else:
            high = middle - 1
    return low


def _power(bits: int) -> Decimal:
    """2^-bits, exactly."""
    return Decimal(f"{5**bits}e-{bits}")
