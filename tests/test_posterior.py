"""Laws of the posterior, against exact rational arithmetic (python-flint), textbook formulas and simulation."""

from __future__ import annotations

from fractions import Fraction

import flint
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

import expunge
from expunge.errors import (
    ExpungeError,
    IllConditionedError,
    InputError,
    NotAGramError,
    NotFiniteError,
    PosteriorError,
    ShapeError,
    SpecMismatchError,
)
from expunge.posterior import Posterior, estimate_noise

GAMMAS = [0.25, 1.0, 3.0, 0.1, 1e-3]


# -- exact oracles ----------------------------------------------------------------------------------------------------------


def rational(value: float | int) -> flint.fmpq:
    fraction = Fraction(value)
    return flint.fmpq(fraction.numerator, fraction.denominator)


def matrix(array) -> flint.fmpq_mat:
    array = np.asarray(array)
    return flint.fmpq_mat(array.shape[0], array.shape[1], [rational(value) for value in array.ravel().tolist()])


def floats(exact: flint.fmpq_mat) -> np.ndarray:
    values = [Fraction(int(entry.p), int(entry.q)) for entry in exact.entries()]
    return np.array([float(value) for value in values]).reshape(exact.nrows(), exact.ncols())


def identity(size: int) -> flint.fmpq_mat:
    return matrix(np.eye(size, dtype=int))


def exact_system(features, targets, gamma):
    """H and G as rational matrices."""
    rows, labels = matrix(features), matrix(targets)
    return rows.transpose() * rows + rational(gamma) * identity(rows.ncols()), rows.transpose() * labels


def trace(exact: flint.fmpq_mat) -> flint.fmpq:
    return sum((exact[index, index] for index in range(exact.nrows())), flint.fmpq(0))


def exact_kl(first, second, sigmas) -> float:
    """KL between MN(H^-1 G, sigma^2 H^-1, I) for two pairs (H, G), in 300-bit ball arithmetic."""
    (h1, g1), (h2, g2) = first, second
    variance1, variance2 = (rational(sigma) ** 2 for sigma in sigmas)
    width, columns = g1.nrows(), g1.ncols()
    ratio = h2 * h1.inv() * (variance1 / variance2)
    shift = h1.solve(g1) - h2.solve(g2)
    rest = columns * (trace(ratio) - width) + trace(shift.transpose() * h2 * shift) / variance2
    with flint.ctx.workprec(300):
        ball = flint.arb(rest) - columns * flint.arb(ratio.det()).log()
        return float(ball / 2)


def is_positive_semidefinite(exact: flint.fmpq_mat) -> bool:
    """By the signs of the characteristic polynomial's coefficients, which alternate exactly for such a matrix."""
    coefficients = exact.charpoly().coeffs()
    size = len(coefficients) - 1
    return all((-1) ** (size - power) * value >= 0 for power, value in enumerate(coefficients))


# -- small cases ------------------------------------------------------------------------------------------------------------


@st.composite
def cases(draw, least_rows=0, most_rows=6, largest=9):
    """A spec without intercept and integer samples: small enough for rational arithmetic."""
    width, columns = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    count = draw(st.integers(least_rows, most_rows))
    entries = st.integers(-largest, largest)
    features = np.array(draw(st.lists(entries, min_size=count * width, max_size=count * width)), dtype=float).reshape(
        count, width
    )
    targets = np.array(draw(st.lists(entries, min_size=count * columns, max_size=count * columns)), dtype=float)
    spec = expunge.Spec(dim=width, outputs=columns, gamma=draw(st.sampled_from(GAMMAS)), intercept=False)
    return spec, features, targets.reshape(count, columns)


def of(spec, features, targets):
    return expunge.Statistics.of(spec, features, targets)


def example(rows=40, seed=0, *, gamma=0.5, sigma=0.3, intercept=True, **options):
    generator = np.random.default_rng(seed)
    spec = expunge.Spec(dim=4, outputs=2, gamma=gamma, intercept=intercept, **options)
    features = np.round(generator.standard_normal((rows, 4)), 4)
    features = np.ldexp(np.rint(np.ldexp(features, 20)), -20)  # on the grid, so that floats can stand in for integers
    weights = generator.standard_normal((4, 2))
    targets = features @ weights + sigma * generator.standard_normal((rows, 2)) + 0.5
    targets = np.ldexp(np.rint(np.ldexp(targets, 20)), -20)
    return spec, features, targets


