"""Tests that need torch and its kin: all of this folder, and only in `make test-extras`.

Nothing here imports them when tests are collected, so `make test` can deselect these tests without
having the libraries. A test that runs and lacks its library fails: it imports with `library`, never
with importorskip, which would pass in silence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.extras_environment import dinov2, library, mark, minilm, offline, torch

__all__ = ["dinov2", "library", "minilm", "offline", "torch"]  # fixtures of tests here

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
    mark(items, Path(__file__).parent)


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """Three pairs of neighbours, and two texts that are unlike any."""
    return list(SENTENCES)


@pytest.fixture(scope="session")
def roberta(library: Any, torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RoBERTa with random weights and a tokenizer of its own, saved as for masked words: so it has
    no pooler.
    """
    transformers, tokenizers = library("transformers"), library("tokenizers")
    folder = tmp_path_factory.mktemp("roberta")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bytes_to_words = tokenizers.ByteLevelBPETokenizer()
    bytes_to_words.train_from_iterator(
        SENTENCES, vocab_size=320, special_tokens=special, show_progress=False
    )
    made = tokenizers.Tokenizer.from_str(bytes_to_words.to_str())
    made.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = {
        "bos_token": "<s>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "cls_token": "<s>",
    }
    names |= {"sep_token": "</s>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=60, **names
    )
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
def timm(library: Any, torch: Any) -> Any:
    """The torchvision on the path is the ordinary wheel, whose compiled part wants a torch for
    graphics cards. timm needs its Python part only, which loads once the two operators that it
    annotates have been declared; nobody calls them.
    """
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library("torchvision")
    library("timm.data")
    return library("timm")


@pytest.fixture(scope="session")
def pictures() -> list[np.ndarray[Any, Any]]:
    """Pictures of several sizes."""
    rng = np.random.default_rng(3)
    sizes = [(50, 70), (42, 42), (90, 60), (48, 48), (20, 31)]
    return [
        np.kron(rng.integers(0, 256, (10, 10, 3)), np.ones((10, 10, 1)))[:h, :w].astype(np.uint8)
        for h, w in sizes
    ]
