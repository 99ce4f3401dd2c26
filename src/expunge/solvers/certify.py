"""From a system and its moment to a certified head: the loop that both variants share, and
retraining itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from expunge.errors import IllConditionedError, InputError, NotAGramError
from expunge.exact import blas
from expunge.ridge.head import Diagnostics, Head
from expunge.ridge.plausibility import problem_with
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums
from expunge.solvers.factor import CholeskyFactor, proven_floor
from expunge.solvers.refinement import Propose, Refinement
from expunge.solvers.system import RidgeSystem, require_well_conditioned

STALE_LIMIT = 2.0**-8  # a tracked or stale preconditioner that contracts less is rebuilt
_MOST_STALLS = 3  # steps after which the bound was not even halved
_FRESH_LIMIT = 2.0**-1  # a fresh one that contracts less cannot be


@dataclass
class Preconditioner:
    """What proposes corrections: an approximate inverse of H, fresh or not, and how to make a fresh
    one.
    """

    solve: Propose
    fresh: bool
    renew: Callable[[], Propose]
    renewals: int = 0


def certified(
    refinement: Refinement, preconditioner: Preconditioner, floor: float
) -> tuple[Head, Diagnostics]:
    """Refine until every weight can be rounded; `floor` is a proven lower bound on the smallest
    eigenvalue of H.
    """
    system, spec = refinement.system, refinement.system.spec
    steps, digits, worst = refinement.steps, refinement.digits, 0.0
    bound, stalls = math.inf, 0
    while True:
        proposal = refinement.propose(preconditioner.solve, floor)
        # never true of NaN
        shrinks = proposal.contraction <= (_FRESH_LIMIT if preconditioner.fresh else STALE_LIMIT)
        stalls += not float(proposal.bounds.max()) <= bound / 2.0
        if not shrinks or stalls > _MOST_STALLS:
            if preconditioner.fresh:
                raise IllConditionedError(
                    f"refinement does not converge (contraction {proposal.contraction:.3g}) for "
                    f"gamma = {spec.gamma:g}; choose a larger gamma (spec.with_gamma(...))"
                )
            preconditioner.solve, preconditioner.fresh = preconditioner.renew(), True
            preconditioner.renewals += 1
            bound, stalls = math.inf, 0
            continue
        worst = max(worst, proposal.contraction)
        integers = refinement.rounded(proposal)
        if integers is not None:
            break
        bound = float(proposal.bounds.max())
        refinement.apply(proposal)
    diagnostics = Diagnostics(
        method="",
        condition=(float(np.abs(system.gram.diagonal()).sum()) + spec.width * spec.gamma) / floor,
        contraction=worst,
        refinement_steps=refinement.steps - steps,
        digits=refinement.digits - digits,
    )
    return Head(spec, integers, blas.norm(proposal.bounds) * (1 + 2.0**-20)), diagnostics


def solve(statistics: Statistics) -> Head:
    """The certified head of these statistics, from scratch: this is what retraining means.

    `weights` is (S + gamma I)^-1 G, correctly rounded to multiples of 2^-publication_bits. No path,
    number of threads or BLAS changes one byte of it.

    Parameters
    ----------
    statistics : Statistics
        Of the retained samples. They may be the result of subtractions.

    Returns
    -------
    Head
        With a proven error bound, and diagnostics whose method is "retrain".

    Raises
    ------
    InputError
        If `statistics` is something else.
    NotAGramError
        If integers prove that no set of samples has these statistics, or if no lower bound on the
        smallest eigenvalue can be proven.
    IllConditionedError
        If width * 2^-53 * trace(H) / gamma > 2^-6. The message has the smallest gamma that will do.
    UndecidableTieError
        If a weight lies within 2^-(publication_bits + 128) of the middle of two grid points.
    PublicationRangeError
        If a weight is too large to be an exact float64 on the publication grid.

    See Also
    --------
    CholeskySolver, WoodburySolver : the same heads, kept up to date under changes.

    Examples
    --------
    Deleting gives the head of retraining, bit for bit:

    >>> import expunge
    >>> spec = expunge.Spec(dim=2, labels=("cat", "dog"))
    >>> X, y = [[0.0, 1.0], [1.0, 0.5], [3.0, 2.0], [4.0, 2.5]], ["cat", "cat", "dog", "dog"]
    >>> everything = expunge.Statistics.of(spec, X, y)
    >>> gone = expunge.Statistics.of(spec, X[3:], y[3:])
    >>> unlearned = expunge.solve(everything - gone)
    >>> retrained = expunge.solve(expunge.Statistics.of(spec, X[:3], y[:3]))
    >>> unlearned.digest == retrained.digest
    True
    """
    if not isinstance(statistics, Statistics):
        raise InputError(
            f"solve takes Statistics, got {type(statistics).__name__}; those of no samples at all "
            "are Statistics.zero(spec)"
        )
    spec = statistics.spec
    by_construction = statistics.gram_by_construction
    if not by_construction:
        require_possible(statistics)
    require_well_conditioned(spec, sum(statistics.diagonal()))
    system = RidgeSystem(spec, statistics.gram, once=True)
    floor = spec.gamma if by_construction else proven_floor(system)
    factor = CholeskyFactor(system)
    preconditioner = Preconditioner(factor.solve, fresh=True, renew=lambda: factor.solve)
    head, diagnostics = certified(Refinement(system, statistics.moment), preconditioner, floor)
    return with_diagnostics(head, diagnostics, "retrain", 1, 0)


def require_possible(statistics: Statistics | Sums) -> None:
    """Refuse (settled) statistics that integers prove to be of no set of samples."""
    problem = problem_with(statistics)
    if problem is not None:
        raise NotAGramError(f"these are not the statistics of any set of samples: {problem}")


def with_diagnostics(
    head: Head, diagnostics: Diagnostics, method: str, factorisations: int, resets: int
) -> Head:
    """The same head, telling how it was reached."""
    head_diagnostics = replace(
        diagnostics, method=method, factorisations=factorisations, resets=resets
    )
    return replace(head, diagnostics=head_diagnostics)
