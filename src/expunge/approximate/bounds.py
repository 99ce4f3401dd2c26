"""Bounds on an approximate head, from what is known of the error of its Gram. Formulas only.

An `Interval` is how far a symmetric matrix may lie from another, as a pair of proven bounds.

Notation: H_ap = S_ap + gamma I is what the ledger holds, H_ex = S + gamma I with S the true Gram, E
= H_ex - H_ap with -b I <= E <= a I; T is the inverse of H. Let m > 0 with H_ap >= m I (proven), and
mu = max(gamma, m - b), so that H_ex >= mu I.

Theorem (the paper's, for the whole stream at once). If ||E|| < m, then ||T_ex - T_ap|| <= ||E|| /
(m (m - ||E||)): its premise ||T_ap E|| < 1 follows from ||E|| < m. Both additions and deletions are
in E, with their signs.

Theorem (inverse). T_ap - T_ex <= a / (m (m + a)) I and T_ex - T_ap <= min(b / (m (m - b)), 1 /
gamma) I, the former of the two only if b < m. Proof: H_ap - b I <= H_ex <= H_ap + a I, inversion
reverses the order, and x -> 1/x - 1/(x + a) falls.

Theorem (weights). For any W, with N = G_ex - G_ap + (G_ap - H_ap W) and W_ex = T_ex G_ex, in any
unitarily invariant norm:
W_ex - W = T_ex (N - E W), hence
  (1) ||W_ex - W|| <= (||N|| + max(a, b) ||W||) / mu, and
  (2) if b < m: ||W_ex - W|| <= (||N|| + b ||W||) / mu + (a + b) ||W|| / sqrt(mu (m + a)).
Proof of (2): E = P - b I with 0 <= P <= (a + b) I, and H_ex >= (m - b) I + P. So
||T_ex^(1/2) P^(1/2)||^2 = ||P^(1/2) T_ex P^(1/2)|| <= (a + b) / (m + a), and
T_ex P W = T_ex^(1/2) (T_ex^(1/2) P^(1/2)) P^(1/2) W. For additions alone b is
about 0, and (2) grows with the square root of a / m where (1) grows with a / m.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from expunge.errors import InputError

ROUNDED = (
    1 + 2.0**-40
)  # more than a formula of a few float64 operations on positive numbers can lose


@dataclass(frozen=True)
class Interval:
    """-below I <= E <= above I, in the order of symmetric matrices; both are finite and not
    negative.

    Laws: intervals of E and of E' give one of E + E' by `+`, and one of -E by `-`, rounded
    outwards.
    """

    below: float = 0.0
    above: float = 0.0

    def __post_init__(self) -> None:
        for name in ("below", "above"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise InputError(
                    f"a bound on the error of a Gram is finite and not negative, but {name} is "
                    f"{value}"
                )

    @property
    def norm(self) -> float:
        """A bound on the spectral norm of E."""
        return max(self.below, self.above)

    def __add__(self, other: Interval) -> Interval:
        return Interval((self.below + other.below) * ROUNDED, (self.above + other.above) * ROUNDED)

    def __neg__(self) -> Interval:
        return Interval(self.above, self.below)

    def widened(self, by: float) -> Interval:
        """The interval of E plus anything whose spectral norm is at most `by`."""
        return self + Interval(by, by)


@dataclass(frozen=True)
class Bounds:
    """How far an approximate head is at most from the exact one.

    The paper's bounds are infinite where their premise fails.

    `error` is the interval of S - S_ap, `floor` the proven lower bound m on the smallest eigenvalue
    of H_ap. `inverse` bounds ||T_ex - T_ap||_2; `spectral` and `frobenius` bound the norms of W_ex
    - W_ap for the weights as they are, rounding included.
    """

    error: Interval
    floor: float
    paper_inverse: float
    paper_spectral: float
    inverse: float
    spectral: float
    frobenius: float


@dataclass(frozen=True)
class Norms:
    """A head in one norm: of its weights, of the moment, and bounds on the rest of the system and
    on the moment's error.
    """

    weights: float
    moment: float
    rest: float
    moment_error: float


def paper_inverse(error: Interval, floor: float) -> float:
    """The theorem of the paper, with ||E|| and ||T_ap|| replaced by their bounds."""
    return math.inf if error.norm >= floor else error.norm / (floor - error.norm) / floor * ROUNDED


def inverse_bound(error: Interval, floor: float, gamma: float) -> float:
    """The bound on ||T_ex - T_ap||_2 of this module's theorem."""
    down = error.above / (floor + error.above) / floor  # in this order nothing overflows
    up = error.below / (floor - error.below) / floor if error.below < floor else math.inf
    return max(down, min(up, 1.0 / gamma)) * ROUNDED


def weights_bound(error: Interval, floor: float, gamma: float, norms: Norms) -> float:
    """The smallest of the bounds on ||W_ex - W||: (1), (2), and that by way of the inverse."""
    least = max(gamma, floor - error.below) / ROUNDED
    noise = (norms.rest + norms.moment_error) / least
    candidates = [
        noise + error.norm * norms.weights / least,
        through_inverse(inverse_bound(error, floor, gamma), error, floor, gamma, norms),
    ]
    if error.below < floor:
        reach = (
            (error.below + error.above)
            * norms.weights
            / (math.sqrt(least) * math.sqrt(floor + error.above))
        )
        candidates.append(noise + error.below * norms.weights / least + reach)
    return min(candidates) * ROUNDED


def through_inverse(
    inverse: float, error: Interval, floor: float, gamma: float, norms: Norms
) -> float:
    """||W_ex - W|| <= ||T_ex - T_ap|| ||G|| + ||T_ex|| ||G_ex - G|| + ||T_ap|| ||G - H_ap W||, the
    paper's way.
    """
    least = max(gamma, floor - error.below) / ROUNDED
    return (inverse * norms.moment + norms.moment_error / least + norms.rest / floor) * ROUNDED