def augmented(spec, features):
    return np.column_stack([features, np.ones(len(features))]) if spec.intercept else features


# -- mean, covariance, predictions ------------------------------------------------------------------------------------------


def test_the_mean_is_the_certified_head():
    spec, features, targets = example()
    statistics = of(spec, features, targets)
    posterior = Posterior(statistics, sigma=0.3)
    assert posterior.head.digest == expunge.solve(statistics).digest
    assert np.array_equal(posterior.mean, expunge.solve(statistics).weights)
    assert posterior.statistics == statistics
    assert posterior.spec == spec


@settings(max_examples=20)
@given(cases(), st.sampled_from([0.1, 1.0, 2.5]))
def test_covariance_and_std_equal_the_rational_ones(case, sigma):
    spec, features, targets = case
    posterior = Posterior(of(spec, features, targets), sigma=sigma)
    system, moment = exact_system(features, targets, spec.gamma)
    expected = floats(rational(sigma) ** 2 * system.inv())
    scale = np.sqrt(np.outer(expected.diagonal(), expected.diagonal()))
    assert np.all(np.abs(posterior.covariance - expected) <= 1e-10 * scale)
    assert np.array_equal(posterior.covariance, posterior.covariance.T)
    assert posterior.std.shape == posterior.mean.shape
    np.testing.assert_allclose(posterior.std, np.sqrt(expected.diagonal())[:, None] * np.ones(spec.columns), rtol=1e-10)
    assert np.all(np.abs(posterior.mean - floats(system.solve(moment))) <= 2.0**-40)


def test_the_internal_mean_is_exact_however_coarse_the_publication_grid():
    for bits in (40, 3, -2):
        spec, features, targets = example(publication_bits=bits, intercept=False)
        posterior = Posterior(of(spec, features, targets), sigma=1.0)
        system, moment = exact_system(features, targets, spec.gamma)
        np.testing.assert_allclose(posterior._fit.mean, floats(system.solve(moment)), rtol=1e-13)


@pytest.mark.parametrize("intercept", [True, False])
def test_predictions_are_those_of_the_gaussian_process_form(intercept):
    """The dual formulas: k** - k* (K + sigma^2 I)^-1 k*' with the kernel tau^2 f'f; nothing of them is in the code under test."""
    spec, features, targets = example(rows=30, intercept=intercept)
    posterior = Posterior(of(spec, features, targets), sigma=0.3)
    new = np.random.default_rng(5).standard_normal((7, 4))
    rows, ask = augmented(spec, features), augmented(spec, new)
    variance = posterior.tau**2
    kernel = variance * rows @ rows.T + 0.3**2 * np.eye(30)
    cross = variance * ask @ rows.T
    np.testing.assert_allclose(posterior.predictive_mean(new), cross @ np.linalg.solve(kernel, targets), rtol=1e-9, atol=1e-11)
    of_weights = variance * (ask**2).sum(axis=1) - np.einsum("ij,ji->i", cross, np.linalg.solve(kernel, cross.T))
    np.testing.assert_allclose(posterior.predictive_std(new, include_noise=False), np.sqrt(of_weights), rtol=1e-9)
    np.testing.assert_allclose(posterior.predictive_std(new), np.sqrt(of_weights + 0.3**2), rtol=1e-10)


def test_predictions_in_blocks_equal_predictions_at_once(monkeypatch):
    spec, features, targets = example()
    posterior = Posterior(of(spec, features, targets), sigma=0.3)
    at_once = posterior.predictive_std(features)
    monkeypatch.setattr("expunge.posterior._BLOCK_ROWS", 7)
    np.testing.assert_allclose(posterior.predictive_std(features), at_once, rtol=1e-14)
    assert posterior.predictive_std(features[:0]).shape == (0,)


def test_without_samples_the_posterior_is_the_prior():
    spec = expunge.Spec(dim=3, labels=("cat", "dog"), gamma=4.0)
    posterior = Posterior(expunge.Statistics.zero(spec), sigma=0.5)
    assert not posterior.mean.any()
    np.testing.assert_array_equal(posterior.covariance, 0.25**2 * np.eye(4))
    np.testing.assert_array_equal(posterior.std, np.full((4, 2), posterior.tau))
    assert posterior.tau == 0.25
    assert posterior.effective_parameters == 0.0
    assert posterior.log_evidence == 0.0


# -- sampling ---------------------------------------------------------------------------------------------------------------


