"""Equal fingerprints mean equal weights and settings; whatever differs shows."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.backbones import CallableBackbone, PrecomputedBackbone
from expunge.backbones.base import digest_of_file, fingerprint_of, unchanged
from expunge.errors import BackboneError

SETTINGS = st.dictionaries(
    st.text(max_size=5),
    st.one_of(
        st.text(max_size=5),
        st.integers(-100, 100),
        st.booleans(),
        st.tuples(st.floats(allow_nan=False), st.floats(0, 1)),
    ),
    max_size=4,
)
WEIGHTS = st.dictionaries(st.text(max_size=5), st.text("0123456789abcdef", max_size=4), max_size=3)


def told_apart(value: Any) -> Any:
    """Python holds True == 1 and 0.0 == -0.0; a fingerprint does not."""
    return repr(sorted(value.items()))


@given(WEIGHTS, SETTINGS, WEIGHTS, SETTINGS)
def test_fingerprints_are_equal_exactly_if_all_that_they_cover_is(
    w1: Any, s1: Any, w2: Any, s2: Any
) -> None:
    same = told_apart(w1) == told_apart(w2) and told_apart(s1) == told_apart(s2)
    assert (
        fingerprint_of("k", weights=w1, settings=s1) == fingerprint_of("k", weights=w2, settings=s2)
    ) == same
    assert fingerprint_of("k", weights=w1, settings=s1) == fingerprint_of(
        "k", weights=w1, settings=s1
    )
    assert fingerprint_of("k", weights=w1, settings=s1) != fingerprint_of(
        "other", weights=w1, settings=s1
    )


def test_the_form_is_pinned_because_specs_hold_it() -> None:
    text = b'expunge/backbone/1\n{"kind":"k","settings":{"mean":["0x1.0000000000000p-1"],"size":3},'
    text += b'"weights":{"a":"ff"}}'
    expected = f"sha256:{hashlib.sha256(text).hexdigest()}"
    assert (
        fingerprint_of("k", weights={"a": "ff"}, settings={"size": 3, "mean": (0.5,)}) == expected
    )


def made(folder: Path, **settings: Any) -> CallableBackbone:
    given: dict[str, Any] = {
        "name": "f",
        "version": "1",
        "dim": 2,
        "weights": [folder / "w1", folder / "w2"],
    }
    return CallableBackbone(len, **(given | settings))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "w1").write_bytes(b"first")
    (tmp_path / "w2").write_bytes(b"second")
    return tmp_path


@pytest.mark.parametrize(
    "change", [{"name": "g"}, {"version": "2"}, {"dim": 3}, {"dtype": "float64"}, {"weights": []}]
)
def test_whatever_a_callable_is_described_by_changes_its_fingerprint(
    folder: Path, change: dict[str, Any]
) -> None:
    assert made(folder).fingerprint == made(folder).fingerprint
    assert made(folder).fingerprint != made(folder, **change).fingerprint


def test_every_byte_and_the_order_of_the_weights_count_but_not_their_place(
    folder: Path, tmp_path_factory: Any
) -> None:
    before = made(folder).fingerprint
    assert made(folder, weights=[folder / "w2", folder / "w1"]).fingerprint != before
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("w1", "w2"):
        (elsewhere / name).write_bytes((folder / name).read_bytes())
    assert made(elsewhere).fingerprint == before
    (folder / "w2").write_bytes(b"seconD")
    assert made(folder).fingerprint != before


def test_how_the_function_is_rounded_does_not_count(folder: Path) -> None:
    assert made(folder, together=True).fingerprint == made(folder).fingerprint


def test_a_precomputed_fingerprint_is_the_agreed_text() -> None:
    assert PrecomputedBackbone("dinov2-base@cls", dim=768).fingerprint == "dinov2-base@cls"
    with pytest.raises(BackboneError, match="not empty"):
        PrecomputedBackbone("", dim=768)


def test_the_digest_of_a_file_is_its_sha256(folder: Path) -> None:
    assert digest_of_file(folder / "w1") == hashlib.sha256(b"first").hexdigest()
    with pytest.raises(BackboneError, match="w3 cannot be read"):
        digest_of_file(folder / "w3")


def test_weights_that_change_while_they_are_loaded_are_refused(folder: Path) -> None:
    with unchanged([folder / "w1", folder / "w2"]):
        (folder / "w1").read_bytes()
    with (
        pytest.raises(BackboneError, match="w1 changed"),
        unchanged([folder / "w1", folder / "w2"]),
    ):
        (folder / "w1").write_bytes(b"longer than before")
    with (
        pytest.raises(BackboneError, match="w2 changed"),
        unchanged([folder / "w1", folder / "w2"]),
    ):
        os.remove(folder / "w2")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": ""}, "name="),
        ({"version": 3}, "version=3"),
        ({"dim": 0}, "dim=0"),
        ({"dtype": "float16"}, "dtype="),
        ({"weights": "w1"}, "list of files"),
        ({"weights": ["nowhere"]}, "nowhere cannot be read"),
    ],
)
def test_a_callable_that_cannot_be_described_is_refused(
    folder: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(BackboneError, match=said):
        made(folder, **change)
    with pytest.raises(BackboneError, match="cannot be called"):
        CallableBackbone(3, name="f", version="1", dim=2)  # type: ignore[arg-type]
