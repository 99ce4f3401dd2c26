"""Raw samples become features once; an interruption changes nothing but when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import raw_files
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from expunge.backbones import ImagePreprocessing, OnnxBackbone, PrecomputedBackbone
from expunge.errors import BackboneError, InputError, StoreBusyError
from expunge.storage.files import FolderLock
from expunge_experiments.datasets import extract as extraction
from expunge_experiments.datasets.extract import extract
from expunge_experiments.datasets.features import load_features
from expunge_experiments.datasets.originals import Subset, read_original
from expunge_experiments.datasets.raw import RawDataset


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "BLOCK", 7)


@pytest.fixture
def raw(tmp_path: Path) -> RawDataset:
    raw_files.cifar10(tmp_path)
    return read_original("cifar10_raw", tmp_path)


def network(path: Path) -> OnnxBackbone:
    """A convolution over images of 8 x 8 pixels, pooled."""
    kernel = np.random.default_rng(1).standard_normal((6, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "K"], ["maps"], strides=[2, 2])],
        "made by hand",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("maps", TensorProto.FLOAT, ["n", 6, 3, 3])],
        [numpy_helper.from_array(kernel, "K")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return OnnxBackbone(
        path,
        preprocessing=ImagePreprocessing(size=(8, 8), interpolation="bilinear"),
        pooling="mean",
    )


def test_features_are_the_backbones_own(tmp_path: Path, raw: RawDataset) -> None:
    backbone = raw_files.backbone()
    path = extract(raw, backbone, tmp_path)
    dataset = load_features(path)
    assert path.parent == tmp_path / "features"
    assert (dataset.name, dataset.classes, dataset.dim) == ("cifar10_raw", 10, 3)
    assert np.array_equal(dataset.train_features, backbone.features(raw.train))
    assert np.array_equal(dataset.test_features, backbone.features(raw.test))
    assert np.array_equal(dataset.train_labels, raw.train_labels)
    assert np.array_equal(dataset.test_labels, raw.test_labels)
    assert (
        dataset.source
        == f"{raw.source}; features by callable {backbone.text.split('?')[0].split(':', 1)[1]}"
    )
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_images_reach_a_network_as_pillow_would_show_them(tmp_path: Path, raw: RawDataset) -> None:
    backbone = network(tmp_path / "network.onnx")
    features = load_features(extract(raw, backbone, tmp_path)).train_features
    pictures = [
        Image.fromarray(np.asarray(one), "RGB" if one.ndim == 3 else "L") for one in raw.train
    ]
    assert features.tobytes() == backbone.features(pictures).tobytes()


def test_grey_drawings_reach_a_network(tmp_path: Path) -> None:
    writers = {f"w{number}": raw_files.drawings(number, 12) for number in range(3)}
    raw_files.leaf(tmp_path / "femnist" / "all_data_0.json", writers)
    raw = read_original("femnist", tmp_path, Subset(writers=2))
    dataset = load_features(extract(raw, network(tmp_path / "network.onnx"), tmp_path))
    assert dataset.classes == 62
    assert dataset.groups is not None
    assert np.array_equal(dataset.groups, np.repeat([0, 1], 11))
    assert len(np.unique(dataset.train_features, axis=0)) == 22


@pytest.mark.parametrize("together", [False, True])
def test_an_interrupted_extraction_goes_on_and_makes_the_same_bytes(
    tmp_path: Path, raw: RawDataset, together: bool
) -> None:
    whole = extract(raw, raw_files.backbone(together=together), tmp_path / "whole")
    called: list[int] = []
    after = 2 if together else 15
    with pytest.raises(BackboneError, match="failed with RuntimeError"):
        extract(
            raw, raw_files.backbone(called, fails_after=after, together=together), tmp_path / "cut"
        )
    assert not list((tmp_path / "cut" / "features").glob("*.npz"))
    samples = sum(called)
    called.clear()
    again = extract(raw, raw_files.backbone(called, together=together), tmp_path / "cut")
    assert again.name == whole.name
    assert again.read_bytes() == whole.read_bytes()
    assert sum(called) == 24 - samples // 7 * 7  # what was kept was not computed again
    assert not list(again.parent.glob("*.parts"))


def test_a_second_extraction_computes_nothing(tmp_path: Path, raw: RawDataset) -> None:
    called: list[int] = []
    first = extract(raw, raw_files.backbone(called), tmp_path)
    assert sum(called) == 24
    assert extract(raw, raw_files.backbone(called), tmp_path) == first
    assert sum(called) == 24


def test_a_block_of_the_wrong_size_is_made_anew(tmp_path: Path, raw: RawDataset) -> None:
    expected = extract(raw, raw_files.backbone(), tmp_path / "a").read_bytes()
    with pytest.raises(BackboneError):
        extract(raw, raw_files.backbone(fails_after=15), tmp_path / "b")
    (block,) = (tmp_path / "b" / "features").glob("*.parts/train-0.float32")
    block.write_bytes(block.read_bytes()[:-1])
    block.with_name("train-7.float32.part").write_bytes(b"left by a killed process")
    assert extract(raw, raw_files.backbone(), tmp_path / "b").read_bytes() == expected


def test_other_samples_and_other_backbones_have_other_files(
    tmp_path: Path, raw: RawDataset
) -> None:
    files = {
        extract(raw, raw_files.backbone(), tmp_path),
        extract(raw, network(tmp_path / "n.onnx"), tmp_path),
    }
    fewer = raw.drawn(5, seed=1)
    files.add(extract(fewer, raw_files.backbone(), tmp_path))
    assert len(files) == 3
    assert (
        "5 of 20 training samples drawn with seed 1"
        in load_features(extract(fewer, raw_files.backbone(), tmp_path)).source
    )


def test_progress_is_told(tmp_path: Path, raw: RawDataset) -> None:
    told: list[Any] = []
    extract(raw, raw_files.backbone(), tmp_path, report=lambda *what: told.append(what))
    train, test = "Features of train samples", "Features of test samples"
    assert told == [(train, 7, 20), (train, 14, 20), (train, 20, 20), (test, 4, 4)]


def test_two_at_once_are_refused(tmp_path: Path, raw: RawDataset) -> None:
    with pytest.raises(BackboneError):
        extract(raw, raw_files.backbone(fails_after=0), tmp_path)
    (parts,) = (tmp_path / "features").iterdir()
    lock = FolderLock(parts)
    try:
        with pytest.raises(StoreBusyError, match="in use by process"):
            extract(raw, raw_files.backbone(), tmp_path)
    finally:
        lock.release()
    assert extract(raw, raw_files.backbone(), tmp_path).exists()


def test_a_place_that_cannot_be_written_to(tmp_path: Path, raw: RawDataset) -> None:
    (tmp_path / "features").write_text("a file where the folder should be")
    with pytest.raises(InputError, match="features cannot be kept in"):
        extract(raw, raw_files.backbone(), tmp_path)


def test_samples_that_a_backbone_does_not_take(tmp_path: Path, raw: RawDataset) -> None:
    texts = RawDataset(
        "sentiment140", "by hand", "text", 2, ["a"], np.array([0]), ["b"], np.array([1])
    )
    with pytest.raises(BackboneError, match=r"sentiment140 has texts, and onnx:.* takes images"):
        extract(texts, network(tmp_path / "n.onnx"), tmp_path)
    with pytest.raises(
        BackboneError, match=r"cifar10_raw has images, and precomputed:x.* takes numbers"
    ):
        extract(raw, PrecomputedBackbone("x", dim=3), tmp_path)
    assert load_features(
        extract(texts, raw_files.backbone(), tmp_path)
    ).train_features.tolist() == [[1, 1, 1]]


def test_what_may_be_chosen(tmp_path: Path, raw: RawDataset) -> None:
    with pytest.raises(InputError, match="writers is not for cifar10_raw"):
        read_original("cifar10_raw", tmp_path, Subset(writers=5))
    with pytest.raises(InputError, match="hold_out is not for cifar10_raw"):
        read_original("cifar10_raw", tmp_path, Subset(hold_out=0.1))
    with pytest.raises(InputError, match="there are cifar10_raw, cifar100, femnist, sentiment140"):
        read_original("cifar10", tmp_path)
    with pytest.raises(InputError, match="of which 21 cannot be drawn"):
        read_original("cifar10_raw", tmp_path, Subset(samples=21))
    with pytest.raises(InputError, match="seed=-1"):
        read_original("cifar10_raw", tmp_path, Subset(seed=-1))
    drawn = read_original("cifar10_raw", tmp_path, Subset(samples=9, seed=2))
    assert len(drawn.train_labels) == 9
    assert np.array_equal(drawn.test, raw.test)
    every = {
        np.asarray(image).tobytes(): label
        for image, label in zip(raw.train, raw.train_labels, strict=True)
    }
    assert all(
        every[np.asarray(one).tobytes()] == label
        for one, label in zip(drawn.train, drawn.train_labels, strict=True)
    )


def test_the_digest_sees_every_part(raw: RawDataset) -> None:
    changed = [
        replace(raw, name="other"),
        replace(raw, classes=11),
        replace(raw, train=np.asarray(raw.train)[::-1]),
        replace(raw, train_labels=raw.train_labels[::-1]),
        replace(raw, test_labels=(raw.test_labels + 1) % 10),
        replace(raw, groups=np.zeros(20, np.int64)),
    ]
    assert len({raw.digest, *(one.digest for one in changed)}) == 7
    same = replace(raw, source="in other words")
    assert same.digest == raw.digest


def test_texts_are_told_apart_by_where_they_end() -> None:
    labels = np.array([0, 1])
    one, other = (
        RawDataset("t", "", "text", 2, texts, labels, ["x"], np.array([0]))
        for texts in (["ab", "c"], ["a", "bc"])
    )
    assert one.digest != other.digest


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train_labels": np.array([0])}, "2 train samples and 1 labels"),
        ({"test": [], "test_labels": np.array([], np.int64)}, "0 test samples"),
        ({"test_labels": np.array([2])}, "test labels run from 2 to 2"),
        ({"groups": np.array([0])}, "1 groups for 2"),
    ],
)
def test_parts_that_do_not_fit(changes: dict[str, Any], said: str) -> None:
    good = {
        "train": ["a", "b"],
        "train_labels": np.array([0, 1]),
        "test": ["c"],
        "test_labels": np.array([0]),
    }
    with pytest.raises(InputError, match=said):
        RawDataset(name="t", source="", modality="text", classes=2, **(good | changes))
