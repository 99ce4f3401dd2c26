"""Laws of comparing posteriors: zero divergence from retraining, and deletions that only increase
uncertainty.
"""

from __future__ import annotations

from fractions import Fraction

import flint
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import expunge
from expunge.posterior import Posterior, _minus_log1p
from support.posterior import (
    cases,
    exact_kl,
    exact_system,
    example,
    identity,
    is_positive_semidefinite,
    matrix,
    of,
    rational,
)

# -- KL --------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(cases(least_rows=1), st.randoms(use_true_random=False), st.sampled_from([0.1, 1.0, 3.7]))
def test_kl_to_retraining_is_exactly_zero(case, random, sigma):
    spec, features, targets = case
    keep = [index for index in range(len(features)) if random.random() < 0.5]
    deleted = [index for index in range(len(features)) if index not in keep]
    order = random.sample(range(len(features)), len(features))
    everything = sum(
        (of(spec, features[[i]], targets[[i]]) for i in order), expunge.Statistics.zero(spec)
    )
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
    labels = (
        np.resize(labels, (len(more), spec.columns))
        if labels.size
        else np.zeros((len(more), spec.columns))
    )
    other_spec = spec.with_gamma(other_spec.gamma)
    one = Posterior(of(spec, features, targets), sigma=sigma)
    two = Posterior(of(other_spec, more, labels), sigma=other_sigma)
    systems = [
        exact_system(features, targets, spec.gamma),
        exact_system(more, labels, other_spec.gamma),
    ]
    forward = exact_kl(*systems, (sigma, other_sigma))
    assert one.kl_to(two) >= 0.0
    assert one.kl_to(two) == pytest.approx(forward, rel=1e-9, abs=1e-29)
    assert two.kl_to(one) == pytest.approx(
        exact_kl(*systems[::-1], (other_sigma, sigma)), rel=1e-9, abs=1e-29
    )


def test_kl_does_not_depend_on_the_publication_grid():
    spec, features, targets = example(intercept=False, publication_bits=-2)
    one, two = (
        Posterior(of(spec, features[start:], targets[start:]), sigma=0.3) for start in (0, 1)
    )
    systems = [exact_system(features[start:], targets[start:], spec.gamma) for start in (0, 1)]
    assert one.kl_to(two) == pytest.approx(exact_kl(*systems, (0.3, 0.3)), rel=1e-11)
    assert two.kl_to(one) == pytest.approx(exact_kl(*systems[::-1], (0.3, 0.3)), rel=1e-11)


def test_the_logarithm_is_subtracted_without_cancellation():
    values = np.concatenate([np.linspace(-0.5, 0.5, 41), [1e-3, -1e-8, 1e-80, -1e-150]])
    with flint.ctx.workprec(1200):
        expected = [float(flint.arb(value) - flint.arb(value).log1p()) for value in values]
    np.testing.assert_allclose(_minus_log1p(values), expected, rtol=1e-15)


@pytest.mark.parametrize(
    ("doublings", "size"), [(0, 1.0), (20, 1.0), (36, 1.0), (20, 0.0), (36, 0.0)]
)
def test_kl_of_one_deletion_among_very_many_samples_keeps_its_digits(doublings, size):
    """At 2^36 times seven samples the divergence is near 1e-11, and near 1e-22 where the mean does
    not move (all targets zero): far below what the difference of two means, of two traces or of two
    determinants could show.
    """
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
    assert after.kl_to(before) == pytest.approx(
        exact_kl(*exact[::-1], (0.3, 0.3)), rel=1e-9, abs=0.0
    )


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
    one, two = (
        Posterior(of(spec, first, labels), sigma=0.5),
        Posterior(of(spec, second, labels), sigma=0.25),
    )
    systems = exact_system(first, labels, spec.gamma), exact_system(second, labels, spec.gamma)
    expected = 4.0 * exact_ratios(systems[0][0], systems[1][0])
    assert expected[0] < 2.0**-25
    assert expected[-1] > 2.0**15
    near = {"rel": 1e-7, "abs": 0.0}  # the condition number is near 2^31
    assert one.variance_ratios(two) == pytest.approx((expected[0], expected[-1]), **near)
    assert two.variance_ratios(one) == pytest.approx(
        (1.0 / expected[-1], 1.0 / expected[0]), **near
    )
    assert one.kl_to(two) == pytest.approx(exact_kl(*systems, (0.5, 0.25)), **near)
    assert two.kl_to(one) == pytest.approx(exact_kl(*systems[::-1], (0.25, 0.5)), **near)


