"""Altered, truncated and foreign files: refused with FormatError, or the same head bit for bit."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import expunge
from expunge import export
from expunge.errors import FormatError, SpecError
from support.export import (
    KINDS,
    SPECS,
    checksum_of,
    description_of,
    header,
    make_head,
    require_same,
    tensors_of,
)

# -- altered bytes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_altered_bit_is_refused_or_harmless(kind):
    """One bit at a time, all of them.

    Harmless are other spellings of the same JSON, such as \\u00D6 for \\u00d6.
    """
    head = make_head(expunge.Spec(dim=1, labels=("Öl", "ja")))
    write, read = KINDS[kind]
    data = write(head)
    harmless = 0
    for position in range(len(data)):
        for bit in range(8):
            altered = bytearray(data)
            altered[position] ^= 1 << bit
            try:
                found = read(bytes(altered))
            except FormatError:
                continue
            require_same(found, head)
            harmless += 1
    assert harmless <= 8


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
@settings(max_examples=20)
def test_truncated_and_lengthened_bytes_are_refused(kind, data):
    write, read = KINDS[kind]
    whole = write(make_head(SPECS["regression"](dim=2)))
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(FormatError):
        read(whole[:length])
    with pytest.raises(FormatError):
        read(whole + b"\xff" * data.draw(st.integers(1, 9)))


def retold(head, change, kind="safetensors", *, seal=True):
    """The bytes of a head whose description `change` altered, with a checksum that fits again if
    `seal`.
    """
    content = json.loads(description_of(head))
    del content["checksum"]
    change(content)
    text = json.dumps(
        {**content, "checksum": checksum_of(content) if seal else "0" * 64},
        separators=(",", ":"),
    )
    if kind == "safetensors":
        return safetensors.numpy.save(tensors_of(head), metadata={"expunge": text})
    model = onnx.ModelProto.FromString(export.to_onnx(head))
    model.metadata_props[0].value = text
    return model.SerializeToString()


@pytest.mark.parametrize("kind", ["safetensors", "onnx"])
@pytest.mark.parametrize(
    ("change", "seal", "match"),
    [
        (dict.copy, False, "checksum"),
        (lambda content: content.update(error_bound="0x1p-3"), False, "checksum"),
        (
            lambda content: content.update(version=2),
            True,
            "version 2 cannot be read; this release reads version 1",
        ),
        (lambda content: content.pop("version"), True, "describes something else"),
        (lambda content: content.update(format="statistics"), True, "describes something else"),
        (
            lambda content: content.update(digest="ab" * 32),
            True,
            "digest [0-9a-f]{64}, but it says (ab){32}",
        ),
        (
            lambda content: content["spec"].update(gamma="0x1.8p0"),
            True,
            "digest [0-9a-f]{64}, but it says",
        ),
        (
            lambda content: content["spec"].update(labels=["cat", "dog", "cow"]),
            True,
            "digest [0-9a-f]{64}, but it says",
        ),
        (lambda content: content["spec"].update(labels=5), True, "not well formed"),
        (
            lambda content: content["spec"].update(publication_bits=39),
            True,
            "not on its publication grid",
        ),
        (lambda content: content["spec"].update(dim=3), True, "where its spec asks for"),
        (lambda content: content["spec"].update(intercept=False), True, "where its spec asks for"),
        (lambda content: content.update(spec=None), True, "not well formed"),
        (lambda content: content.pop("spec"), True, "not well formed"),
        (lambda content: content.pop("digest"), True, "not well formed"),
        (lambda content: content.update(error_bound=1.0), True, "not well formed"),
        (lambda content: content.update(error_bound="nan"), True, "error bound is nan"),
        (lambda content: content.update(error_bound="-0x1p0"), True, "error bound is -1.0"),
        (lambda content: content.update(error_bound="0x1p99999"), True, "not well formed"),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(kind, change, seal, match):
    head = make_head(SPECS["names"](dim=2))
    with pytest.raises(FormatError, match=match):
        KINDS[kind][1](retold(head, change, kind, seal=seal))


@pytest.mark.parametrize("kind", ["safetensors", "onnx"])
def test_the_helper_that_retells_is_faithful(kind):
    head = make_head(SPECS["names"](dim=2))
    require_same(KINDS[kind][1](retold(head, dict.copy, kind)), head)


@pytest.mark.parametrize(
    "value", [2.0**-41, float("nan"), float("inf"), 1e300, 2.0**14, -0.0, 5e-324]
)
def test_weights_off_the_publication_grid_are_refused(value):
    spec = SPECS["no intercept"](dim=2)
    head = expunge.Head(spec, np.zeros((2, 1), dtype=np.int64), 0.0)
    tensors = {"weight": np.array([[0.0, value]])}
    data = safetensors.numpy.save(tensors, metadata={"expunge": description_of(head)})
    with pytest.raises(FormatError, match=r"feature 1 for column 0 is not on its publication grid"):
        export.from_safetensors(data)


def test_an_intercept_off_the_publication_grid_is_refused():
    head = expunge.Head(expunge.Spec(dim=1, outputs=2), np.zeros((2, 2), dtype=np.int64), 0.0)
    tensors = {"weight": np.zeros((2, 1)), "bias": np.array([0.0, 2.0**-42])}
    data = safetensors.numpy.save(tensors, metadata={"expunge": description_of(head)})
    with pytest.raises(
        FormatError,
        match=r"the weight 2\.27\S+ of the intercept for column 1 is not on its publication grid",
    ):
        export.from_safetensors(data)


def test_weights_on_the_grid_but_not_the_heads_are_refused_by_digest():
    head = make_head(SPECS["regression"](dim=2))
    tensors = tensors_of(head)
    tensors["bias"][1] += 2.0**-40
    data = safetensors.numpy.save(tensors, metadata={"expunge": description_of(head)})
    with pytest.raises(FormatError, match=f"digest [0-9a-f]{{64}}, but it says {head.digest}"):
        export.from_safetensors(data)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_tensors_of_another_type_are_refused(dtype):
    head = make_head(SPECS["regression"](dim=2))
    tensors = {name: array.astype(dtype) for name, array in tensors_of(head).items()}
    with pytest.raises(FormatError, match="not F64"):
        export.from_safetensors(
            safetensors.numpy.save(tensors, metadata={"expunge": description_of(head)})
        )


@pytest.mark.parametrize("shape", [(0, 2**40), (0,)])
def test_empty_tensors_are_refused(shape):
    entry = {"dtype": "F64", "shape": shape, "data_offsets": [0, 0]}
    told = description_of(make_head(SPECS["regression"](dim=2)))
    with pytest.raises(FormatError, match="'weight' of shape"):
        export.from_safetensors(header({"__metadata__": {"expunge": told}, "weight": entry}))


@pytest.mark.parametrize(
    "change",
    [lambda tensors: tensors.pop("bias"), lambda tensors: tensors.update(more=np.zeros(1))],
)
def test_missing_and_surplus_tensors_are_refused(change):
    head = make_head(SPECS["regression"](dim=2))
    tensors = tensors_of(head)
    change(tensors)
    with pytest.raises(FormatError, match="where its spec asks for"):
        export.from_safetensors(
            safetensors.numpy.save(tensors, metadata={"expunge": description_of(head)})
        )


def rewired(model):
    model.graph.node[0].attribute[0].name = "transA"


def negated(model):
    model.graph.node[0].output[0] = "opposite"
    model.graph.node.append(onnx.helper.make_node("Neg", ["opposite"], ["scores"]))


def without_bias(model):
    del model.graph.node[0].input[2]


def external(model):
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL


def other_opset(model):
    model.opset_import[0].version = 21


@pytest.mark.parametrize("change", [rewired, negated, without_bias, external, other_opset])
def test_a_model_that_is_not_the_linear_layer_is_refused(change):
    """The weights may be right and the digest with them, while the graph computes something
    else.
    """
    model = onnx.ModelProto.FromString(export.to_onnx(make_head(SPECS["regression"](dim=2))))
    change(model)
    with pytest.raises(FormatError, match="the model around them"):
        export.from_onnx(model.SerializeToString())


def test_onnx_tensors_must_be_plain_float64():
    model = onnx.ModelProto.FromString(export.to_onnx(make_head(SPECS["regression"](dim=2))))
    model.graph.initializer[0].data_type = onnx.TensorProto.FLOAT
    with pytest.raises(FormatError, match="'weight' does not hold doubles"):
        export.from_onnx(model.SerializeToString())
    model.graph.initializer[0].data_type = onnx.TensorProto.DOUBLE
    model.graph.initializer[0].dims[0] = -2
    with pytest.raises(FormatError, match=r"'weight' of shape \[-2, 2\] has 32 bytes"):
        export.from_onnx(model.SerializeToString())


# -- other files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"hello, world",
        b"\xff" * 100,
        header({}),
        header(b"[]"),
        header({"__metadata__": {"expunge": "{"}}),
    ]
    + [header({"__metadata__": {"expunge": text}}) for text in ("[]", "{}", "null", "[" * 100_000)],
)
def test_what_is_no_head_is_refused(data):
    for read in (export.from_safetensors, export.from_onnx):
        with pytest.raises(FormatError):
            read(data)


def test_heads_of_one_kind_are_not_heads_of_the_other():
    head = make_head(SPECS["regression"](dim=2))
    with pytest.raises(FormatError, match="not a whole safetensors file"):
        export.from_safetensors(export.to_onnx(head))
    with pytest.raises(FormatError, match="not a whole ONNX model"):
        export.from_onnx(export.to_safetensors(head))


def test_files_of_other_tools_are_refused_for_what_they_are():
    with pytest.raises(FormatError, match="not a head that Expunge wrote"):
        export.from_safetensors(
            safetensors.numpy.save({"weight": np.zeros((1, 2))}, metadata={"format": "pt"})
        )
    model = onnx.ModelProto.FromString(export.to_onnx(make_head(SPECS["regression"](dim=2))))
    del model.metadata_props[:]
    with pytest.raises(FormatError, match="not a head that Expunge wrote"):
        export.from_onnx(model.SerializeToString())


def test_metadata_that_other_tools_add_does_no_harm():
    head = make_head(SPECS["regression"](dim=2))
    metadata = {"format": "pt", "expunge": description_of(head)}
    require_same(
        export.from_safetensors(safetensors.numpy.save(tensors_of(head), metadata=metadata)),
        head,
    )


def test_an_input_type_that_cannot_be_is_refused():
    with pytest.raises(FormatError, match="input_type='float16'"):
        export.to_onnx(make_head(SPECS["regression"](dim=2)), input_type="float16")


def test_a_head_too_large_for_onnx_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr(export, "MOST_ONNX_BYTES", 47)
    head = make_head(SPECS["regression"](dim=2))
    with pytest.raises(FormatError, match=r"48 bytes is too large .* use save_safetensors"):
        export.to_onnx(head)
    monkeypatch.setattr(export, "MOST_ONNX_BYTES", 48)
    require_same(export.from_onnx(export.to_onnx(head)), head)


# -- what reading a file asks of the spec ----------------------------------------------------------


@pytest.mark.parametrize("change", [{"labels": 5}, {"labels": "ab"}, {"gamma": "0x1p99999"}])
def test_a_spec_that_is_not_well_formed_is_refused_by_an_error_of_ours(change):
    told = {**SPECS["numbers"](dim=1).to_dict(), **change}
    with pytest.raises(SpecError):
        expunge.Spec.from_dict(told)