def test_sampled_weights_have_the_posterior_mean_and_covariance():
    spec, features, targets = example(rows=12)
    posterior = Posterior(of(spec, features, targets), sigma=0.7)
    size = 20_000
    drawn = posterior.sample(size, 3)
    assert drawn.shape == (size, 5, 2)
    error = (drawn.mean(axis=0) - posterior.mean) / (posterior.std / np.sqrt(size))
    assert np.abs(error).max() < 5.0
    observed = np.cov(drawn.reshape(size, 10), rowvar=False)
    expected = np.kron(posterior.covariance, np.eye(2))  # the columns are independent, each with the same covariance
    spread = np.sqrt(np.outer(expected.diagonal(), expected.diagonal()) + expected**2) / np.sqrt(size)
    assert (np.abs(observed - expected) / spread).max() < 5.0


def test_sampling_is_a_function_of_the_seed():
    spec, features, targets = example()
    posterior = Posterior(of(spec, features, targets), sigma=0.3)
    first = posterior.sample(3, 11)
    assert np.array_equal(first, posterior.sample(3, 11))
    assert np.array_equal(first, posterior.sample(3, np.random.default_rng(11)))
    assert not np.array_equal(first, posterior.sample(3, 12))
    assert posterior.sample(0, 1).shape == (0, 5, 2)


# -- noise and evidence -----------------------------------------------------------------------------------------------------


def exact_noise(spec, features, targets) -> float:
    system, moment = exact_system(features, targets, spec.gamma)
    rows = matrix(features)
    residuals = matrix(targets) - rows * system.solve(moment)
    freedom = len(features) - trace(rows.transpose() * rows * system.inv())
    squares = trace(residuals.transpose() * residuals) / (spec.columns * freedom)
    return float(Fraction(int(squares.p), int(squares.q))) ** 0.5


@settings(max_examples=20)
@given(cases(least_rows=6, most_rows=9))
def test_the_noise_estimate_equals_residuals_over_degrees_of_freedom(case):
    spec, features, targets = case
    assume(targets.any())
    assert estimate_noise(of(spec, features, targets)) == pytest.approx(exact_noise(*case), rel=1e-10)


@pytest.mark.parametrize("bits", [40, 2, -2])
def test_the_noise_estimate_does_not_depend_on_the_publication_grid(bits):
    spec, features, targets = example(intercept=False, publication_bits=bits)
    assert estimate_noise(of(spec, features, targets)) == pytest.approx(exact_noise(spec, features, targets), rel=1e-12)


def test_the_noise_estimate_keeps_its_digits_where_residuals_are_tiny_beside_targets():
    """Targets near 2^20 with noise near 2^-15: in float64, Y'Y - 2 W'G + W'SW would have lost every digit."""
    generator = np.random.default_rng(4)
    spec = expunge.Spec(
        dim=2, outputs=1, gamma=2.0**-60, intercept=False, label_grid=expunge.Grid(2, 20), grid=expunge.Grid(2, 30)
    )
    features = np.ldexp(np.rint(generator.uniform(-1, 1, (30, 2)) * 2.0**10), -10)
    features = features * 2.0**-12
    targets = features @ np.array([[2.0**30], [-(2.0**31)]]) + np.ldexp(generator.integers(-40, 40, (30, 1)).astype(float), -20)
    wide_spec = spec.with_publication_bits(20)
    assert estimate_noise(of(wide_spec, features, targets)) == pytest.approx(exact_noise(spec, features, targets), rel=1e-9)


def test_the_noise_estimate_is_unbiased_under_the_model():
    generator = np.random.default_rng(8)
    spec = expunge.Spec(dim=3, outputs=4, gamma=2.0, intercept=False)
    features = generator.standard_normal((7, 3)) * [0.5, 1.0, 3.0]
    draws = 150
    ratios = np.empty(draws)
    for draw in range(draws):
        weights = 0.4 / np.sqrt(2.0) * generator.standard_normal((3, 4))
        targets = features @ weights + 0.4 * generator.standard_normal((7, 4))
        ratios[draw] = (estimate_noise(of(spec, features, targets)) / 0.4) ** 2
    error = ratios.std() / np.sqrt(draws)
    assert abs(ratios.mean() - 1.0) < 4.0 * error
    assert error < 0.04  # dividing by n instead of n - p would be off by 0.25: this test can tell