def test_kl_to_the_prior_keeps_its_digits():
    """Ratios near 2^-37: seen as 1 + e from one side they would have 16 bits left, and their
    logarithm with them.
    """
    spec = expunge.Spec(dim=3, outputs=1, gamma=2.0**-25, intercept=False)
    features, targets = np.array([[60.0, 1, 0], [2, 50, 3], [0, 1, 55]]), np.zeros((3, 1))
    posterior, prior = (
        Posterior(of(spec, features, targets), sigma=0.5),
        Posterior(expunge.Statistics.zero(spec), sigma=0.5),
    )
    systems = (
        exact_system(features, targets, spec.gamma),
        exact_system(features[:0], targets[:0], spec.gamma),
    )
    ratios = exact_ratios(systems[0][0], systems[1][0])
    assert posterior.kl_to(prior) == pytest.approx(exact_kl(*systems, (0.5, 0.5)), rel=1e-13)
    assert posterior.variance_ratios(prior) == pytest.approx(
        (ratios[0], ratios[-1]), rel=1e-12, abs=0.0
    )


# -- deletions only increase uncertainty -----------------------------------------------------------


@settings(max_examples=20)
@given(cases(least_rows=1), st.data())
def test_valid_deletions_only_increase_uncertainty(case, data):
    """The law, proved in rational arithmetic for each case, and what float64 says of it."""
    spec, features, targets = case
    split = data.draw(st.integers(0, len(features)))
    before = Posterior(of(spec, features, targets), sigma=0.4)
    after = Posterior(before.statistics - of(spec, features[:split], targets[:split]), sigma=0.4)
    systems = [
        exact_system(features[start:], targets[start:], spec.gamma)[0] for start in (0, split)
    ]
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
    before, after = (
        Posterior(of(spec, features[start:], targets[start:]), sigma=1.0) for start in (0, 1)
    )
    smallest, largest = after.variance_ratios(before)
    # H^-1 loses a rank-one Gram: all ratios are 1 but one, which is 1 / (1 - f'H^-1 f), exactly
    deleted = matrix(features[:1])
    system = exact_system(features, targets, spec.gamma)[0]
    leverage = (deleted * system.inv() * deleted.transpose())[0, 0]
    one = 1 / (1 - leverage)
    assert largest == pytest.approx(float(Fraction(int(one.p), int(one.q))), rel=1e-9)
    assert smallest == pytest.approx(float(largest) if spec.dim == 1 else 1.0, rel=1e-9)


def test_one_added_sample_among_many_is_found_to_be_more_certain():
    spec, features, targets = example()
    many = of(spec, features, targets)
    for _ in range(15):
        many = many + many
    fewer, more = (
        Posterior(many, sigma=0.3),
        Posterior(many + of(spec, features[:1], targets[:1]), sigma=0.3),
    )
    assert 0.0 < 1.0 - more.variance_ratios(fewer)[0] < 2e-6
    assert not more.is_no_more_certain_than(fewer)
    assert more.is_no_more_certain_than(fewer, tolerance=2e-6)
    assert fewer.is_no_more_certain_than(more)


def test_more_noise_is_more_uncertainty():
    spec, features, targets = example()
    statistics = of(spec, features, targets)
    quiet, loud = Posterior(statistics, sigma=0.3), Posterior(statistics, sigma=0.6)
    assert loud.variance_ratios(quiet) == pytest.approx((4.0, 4.0), rel=1e-12)
    assert quiet.variance_ratios(loud) == pytest.approx((0.25, 0.25), rel=1e-12)
    assert loud.is_no_more_certain_than(quiet)
    assert not quiet.is_no_more_certain_than(loud)
    assert quiet.is_no_more_certain_than(loud, tolerance=0.76)
