"""Heads and readers for the tests of exported heads."""

from __future__ import annotations

import json
import struct
from functools import partial

import numpy as np

import expunge
from expunge import export

SPECS = {
    "names": partial(expunge.Spec, labels=("cat", "Ölweide 🌿", 'say "moo"')),
    "numbers": partial(expunge.Spec, labels=(0, 1)),
    "regression": partial(expunge.Spec, outputs=2),
    "no intercept": partial(expunge.Spec, outputs=1, intercept=False),
}
KINDS = {
    "safetensors": (export.to_safetensors, export.from_safetensors),
    "onnx": (export.to_onnx, export.from_onnx),
    "onnx from float32": (partial(export.to_onnx, input_type="float32"), export.from_onnx),
}
FILES = {
    "safetensors": (export.save_safetensors, export.load_safetensors, export.to_safetensors),
    "onnx": (export.save_onnx, export.load_onnx, export.to_onnx),
}


def make_head(spec, seed=0, rows=20):
    generator = np.random.default_rng(seed)
    targets = (
        generator.integers(0, spec.columns, rows)
        if spec.is_classification
        else generator.standard_normal((rows, spec.columns))
    )
    return expunge.solve(
        expunge.Statistics.of(spec, generator.standard_normal((rows, spec.dim)), targets)
    )


def require_same(found, head):
    assert found.spec == head.spec
    assert found.digest == head.digest
    assert found.integers.dtype == np.int64
    assert np.array_equal(found.integers, head.integers)
    assert np.array_equal(found.weights, head.weights)
    assert found.error_bound == head.error_bound
    assert found.diagnostics is None


def metadata_of(data):
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]


def header(content):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text