def test_a_posterior_with_estimated_noise_is_the_posterior_with_that_noise():
    spec, features, targets = example()
    statistics = of(spec, features, targets)
    posterior = Posterior.with_estimated_noise(statistics)
    assert posterior.sigma == estimate_noise(statistics)
    assert posterior.sigma == pytest.approx(0.3, rel=0.25)
    assert posterior.kl_to(Posterior(statistics, sigma=estimate_noise(statistics))) == 0.0


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_noise_cannot_be_estimated_from_too_few_samples(rows):
    spec, features, targets = example(rows=rows, gamma=1e-3, intercept=False)
    for refused in (estimate_noise, Posterior.with_estimated_noise):
        with pytest.raises(PosteriorError, match=f"{rows} samples leave .* degrees of freedom.*give sigma"):
            refused(of(spec, features, targets))


def test_noise_cannot_be_estimated_from_targets_that_are_all_zero():
    spec, features, targets = example()
    with pytest.raises(PosteriorError, match="every target is zero"):
        estimate_noise(of(spec, features, 0.0 * targets))


@pytest.mark.parametrize(("gamma", "sigma", "bits"), [(0.5, 0.3, 40), (20.0, 1.1, 40), (0.5, 0.3, 1)])
def test_the_evidence_is_the_density_of_the_targets(gamma, sigma, bits):
    spec, features, targets = example(rows=15, gamma=gamma, publication_bits=bits)
    posterior = Posterior(of(spec, features, targets), sigma=sigma)
    rows = augmented(spec, features)
    marginal = multivariate_normal(np.zeros(15), sigma**2 * np.eye(15) + posterior.tau**2 * rows @ rows.T)
    assert posterior.log_evidence == pytest.approx(sum(marginal.logpdf(column) for column in targets.T), rel=1e-10)


def test_the_evidence_finds_gamma():
    """Weights of spread 1 and noise 0.3 mean gamma = 0.09; a hundredfold either way has less evidence."""
    spec, features, targets = example(rows=200)
    statistics = of(spec, features, targets)
    evidence = [Posterior.with_estimated_noise(statistics.under(spec.with_gamma(g))).log_evidence for g in (9e-4, 0.09, 9.0)]
    assert max(evidence) == evidence[1]


# -- KL ---------------------------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(cases(least_rows=1), st.randoms(use_true_random=False), st.sampled_from([0.1, 1.0, 3.7]))
def test_kl_to_retraining_is_exactly_zero(case, random, sigma):
    spec, features, targets = case
    keep = [index for index in range(len(features)) if random.random() < 0.5]
    deleted = [index for index in range(len(features)) if index not in keep]
    order = random.sample(range(len(features)), len(features))
    everything = sum((of(spec, features[[i]], targets[[i]]) for i in order), expunge.Statistics.zero(spec))
    unlearned = Posterior(everything - of(spec, features[deleted], targets[deleted]), sigma=sigma)
    retrained = Posterior(of(spec, features[keep], targets[keep]), sigma=sigma)
    for pair in ((unlearned, retrained), (retrained, unlearned)):
        assert pair[0].kl_to(pair[1]) == 0.0
        assert pair[0].variance_ratios(pair[1]) == (1.0, 1.0)
        assert pair[0].is_no_more_certain_than(pair[1], tolerance=0.0)


def test_kl_is_exactly_zero_where_only_publication_differs():
    spec, features, targets = example()
    statistics = of(spec, features, targets)
    coarse = Posterior(statistics.under(spec.with_publication_bits(3)), sigma=0.3)
    fine = Posterior(statistics, sigma=0.3)
    assert not np.array_equal(coarse.mean, fine.mean)
    assert coarse.kl_to(fine) == 0.0
    assert fine.kl_to(coarse) == 0.0


@settings(max_examples=20)
@given(cases(), cases(), st.sampled_from([0.1, 1.0, 2.0]), st.sampled_from([0.1, 1.0, 2.0]))
def test_kl_equals_the_textbook_formula_in_exact_arithmetic(first, second, sigma, other_sigma):
    spec, features, targets = first
    other_spec, more, labels = second
    more = np.resize(more, (len(more), spec.dim)) if more.size else np.zeros((0, spec.dim))
    labels = np.resize(labels, (len(more), spec.columns)) if labels.size else np.zeros((len(more), spec.columns))
    other_spec = spec.with_gamma(other_spec.gamma)
    one = Posterior(of(spec, features, targets), sigma=sigma)
    two = Posterior(of(other_spec, more, labels), sigma=other_sigma)
    systems = [exact_system(features, targets, spec.gamma), exact_system(more, labels, other_spec.gamma)]
    forward = exact_kl(*systems, (sigma, other_sigma))
    assert one.kl_to(two) >= 0.0
    assert one.kl_to(two) == pytest.approx(forward, rel=1e-9, abs=0.0)
    assert two.kl_to(one) == pytest.approx(exact_kl(*systems[::-1], (other_sigma, sigma)), rel=1e-9, abs=0.0)


