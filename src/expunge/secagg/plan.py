"""The plan of a round: how many neighbours a client has, and how many of their shares open a
secret.

Every party computes the plan from the rules and the number n of clients in the roster. Of these, d
= ceil(dropouts% of n) may drop out at any phase, and c = ceil(colluding% of n) may show the server
all that they know.

Clients are placed on a ring in random order (roster.py); the neighbours of a client are the k/2
next to it on either side, or all others when k = n - 1. A client's self seed is shared among its k
neighbours and itself, its mask key among its k neighbours; t shares open either. A share of its own
seed reveals nothing before the client itself gives it away among the survivors; it makes a survivor
as easy to open as a client that dropped out late, so that the complete graph tolerates d drop-outs
with t = n - d.

Write X(m) for the number of marked clients among k drawn from n - 1 of which m are marked
(hypergeometric). A degree k < n - 1 is taken if there is a t such that

    completion:  (n - d) P[X(d) >= k + 2 - t]  +  d P[X(d-1) >= k + 1 - t]  <=  2^-completion_bits
    security:    (n - c) P[X(c) >= t]  +  n(n-1)/2 · (c+d)(c+d-1)···(c+d-k+1) / n(n-1)···(n-k+1)
                 <=  2^-security_bits

and the plan is the smallest even k of that kind with its largest t, or else the complete graph.
(Beyond 512 neighbours, which sane rules do not ask for, degrees a hundredth apart are searched by
bisection.)

- Completion adds up, over survivors and drop-outs, the chance that fewer than t holders of a
  client's shares are left.
- The first term of security adds up, over honest clients, the chance that t of a client's
  neighbours collude: they would open its mask key.
- The second bounds the chance that the honest survivors are not connected, in which case the server
  would learn one sum for each part. On a ring, parts are separated by two runs of at least k/2
  clients that collude or drop out; there are at most n(n-1)/2 pairs of places for the beginnings of
  such runs, and k given places are all taken by the c + d with the quotient above. A client without
  honest surviving neighbours is the special case of two runs that meet it from both sides.

Both are union bounds, so the true probabilities are smaller. They assume that who colludes and who
drops out does not depend on the order of the ring, which follows from a hash of all joins:
colluders who choose their keys, or the server who chooses whom to let into the roster, after
looking at many outcomes are not covered. The bounds hold for at most d drop-outs, so a round with
fewer than `survivors` clients is never opened.

On the complete graph the terms are 0 or 1: completion is t <= n - d, security is t > c. Where both
cannot be (as for n = 2), t is as large as completion allows, and `colluders` says how many
colluding clients it withstands: fewer than c. A sum of two clients shows each of them the other's
part in any case.

All probabilities are computed by decimal arithmetic that rounds up, which is the same on every
machine.

An `Opening` is what a round is before any client has joined it.
"""

from __future__ import annotations

from bisect import bisect_left
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
_FINE = 512  # up to here every even degree is tried


@dataclass(frozen=True)
class Plan:
    """What follows from the rules for one number of clients."""

    degree: int  # neighbours of a client
    threshold: int  # shares that open a secret
    survivors: int  # the fewest clients whose sum is opened
    colluders: int  # colluding clients that cannot open a secret


@lru_cache(maxsize=256)
def plan(rules: Aggregation, clients: int) -> Plan:
    """The plan for a round of this many clients: the same for every party."""
    if clients < 2:
        raise InputError(
            f"a round of {clients} clients has nothing to hide among: two at least are needed"
        )
    dropped, colluding = share_of(rules.dropouts, clients), share_of(rules.colluding, clients)
    survivors = max(rules.fewest, clients - dropped)

    def enough(degree: int) -> bool:
        threshold = _threshold(rules, clients, degree, dropped)
        failure = security_failure(clients, degree, threshold, dropped, colluding)
        return threshold > 0 and failure <= _power(rules.security_bits)

    degree = next(filter(enough, range(2, min(clients - 1, _FINE + 1), 2)), 0)
    if not degree:
        coarse = _coarse(clients)
        index = bisect_left(coarse, True, key=enough)
        degree = coarse[index] if index < len(coarse) else 0
    if degree:
        return Plan(degree, _threshold(rules, clients, degree, dropped), survivors, colluding)
    threshold = max(1, min(clients - dropped, clients - 1))
    return Plan(clients - 1, threshold, survivors, min(colluding, threshold - 1))


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
    chance = _at_least(tails(clients - 1, colluding, degree), threshold)
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
