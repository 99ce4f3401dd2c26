"""What a posterior refuses, by which error, and that it cannot be changed."""

from __future__ import annotations

import numpy as np
import pytest

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
from support.posterior import (
    example,
    of,
)


@pytest.mark.parametrize("name", ["sigma", "tau"])
@pytest.mark.parametrize(
    "value", [0.0, -1.0, float("nan"), float("inf"), "0.1", True, 1e-300, 10**400, [0.1]]
)
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
    with pytest.raises(
        PosteriorError,
        match=r"sigma=0.1 and tau=0.3 mean gamma .*0.111.*gamma=0.25.*Leave tau out.*with_gamma",
    ):
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
        (
            [[0, 0, 0, 0], [0, 0, float("nan"), 0]],
            NotFiniteError,
            "row 1, column 2 of the features is nan",
        ),
        ([[0, -float("inf"), 0, 0]], NotFiniteError, "row 0, column 1 of the features is -inf"),
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
    few, more = (
        Posterior(expunge.Statistics.zero(s), sigma=1.0)
        for s in (animals, animals.with_labels("dog"))
    )
    with pytest.raises(SpecMismatchError, match="labels"):
        few.kl_to(more)


@pytest.mark.parametrize(
    ("size", "seed"), [(-1, 0), (1.5, 0), (True, 0), (1, None), (1, -1), (1, "seed"), (1, True)]
)
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
    posterior = Posterior(
        expunge.Statistics.zero(expunge.Spec(dim=1, outputs=2, gamma=4.0)), sigma=1.0
    )
    assert repr(posterior) == "<Posterior of 0 samples, sigma=1, tau=0.5>"
