"""The same samples in the forms in which other libraries hold them, and the law for all of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge import (
    CholeskySolver,
    ExactRidgeClassifier,
    Grid,
    Posterior,
    Spec,
    Statistics,
    WoodburySolver,
    solve,
)
from expunge.errors import ExpungeError
from support.estimators import state

Array = NDArray[Any]

NAMES = ("age", "dose", "weight")
LABELS = ("cat", "dog")
SPEC = Spec(dim=3, labels=LABELS, gamma=0.5)
DTYPES = ("float64", "float32", "float16", "bfloat16", "int8", "int64", "uint8", "bool")
SOLVERS = (CholeskySolver, WoodburySolver)


@st.composite
def samples(draw: st.DrawFn, dtypes: Sequence[str] = DTYPES) -> tuple[Array, Array]:
    """Features of one of these types, and labels by name; few, or more than a block of them."""
    name = draw(st.sampled_from(dtypes))
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    count = draw(st.sampled_from([2, 5, 30, 600]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.normal(size=(count, 3)) * 8
    drawn = np.abs(values) if name in ("uint8", "bool") else values
    labels = np.array(LABELS)[np.arange(count) % 2]
    return (drawn > 4 if name == "bool" else drawn).astype(dtype), labels


def as_numbers(features: Array) -> Array:
    """The same numbers, as the core always took them."""
    return features.astype(np.float64)


def check_same(features: Any, labels: Any, X: Array, names: tuple[str, ...] | None = None) -> None:
    """The law: whatever takes samples does with these as with the array X of the same numbers and
    labels that alternate.
    """
    y = np.array(LABELS)[np.arange(len(X)) % 2]
    reference = Statistics.of(SPEC, X, y, lost_columns="accept")
    assert Statistics.of(SPEC, features, labels, lost_columns="accept").digest == reference.digest
    for variant in SOLVERS:
        check_solver(variant, features, labels, reference, names)
    head = solve(reference)
    assert (head.scores(features) == head.scores(X)).all()
    assert head.predict(features).tolist() == head.predict(X).tolist()
    posterior = Posterior(reference, sigma=1.0)
    assert (posterior.predictive_std(features) == posterior.predictive_std(X)).all()


def check_solver(
    variant: Any, features: Any, labels: Any, reference: Statistics, names: Any
) -> None:
    solver = variant(SPEC)
    assert solver.feature_names is None
    solver.add(features, labels, lost_columns="accept")
    assert solver.statistics.digest == reference.digest
    assert solver.feature_names == names
    copied = pickle.loads(pickle.dumps(solver))  # noqa: S301 - our own bytes
    assert (copied.feature_names, copied.statistics.digest) == (names, reference.digest)
    solver.delete(features, labels)
    assert solver.statistics.digest == Statistics.zero(SPEC).digest


def check_estimators(
    features: Any, labels: Any, X: Array, names: tuple[str, ...] | None = None
) -> None:
    """The law for the estimators; targets are names."""
    y = np.array(LABELS)[np.arange(len(X)) % 2]
    options: dict[str, Any] = {"grid": Grid(), "lost_columns": "accept"}
    expected = ExactRidgeClassifier(**options).fit(X, y)
    model = ExactRidgeClassifier(**options).fit(features, labels)
    assert model.head_.digest == expected.head_.digest
    assert model.predict(features).tolist() == expected.predict(X).tolist()
    assert tuple(getattr(model, "feature_names_in_", ())) == (names or ())
    model.partial_fit(features, labels)
    expected.partial_fit(X, y)
    assert model.head_.digest == expected.head_.digest
    model.forget(features, labels)
    assert model.head_.digest == expected.forget(X, y).head_.digest
    copied = pickle.loads(pickle.dumps(model))  # noqa: S301 - our own bytes
    assert tuple(getattr(copied, "feature_names_in_", ())) == (names or ())


def check_refused(
    change: Callable[..., Any], features: Any, labels: Any, error: type[ExpungeError], message: str
) -> None:
    """Refused by an error that says so; what is asked to change remains as it was."""
    owner = change.__self__ if hasattr(change, "__self__") else None  # type: ignore[attr-defined]
    before = condition(owner)
    with pytest.raises(error, match=message):
        change(features, labels)
    assert condition(owner) == before


def condition(owner: Any) -> Any:
    """What a refusal must leave as it was."""
    if isinstance(owner, SOLVERS):
        return owner.statistics.digest, owner.count, owner.feature_names, owner.head().digest
    return state(owner) if hasattr(owner, "statistics_") else None