@pytest.mark.parametrize(("doublings", "size"), [(0, 1.0), (20, 1.0), (36, 1.0), (20, 0.0), (36, 0.0)])
def test_kl_of_one_deletion_among_very_many_samples_keeps_its_digits(doublings, size):
    """At 2^36 times seven samples the divergence is near 1e-11, and near 1e-22 where the mean does not move (all targets zero):
    far below what the difference of two means, of two traces or of two determinants could show."""
    spec, features, targets = example(rows=7, intercept=False)
    targets = targets * size
    many = of(spec, features, targets)
    for _ in range(doublings):
        many = many + many
    before = Posterior(many, sigma=0.3)
    after = Posterior(many - of(spec, features[:1], targets[:1]), sigma=0.3)
    rows, labels = matrix(features), matrix(targets)
    gram, moment = (rows.transpose() * other * rational(2**doublings) for other in (rows, labels))
    one, one_label = matrix(features[:1]), matrix(targets[:1])
    system = gram + rational(spec.gamma) * identity(4)
    exact = (system, moment), (system - one.transpose() * one, moment - one.transpose() * one_label)
    expected = exact_kl(*exact, (0.3, 0.3))
    assert 0.0 < expected < 2.0 ** (-doublings if size else -2 * doublings)
    assert before.kl_to(after) == pytest.approx(expected, rel=1e-9, abs=0.0)
    assert after.kl_to(before) == pytest.approx(exact_kl(*exact[::-1], (0.3, 0.3)), rel=1e-9, abs=0.0)


def exact_ratios(system, other) -> np.ndarray:
    """The eigenvalues of H^-1 H', ascending, from 500-bit ball arithmetic."""
    with flint.ctx.workprec(500):
        ratios = flint.acb_mat(flint.arb_mat(system.inv() * other)).eig()
        return np.sort([float(ratio.real) for ratio in ratios])


def test_variance_ratios_keep_their_digits_at_both_ends():
    """Ratios from 2^-25 to 2^15 at once: neither factor alone sees both ends."""
    spec = expunge.Spec(dim=3, outputs=1, gamma=2.0**-20, intercept=False)
    first, second = np.array([[32.0, 1, 2], [1, 40, 3]]), np.array([[1.0, 2, 50], [0.25, 0, 1]])
    labels = np.array([[1.0], [2.0]])
    one, two = Posterior(of(spec, first, labels), sigma=0.5), Posterior(of(spec, second, labels), sigma=0.25)
    systems = exact_system(first, labels, spec.gamma), exact_system(second, labels, spec.gamma)
    expected = 4.0 * exact_ratios(systems[0][0], systems[1][0])
    assert expected[0] < 2.0**-25
    assert expected[-1] > 2.0**15
    near = {"rel": 1e-7, "abs": 0.0}  # the condition number is near 2^31
    assert one.variance_ratios(two) == pytest.approx((expected[0], expected[-1]), **near)
    assert two.variance_ratios(one) == pytest.approx((1.0 / expected[-1], 1.0 / expected[0]), **near)
    assert one.kl_to(two) == pytest.approx(exact_kl(*systems, (0.5, 0.25)), **near)
    assert two.kl_to(one) == pytest.approx(exact_kl(*systems[::-1], (0.25, 0.5)), **near)


def test_kl_to_the_prior_keeps_its_digits():
    """Ratios near 2^-37: seen as 1 + e from one side they would have 16 bits left, and their logarithm with them."""
    spec = expunge.Spec(dim=3, outputs=1, gamma=2.0**-25, intercept=False)
    features, targets = np.array([[60.0, 1, 0], [2, 50, 3], [0, 1, 55]]), np.zeros((3, 1))
    posterior, prior = Posterior(of(spec, features, targets), sigma=0.5), Posterior(expunge.Statistics.zero(spec), sigma=0.5)
    systems = exact_system(features, targets, spec.gamma), exact_system(features[:0], targets[:0], spec.gamma)
    ratios = exact_ratios(systems[0][0], systems[1][0])
    assert posterior.kl_to(prior) == pytest.approx(exact_kl(*systems, (0.5, 0.5)), rel=1e-13)
    assert posterior.variance_ratios(prior) == pytest.approx((ratios[0], ratios[-1]), rel=1e-12, abs=0.0)


