"""Images through DINOv2 with random weights: by transformers, and by ONNX Runtime after an
export.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from expunge.backbones import (
    HuggingFaceBackbone,
    ImagePreprocessing,
    OnnxBackbone,
    backbone_from,
    check_backbone,
)
from expunge.errors import BackboneError

Array = np.ndarray[Any, Any]
SAME_AS_PROCESSOR = ImagePreprocessing(size=(42, 42), resize_to=48)


@pytest.fixture(scope="module")
def tokens(dinov2: Path, library: Any, pictures: list[Array]) -> Array:
    """All tokens, as transformers computes them from our preprocessing."""
    torch, model = (
        library("torch"),
        library("transformers").AutoModel.from_pretrained(dinov2).eval(),
    )
    arrays = np.stack([SAME_AS_PROCESSOR(picture, 0, extra="onnx") for picture in pictures])
    with torch.no_grad():
        found: Array = model(torch.from_numpy(arrays)).last_hidden_state.numpy()
    return found


@pytest.mark.parametrize("pooling", ["cls", "mean", "pooler"])
def test_dinov2_keeps_the_laws_with_every_pooling(
    dinov2: Path, pooling: str, pictures: list[Array], tokens: Array
) -> None:
    backbone = HuggingFaceBackbone(dinov2, pooling=pooling)
    check_backbone(backbone, pictures)
    expected = (
        tokens.mean(axis=1) if pooling == "mean" else tokens[:, 0]
    )  # DINOv2's pooler is its class token
    assert np.allclose(backbone.features(pictures), expected, atol=1e-4)
    together = HuggingFaceBackbone(dinov2, pooling=pooling, together=True)
    assert np.allclose(together.features(pictures), expected, atol=1e-4)
    assert backbone_from(backbone.describe()).describe() == backbone.describe()


def test_poolings_have_fingerprints_of_their_own(dinov2: Path) -> None:
    assert (
        len(
            {
                HuggingFaceBackbone(dinov2, pooling=pooling).fingerprint
                for pooling in ("cls", "mean", "pooler")
            }
        )
        == 3
    )
    assert (
        HuggingFaceBackbone(dinov2).fingerprint
        == HuggingFaceBackbone(dinov2, pooling="cls").fingerprint
    )


def test_a_path_an_image_and_an_array_have_the_same_feature(
    dinov2: Path, pictures: list[Array], tmp_path: Path
) -> None:
    Image.fromarray(pictures[0]).save(tmp_path / "a.png")
    forms = [pictures[0], Image.fromarray(pictures[0]), tmp_path / "a.png", str(tmp_path / "a.png")]
    features = HuggingFaceBackbone(dinov2).features(forms)
    assert len({feature.tobytes() for feature in features}) == 1


def test_the_preprocessing_is_part_of_the_fingerprint(
    dinov2: Path, tmp_path: Path, pictures: list[Array]
) -> None:
    before = HuggingFaceBackbone(dinov2)
    folder = Path(shutil.copytree(dinov2, tmp_path / "copy"))
    assert HuggingFaceBackbone(folder).fingerprint == before.fingerprint
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(
        json.dumps(settings | {"image_mean": [0.5, 0.5, 0.5]})
    )
    after = HuggingFaceBackbone(folder)
    assert after.fingerprint != before.fingerprint
    assert not np.allclose(after.features(pictures), before.features(pictures), atol=1e-4)


def test_an_unreadable_image_is_named(dinov2: Path, pictures: list[Array], tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    with pytest.raises(BackboneError, match=r"^sample 2 \(.*bad.jpg\) cannot be read as an image"):
        HuggingFaceBackbone(dinov2).features([*pictures[:2], tmp_path / "bad.jpg"])


def test_max_length_is_for_texts(dinov2: Path) -> None:
    with pytest.raises(BackboneError, match="max_length is for texts"):
        HuggingFaceBackbone(dinov2, max_length=3)


def test_not_a_number_in_the_weights_is_refused_when_features_are(
    dinov2: Path, library: Any, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(dinov2, tmp_path / "copy"))
    files = library("safetensors.torch")
    weights = files.load_file(folder / "model.safetensors")
    weights["layernorm.weight"][0] = float("nan")
    files.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BackboneError, match=r"^sample 0: its feature has NaN"):
        HuggingFaceBackbone(folder).features([np.zeros((50, 50, 3), np.uint8)])


@pytest.fixture(scope="module")
def exported(dinov2: Path, library: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch, model = (
        library("torch"),
        library("transformers").AutoModel.from_pretrained(dinov2).eval(),
    )
    path: Path = tmp_path_factory.mktemp("export") / "dinov2.onnx"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter(
            "ignore"
        )  # the exporter that needs no further library says that a newer one exists
        torch.onnx.export(
            model,
            (torch.zeros(2, 3, 42, 42),),
            path,
            input_names=["pixels"],
            output_names=["tokens", "pooled"],
            dynamic_axes={"pixels": {0: "n"}},
            dynamo=False,
        )
    return path


def test_an_exported_network_has_the_same_features_up_to_rounding(
    exported: Path, dinov2: Path, pictures: list[Array]
) -> None:
    for pooling in ("cls", "mean"):
        backbone = OnnxBackbone(
            exported, preprocessing=SAME_AS_PROCESSOR, output="tokens", pooling=pooling
        )
        check_backbone(backbone, pictures)
        expected = HuggingFaceBackbone(dinov2, pooling=pooling).features(pictures)
        assert np.allclose(backbone.features(pictures), expected, atol=1e-4)
        assert backbone_from(backbone.describe()).describe() == backbone.describe()
    pooled = OnnxBackbone(exported, preprocessing=SAME_AS_PROCESSOR, output="pooled", together=True)
    assert np.allclose(
        pooled.features(pictures), HuggingFaceBackbone(dinov2).features(pictures), atol=1e-4
    )
