"""Laws of the posterior, against exact rational arithmetic (python-flint), textbook formulas and
simulation.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

import expunge
from expunge.errors import (
    PosteriorError,
)
from expunge.posterior import Posterior, estimate_noise
from support.posterior import (
    augmented,
    cases,
    exact_noise,
    exact_system,
    example,
    floats,
    of,
    rational,
)

# -- mean, covariance, predictions -----------------------------------------------------------------


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
    np.testing.assert_allclose(
        posterior.std, np.sqrt(expected.diagonal())[:, None] * np.ones(spec.columns), rtol=1e-10
    )
    assert np.all(np.abs(posterior.mean - floats(system.solve(moment))) <= 2.0**-40)


def test_the_internal_mean_is_exact_however_coarse_the_publication_grid():
    for bits in (40, 3, -2):
        spec, features, targets = example(publication_bits=bits, intercept=False)
        posterior = Posterior(of(spec, features, targets), sigma=1.0)
        system, moment = exact_system(features, targets, spec.gamma)
        np.testing.assert_allclose(posterior._fit.mean, floats(system.solve(moment)), rtol=1e-13)


def test_the_internal_mean_is_exact_where_the_residual_needs_more_than_128_bits():
    spec = expunge.Spec(
        dim=1,
        outputs=1,
        gamma=0.1 * 2.0**-40,
        intercept=False,
        grid=expunge.Grid(2, 0),
        publication_bits=-10,
    )
    features, targets = np.array([[1.0], [1.0]]), np.array([[31.5], [29.25]])
    posterior = Posterior(of(spec, features, targets), sigma=1.0)
    assert not posterior.mean.any()
    system, moment = exact_system(features, targets, spec.gamma)
    np.testing.assert_allclose(posterior._fit.mean, floats(system.solve(moment)), rtol=1e-15)
    assert estimate_noise(posterior.statistics) == pytest.approx(
        exact_noise(spec, features, targets), rel=1e-12
    )


@pytest.mark.parametrize("intercept", [True, False])
def test_predictions_are_those_of_the_gaussian_process_form(intercept):
    """The dual formulas: k** - k* (K + sigma^2 I)^-1 k*' with the kernel tau^2 f'f; nothing of them
    is in the code under test.
    """
    spec, features, targets = example(rows=30, intercept=intercept)
    posterior = Posterior(of(spec, features, targets), sigma=0.3)
    new = np.random.default_rng(5).standard_normal((7, 4))
    rows, ask = augmented(spec, features), augmented(spec, new)
    variance = posterior.tau**2
    kernel = variance * rows @ rows.T + 0.3**2 * np.eye(30)
    cross = variance * ask @ rows.T
    np.testing.assert_allclose(
        posterior.predictive_mean(new),
        cross @ np.linalg.solve(kernel, targets),
        rtol=1e-9,
        atol=1e-11,
    )
    of_weights = variance * (ask**2).sum(axis=1) - np.einsum(
        "ij,ji->i", cross, np.linalg.solve(kernel, cross.T)
    )
    np.testing.assert_allclose(
        posterior.predictive_std(new, include_noise=False), np.sqrt(of_weights), rtol=1e-9
    )
    np.testing.assert_allclose(
        posterior.predictive_std(new), np.sqrt(of_weights + 0.3**2), rtol=1e-10
    )


def test_predictions_in_blocks_equal_predictions_at_once(monkeypatch):
    spec, features, targets = example()
    posterior = Posterior(of(spec, features, targets), sigma=0.3)
    at_once = posterior.predictive_std(features)
    monkeypatch.setattr("expunge.posterior.BLOCK_ROWS", 7)
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


# -- sampling --------------------------------------------------------------------------------------


def test_sampled_weights_have_the_posterior_mean_and_covariance():
    spec, features, targets = example(rows=12)
    posterior = Posterior(of(spec, features, targets), sigma=0.7)
    size = 20_000
    drawn = posterior.sample(size, 3)
    assert drawn.shape == (size, 5, 2)
    error = (drawn.mean(axis=0) - posterior.mean) / (posterior.std / np.sqrt(size))
    assert np.abs(error).max() < 5.0
    observed = np.cov(drawn.reshape(size, 10), rowvar=False)
    expected = np.kron(
        posterior.covariance, np.eye(2)
    )  # the columns are independent, each with the same covariance
    spread = np.sqrt(np.outer(expected.diagonal(), expected.diagonal()) + expected**2) / np.sqrt(
        size
    )
    assert (np.abs(observed - expected) / spread).max() < 5.0


def test_sampling_is_a_function_of_the_seed():
    spec, features, targets = example()
    posterior = Posterior(of(spec, features, targets), sigma=0.3)
    first = posterior.sample(3, 11)
    assert np.array_equal(first, posterior.sample(3, 11))
    assert np.array_equal(first, posterior.sample(3, np.random.default_rng(11)))
    assert not np.array_equal(first, posterior.sample(3, 12))
    assert posterior.sample(0, 1).shape == (0, 5, 2)


# -- noise and evidence ----------------------------------------------------------------------------


@settings(max_examples=20)
@given(cases(least_rows=6, most_rows=9))
def test_the_noise_estimate_equals_residuals_over_degrees_of_freedom(case):
    spec, features, targets = case
    assume(targets.any())
    assert estimate_noise(of(spec, features, targets)) == pytest.approx(
        exact_noise(*case), rel=1e-10
    )


@pytest.mark.parametrize("bits", [40, 2, -2])
def test_the_noise_estimate_does_not_depend_on_the_publication_grid(bits):
    spec, features, targets = example(intercept=False, publication_bits=bits)
    assert estimate_noise(of(spec, features, targets)) == pytest.approx(
        exact_noise(spec, features, targets), rel=1e-12
    )


def test_the_noise_estimate_keeps_its_digits_where_residuals_are_tiny_beside_targets():
    """Targets near 2^20 with noise near 2^-15: in float64, Y'Y - 2 W'G + W'SW would have lost every
    digit.
    """
    generator = np.random.default_rng(4)
    spec = expunge.Spec(
        dim=2,
        outputs=1,
        gamma=2.0**-60,
        intercept=False,
        label_grid=expunge.Grid(2, 20),
        grid=expunge.Grid(2, 30),
    )
    features = np.ldexp(np.rint(generator.uniform(-1, 1, (30, 2)) * 2.0**10), -10)
    features = features * 2.0**-12
    targets = features @ np.array([[2.0**30], [-(2.0**31)]]) + np.ldexp(
        generator.integers(-40, 40, (30, 1)).astype(float), -20
    )
    wide_spec = spec.with_publication_bits(20)
    assert estimate_noise(of(wide_spec, features, targets)) == pytest.approx(
        exact_noise(spec, features, targets), rel=1e-9
    )


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
        with pytest.raises(
            PosteriorError, match=f"{rows} samples leave .* degrees of freedom.*give sigma"
        ):
            refused(of(spec, features, targets))


def test_noise_cannot_be_estimated_from_targets_that_are_all_zero():
    spec, features, targets = example()
    with pytest.raises(PosteriorError, match="every target is zero"):
        estimate_noise(of(spec, features, 0.0 * targets))


@pytest.mark.parametrize(
    ("gamma", "sigma", "bits"), [(0.5, 0.3, 40), (20.0, 1.1, 40), (0.5, 0.3, 1)]
)
def test_the_evidence_is_the_density_of_the_targets(gamma, sigma, bits):
    spec, features, targets = example(rows=15, gamma=gamma, publication_bits=bits)
    posterior = Posterior(of(spec, features, targets), sigma=sigma)
    rows = augmented(spec, features)
    marginal = multivariate_normal(
        np.zeros(15), sigma**2 * np.eye(15) + posterior.tau**2 * rows @ rows.T
    )
    assert posterior.log_evidence == pytest.approx(
        sum(marginal.logpdf(column) for column in targets.T), rel=1e-10
    )


def test_the_evidence_finds_gamma():
    """Weights of spread 1 and noise 0.3 mean gamma = 0.09; a hundredfold either way has less
    evidence.
    """
    spec, features, targets = example(rows=200)
    statistics = of(spec, features, targets)
    evidence = [
        Posterior.with_estimated_noise(statistics.under(spec.with_gamma(g))).log_evidence
        for g in (9e-4, 0.09, 9.0)
    ]
    assert max(evidence) == evidence[1]
