"""Commitments: bound to salt, features and target, and to nothing that may change later."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Grid, Spec
from expunge.wire.commitment import COMMITMENT_BYTES, commitment
from support.samples import Sample, commitments_of

SPEC = Spec(dim=3, labels=("a", "b", "c"))
SALT = bytes(range(32))
FEATURES = np.array([0.5, -1.25, 3.0])


def of(
    spec: Spec, features: np.ndarray = FEATURES, target: object = 1, salt: bytes = SALT
) -> bytes:
    (found,) = commitments_of(spec, [Sample(features, target, salt)])
    return found


def test_the_bytes_are_those_of_the_protocol() -> None:
    units = 2.0**SPEC.grid.fraction_bits
    content = b"expunge\0sample\0\x01" + SALT + bytes.fromhex(SPEC.data_digest)
    content += struct.pack("<3q", *(int(value * units) for value in FEATURES))
    assert of(SPEC) == hashlib.sha256(content + b"\0" + struct.pack("<I", 1)).digest()
    one = 1 << SPEC.label_grid.fraction_bits
    soft = content + b"\x01" + struct.pack("<Iqq", 2, one // 4, one // 2)
    assert of(SPEC, target=np.array([0.25, 0.5, 0.0])) == hashlib.sha256(soft).digest()
    assert (
        of(SPEC, target=np.zeros(3))
        == hashlib.sha256(content + b"\x01" + struct.pack("<I", 0)).digest()
    )
    assert len(of(SPEC)) == COMMITMENT_BYTES


@pytest.mark.parametrize(
    "target", [0, 2, np.array([0.0, 1.0, 0.0]), np.array([0.5, 0.0, 0.25]), np.zeros(3)]
)
def test_appended_labels_and_another_head_spec_change_nothing(target: object) -> None:
    grown = SPEC.with_labels("d", "e").with_gamma(7.0).with_publication_bits(20)
    longer = target if np.ndim(target) == 0 else np.pad(np.asarray(target), (0, 2))
    assert of(grown, target=longer) == of(SPEC, target=target)


def test_a_hard_label_is_committed_to_in_one_way() -> None:
    assert of(SPEC, target=np.array([0.0, 1.0, 0.0])) == of(SPEC, target=1)


@given(st.data())
def test_whatever_differs_differs(data: st.DataObject) -> None:
    def drawn() -> tuple[tuple[float, ...], object, bytes]:
        features = tuple(data.draw(st.sampled_from([0.0, 0.5, -0.5, 1.0])) for _ in range(3))
        target = data.draw(
            st.integers(0, 2)
            | st.sampled_from([(0.5, 0.5, 0.0), (0.5, 0.0, 0.5), (0.0, 0.0, 0.0), (1.0, 1.0, 0.0)])
        )
        return features, target, data.draw(st.sampled_from([SALT, bytes(32)]))

    one, other = drawn(), drawn()
    commitments = [
        of(SPEC, np.array(features), np.array(target), salt)
        for features, target, salt in (one, other)
    ]
    assert (commitments[0] == commitments[1]) == (one == other)


def test_another_data_spec_is_another_commitment() -> None:
    others = [
        replace(SPEC, backbone="sha256:other"),
        replace(SPEC, grid=Grid(2, 34)),
        replace(SPEC, intercept=False),
        replace(SPEC, label_grid=Grid(2, 34)),
    ]
    assert len({of(spec) for spec in [SPEC, *others]}) == 5


def test_the_constant_feature_is_not_part_of_it() -> None:
    integers, target = np.array([1.0, 2.0, 3.0]), np.zeros(3)
    assert commitment(SPEC, SALT, np.append(integers, 99.0), target) == commitment(
        SPEC, SALT, integers, target
    )


def test_outputs_are_committed_to_by_their_integers() -> None:
    spec = Spec(dim=3, outputs=2)
    found = {
        of(spec, target=np.array(target))
        for target in ([1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [-1.0, 0.0])
    }
    assert len(found) == 5
