"""Texts through transformers: a sentence encoder with its real weights, and RoBERTa with random
ones.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge import Spec, Statistics, solve
from expunge.backbones import (
    HuggingFaceBackbone,
    backbone_from,
    check_backbone,
    require_fingerprint,
)
from expunge.errors import BackboneError

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def encoder(minilm: Path) -> HuggingFaceBackbone:
    return HuggingFaceBackbone(minilm, max_length=128)


@pytest.fixture
def copied(roberta: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(roberta, tmp_path / "copy"))


def cosines(features: Array) -> Array:
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(unit @ unit.T)


def by_hand(library: Any, folder: Path, texts: list[str]) -> Array:
    """Mean pooling without padding, in transformers' own words."""
    torch, transformers = library("torch"), library("transformers")
    tokenizer, model = (
        transformers.AutoTokenizer.from_pretrained(folder),
        transformers.AutoModel.from_pretrained(folder).eval(),
    )
    with torch.no_grad():
        hidden = [
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts
        ]
    return np.stack([one.mean(dim=0).numpy() for one in hidden])


def test_real_sentences_keep_the_laws(encoder: HuggingFaceBackbone, sentences: list[str]) -> None:
    assert encoder.dim == 384
    check_backbone(encoder, sentences)


def test_features_are_what_transformers_computes(
    encoder: HuggingFaceBackbone, library: Any, sentences: list[str]
) -> None:
    expected = by_hand(library, encoder._folder, sentences)
    assert np.allclose(encoder.features(sentences), expected, atol=1e-5)


def test_sentences_of_like_meaning_are_nearest(
    encoder: HuggingFaceBackbone, sentences: list[str]
) -> None:
    near = cosines(encoder.features(sentences))
    np.fill_diagonal(near, -1)
    assert list(near[:6].argmax(axis=1)) == [1, 0, 3, 2, 5, 4]


def test_a_batch_together_differs_in_the_last_bits_at_most(
    minilm: Path, encoder: HuggingFaceBackbone, sentences: list[str]
) -> None:
    together = HuggingFaceBackbone(minilm, max_length=128, together=True)
    assert not together.independent
    assert together.fingerprint == encoder.fingerprint
    alone, padded = encoder.features(sentences), together.features(sentences)
    assert np.allclose(alone, padded, atol=1e-5)
    check_backbone(together, sentences)


