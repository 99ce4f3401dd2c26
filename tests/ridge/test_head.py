"""Heads: immutable, with a digest that covers exactly what is published, and predictions by
label.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import CholeskySolver, Diagnostics, Grid, Head, Spec, Statistics, solve
from expunge.errors import FormatError, ShapeError


def head_of(
    spec: Spec, integers: Any, error_bound: float = 0.0, diagnostics: Diagnostics | None = None
) -> Head:
    return Head(spec, np.array(integers, dtype=np.int64), error_bound, diagnostics)


# -- weights ---------------------------------------------------------------------------------------


@given(st.integers(-(2**53), 2**53), st.integers(-200, 200))
def test_weights_are_the_integers_on_the_publication_grid_exactly(integer: int, bits: int) -> None:
    spec = Spec(dim=1, outputs=1, intercept=False, publication_bits=bits)
    weight = head_of(spec, [[integer]]).weights
    assert weight.dtype == np.float64
    value = float(weight[0, 0])
    assert value == integer * 2.0**-bits
    assert not (integer == 0 and np.signbit(value))


def test_neither_weights_nor_integers_can_be_written_to() -> None:
    head = head_of(Spec(dim=1, labels=("a", "b")), [[1, 2], [3, 4]])
    for array in (head.weights, head.integers):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        head.error_bound = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("shape", [(2, 2), (3, 1), (3,), (1, 3, 2)])
def test_integers_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(FormatError, match=r"\(3, 2\)"):
        Head(Spec(dim=2, labels=("a", "b")), np.zeros(shape, dtype=np.int64), 0.0)


# -- the digest ------------------------------------------------------------------------------------


def test_the_digest_is_the_documented_hash() -> None:
    spec = Spec(dim=1, labels=("a", "b"), gamma=0.3)
    content = b"expunge\x00head\x00\x01"
    content += b"".join(
        bytes.fromhex(part) for part in (spec.data_digest, spec.labels_digest, spec.head_digest)
    )
    for integer in (1, -2, 3, 2**53):
        content += integer.to_bytes(8, "little", signed=True)
    assert head_of(spec, [[1, -2], [3, 2**53]]).digest == hashlib.sha256(content).hexdigest()


def test_the_digest_does_not_depend_on_memory_layout_nor_on_the_path() -> None:
    spec = Spec(dim=1, labels=("a", "b"))
    integers = np.array([[1, -2], [3, 4]])
    plain = head_of(spec, integers)
    found = Diagnostics(method="any", condition=1.0, contraction=0.0, refinement_steps=1, digits=1)
    for other in (
        Head(spec, np.asfortranarray(integers), 0.0),
        Head(spec, integers.astype(">i8"), 0.0),
        head_of(spec, integers, error_bound=1.0),
        head_of(spec, integers, diagnostics=found),
    ):
        assert other.digest == plain.digest
        assert other == plain
        assert hash(other) == hash(plain)


@pytest.mark.parametrize(
    "other",
    [
        Spec(dim=1, labels=("a", "b"), gamma=2.0),
        Spec(dim=1, labels=("a", "b"), publication_bits=39),
        Spec(dim=1, labels=("b", "a")),
        Spec(dim=1, outputs=2),
        Spec(dim=1, labels=("a", "b"), grid=Grid(2, 34)),
        Spec(dim=1, labels=("a", "b"), label_grid=Grid(2, 34)),
        Spec(dim=1, labels=("a", "b"), backbone="another"),
        Spec(dim=2, labels=("a", "b"), intercept=False),
    ],
    ids=["gamma", "publication", "labels", "outputs", "grid", "label grid", "backbone", "dim"],
)
def test_the_digest_covers_the_spec(other: Spec) -> None:
    integers = [[1, -2], [3, 4]]
    head, another = head_of(Spec(dim=1, labels=("a", "b")), integers), head_of(other, integers)
    assert head.digest != another.digest
    assert head != another


@given(st.integers(0, 3), st.integers(0, 62))
def test_the_digest_covers_every_bit_of_every_weight(place: int, bit: int) -> None:
    spec = Spec(dim=1, labels=("a", "b"))
    integers = np.array([[1, -2], [3, 4]])
    changed = integers.copy()
    changed.flat[place] ^= 1 << bit
    assert head_of(spec, changed).digest != head_of(spec, integers).digest


def test_a_head_equals_heads_only() -> None:
    head = head_of(Spec(dim=1, outputs=1, intercept=False), [[1]])
    assert head != head.digest
    assert head.digest[:16] in repr(head)


# -- predictions -----------------------------------------------------------------------------------


def test_scores_add_the_intercept_last() -> None:
    spec = Spec(dim=2, outputs=2, publication_bits=0)
    head = head_of(spec, [[1, 2], [3, 4], [10, 20]])
    np.testing.assert_array_equal(
        head.scores([[1.0, 0.0], [0.0, 1.0], [2.0, -1.0]]), [[11, 22], [13, 24], [9, 20]]
    )
    np.testing.assert_array_equal(head.predict([[1.0, 0.0]]), [[11, 22]])
    bare = head_of(Spec(dim=2, outputs=2, publication_bits=0, intercept=False), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(bare.scores([[2.0, -1.0]]), [[-1, 0]])


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64, np.uint8])
def test_scores_are_computed_in_float64_whatever_the_features_are(kind: type) -> None:
    head = head_of(Spec(dim=2, outputs=1, publication_bits=40), [[3 * 2**38], [1], [0]])
    scores = head.scores(np.array([[1, 2], [3, 4]], dtype=kind))
    assert scores.dtype == np.float64
    np.testing.assert_array_equal(scores, [[0.75 + 2 * 2.0**-40], [2.25 + 4 * 2.0**-40]])


@pytest.mark.parametrize(
    ("labels", "expected"),
    [(("cat", "dog", "owl"), ["cat", "dog", "cat", "owl"]), ((0, 1, 2), [0, 1, 0, 2])],
)
def test_predictions_are_labels_and_of_equal_scores_the_first(
    labels: Any, expected: list[Any]
) -> None:
    spec = Spec(dim=2, labels=labels, publication_bits=0, intercept=False)
    head = head_of(spec, [[1, 0, -1], [0, 1, -1]])
    predicted = head.predict([[2.0, 1.0], [1.0, 2.0], [1.0, 1.0], [-1.0, -1.0]])
    assert predicted.shape == (4,)
    assert predicted.tolist() == expected


def test_no_features_get_no_predictions() -> None:
    assert head_of(Spec(dim=1, labels=("a", "b")), [[1, 2], [3, 4]]).predict(
        np.zeros((0, 1))
    ).shape == (0,)
    assert head_of(Spec(dim=1, outputs=2), [[1, 2], [3, 4]]).predict(np.zeros((0, 1))).shape == (
        0,
        2,
    )


@pytest.mark.parametrize("features", [[1.0, 2.0], [[1.0]], [["a", "b"]], [[1.0, 2.0, 1.0]]])
def test_features_that_do_not_fit_are_refused(features: Any) -> None:
    head = head_of(Spec(dim=2, labels=("a", "b")), [[1, 2], [3, 4], [5, 6]])
    with pytest.raises(ShapeError, match="features"):
        head.predict(features)


def test_a_head_learns_what_its_samples_say() -> None:
    """Two well separated clouds: a solved head tells them apart, by names, and so does the solver
    that followed them.
    """
    generator = np.random.default_rng(0)
    names = np.repeat(["cat", "dog"], 20)
    features = generator.standard_normal((40, 3)) + np.where(names == "cat", 4.0, -4.0)[:, None]
    spec = Spec(dim=3, labels=("cat", "dog"))
    head = solve(Statistics.of(spec, features, names))
    assert head.predict(features).tolist() == names.tolist()
    solver = CholeskySolver(spec)
    solver.add(features, names)
    assert solver.head() == head
    normal = features.T @ features + np.eye(3)
    bare = solve(
        Statistics.of(
            Spec(dim=3, outputs=1, intercept=False), features, (names == "cat").astype(float)
        )
    )
    np.testing.assert_allclose(
        bare.weights[:, 0], np.linalg.solve(normal, features.T @ (names == "cat")), rtol=1e-9
    )