# -- deletions only increase uncertainty ------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(cases(least_rows=1), st.data())
def test_valid_deletions_only_increase_uncertainty(case, data):
    """The law, proved in rational arithmetic for each case, and what float64 says of it."""
    spec, features, targets = case
    split = data.draw(st.integers(0, len(features)))
    before = Posterior(of(spec, features, targets), sigma=0.4)
    after = Posterior(before.statistics - of(spec, features[:split], targets[:split]), sigma=0.4)
    systems = [exact_system(features[start:], targets[start:], spec.gamma)[0] for start in (0, split)]
    growth = systems[1].inv() - systems[0].inv()
    assert is_positive_semidefinite(growth)
    assert after.is_no_more_certain_than(before)
    smallest, largest = after.variance_ratios(before)
    assert smallest == pytest.approx(1.0, rel=1e-6) or smallest > 1.0
    assert largest >= smallest
    new = np.eye(spec.dim)
    assert np.all(after.predictive_std(new) >= before.predictive_std(new) * (1 - 1e-9))
    changed = bool(features[:split].any())
    assert before.is_no_more_certain_than(after) == (not changed)


@settings(max_examples=20)
@given(cases(least_rows=2))
def test_variance_ratios_bound_the_ratio_in_every_direction_and_are_reached(case):
    spec, features, targets = case
    before, after = (Posterior(of(spec, features[start:], targets[start:]), sigma=1.0) for start in (0, 1))
    smallest, largest = after.variance_ratios(before)
    # H^-1 loses a rank-one Gram: all ratios are 1 but one, which is 1 / (1 - f'H^-1 f), exactly
    deleted = matrix(features[:1])
    system = exact_system(features, targets, spec.gamma)[0]
    leverage = (deleted * system.inv() * deleted.transpose())[0, 0]
    one = 1 / (1 - leverage)
    assert largest == pytest.approx(float(Fraction(int(one.p), int(one.q))), rel=1e-9)
    assert smallest == pytest.approx(float(largest) if spec.dim == 1 else 1.0, rel=1e-9)


def test_more_noise_is_more_uncertainty():
    spec, features, targets = example()
    statistics = of(spec, features, targets)
    quiet, loud = Posterior(statistics, sigma=0.3), Posterior(statistics, sigma=0.6)
    assert loud.variance_ratios(quiet) == pytest.approx((4.0, 4.0), rel=1e-12)
    assert quiet.variance_ratios(loud) == pytest.approx((0.25, 0.25), rel=1e-12)
    assert loud.is_no_more_certain_than(quiet)
    assert not quiet.is_no_more_certain_than(loud)
    assert quiet.is_no_more_certain_than(loud, tolerance=0.76)


# -- bad input --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sigma", "tau"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "0.1", True, 1e-300, 10**400, [0.1]])
def test_noise_that_cannot_be_is_refused(name, value):
    spec, features, targets = example()
    with pytest.raises(PosteriorError, match=f"{name}="):
        Posterior(of(spec, features, targets), **{name: value})


def test_noise_parameters_follow_from_gamma_or_must_agree_with_it():
    spec, features, targets = example(gamma=0.25)
    statistics = of(spec, features, targets)
    assert Posterior(statistics, sigma=0.1).tau == pytest.approx(0.2)
    assert Posterior(statistics, tau=0.2).sigma == pytest.approx(0.1)
    both = Posterior(statistics, sigma=0.1, tau=0.2 * (1 + 1e-10))
    assert (both.sigma, both.tau) == (0.1, 0.2 * (1 + 1e-10))
    with pytest.raises(PosteriorError, match=r"sigma=0.1 and tau=0.3 mean gamma .*0.111.*gamma=0.25.*Leave tau out.*with_gamma"):
        Posterior(statistics, sigma=0.1, tau=0.3)
    with pytest.raises(PosteriorError, match=r"gamma=0.25"):
        Posterior(statistics, sigma=0.1, tau=0.2 * (1 + 1e-8))
    with pytest.raises(PosteriorError, match=r"give sigma= .*with_estimated_noise"):
        Posterior(statistics)


