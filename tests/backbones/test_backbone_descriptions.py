"""Descriptions of backbones: read back as they were written, and refused where they are not
understood.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.backbones import CallableBackbone, PrecomputedBackbone, backbone_from
from expunge.backbones.base import joined, listed, needed, parsed, written
from expunge.crypto import canonical
from expunge.errors import BackboneError, MissingExtraError
from support import onnx_models as models
from support.modules import importable

MODULE = """
import numpy as np
from expunge.backbones import PrecomputedBackbone
def lengths(samples):
    return [[len(sample), 1] for sample in samples]
class Group:
    inner = staticmethod(lengths)
ready = PrecomputedBackbone("ready", dim=3)
"""

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return importable("samples_of_mine", MODULE, tmp_path, monkeypatch)


@given(
    st.from_regex(r"[a-z]{1,8}", fullmatch=True),
    texts,
    st.dictionaries(texts, texts | st.just(""), max_size=4),
)
def test_reading_inverts_writing(kind: str, location: str, options: dict[str, str]) -> None:
    assert parsed(written(kind, location, options, {})) == (kind, location, options)


@given(st.lists(texts, max_size=4))
def test_listing_inverts_joining(names: list[str]) -> None:
    assert listed(joined(names)) == tuple(names)


@given(texts, st.integers(1, 999), st.sampled_from(["float32", "float64"]))
def test_a_precomputed_backbone_opens_from_its_own_description(
    fingerprint: str, dim: int, dtype: Any
) -> None:
    backbone = PrecomputedBackbone(fingerprint, dim=dim, dtype=dtype)
    for again in (backbone_from(backbone.text), backbone_from(backbone.describe())):
        assert again.describe() == backbone.describe()


def test_a_function_opens_from_its_own_description(module: str, tmp_path: Path) -> None:
    (tmp_path / "w 1.bin").write_bytes(b"1")
    (tmp_path / "w;&2=%3B?.bin").write_bytes(b"2")
    text = f"callable:{module}:lengths?name=lengths&version=1&dim=2"
    plain = backbone_from(text)
    assert plain.text == text
    assert plain.features(["ab", "c"]).tolist() == [[2, 1], [1, 1]]
    for settings in (
        {"dtype": "float64"},
        {"together": True},
        {"weights": [tmp_path / "w 1.bin", tmp_path / "w;&2=%3B?.bin"]},
    ):
        function = backbone_from(text)._function  # type: ignore[attr-defined]
        backbone = CallableBackbone(function, name="lengths", version="1", dim=2, **settings)  # type: ignore[arg-type]
        assert backbone_from(backbone.describe()).describe() == backbone.describe()
    assert backbone_from(f"callable:{module}:Group.inner?name=x&version=1&dim=2").features(
        ["abc"]
    ).tolist() == [[3, 1]]
    assert backbone_from(f"callable:{module}:ready").fingerprint == "ready"


def test_a_description_opens_from_any_working_directory(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w.bin").write_bytes(b"1")
    models.linear(tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    function = f"callable:{module}:lengths?name=lengths&version=1&dim=2&weights=w.bin"
    described = [backbone_from(text).describe() for text in (function, "onnx:m.onnx")]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert [backbone_from(one).describe() for one in described] == described


def test_a_description_is_json_that_can_be_signed() -> None:
    told = PrecomputedBackbone("mine", dim=4).describe()
    assert canonical.decode(canonical.encode(told)) == told
    assert told["libraries"] == {"numpy": np.__version__}
    assert told["independent"] is True


def test_a_backbone_that_has_changed_since_is_refused(module: str, tmp_path: Path) -> None:
    weights = tmp_path / "w.bin"
    weights.write_bytes(b"1")
    told = backbone_from(
        f"callable:{module}:lengths?name=x&version=1&dim=2&weights={weights}"
    ).describe()
    backbone_from(told)
    weights.write_bytes(b"2")
    with pytest.raises(BackboneError, match="have changed"):
        backbone_from(told)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "describes no backbone"),
        ("nothing", "describes no backbone"),
        (":x", "describes no backbone"),
        ("hf:", "describes no backbone"),
        ("clip:x", "no kind of backbone; there are callable, hf, onnx, precomputed, timm"),
        ("precomputed:x", "lacks the option dim"),
        ("precomputed:x?dim=", "must be an integer"),
        ("precomputed:x?dim=three", "dim=three must be an integer"),
        ("precomputed:x?dim=0", "dim=0"),
        ("precomputed:x?dim=3&dim=4", "twice"),
        ("precomputed:x?dim", "cannot be read"),
        ("precomputed:x?dim=3&pooling=cls", "unknown options pooling; known are dim, dtype"),
        ("precomputed:x?dim=3&dtype=int8", "dtype='int8'"),
        ("precomputed:%FF?dim=3", "cannot be read"),
        ("callable:math", "must be callable:MODULE:FUNCTION"),
        ("callable:no_such_module:f?name=a&version=1&dim=1", "PYTHONPATH"),
        ("callable:math:no_such?name=a&version=1&dim=1", "cannot be imported"),
        ("callable:math:pi?name=a&version=1&dim=1", "cannot be called"),
        ("callable:math:sqrt?version=1&dim=1", "lacks the option name"),
        ("callable:math:sqrt?name=a&version=1&dim=1&together=perhaps", "yes or no"),
        ("onnx:nowhere.onnx", "nowhere.onnx cannot be read"),
        ("onnx:nowhere.onnx?mean=0,0,0", "need size="),
        ("onnx:nowhere.onnx?size=2.5", "size=2.5"),
        ("onnx:nowhere.onnx?size=a", "must be numbers"),
        ("onnx:nowhere.onnx?size=2,3,4", "height, width"),
        ("onnx:nowhere.onnx?size=224&std=0,1,1", "must be positive"),
        ("onnx:nowhere.onnx?pooling=max", "pooling='max'"),
        ("onnx:nowhere.onnx?threads=0", "threads=0"),
        ("hf:nowhere?pooling=cls", r"no folder \S+/nowhere\. Models are never downloaded"),
        ("hf:nowhere?modality=sound", "modality='sound'"),
    ],
)
def test_a_description_that_is_not_understood_is_refused(text: str, said: str) -> None:
    with pytest.raises(BackboneError, match=said):
        backbone_from(text)


@pytest.mark.parametrize("thing", [None, 3, {}, {"backbone": 3}, ["hf:x"]])
def test_only_texts_and_descriptions_are_taken(thing: Any) -> None:
    with pytest.raises(BackboneError, match="a description must be"):
        backbone_from(thing)


@pytest.mark.parametrize(
    ("library", "text", "extra"),
    [
        ("torch", "hf:{folder}?pooling=cls", "huggingface"),
        ("torch", "timm:resnet18?weights=x", "timm"),
        ("timm", "timm:resnet18?weights=x", "timm"),
        ("onnxruntime", "onnx:{folder}/config.json", "onnx"),
    ],
)
def test_a_missing_library_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: str, text: str, extra: str
) -> None:
    for name in ("config.json", "model.safetensors", "preprocessor_config.json"):
        (tmp_path / name).write_text("{}")
    monkeypatch.setitem(sys.modules, library, None)
    if library == "timm":
        monkeypatch.setitem(sys.modules, "torch", object())
    with pytest.raises(MissingExtraError, match=rf"{library} .*pip install 'expunge\[{extra}\]'"):
        backbone_from(text.format(folder=tmp_path))


def test_a_missing_part_of_a_library_is_told_from_a_missing_library(
    module: str, tmp_path: Path
) -> None:
    (tmp_path / "half_there.py").write_text("import not_there_at_all")
    with pytest.raises(
        MissingExtraError, match="half_there cannot be imported: No module named 'not_there_at_all'"
    ):
        needed("half_there", "timm")
    with pytest.raises(MissingExtraError, match="not_there_at_all is not installed"):
        needed("not_there_at_all", "timm")


def test_no_optional_library_is_imported_before_it_is_used() -> None:
    code = (
        "import expunge.backbones, sys; print(sorted({'PIL', 'onnxruntime', 'torch', "
        "'transformers', 'timm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    assert done.stdout.strip() == "[]"
