"""The pages whose examples need other libraries run, top to bottom, with models of random weights
in place of those that a reader would download.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support.pages import run_python

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_inputs() -> None:
    run_python("docs/how-to/inputs.md", "python", "py")


def test_export() -> None:
    names = run_python("docs/how-to/export-a-head.md", "python", "py")
    weights = names["layer"].weight.detach().numpy()
    assert weights.shape == (10, 64)
    assert weights.any()


@pytest.fixture
def _samples(timm: Any, dinov2: Path, roberta: Path, pictures: list[Array]) -> None:
    """What the page names. timm comes first: it makes torchvision loadable."""
    Path("dinov2-base").symlink_to(dinov2)
    Path("roberta-base").symlink_to(roberta)
    Path("another.txt").write_text("another text")
    for name, picture in zip(("a.jpg", "b.jpg"), pictures, strict=False):
        Image.fromarray(picture).save(name)


@pytest.mark.timm
@pytest.mark.usefixtures("_samples")
def test_backbones(library: Any, torch: Any, timm: Any) -> None:
    torch.manual_seed(5)
    network = timm.create_model("vit_tiny_patch16_224.augreg_in21k", pretrained=False)
    save = library("safetensors.torch").save_file
    save(network.state_dict(), "vit.safetensors")
    Path("vit-folder").mkdir()
    save(network.state_dict(), "vit-folder/model.safetensors")
    config = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": network.pretrained_cfg}
    Path("vit-folder/config.json").write_text(json.dumps(config))
    names = run_python("docs/how-to/backbones.md", "python", "py")
    assert names["vit"].dim == 192
