"""Images through timm's own small test networks, with random weights that the test saves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from expunge import Spec
from expunge.backbones import TimmBackbone, backbone_from, check_backbone, require_fingerprint
from expunge.backbones.timm import preprocessing_of
from expunge.errors import BackboneError

pytestmark = pytest.mark.timm

Array = np.ndarray[Any, Any]
ARCHITECTURES = ("test_vit", "test_resnet", "test_convnext")


@pytest.fixture(scope="session")
def weights(timm: Any, torch: Any, library: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints with their classifiers, as they are handed out."""
    folder = tmp_path_factory.mktemp("timm")
    for name in ARCHITECTURES:
        torch.manual_seed(4)
        model = timm.create_model(name, pretrained=False, num_classes=10)
        library("safetensors.torch").save_file(model.state_dict(), folder / f"{name}.safetensors")
        torch.save({"state_dict": model.state_dict()}, folder / f"{name}.pt")
    return folder


def by_hand(timm: Any, torch: Any, weights: Path, name: str, pictures: list[Array]) -> Array:
    """With timm's own transform."""
    model = timm.create_model(name, pretrained=False, num_classes=10)
    model.load_state_dict(torch.load(weights / f"{name}.pt", weights_only=True)["state_dict"])
    model.reset_classifier(0)
    transform = timm.data.create_transform(
        **timm.data.resolve_data_config(model=model), is_training=False
    )
    with torch.no_grad():
        batch = torch.stack([transform(Image.fromarray(picture)) for picture in pictures])
        return np.asarray(model.eval()(batch).numpy())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_features_are_what_timm_computes(
    timm: Any, torch: Any, weights: Path, name: str, pictures: list[Array]
) -> None:
    backbone = TimmBackbone(name, weights=weights / f"{name}.safetensors")
    check_backbone(backbone, pictures)
    expected = by_hand(timm, torch, weights, name, pictures)
    assert backbone.features(pictures).shape == expected.shape
    assert np.allclose(backbone.features(pictures), expected, atol=1e-4)
    together = TimmBackbone(name, weights=weights / f"{name}.safetensors", together=True)
    assert np.allclose(together.features(pictures), expected, atol=1e-4)
    assert backbone_from(backbone.describe()).describe() == backbone.describe()
    require_fingerprint(Spec(dim=backbone.dim, outputs=1, backbone=backbone.fingerprint), backbone)