def test_another_process_computes_the_same_bytes(
    encoder: HuggingFaceBackbone, sentences: list[str], tmp_path: Path
) -> None:
    (tmp_path / "sentence.txt").write_text(sentences[2], encoding="utf-8")
    code = (
        "import sys, pathlib; from expunge.backbones import backbone_from; b = "
        "backbone_from(sys.argv[1]);"
        "print(b.fingerprint, b.features([pathlib.Path(sys.argv[2])]).tobytes().hex())"
    )
    given = [sys.executable, "-c", code, encoder.text, str(tmp_path / "sentence.txt")]
    done = subprocess.run(given, capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    assert done.stdout.split() == [
        encoder.fingerprint,
        encoder.features(sentences)[2].tobytes().hex(),
    ]
    assert done.stderr == ""  # only the command line prints


def test_a_head_on_sentences_learns_and_forgets(encoder: HuggingFaceBackbone) -> None:
    samples = {
        "Simmer the onions until they are golden.": "kitchen",
        "Whisk the eggs with a pinch of salt.": "kitchen",
        "Knead the dough and let it rise for an hour.": "kitchen",
        "Roast the peppers and peel off their skin.": "kitchen",
        "The goalkeeper saved a penalty in extra time.": "sport",
        "She ran the marathon in under three hours.": "sport",
        "The team won the championship on home ground.": "sport",
        "He served two aces and took the set.": "sport",
    }
    texts, labels = list(samples), list(samples.values())
    spec = Spec(dim=384, labels=("kitchen", "sport"), gamma=1.0, backbone=encoder.fingerprint)
    require_fingerprint(spec, encoder)

    def summed(which: Sequence[int]) -> Statistics:
        # Two of this encoder's 384 columns are dead: about 1e-32 for every text, which is zero on
        # any grid.
        features = encoder.features([texts[i] for i in which])
        return Statistics.of(spec, features, [labels[i] for i in which], lost_columns="accept")

    everything = summed(range(8))
    unseen = encoder.features(
        ["Bake the bread in a hot oven.", "The referee showed the player a red card."]
    )
    assert list(solve(everything).predict(unseen)) == ["kitchen", "sport"]
    assert solve(everything - summed([2])) == solve(
        summed([0, 1, 3, 4, 5, 6, 7])
    )  # computed alone, and among others


def test_the_spec_of_another_pooling_is_refused(minilm: Path, encoder: HuggingFaceBackbone) -> None:
    spec = Spec(
        dim=384,
        outputs=1,
        backbone=HuggingFaceBackbone(minilm, max_length=128, pooling="cls").fingerprint,
    )
    with pytest.raises(BackboneError, match="the spec pins sha256:"):
        require_fingerprint(spec, encoder)


def test_the_callers_settings_of_torch_change_nothing_and_are_not_changed(
    encoder: HuggingFaceBackbone, torch: Any, sentences: list[str]
) -> None:
    expected = encoder.features(sentences).tobytes()
    seen: set[Any] = set()

    def look(*_: Any) -> None:
        seen.add(
            (
                torch.get_num_threads(),
                torch.get_float32_matmul_precision(),
                torch.are_deterministic_algorithms_enabled(),
            )
        )
        seen.add((torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()))

    hook = encoder._model.register_forward_pre_hook(look)
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        torch.set_num_threads(2)
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = encoder.features(sentences).tobytes()
        assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (2, "medium")
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.is_grad_enabled()
    finally:
        hook.remove()
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
    assert seen == {(1, "highest", True), (False, True)}
    assert found == expected


def test_long_texts_are_cut_at_max_length(
    minilm: Path, encoder: HuggingFaceBackbone, sentences: list[str]
) -> None:
    short = HuggingFaceBackbone(minilm, max_length=6)
    assert short.fingerprint != encoder.fingerprint
    first, second = short.features(
        [sentences[0], sentences[0].replace("windowsill", "roof")]
    )  # differ in a later token
    assert first.tobytes() == second.tobytes()
    assert not np.array_equal(
        *encoder.features([sentences[0], sentences[0].replace("windowsill", "roof")])
    )


def test_roberta_keeps_the_laws_with_every_pooling_it_has(
    roberta: Path, library: Any, sentences: list[str]
) -> None:
    mean, cls = HuggingFaceBackbone(roberta), HuggingFaceBackbone(roberta, pooling="cls")
    for backbone in (mean, cls):
        check_backbone(backbone, sentences)
        assert backbone.dim == 48
        assert backbone_from(backbone.describe()).describe() == backbone.describe()
    assert np.allclose(mean.features(sentences), by_hand(library, roberta, sentences), atol=1e-5)
    assert not np.allclose(mean.features(sentences), cls.features(sentences), atol=1e-2)
    assert mean.fingerprint != cls.fingerprint


def test_a_description_opens_from_any_working_directory(
    roberta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(roberta.parent)
    described = HuggingFaceBackbone(roberta.name).describe()
    monkeypatch.chdir(tmp_path)
    assert backbone_from(described).describe() == described


def test_padding_is_not_part_of_the_mean(roberta: Path, sentences: list[str]) -> None:
    together = HuggingFaceBackbone(roberta, together=True).features(sentences, batch_size=8)
    assert np.allclose(together, HuggingFaceBackbone(roberta).features(sentences), atol=1e-5)


def test_weights_that_the_files_lack_are_refused_where_they_would_be_random(roberta: Path) -> None:
    with pytest.raises(
        BackboneError, match=r"pooler\.dense\.bias, pooler\.dense\.weight\. Choose another pooling"
    ):
        HuggingFaceBackbone(roberta, pooling="pooler")


def test_every_file_that_is_read_counts_and_no_other(copied: Path, sentences: list[str]) -> None:
    before = HuggingFaceBackbone(copied)
    features = before.features(sentences).tobytes()
    (copied / "README.md").write_text("hello")
    (copied / "adapter_config.json").write_text(
        '{"base_model_name_or_path": "elsewhere/entirely", "peft_type": "LORA"}'
    )
    (copied / "pytorch_model.bin").write_bytes(b"never read, as there are safetensors")
    after = HuggingFaceBackbone(copied)
    assert after.fingerprint == before.fingerprint
    assert after.features(sentences).tobytes() == features
    weights = bytearray((copied / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copied / "model.safetensors").write_bytes(weights)
    assert HuggingFaceBackbone(copied).fingerprint != before.fingerprint
    with pytest.raises(BackboneError, match="have changed"):
        backbone_from(before.describe())


def test_weights_that_were_not_hashed_are_not_found(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(
        json.dumps(config | {"transformers_weights": "other.safetensors"})
    )
    (copied / "other.safetensors").write_bytes((copied / "model.safetensors").read_bytes())
    with pytest.raises(BackboneError, match="cannot be loaded"):
        HuggingFaceBackbone(copied)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_space_in_a_settings_file_is_another_fingerprint(copied: Path, name: str) -> None:
    before = HuggingFaceBackbone(copied).fingerprint
    (copied / name).write_text((copied / name).read_text() + " ")
    assert HuggingFaceBackbone(copied).fingerprint != before


def test_shards_and_pickles_are_read(
    roberta: Path, library: Any, torch: Any, tmp_path: Path, sentences: list[str]
) -> None:
    expected = HuggingFaceBackbone(roberta).features(sentences)
    tokens = shutil.ignore_patterns("*.safetensors")
    model = library("transformers").AutoModelForMaskedLM.from_pretrained(roberta)
    model.save_pretrained(
        shutil.copytree(roberta, tmp_path / "shards", ignore=tokens), max_shard_size="60KB"
    )
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 1
    torch.save(
        model.state_dict(),
        Path(shutil.copytree(roberta, tmp_path / "pickle", ignore=tokens)) / "pytorch_model.bin",
    )
    for name in ("shards", "pickle"):
        assert (
            HuggingFaceBackbone(tmp_path / name).features(sentences).tobytes() == expected.tobytes()
        )
    shard = sorted((tmp_path / "shards").glob("model-*.safetensors"))[-1]
    before = HuggingFaceBackbone(tmp_path / "shards").fingerprint
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert HuggingFaceBackbone(tmp_path / "shards").fingerprint != before


class Payload:
    """What a malicious pickle does when it is read."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


def test_no_code_in_a_folder_is_run(copied: Path, torch: Any, tmp_path: Path) -> None:
    (copied / "model.safetensors").unlink()
    torch.save({"x": Payload(tmp_path / "pickle-ran")}, copied / "pytorch_model.bin")
    with pytest.raises(BackboneError, match="cannot be loaded"):
        HuggingFaceBackbone(copied)
    assert not (tmp_path / "pickle-ran").exists()
    own = (
        '{"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}}'
    )
    (copied / "config.json").write_text(own)
    (copied / "own.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'code-ran')!r}).touch()"
    )
    with pytest.raises(BackboneError, match="cannot be loaded"):
        HuggingFaceBackbone(copied)
    assert not (tmp_path / "code-ran").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_folder_is_refused(copied: Path, name: str) -> None:
    data = (copied / name).read_bytes()
    (copied / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(BackboneError, match=r"the model in .*copy cannot be loaded"):
        HuggingFaceBackbone(copied)


def test_a_text_that_the_network_cannot_take_is_named_but_not_shown(roberta: Path) -> None:
    backbone = HuggingFaceBackbone(roberta, max_length=500)  # the network knows 60 places
    with pytest.raises(BackboneError, match=r"^sample 1: .*max_length") as refusal:
        backbone.features(["short", "measles " * 200])
    assert "measles" not in str(refusal.value)
    with pytest.raises(BackboneError, match="sample 1 is a bytes"):
        backbone.features(["a", b"b"])
    assert backbone.features([""]).shape == (1, 48)  # the marks of beginning and end are tokens too


def test_a_text_without_tokens_is_refused(copied: Path) -> None:
    tokenizer = json.loads((copied / "tokenizer.json").read_text())
    (copied / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": None}))
    for together in (False, True):
        with pytest.raises(BackboneError, match="no tokens"):
            HuggingFaceBackbone(copied, together=together).features(["a", ""])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pooling": "max"}, "pooling='max'"),
        ({"modality": "image"}, "no preprocessor_config"),
        ({"max_length": 0}, "max_length=0"),
        ({"threads": 0}, "threads=0"),
    ],
)
def test_settings_that_cannot_be_are_refused(roberta: Path, settings: Any, said: str) -> None:
    with pytest.raises(BackboneError, match=said):
        HuggingFaceBackbone(roberta, **settings)


def test_a_tokenizer_without_a_limit_needs_one(copied: Path) -> None:
    config = (copied / "tokenizer_config.json").read_text()
    assert '"model_max_length": 60' in config
    (copied / "tokenizer_config.json").write_text(
        config.replace('"model_max_length": 60', f'"model_max_length": {10**30}')
    )
    with pytest.raises(BackboneError, match="give max_length="):
        HuggingFaceBackbone(copied)
    assert HuggingFaceBackbone(copied, max_length=32).dim == 48


def test_models_are_never_fetched() -> None:
    with pytest.raises(BackboneError, match="never downloaded"):
        HuggingFaceBackbone("FacebookAI/roberta-base")