def test_what_is_not_statistics_is_refused():
    spec, features, targets = example()
    head = expunge.solve(of(spec, features, targets))
    for make in (lambda: Posterior(head, sigma=1.0), lambda: estimate_noise(head)):
        with pytest.raises(PosteriorError, match=r"from expunge\.Statistics, got Head"):
            make()
    with pytest.raises(PosteriorError, match="compared with a Posterior only, got Head"):
        Posterior(of(spec, features, targets), sigma=1.0).kl_to(head)


def test_statistics_of_no_set_of_samples_are_refused():
    spec, features, targets = example()
    with pytest.raises(NotAGramError):
        Posterior(-of(spec, features, targets), sigma=0.3)
    with pytest.raises(NotAGramError):
        estimate_noise(of(spec, features[:2], targets[:2]) - of(spec, features, targets))


def test_what_solve_refuses_is_refused():
    spec = expunge.Spec(dim=2, outputs=1, gamma=2.0**-60)
    with pytest.raises(IllConditionedError, match="smallest gamma"):
        Posterior(of(spec, np.ones((3, 2)), np.ones(3)), sigma=0.3)


@pytest.mark.parametrize(
    ("features", "error", "match"),
    [
        (np.zeros((3, 5)), ShapeError, r"\(n, 4\)"),
        (np.zeros(4), ShapeError, "reshape"),
        (np.zeros((2, 4), dtype=complex), ShapeError, "real"),
        ([[0, 0, 0, 0], [0, 0, float("nan"), 0]], NotFiniteError, r"features\[1, 2\] is nan"),
        ([[0, -float("inf"), 0, 0]], NotFiniteError, r"features\[0, 1\] is -inf"),
    ],
)
def test_features_that_cannot_be_predicted_are_refused(features, error, match):
    spec, rows, targets = example()
    posterior = Posterior(of(spec, rows, targets), sigma=0.3)
    for predict in (posterior.predictive_mean, posterior.predictive_std):
        with pytest.raises(error, match=match):
            predict(features)


def test_posteriors_of_other_specs_cannot_be_compared():
    spec, features, targets = example()
    posterior = Posterior(of(spec, features, targets), sigma=0.3)
    no_intercept, *_ = example(intercept=False)
    other = Posterior(of(no_intercept, features, targets), sigma=0.3)
    for compare in (posterior.kl_to, posterior.variance_ratios, posterior.is_no_more_certain_than):
        with pytest.raises(SpecMismatchError, match=r"compare posteriors.*intercept"):
            compare(other)
    animals = expunge.Spec(dim=2, labels=("cat",))
    few, more = (Posterior(expunge.Statistics.zero(s), sigma=1.0) for s in (animals, animals.with_labels("dog")))
    with pytest.raises(SpecMismatchError, match="labels"):
        few.kl_to(more)


@pytest.mark.parametrize(("size", "seed"), [(-1, 0), (1.5, 0), (True, 0), (1, None), (1, -1), (1, "seed"), (1, True)])
def test_draws_that_cannot_be_are_refused(size, seed):
    posterior = Posterior(expunge.Statistics.zero(expunge.Spec(dim=1, outputs=1)), sigma=1.0)
    with pytest.raises(InputError, match="must be"):
        posterior.sample(size, seed)


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan")])
def test_a_tolerance_that_cannot_be_is_refused(tolerance):
    posterior = Posterior(expunge.Statistics.zero(expunge.Spec(dim=1, outputs=1)), sigma=1.0)
    with pytest.raises(ExpungeError, match="tolerance"):
        posterior.is_no_more_certain_than(posterior, tolerance=tolerance)


def test_a_posterior_cannot_be_changed():
    posterior = Posterior(expunge.Statistics.zero(expunge.Spec(dim=1, outputs=1)), sigma=1.0)
    for array in (posterior.mean, posterior.covariance, posterior.std):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1.0
    for name in ("sigma", "tau", "statistics", "mean"):
        with pytest.raises(AttributeError):
            setattr(posterior, name, 1.0)


def test_a_posterior_describes_itself():
    posterior = Posterior(expunge.Statistics.zero(expunge.Spec(dim=1, outputs=2, gamma=4.0)), sigma=1.0)
    assert repr(posterior) == "<Posterior of 0 samples, sigma=1, tau=0.5>"