def test_a_description_opens_from_any_working_directory(
    timm: Any, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(weights)
    described = TimmBackbone("test_vit", weights="test_vit.safetensors").describe()
    monkeypatch.chdir(tmp_path)
    assert backbone_from(described).describe() == described


@pytest.mark.parametrize("crop_mode", ["center", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "nearest", "lanczos"])
@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 0.95, 1.0])
def test_our_preprocessing_is_timms_bit_for_bit(
    timm: Any, crop_mode: str, interpolation: str, crop_pct: float, pictures: list[Array]
) -> None:
    config = {
        "input_size": (3, 37, 37),
        "interpolation": interpolation,
        "crop_pct": crop_pct,
        "crop_mode": crop_mode,
    }
    config |= {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    transform, preprocessing = (
        timm.data.create_transform(**config, is_training=False),
        preprocessing_of(config),
    )
    for picture in pictures:
        expected = transform(Image.fromarray(picture)).numpy()
        assert preprocessing(picture, 0, extra="timm").tobytes() == expected.tobytes()


def test_the_fingerprint_is_of_the_tensors_not_of_their_file(weights: Path, timm: Any) -> None:
    first = TimmBackbone("test_vit", weights=weights / "test_vit.safetensors")
    assert (
        TimmBackbone("test_vit", weights=weights / "test_vit.pt", threads=2).fingerprint
        == first.fingerprint
    )
    others = [
        TimmBackbone("test_resnet", weights=weights / "test_resnet.pt", pooling=pooling)
        for pooling in (None, "max")
    ]
    assert len({backbone.fingerprint for backbone in (first, *others)}) == 3


def test_one_bit_of_one_tensor_is_another_fingerprint(
    weights: Path, timm: Any, torch: Any, tmp_path: Path
) -> None:
    state = torch.load(weights / "test_vit.pt", weights_only=True)["state_dict"]
    before = TimmBackbone("test_vit", weights=weights / "test_vit.pt").fingerprint
    state["head.bias"] += 1  # the classifier is left off
    torch.save(state, tmp_path / "classifier.pt")
    assert TimmBackbone("test_vit", weights=tmp_path / "classifier.pt").fingerprint == before
    state["norm.bias"].view(torch.int32)[0] ^= 1
    torch.save(state, tmp_path / "bit.pt")
    assert TimmBackbone("test_vit", weights=tmp_path / "bit.pt").fingerprint != before


def test_a_folder_brings_its_own_data_config(
    weights: Path, timm: Any, tmp_path: Path, pictures: list[Array]
) -> None:
    (tmp_path / "model.safetensors").write_bytes((weights / "test_vit.safetensors").read_bytes())

    def told(**pretrained: Any) -> TimmBackbone:
        (tmp_path / "config.json").write_text(
            json.dumps({"architecture": "test_vit", "pretrained_cfg": pretrained})
        )
        return TimmBackbone(tmp_path)

    named = TimmBackbone("test_vit", weights=weights / "test_vit.safetensors")
    assert told().fingerprint == named.fingerprint
    assert told().features(pictures).tobytes() == named.features(pictures).tobytes()
    changed = told(mean=[0.1, 0.2, 0.3])
    assert changed.fingerprint != named.fingerprint
    assert not np.allclose(changed.features(pictures), named.features(pictures), atol=1e-4)
    assert backbone_from(changed.describe()).fingerprint == changed.fingerprint


def test_what_cannot_be_a_backbone_is_refused(
    weights: Path, timm: Any, torch: Any, tmp_path: Path
) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"no weights")
    torch.save([1, 2], tmp_path / "list.pt")
    vit = weights / "test_vit.pt"
    for given, said in (
        ({"source": "test_vit"}, "needs weights=FILE"),
        ({"source": "hf-hub:timm/test_vit.r160_in1k", "weights": vit}, "fetch the folder first"),
        ({"source": "timm/test_vit", "weights": vit}, "fetch the folder first"),
        ({"source": "no_such_network", "weights": vit}, "timm cannot make 'no_such_network'"),
        (
            {"source": "test_vit", "weights": vit, "pooling": "sideways"},
            "timm cannot make 'test_vit'",
        ),
        ({"source": "test_vit", "weights": tmp_path / "none.pt"}, "cannot be read"),
        ({"source": "test_vit", "weights": tmp_path / "bad.safetensors"}, "cannot be read"),
        ({"source": "test_vit", "weights": tmp_path / "list.pt"}, "not a dictionary of tensors"),
        ({"source": "test_resnet", "weights": vit}, "not of this architecture; missing"),
        (
            {"source": "test_vit", "weights": vit, "pooling": "avg"},
            "missing or of another shape: .'fc_norm",
        ),  # other layers
        ({"source": "test_vit2", "weights": vit}, "not of this architecture; missing"),
        ({"source": "test_vit", "weights": vit, "threads": 0}, "threads=0"),
        ({"source": tmp_path}, "missing or not timm's"),
        ({"source": "test_vit", "weights": vit, "pooling": ""}, "choose a pooling"),
    ):
        with pytest.raises(BackboneError, match=said):
            TimmBackbone(**given)  # type: ignore[arg-type]


def test_an_unreadable_image_is_named(weights: Path, timm: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(BackboneError, match=r"^sample 0 \(.*bad.png\)"):
        TimmBackbone("test_resnet", weights=weights / "test_resnet.pt").features(
            [str(tmp_path / "bad.png")]
        )


@pytest.mark.parametrize(
    "change", [{"crop_mode": "border"}, {"input_size": (3, 20, 30)}, {"input_size": (4, 20, 20)}]
)
def test_a_data_config_that_we_cannot_follow_is_refused(change: dict[str, Any]) -> None:
    config = {
        "input_size": (3, 20, 20),
        "interpolation": "bicubic",
        "mean": (0, 0, 0),
        "std": (1, 1, 1),
        "crop_mode": "center",
    }
    assert preprocessing_of(config).size == (20, 20)
    with pytest.raises(BackboneError, match="cannot do"):
        preprocessing_of(config | change)
