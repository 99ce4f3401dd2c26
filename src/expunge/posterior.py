"""Posterior: the distribution of the ridge weights, of which the head is the mean.

With targets y ~ N(W' f, sigma^2 I) and weights vec(W) ~ N(0, tau^2 I), gamma = sigma^2 / tau^2, the
posterior of the retained samples is matrix-normal, MN(M, sigma^2 H^-1, I), with H = S + gamma I and
M = H^-1 G. It is a function of the statistics alone. So deleting gives the posterior of retraining
and not only its mean: the KL divergence between the two is exactly 0.0.

The statistics are exact; what is derived from them here (covariance, KL, noise) is ordinary float64
arithmetic, arranged so that differences between posteriors are taken between integers, before
anything is rounded.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, eigvalsh

from expunge._lazy import public_dir
from expunge.errors import InputError, PosteriorError
from expunge.exact import blas, wide
from expunge.exact.blas import scipy_blas, scipy_lapack
from expunge.ridge.encoding import BLOCK_ROWS, finite_blocks
from expunge.ridge.head import Head
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.solvers import solve
from expunge.solvers.system import RidgeSystem

__all__ = [
    "Posterior",
    "estimate_noise",
]
__dir__ = public_dir(__name__)

Float = NDArray[np.float64]

_AGREEMENT = 1e-9  # relative, between gamma and sigma^2 / tau^2
_MOST_SIGMA_BITS = (
    200  # with gamma within 2^+-100 no square or ratio of noise parameters can overflow
)
_SERIES_LIMIT = 0.5
_SERIES_TERMS = 17


class Posterior:
    """The distribution of the ridge weights, of which the head is the mean.

    It is matrix-normal, MN(M, sigma^2 (S + gamma I)^-1, I): the columns of the weights are
    independent, with one covariance. It is a function of the statistics, gamma and sigma alone, so
    deleting gives the posterior of retraining.

    Parameters
    ----------
    statistics : Statistics
        Exact statistics of the retained samples.
    sigma : float, optional
        The standard deviation of a target around its expectation; 2^-200 to 2^200.
    tau : float, optional
        The standard deviation of a weight before any sample; 2^-200 to 2^200. One of the two may be
        left out: it follows from gamma = sigma^2 / tau^2.

    Raises
    ------
    PosteriorError
        If neither sigma nor tau is given, one is out of range, or they contradict the spec's gamma;
        or if `statistics` is something else.
    SolveError
        If these statistics have no head: what `solve` refuses is refused here, by the same error.

    See Also
    --------
    estimate_noise : sigma from statistics.
    Posterior.with_estimated_noise : a posterior with that sigma.

    Notes
    -----
    The model has targets y ~ N(W' f, sigma^2 I) and weights vec(W) ~ N(0, tau^2 I). The statistics
    are exact; covariance, KL and noise are ordinary float64 arithmetic. Differences between
    posteriors are taken between integers, before anything is rounded.

    Examples
    --------
    >>> import expunge
    >>> spec = expunge.Spec(dim=1, outputs=1, gamma=1.0)
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.1, 0.9, 2.1, 2.9]
    >>> everything = expunge.Statistics.of(spec, X, y)
    >>> gone = expunge.Statistics.of(spec, X[:1], y[:1], lost_columns="accept")
    >>> posterior = expunge.Posterior(everything - gone, sigma=0.1)
    >>> posterior
    <Posterior of 3 samples, sigma=0.1, tau=0.1>
    >>> posterior.predictive_std([[1.5], [10.0]]).round(3).tolist()
    [0.112, 0.365]
    >>> retrained = expunge.Posterior(expunge.Statistics.of(spec, X[1:], y[1:]), sigma=0.1)
    >>> posterior.kl_to(retrained)
    0.0
    """

    def __init__(
        self, statistics: Statistics, *, sigma: float | None = None, tau: float | None = None
    ) -> None:
        self._fit = _Fit(statistics)
        self._sigma, self._tau = _checked_noise(self._fit.spec, sigma, tau)

    @classmethod
    def with_estimated_noise(cls, statistics: Statistics) -> Posterior:
        """The posterior whose sigma is `estimate_noise(statistics)`.

        Parameters
        ----------
        statistics : Statistics
            Exact statistics of the retained samples.

        Returns
        -------
        Posterior
            With tau = sigma / sqrt(gamma).

        Raises
        ------
        PosteriorError
            If the noise cannot be estimated: see `estimate_noise`.
        SolveError
            If these statistics have no head.
        """
        self = object.__new__(cls)
        self._fit = _Fit(statistics)
        self._sigma, self._tau = _checked_noise(self._fit.spec, self._fit.noise(), None)
        return self

    @property
    def statistics(self) -> Statistics:
        """The exact statistics that the posterior is of."""
        return self._fit.statistics

    @property
    def spec(self) -> Spec:
        """The spec of the statistics."""
        return self._fit.spec

    @property
    def sigma(self) -> float:
        """The standard deviation of a target around its expectation."""
        return self._sigma

    @property
    def tau(self) -> float:
        """The standard deviation of a weight before any sample was seen: sigma / sqrt(gamma)."""
        return self._tau

    @property
    def head(self) -> Head:
        """The certified head: the mean, correctly rounded to the publication grid."""
        return self._fit.head

    @property
    def mean(self) -> Float:
        """The head's weights, of shape (width, columns).

        They are within 2^-(publication_bits + 1) of the exact mean M.
        """
        return self.head.weights

    @cached_property
    def covariance(self) -> Float:
        """The covariance of each column of the weights: sigma^2 (S + gamma I)^-1.

        Its shape is (width, width).
        """
        covariance = self.sigma**2 * self._fit.inverse
        covariance.flags.writeable = False
        return covariance

    @property
    def std(self) -> Float:
        """The standard deviation of every weight, of shape (width, columns), like `mean`."""
        deviations = self.sigma * np.sqrt(self._fit.inverse.diagonal())
        return np.broadcast_to(deviations[:, None], (self.spec.width, self.spec.columns))

    @property
    def effective_parameters(self) -> float:
        """tr(S (S + gamma I)^-1): how many parameters the samples determine, not the prior."""
        return self._fit.effective_parameters

    # -- predictions -------------------------------------------------------------------------------

    def predictive_mean(self, features: Any) -> Float:
        """The expected targets: the head's scores.

        Parameters
        ----------
        features : array-like of shape (n, dim)
            Real and finite.

        Returns
        -------
        float64 ndarray of shape (n, columns)
            As `Head.scores` gives them.

        Raises
        ------
        ShapeError
            If the features have another shape, or are not real numbers.
        NotFiniteError
            If a feature is NaN or infinite.
        """
        return self.head.scores(features)

    def predictive_std(self, features: Any, *, include_noise: bool = True) -> Float:
        """The standard deviation of a target, which is the same for every column.

        Parameters
        ----------
        features : array-like of shape (n, dim)
            Real and finite.
        include_noise : bool, default True
            With the noise, sqrt(f' C f + sigma^2) for the covariance C of the weights. Without it,
            sqrt(f' C f), which more samples would lower.

        Returns
        -------
        float64 ndarray of shape (n,)
            In units of the targets.

        Raises
        ------
        ShapeError
            If the features have another shape, or are not real numbers.
        NotFiniteError
            If a feature is NaN or infinite.
        """
        squares = [np.empty(0)]
        for block in finite_blocks(self.spec, features, BLOCK_ROWS):
            rows = block
            if self.spec.intercept:
                rows = np.column_stack([block, np.ones(len(block))])
            squares.append(np.square(_solve_lower(self._fit.factor, rows.T)).sum(axis=0))
        result = np.concatenate(squares)
        return self.sigma * np.sqrt(result + (1.0 if include_noise else 0.0))

    def sample(self, size: int, seed: int | np.random.Generator) -> Float:
        """Weights drawn from the posterior; the randomness is the caller's.

        Parameters
        ----------
        size : int
            The number of draws, 0 or more.
        seed : int or numpy.random.Generator
            A seed of 0 or more, or a generator, which is advanced.

        Returns
        -------
        float64 ndarray of shape (size, width, columns)
            Draws around `mean`.

        Raises
        ------
        InputError
            If `size` or `seed` is something else.
        """
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 0:
            raise InputError(f"size={size!r} must be the number of draws: an integer, not negative")
        seeded = isinstance(seed, (int, np.integer)) and not isinstance(seed, bool) and seed >= 0
        if not seeded and not isinstance(seed, np.random.Generator):
            raise InputError(
                f"seed={seed!r} must be a non-negative integer or a numpy.random.Generator"
            )
        width, columns = self.spec.width, self.spec.columns
        noise = np.random.default_rng(seed).standard_normal((int(size), width, columns))
        stacked = np.moveaxis(noise, 0, 1).reshape(width, int(size) * columns)
        spread = _solve_lower(self._fit.factor, stacked, transposed=True)
        return self.mean + self.sigma * np.moveaxis(spread.reshape(width, int(size), columns), 1, 0)

    # -- judging and comparing ---------------------------------------------------------------------

    @cached_property
    def log_evidence(self) -> float:
        """log p(targets | features, gamma, sigma), in nats: the marginal likelihood.

        Larger is better, among posteriors of the same samples: it chooses gamma without held-out
        samples. It is computed from statistics alone.
        """
        fit, count = self._fit, self.statistics.count
        misfit = fit.residual_squares + self.spec.gamma * float(np.square(fit.mean).sum())
        determinant = 2.0 * float(np.log(fit.factor.diagonal() / math.sqrt(self.spec.gamma)).sum())
        normal = count * math.log(2.0 * math.pi * self.sigma**2)
        return -0.5 * (self.spec.columns * (normal + determinant) + misfit / self.sigma**2)

    def kl_to(self, other: Posterior) -> float:
        """KL(self || other) in nats, for posteriors over the same weights; never negative.

        It is exactly 0.0 where statistics, gamma and sigma are equal, on whatever path they were
        reached.

        Parameters
        ----------
        other : Posterior
            With the same data and labels digests; gamma and sigma may differ.

        Returns
        -------
        float
            The divergence.

        Raises
        ------
        PosteriorError
            If `other` is something else.
        SpecMismatchError
            If the two are of different specs.

        Notes
        -----
        For posteriors that are close the relative accuracy is kept, to about the condition number
        times 2^-53: the statistics are subtracted as integers, and no two large terms cancel.
        Changes of gamma and sigma that cancel each other are seen to about 2^-100.
        """
        self._require_comparable(other)
        mine, theirs = self._fit, other._fit
        excess, logarithm = _variance_excess(self, other)
        close = np.abs(excess) <= _SERIES_LIMIT
        spread = np.where(
            close, _minus_log1p(np.where(close, excess, 0.0)), excess - logarithm
        ).sum()
        # M - M' = H'^-1 (dH M - dG) with dH and dG exact: the difference of two rounded means would
        # have lost its digits.
        system, moment = mine.difference(theirs)
        moved = blas.symmetric_multiply(system, mine.mean) - moment
        shift = np.square(_solve_lower(theirs.factor, moved)).sum() / other.sigma**2
        return float(0.5 * (self.spec.columns * spread + shift))

    def variance_ratios(self, other: Posterior) -> tuple[float, float]:
        """The smallest and the largest ratio of this posterior's variance to the other's.

        The ratios are over all directions of the weights. Both are exactly 1.0 for equal
        statistics, gamma and sigma.

        Parameters
        ----------
        other : Posterior
            With the same data and labels digests; gamma and sigma may differ.

        Returns
        -------
        tuple of two floats
            The smallest and the largest.

        Raises
        ------
        PosteriorError
            If `other` is something else.
        SpecMismatchError
            If the two are of different specs.
        """
        self._require_comparable(other)
        excess, logarithm = _variance_excess(self, other)
        ratios = np.where(excess > -_SERIES_LIMIT, 1.0 + excess, np.exp(np.minimum(logarithm, 0.0)))
        return float(ratios.min()), float(ratios.max())

    def is_no_more_certain_than(self, other: Posterior, *, tolerance: float | None = None) -> bool:
        """Whether no direction's variance is below (1 - tolerance) times the other's.

        It is true of the posterior after a deletion against the one before it, with the same gamma
        and sigma, since H only loses a Gram.

        Parameters
        ----------
        other : Posterior
            With the same data and labels digests.
        tolerance : float, optional
            0 or more, and below 1. By default width * 2^-50 * trace(H) / gamma, the larger of the
            two posteriors', at worst 1/8.

        Returns
        -------
        bool
            The comparison of covariances in the PSD order.

        Raises
        ------
        PosteriorError
            If `other` is something else, or the tolerance is out of range.
        SpecMismatchError
            If the two are of different specs.

        Notes
        -----
        A deletion leaves most directions as they were, so the true smallest ratio is 1 and float64
        finds it a little off; the default tolerance bounds that. So False is a finding, and True
        says that float64 finds no direction that became more certain. Like every numerical check it
        cannot prove what was deleted.
        """
        smallest, _ = self.variance_ratios(other)
        if tolerance is None:
            tolerance = max(_rounding_share(self._fit), _rounding_share(other._fit))
        elif not (math.isfinite(tolerance) and 0.0 <= tolerance < 1.0):
            raise PosteriorError(f"tolerance={tolerance!r} must lie between 0 and 1")
        return smallest >= 1.0 - tolerance

    def _require_comparable(self, other: Posterior) -> None:
        if not isinstance(other, Posterior):
            raise PosteriorError(
                f"a posterior can be compared with a Posterior only, got {type(other).__name__}"
            )
        self.spec.require_same_data(other.spec, "compare posteriors of different specs")

    def __repr__(self) -> str:
        return (
            f"<Posterior of {self.statistics.count} samples, sigma={self.sigma:.6g}, "
            f"tau={self.tau:.6g}>"
        )


def estimate_noise(statistics: Statistics) -> float:
    """The noise sigma, from statistics alone; it is unbiased in sigma^2 for every gamma.

    It is the square root of ||Y - F M||^2 / (columns * (n - p)), where p = tr(S (S + gamma I)^-1)
    is the effective number of parameters.

    Parameters
    ----------
    statistics : Statistics
        Exact statistics of the retained samples.

    Returns
    -------
    float
        The standard deviation of a target around its expectation.

    Raises
    ------
    PosteriorError
        If less than one degree of freedom n - p is left, every target is zero, or `statistics` is
        something else.
    SolveError
        If these statistics have no head.

    Notes
    -----
    The residual sum of squares follows from Y'Y, G, S and M. Under the model, I - F H^-1 F' is the
    inverse of the targets' covariance over sigma^2, hence E||Y - F M||^2 = sigma^2 * columns *
    (n - p). The divisor tends to the classical n - width as gamma tends to 0. Unlike the maximum of
    the evidence, the estimate does not rely on the prior for the size of the weights.

    Examples
    --------
    >>> import numpy as np
    >>> import expunge
    >>> from expunge.posterior import estimate_noise
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((1000, 3))
    >>> y = X @ [1.0, -2.0, 0.5] + 0.25 * rng.standard_normal(1000)
    >>> spec = expunge.Spec(dim=3, outputs=1, gamma=0.01)
    >>> round(estimate_noise(expunge.Statistics.of(spec, X, y)), 2)
    0.25
    """
    return _Fit(statistics).noise()


class _Fit:
    """What follows from the statistics and gamma, whatever the noise.

    All of it is a cache of the statistics.
    """

    def __init__(self, statistics: Statistics) -> None:
        if not isinstance(statistics, Statistics):
            raise PosteriorError(
                f"a posterior is made from expunge.Statistics, got {type(statistics).__name__}"
            )
        self.statistics = statistics
        self.spec = statistics.spec
        # also the guard: the conditioning rule makes the factorisation below succeed
        self.head = solve(statistics)
        system = statistics.gram_float()
        system.flat[:: self.spec.width + 1] += self.spec.gamma
        self.trace = float(system.trace())
        self.factor: Float = cholesky(system, lower=True, overwrite_a=True, check_finite=False)

    @cached_property
    def inverse(self) -> Float:
        """H^-1, symmetric to the bit."""
        lower: Float = np.tril(scipy_lapack.dpotri(self.factor, lower=1)[0])
        return lower + np.tril(lower, -1).T

    @property
    def effective_parameters(self) -> float:
        return self.spec.width - self.spec.gamma * float(self.inverse.trace())

    @cached_property
    def _residual(self) -> tuple[wide.Wide, int]:
        """G - H W for the published W, exactly, and the bits b of its unit 2^-b."""
        spec = self.spec
        system = RidgeSystem(spec, self.statistics.gram, once=True)
        bits = max(spec.publication_bits, spec.label_grid.fraction_bits - spec.grid.fraction_bits)
        shift = system.unit(bits) - spec.grid.fraction_bits - spec.label_grid.fraction_bits
        # |R| <= ||H|| ||W - M||; what the sum passes through on the way may wrap around.
        most = (
            math.frexp(self.trace * self.spec.width)[1] + system.unit(bits) - spec.publication_bits
        )
        residual = wide.shifted_left(self.statistics.moment, shift, max(2, (most + 2) // 64 + 1))
        system.subtract_product(residual, self.head.integers, bits - spec.publication_bits)
        return residual, system.unit(bits)

    @cached_property
    def _correction(self) -> Float:
        """M - W: what publication rounded off the mean."""
        residual, unit = self._residual
        half = _solve_lower(self.factor, wide.to_float(residual, -unit))
        return _solve_lower(self.factor, half, transposed=True)

    @cached_property
    def mean(self) -> Float:
        """M to float64 accuracy, however coarse the publication grid."""
        return self.head.weights + self._correction

    @cached_property
    def residual_squares(self) -> float:
        """||Y - F M||^2.

        Its large terms cancel, so they are summed as integers, for the published W; the rest is
        small.

        With R = G - H W:  ||Y - F W||^2 = tr(Y'Y) - tr(W'(G + R)) - gamma ||W||^2.
        """
        spec, statistics = self.spec, self.statistics
        residual, unit = self._residual
        weights = self.head.integers.ravel().tolist()
        label, cross = (
            spec.label_grid.fraction_bits,
            spec.grid.fraction_bits + spec.label_grid.fraction_bits,
        )
        total = sum(wide.to_ints(statistics.label_gram)[:: spec.columns + 1]) / Fraction(4) ** label
        for values, bits in (
            (wide.to_ints(statistics.moment), cross),
            (wide.to_ints(residual), unit),
        ):
            total -= _dot(weights, values) / Fraction(2) ** (bits + spec.publication_bits)
        total -= spec.exact_gamma * _dot(weights, weights) / Fraction(4) ** spec.publication_bits
        rounded = self._correction
        linear = float((rounded * wide.to_float(residual, -unit)).sum())
        return (
            float(total)
            - linear
            - spec.gamma * float((rounded * (2.0 * self.head.weights + rounded)).sum())
        )

    def noise(self) -> float:
        """What `estimate_noise` promises."""
        count, parameters = self.statistics.count, self.effective_parameters
        if count - parameters < 1.0:
            raise PosteriorError(
                f"the noise cannot be estimated: {count} samples leave {count - parameters:.3g} "
                f"degrees of freedom after {parameters:.6g} effective parameters, and at least 1 "
                "is needed. Add samples, choose a larger gamma "
                "(statistics.under(spec.with_gamma(...))), or give sigma"
            )
        if not self.residual_squares > 0.0:
            raise PosteriorError(
                "the noise cannot be estimated: the head leaves no residuals (every target is "
                "zero); give sigma"
            )
        return math.sqrt(self.residual_squares / (self.spec.columns * (count - parameters)))

    def difference(self, other: _Fit) -> tuple[Float, Float]:
        """H' - H and G' - G, subtracted as integers."""
        change = other.statistics.under(self.spec) - self.statistics
        system = change.gram_float()
        system.flat[:: self.spec.width + 1] += float(other.spec.exact_gamma - self.spec.exact_gamma)
        return system, change.moment_float()


def _solve_lower(factor: Float, right: Float, *, transposed: bool = False) -> Float:
    """L^-1 @ right, or L^-T @ right.

    LAPACK's own routine would wake every thread even for the smallest factor.
    """
    solution: Float = scipy_blas.dtrsm(1.0, factor, right, lower=1, trans_a=int(transposed))
    return solution


def _dot(left: list[int], right: list[int]) -> int:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _minus_log1p(values: Float) -> Float:
    """x - log(1 + x) for |x| <= 1/2 as r x - 2 r^3 (1/3 + r^2/5 + r^4/7 + ...), r = x / (2 + x)."""
    ratio = values / (2.0 + values)
    series = np.zeros_like(values)
    for term in reversed(range(_SERIES_TERMS)):
        series = series * ratio**2 + 1.0 / (2 * term + 3)
    return ratio * values - 2.0 * ratio**3 * series


def _excess(fit: _Fit, other: _Fit) -> Float:
    """Eigenvalues of H^-1 H' - I, ascending: those of L^-1 (H' - H) L^-T, where H = L L^T."""
    difference, _ = fit.difference(other)
    half = _solve_lower(fit.factor, difference)
    relative = _solve_lower(fit.factor, half.T)
    return np.asarray(eigvalsh((relative + relative.T) / 2.0, overwrite_a=True))


def _variance_excess(mine: Posterior, theirs: Posterior) -> tuple[Float, Float]:
    """r - 1 and log(r) for the ratios r of variances, mine to theirs, along the directions in which
    both are diagonal.

    Seen from my factor the error of r is in proportion to the largest r - 1; seen from theirs, that
    of 1/r to the largest 1/r - 1. Where ratios are far from 1, each is taken from the side that
    gives it more accurately.
    """
    up = mine.sigma**2 / theirs.sigma**2
    scale = (mine.sigma - theirs.sigma) * (mine.sigma + theirs.sigma)
    excess = up * _excess(mine._fit, theirs._fit) + scale / theirs.sigma**2
    largest = float(np.abs(excess).max())
    if largest <= _SERIES_LIMIT:
        return excess, np.log1p(excess)
    inverse = _excess(theirs._fit, mine._fit)[::-1] / up - scale / mine.sigma**2
    from_mine = np.square(np.maximum(1.0 + excess, 0.0)) * float(np.abs(inverse).max()) >= largest
    excess = np.where(from_mine, excess, 0.0)
    inverse = np.where(from_mine, 0.0, inverse)
    return np.where(from_mine, excess, -inverse / (1.0 + inverse)), np.log1p(excess) - np.log1p(
        inverse
    )


def _rounding_share(fit: _Fit) -> float:
    """A bound on the relative error of a variance ratio whose true value is near the smallest."""
    return fit.spec.width * 2.0**-50 * fit.trace / fit.spec.gamma


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise PosteriorError(f"{name}={value!r} must be a number")
    number = math.inf if isinstance(value, int) and abs(value) > 2**1000 else float(value)
    if not 2.0**-_MOST_SIGMA_BITS <= number <= 2.0**_MOST_SIGMA_BITS:
        raise PosteriorError(
            f"{name}={number!r} is no standard deviation: it must be positive and finite, and lie "
            f"between 2^-{_MOST_SIGMA_BITS} "
            f"and 2^{_MOST_SIGMA_BITS} (beyond that, scale the targets)"
        )
    return number


def _checked_noise(spec: Spec, sigma: object, tau: object) -> tuple[float, float]:
    """sigma and tau with sigma^2 / tau^2 = gamma; one that is missing is derived."""
    root = math.sqrt(spec.gamma)
    if sigma is None and tau is None:
        raise PosteriorError(
            "a posterior needs the noise: give sigma= (or tau=), or have it estimated: "
            "Posterior.with_estimated_noise(statistics)"
        )
    noise = _positive("tau", tau) * root if sigma is None else _positive("sigma", sigma)
    spread = noise / root if tau is None else _positive("tau", tau)
    ratio = (noise / spread) ** 2
    if not abs(ratio - spec.gamma) <= _AGREEMENT * spec.gamma:
        raise PosteriorError(
            f"sigma={noise!r} and tau={spread!r} mean gamma = sigma^2/tau^2 = {ratio!r}, but the "
            f"spec has gamma={spec.gamma!r}. "
            "Leave tau out to have it derived, or put the statistics under the other gamma: "
            "statistics.under(spec.with_gamma(sigma**2 / tau**2))"
        )
    return noise, spread
