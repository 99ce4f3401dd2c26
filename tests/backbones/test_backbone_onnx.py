"""Networks in ONNX files: features that are known, and fingerprints of all that makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from expunge import Spec, Statistics, solve
from expunge.backbones import (
    ImagePreprocessing,
    OnnxBackbone,
    backbone_from,
    check_backbone,
    require_fingerprint,
)
from expunge.errors import BackboneError
from support import onnx_models as models

SMALL = ImagePreprocessing(size=(8, 8), interpolation="bilinear")


def pictures(n: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(n)
    return [
        rng.integers(0, 256, (rng.integers(8, 30), rng.integers(8, 30), 3), np.uint8)
        for _ in range(n)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return models.linear(tmp_path / "m.onnx")


def test_features_are_the_outputs_of_the_network(path: Path) -> None:
    X = np.random.default_rng(0).standard_normal((9, 12))
    backbone = OnnxBackbone(path)
    assert backbone.dim == 5
    assert np.allclose(backbone.features(X, batch_size=4), X @ models.MATRIX, atol=1e-5)
    assert backbone.features(list(X)).dtype == np.float32
    check_backbone(backbone, X)
    check_backbone(OnnxBackbone(path, together=True), X)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 4, 7])
def test_a_model_for_a_fixed_number_of_samples_gets_that_number(
    tmp_path: Path, together: bool, batch_size: int
) -> None:
    X = np.random.default_rng(0).standard_normal((7, 12)).astype(np.float32)
    backbone = OnnxBackbone(models.linear(tmp_path / "m.onnx", batch=3), together=together)
    assert np.allclose(backbone.features(X, batch_size=batch_size), X @ models.MATRIX, atol=1e-5)
    check_backbone(backbone, X)


def test_images_go_through_the_preprocessing_and_the_chosen_output_is_pooled(
    tmp_path: Path,
) -> None:
    model = models.convolution(tmp_path / "m.onnx")
    samples = pictures(5)

    def made(**settings: Any) -> OnnxBackbone:
        return OnnxBackbone(model, preprocessing=SMALL, **settings)

    pooled = made(output="pooled").features(samples)
    arrays = np.stack([SMALL(sample, 0, extra="onnx") for sample in samples])
    windows = np.lib.stride_tricks.sliding_window_view(arrays, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    maps = np.maximum(np.einsum("nchwij,kcij->nkhw", windows, models.KERNEL), 0)
    assert np.allclose(pooled, maps.mean(axis=(2, 3)), atol=1e-5)
    assert np.allclose(made(output="tokens", pooling="mean").features(samples), pooled, atol=1e-5)
    assert np.allclose(made(output="maps", pooling="mean").features(samples), pooled, atol=1e-5)
    assert np.allclose(
        made(output="tokens", pooling="cls").features(samples), maps[:, :, 0, 0], atol=1e-5
    )
    fingerprints = {
        made(output=output, pooling="mean").fingerprint for output in ("tokens", "maps")
    }
    fingerprints |= {
        made(output="tokens", pooling="cls").fingerprint,
        made(output="pooled").fingerprint,
    }
    assert len(fingerprints) == 4
    check_backbone(made(output="tokens", pooling="cls"), samples)


def test_images_from_files_train_a_head_that_forgets(tmp_path: Path) -> None:
    model = models.convolution(tmp_path / "m.onnx")
    backbone = OnnxBackbone(model, preprocessing=SMALL, output="pooled")
    labels = ["dark", "light"] * 6
    files = []
    for i, label in enumerate(labels):
        shade = 40 + i if label == "dark" else 200 + i
        Image.new("RGB", (20 + i, 16), (shade, shade, shade)).save(tmp_path / f"{i}.png")
        files.append(tmp_path / f"{i}.png")
    spec = Spec(dim=6, labels=("dark", "light"), gamma=1e-3, backbone=backbone.fingerprint)
    require_fingerprint(spec, backbone)
    everything = Statistics.of(spec, backbone.features(files), labels)
    assert list(solve(everything).predict(backbone.features(files))) == labels
    gone = Statistics.of(
        spec, backbone.features(files[:1]), labels[:1]
    )  # recomputed alone, and yet the same integers
    assert solve(everything - gone) == solve(
        Statistics.of(spec, backbone.features(files[1:]), labels[1:])
    )


def test_whatever_makes_the_features_changes_the_fingerprint(path: Path, tmp_path: Path) -> None:
    other = models.MATRIX.copy()
    other[0, 0] = np.nextafter(other[0, 0], 2, dtype=np.float32)
    image_model = models.convolution(tmp_path / "c.onnx")
    one = {"output": "pooled", "preprocessing": SMALL}
    made = [
        OnnxBackbone(path),
        OnnxBackbone(models.linear(tmp_path / "other.onnx", matrix=other)),
        OnnxBackbone(image_model, **one),  # type: ignore[arg-type]
        OnnxBackbone(image_model, output="pooled", preprocessing=ImagePreprocessing(size=(8, 8))),
        OnnxBackbone(
            image_model,
            output="pooled",
            preprocessing=ImagePreprocessing(size=(9, 9), interpolation="bilinear"),
        ),
        OnnxBackbone(image_model, output="pooled", dim=6),
    ]
    assert len({backbone.fingerprint for backbone in made}) == len(made)


def test_name_place_threads_and_batching_do_not(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "renamed.onnx").write_bytes(path.read_bytes())
    same = [
        OnnxBackbone(path),
        OnnxBackbone(str(path)),
        OnnxBackbone(path, output="y", threads=2, together=True),
        OnnxBackbone(tmp_path / "elsewhere" / "renamed.onnx"),
    ]
    assert len({backbone.fingerprint for backbone in same}) == 1


@pytest.mark.parametrize("name", ["m.onnx.data", "m.onnx_data", "weights.bin"])
def test_external_weights_are_part_of_the_fingerprint(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.linear(
        tmp_path / "m.onnx", save_as_external_data=True, location=name, size_threshold=0
    )
    assert (tmp_path / name).is_file()
    external = () if name.startswith("m.onnx") else (name,)
    X = np.random.default_rng(0).standard_normal((3, 12)).astype(np.float32)
    backbone = OnnxBackbone(path, external=external)
    assert np.allclose(backbone.features(X), X @ models.MATRIX, atol=1e-5)
    assert backbone_from(backbone.describe()).fingerprint == backbone.fingerprint
    data = bytearray((tmp_path / name).read_bytes())
    data[3] ^= 1
    (tmp_path / name).write_bytes(data)
    assert OnnxBackbone(path, external=external).fingerprint != backbone.fingerprint
    (tmp_path / name).rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BackboneError, match=name):
        OnnxBackbone(path, external=external)


def test_external_weights_that_were_not_hashed_are_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.linear(
        tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    monkeypatch.chdir(tmp_path)  # where ONNX Runtime would look for them on its own
    with pytest.raises(BackboneError, match=r"weights.bin.*name them in external="):
        OnnxBackbone(path)


def test_a_backbone_opens_from_its_own_description(path: Path, tmp_path: Path) -> None:
    image_model = models.convolution(tmp_path / "c.onnx")
    (tmp_path / "100% sure?").mkdir()
    made = [
        OnnxBackbone(path),
        OnnxBackbone(path, threads=2, together=True),
        OnnxBackbone(models.linear(tmp_path / "100% sure?" / "m.onnx")),
        OnnxBackbone(image_model, output="tokens", pooling="cls", preprocessing=SMALL),
        OnnxBackbone(
            image_model,
            output="pooled",
            preprocessing=ImagePreprocessing(size=(8, 9), resize="stretch"),
        ),
        OnnxBackbone(image_model, output="pooled", dim=6),
    ]
    for backbone in made:
        assert backbone_from(backbone.text).describe() == backbone.describe()
    assert set(made[0].describe()["libraries"]) == {"numpy", "onnxruntime", "pillow"}


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (np.zeros(11), r"shape \(11,\); the network takes numbers of shape \(12,\)"),
        (np.zeros((1, 12)), r"shape \(1, 12\)"),
        (np.full(12, "a"), "takes numbers"),
        ("text", "takes numbers"),
        (np.full(12, np.nan), "NaN or infinity"),
    ],
)
def test_a_sample_that_does_not_fit_is_named(path: Path, sample: Any, said: str) -> None:
    with pytest.raises(BackboneError, match=f"^sample 1.*{said}"):
        OnnxBackbone(path).features([np.zeros(12), sample])


def test_nan_from_the_network_is_refused(tmp_path: Path) -> None:
    backbone = OnnxBackbone(models.roots(tmp_path / "m.onnx"))
    assert backbone.features([[4, 9]]).tolist() == [[2, 3]]
    for together in (False, True):
        with pytest.raises(BackboneError, match=r"^sample 2: its feature has NaN"):
            OnnxBackbone(tmp_path / "m.onnx", together=together).features(
                [[4, 9], [1, 1], [1, -1], [0, 0]]
            )


def test_an_unreadable_image_among_others_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no picture")
    backbone = OnnxBackbone(
        models.convolution(tmp_path / "m.onnx"), output="pooled", preprocessing=SMALL
    )
    with pytest.raises(BackboneError, match=r"^sample 2 \(.*bad.png\)"):
        backbone.features([*pictures(2), tmp_path / "bad.png"])


def test_inputs_of_open_length_need_the_length_of_a_feature(tmp_path: Path) -> None:
    model = models.convolution(tmp_path / "m.onnx")
    with pytest.raises(BackboneError, match="dim="):
        OnnxBackbone(model, output="pooled")
    backbone = OnnxBackbone(model, output="pooled", dim=6)
    samples = [np.ones((3, 5, 5)), np.ones((3, 9, 7))]
    assert backbone.features(samples).shape == (2, 6)
    with pytest.raises(BackboneError, match="differ in shape"):
        OnnxBackbone(model, output="pooled", dim=6, together=True).features(samples)
    with pytest.raises(BackboneError, match=r"sample 0.*cannot be run"):
        backbone.features([np.ones((3, 2, 2))])


def test_models_that_cannot_be_backbones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(BackboneError, match="cannot be opened by ONNX Runtime"):
        OnnxBackbone(tmp_path / "bad.onnx")
    with pytest.raises(BackboneError, match=r"one input .*but has a \(tensor\(float\)\), b"):
        OnnxBackbone(models.two_inputs(tmp_path / "two.onnx"))
    with pytest.raises(BackboneError, match="outputs maps, tokens, pooled; choose one"):
        OnnxBackbone(models.convolution(tmp_path / "m.onnx"), preprocessing=SMALL)
    with pytest.raises(BackboneError, match="no output 'logits'; it has maps, tokens, pooled"):
        OnnxBackbone(tmp_path / "m.onnx", preprocessing=SMALL, output="logits")
    for output, pooling in (
        ("maps", "none"),
        ("maps", "cls"),
        ("pooled", "mean"),
        ("tokens", "none"),
    ):
        with pytest.raises(BackboneError, match=f"pooling='{pooling}' does not fit"):
            OnnxBackbone(tmp_path / "m.onnx", preprocessing=SMALL, output=output, pooling=pooling)
    backbone = OnnxBackbone(models.summed(tmp_path / "sum.onnx"), together=True)
    with pytest.raises(BackboneError, match="no row for each sample"):
        backbone.features(np.ones((3, 2)))
    with pytest.raises(BackboneError, match="not "):
        OnnxBackbone(models.linear(tmp_path / "l.onnx"), dim=7).features(np.ones((1, 12)))
