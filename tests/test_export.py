"""Laws of exported heads: loading gives back the head bit for bit, and files appear whole or not at
all.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import expunge
from expunge import export
from expunge.errors import MissingExtraError
from support.export import FILES, KINDS, SPECS, make_head, metadata_of, require_same


@st.composite
def heads(draw):
    """Heads of any weights that a publication grid can hold, the largest included; solving is not
    what is tested here.
    """
    spec = draw(st.sampled_from(list(SPECS.values())))(
        dim=draw(st.integers(1, 4)),
        gamma=draw(st.sampled_from([1.0, 0.1, 2.0**-100])),
        publication_bits=draw(st.sampled_from([40, 0, -200, 200, 7])),
        backbone=draw(st.text(max_size=5)),
    )
    shape = spec.width, spec.columns
    entries = st.one_of(st.integers(-(2**53), 2**53), st.sampled_from([0, 2**53, -(2**53), 1, -1]))
    values = draw(st.lists(entries, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    bound = draw(st.floats(0.0, 1.0))
    return expunge.Head(spec, np.array(values, dtype=np.int64).reshape(shape), bound)


# -- the round trip --------------------------------------------------------------------------------


@settings(max_examples=40)
@given(heads(), st.sampled_from(list(KINDS)))
def test_loading_gives_back_the_head_bit_for_bit(head, kind):
    write, read = KINDS[kind]
    data = write(head)
    require_same(read(data), head)
    assert write(head) == data
    assert write(read(data)) == data


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("name", SPECS)
def test_files_of_solved_heads_round_trip(kind, name, tmp_path):
    head = make_head(SPECS[name](dim=3))
    save, load, to_bytes = FILES[kind]
    path = tmp_path / "a head"
    save(head, str(path))
    require_same(load(path), head)
    assert path.read_bytes() == to_bytes(head)
    assert os.listdir(tmp_path) == ["a head"]


def test_safetensors_hold_what_a_linear_layer_has():
    head = make_head(SPECS["names"](dim=4))
    tensors = safetensors.numpy.load(export.to_safetensors(head))
    assert {name: array.shape for name, array in tensors.items()} == {
        "weight": (3, 4),
        "bias": (3,),
    }
    assert {array.dtype for array in tensors.values()} == {np.dtype(np.float64)}
    features = np.random.default_rng(1).standard_normal((5, 4))
    np.testing.assert_allclose(
        features @ tensors["weight"].T + tensors["bias"], head.scores(features), rtol=1e-13
    )
    plain = make_head(SPECS["no intercept"](dim=4))
    assert list(safetensors.numpy.load(export.to_safetensors(plain))) == ["weight"]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", SPECS)
def test_onnx_scores_are_the_heads_scores(name, dtype):
    head = make_head(SPECS[name](dim=6))
    data = export.to_onnx(head, input_type=dtype)
    onnx.checker.check_model(onnx.ModelProto.FromString(data), full_check=True)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert [(entry.name, entry.shape) for entry in session.get_inputs()] == [
        ("features", ["batch", 6])
    ]
    for rows in (1, 50):
        features = np.random.default_rng(rows).standard_normal((rows, 6)).astype(dtype)
        (scores,) = session.run(["scores"], {"features": features})
        assert scores.dtype == np.float64
        expected = head.scores(features)
        assert np.abs(scores - expected).max() <= 1e-12 * np.abs(expected).max()
        assert np.array_equal(scores.argmax(axis=1), expected.argmax(axis=1))


def test_the_metadata_tells_spec_and_digest_to_any_reader():
    head = make_head(SPECS["names"](dim=2))
    session = onnxruntime.InferenceSession(export.to_onnx(head), providers=["CPUExecutionProvider"])
    told = json.loads(session.get_modelmeta().custom_metadata_map["expunge"])
    assert told == json.loads(metadata_of(export.to_safetensors(head))["expunge"])
    assert told["digest"] == head.digest
    assert expunge.Spec.from_dict(told["spec"]) == head.spec
    assert float.fromhex(told["error_bound"]) == head.error_bound


# -- missing libraries -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FILES)
def test_a_missing_library_is_named_with_the_command_that_installs_it(kind, monkeypatch, tmp_path):
    head = make_head(SPECS["regression"](dim=2))
    save, load, to_bytes = FILES[kind]
    (tmp_path / "there").write_bytes(to_bytes(head))
    real = importlib.import_module

    def without(name, *rest):
        if name.partition(".")[0] == kind:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    for attempt in (lambda: save(head, tmp_path / "new"), lambda: load(tmp_path / "there")):
        with pytest.raises(
            MissingExtraError, match=rf"^{kind} is not installed.*pip install 'expunge\[export\]'"
        ):
            attempt()
    assert os.listdir(tmp_path) == ["there"]


def test_the_libraries_are_not_imported_before_they_are_needed():
    code = (
        "import sys, expunge.export; print(sorted({'onnx', 'safetensors', 'google.protobuf'} & "
        "set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    assert run.stdout == "[]\n"


# -- writing ---------------------------------------------------------------------------------------


class DiskFullError(OSError):
    pass


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
@pytest.mark.parametrize("existing", [True, False])
def test_a_write_that_fails_leaves_what_was_there(kind, step, existing, monkeypatch, tmp_path):
    save, load, _ = FILES[kind]
    old, new = make_head(SPECS["regression"](dim=2)), make_head(SPECS["regression"](dim=2), seed=1)
    path = tmp_path / "head"
    if existing:
        save(old, path)

    def fail(*rest):
        raise DiskFullError("the disk is full")

    monkeypatch.setattr(step, fail)
    with pytest.raises(DiskFullError):
        save(new, path)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == (["head"] if existing else [])
    if existing:
        require_same(load(path), old)
    save(new, path)
    require_same(load(path), new)


def test_a_file_that_cannot_be_is_the_systems_own_error(tmp_path):
    head = make_head(SPECS["regression"](dim=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FileNotFoundError):
            export.load_safetensors(tmp_path / "missing")
        with pytest.raises(FileNotFoundError):
            export.save_onnx(head, tmp_path / "missing" / "head")
