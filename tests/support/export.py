"""Heads and readers for the tests of exported heads."""

from __future__ import annotations

import hashlib
import json
import struct
from functools import partial

import numpy as np
import safetensors.numpy

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


def tensors_of(head):
    """The tensors of a head's safetensors file."""
    return safetensors.numpy.load(export.to_safetensors(head))


def description_of(head):
    """The text that describes a head in its files."""
    return metadata_of(export.to_safetensors(head))["expunge"]


def checksum_of(content):
    """The checksum that a description ends with."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"expunge/head-file/1\n{text}".encode()).hexdigest()
