"""The laws that every backbone keeps, on functions whose features are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Spec
from expunge.backbones import (
    Backbone,
    CallableBackbone,
    PrecomputedBackbone,
    check_backbone,
    require_fingerprint,
)
from expunge.errors import BackboneError


def squares(samples: list[float]) -> Any:
    return [[x, x * x] for x in samples]


def centred(samples: list[float]) -> Any:
    """Depends on its companions, as a batch norm in training mode does."""
    return [[x - sum(samples) / len(samples), x] for x in samples]


def made(function: Any, **settings: Any) -> CallableBackbone:
    return CallableBackbone(function, **({"name": "f", "version": "1", "dim": 2} | settings))


numbers = st.floats(-1e6, 1e6, width=32)


@given(st.lists(numbers, max_size=20), st.integers(1, 25))
def test_features_are_those_of_the_samples_in_order(samples: list[float], batch_size: int) -> None:
    features = made(squares).features(samples, batch_size=batch_size)
    assert features.dtype == np.float32
    assert features.shape == (len(samples), 2)
    assert np.array_equal(
        features, np.array([[x, x * x] for x in samples], np.float32).reshape(-1, 2)
    )


@given(
    st.lists(numbers, min_size=1, max_size=12),
    st.integers(1, 12),
    st.randoms(use_true_random=False),
)
def test_an_independent_feature_has_the_same_bytes_in_any_company(
    samples: list[float], batch_size: int, random: Any
) -> None:
    backbone = made(centred)
    assert backbone.independent
    alone = {x.hex(): backbone.features([x]).tobytes() for x in samples}
    order = random.sample(samples, len(samples))
    for x, feature in zip(order, backbone.features(order, batch_size=batch_size), strict=True):
        assert feature.tobytes() == alone[x.hex()]  # 0.0 and -0.0 are equal, and two samples


def test_together_says_that_features_may_depend_on_companions_and_they_do() -> None:
    backbone = made(centred, together=True)
    assert not backbone.independent
    assert backbone.features([1.0])[0, 0] == 0
    assert backbone.features([1.0, 3.0])[0, 0] == -1


@given(st.integers(0, 30), st.integers(1, 12))
def test_batches_hold_at_most_batch_size_and_progress_counts_them(n: int, batch_size: int) -> None:
    sizes: list[int] = []
    reported: list[int] = []

    def function(samples: list[float]) -> Any:
        sizes.append(len(samples))
        return squares(samples)

    made(function, together=True).features(
        map(float, range(n)), batch_size=batch_size, progress=reported.append
    )
    assert sizes == [batch_size] * (n // batch_size) + ([n % batch_size] if n % batch_size else [])
    assert reported == list(np.cumsum(sizes))


def test_samples_are_drawn_as_they_are_needed() -> None:
    drawn: list[int] = []
    ahead: list[int] = []

    def stream() -> Iterator[float]:
        for i in range(10):
            drawn.append(i)
            yield float(i)

    made(squares).features(
        stream(), batch_size=3, progress=lambda done: ahead.append(len(drawn) - done)
    )
    assert ahead == [0, 0, 0, 0]


def test_a_network_may_reuse_the_memory_of_its_output() -> None:
    buffer = np.zeros((1, 2), np.float32)

    def function(samples: list[float]) -> Any:
        buffer[:] = samples[0]
        return buffer

    assert made(function).features([1.0, 2.0]).tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize("size", [0, -1, 2.0, True, None])
def test_a_batch_size_that_cannot_be_is_refused(size: Any) -> None:
    with pytest.raises(BackboneError, match="batch_size="):
        made(squares).features([1.0], batch_size=size)


@pytest.mark.parametrize("samples", ["abc", b"abc", Path("x.png"), 3, {"a": 1}])
def test_one_sample_is_not_a_list_of_samples(samples: Any) -> None:
    with pytest.raises(BackboneError, match="list"):
        made(squares).features(samples)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (lambda n: np.full((n, 2), np.nan), "NaN or infinity"),
        (lambda n: np.full((n, 2), np.inf), "NaN or infinity"),
        (lambda n: np.full((n, 2), 1e39), "NaN or infinity"),  # beyond float32
        (lambda n: np.zeros((n, 3)), r"shape \(1, 3\)"),
        (lambda n: np.zeros((n + 1, 2)), r"shape \(2, 2\)"),
        (np.zeros, r"shape \(1,\)"),
        (lambda n: np.zeros((n, 2), complex), "complex"),
        (lambda n: np.full((n, 2), "a"), "not numbers"),
        (lambda _n: None, "not numbers"),
    ],
)
def test_an_output_that_cannot_be_is_refused_with_the_sample_named(output: Any, said: str) -> None:
    calls: list[int] = []

    def function(samples: list[float]) -> Any:
        calls.append(1)
        return output(len(samples)) if len(calls) == 3 else squares(samples)

    with pytest.raises(BackboneError, match=f"^sample 2: .*{said}"):
        made(function).features([1.0] * 5, batch_size=2)


def test_the_bad_one_of_a_batch_is_named() -> None:
    with pytest.raises(BackboneError, match=r"^sample 5: its feature has NaN"):
        made(squares, together=True).features(
            [1.0, 1.0, 1.0, 1.0, 1.0, float("nan"), 1.0], batch_size=4
        )


def test_a_file_is_named_and_a_text_is_not() -> None:
    def function(samples: list[Any]) -> Any:
        raise KeyError("no")

    with pytest.raises(
        BackboneError, match=r"^sample 0 \(folder/secret.txt\).*'f' failed with KeyError"
    ):
        made(function).features([Path("folder/secret.txt")])
    with pytest.raises(BackboneError) as refusal:
        made(function).features(["Jane Roe has measles"])
    assert "Jane" not in str(refusal.value)


def test_a_spec_with_this_fingerprint_and_dim_is_taken_and_any_other_refused() -> None:
    backbone = made(squares)
    require_fingerprint(Spec(dim=2, outputs=1, backbone=backbone.fingerprint), backbone)
    require_fingerprint(Spec(dim=2, outputs=1), backbone)
    with pytest.raises(BackboneError, match="the spec pins clip-v1"):
        require_fingerprint(Spec(dim=2, outputs=1, backbone="clip-v1"), backbone)
    with pytest.raises(BackboneError, match="length 2, but the spec has dim=3"):
        require_fingerprint(Spec(dim=3, outputs=1, backbone=backbone.fingerprint), backbone)
    with pytest.raises(BackboneError, match="length 2"):
        require_fingerprint(Spec(dim=3, outputs=1), backbone)


def test_good_backbones_pass_the_check() -> None:
    check_backbone(made(squares), [1.0, 2.0, 3.0])
    check_backbone(made(centred), [1.0, 2.0, 3.0])
    check_backbone(made(centred, together=True), [1.0, 2.0, 3.0])
    check_backbone(PrecomputedBackbone("mine", dim=2), np.arange(6.0).reshape(3, 2))


class Liar(CallableBackbone):
    """Calls itself independent and is not."""

    @property
    def independent(self) -> bool:
        return True


class Forgetful(CallableBackbone):
    """Its fingerprint changes with use."""

    @property
    def fingerprint(self) -> str:
        self.used = getattr(self, "used", 0) + 1
        return str(self.used)


class Wide(CallableBackbone):
    """Gives another type than it says."""

    def features(self, *given: Any, **settings: Any) -> Any:
        return super().features(*given, **settings).astype(np.float64)


class Silent(CallableBackbone):
    """Tells no progress."""

    def features(self, *given: Any, **settings: Any) -> Any:
        return super().features(*given, **(settings | {"progress": None}))


def drifting() -> Any:
    calls = iter(range(1000))
    return lambda samples: [[next(calls), 0] for _ in samples]


@pytest.mark.parametrize(
    ("backbone", "law"),
    [
        (made(drifting()), "not deterministic"),
        (Liar(centred, name="f", version="1", dim=2, together=True), "companions"),
        (Forgetful(squares, name="f", version="1", dim=2), "fingerprint changed"),
        (Wide(squares, name="f", version="1", dim=2), "dtype float64"),
        (Silent(squares, name="f", version="1", dim=2), "progress"),
    ],
    ids=["drifting", "liar", "forgetful", "wide", "silent"],
)
def test_the_check_finds_a_broken_law(backbone: Backbone, law: str) -> None:
    with pytest.raises(BackboneError, match=law):
        check_backbone(backbone, [1.0, 2.0, 4.0])


def test_the_check_needs_samples() -> None:
    with pytest.raises(BackboneError, match="needs samples"):
        check_backbone(made(squares), [])
