"""Folders of Hugging Face models: which files are read, and that no others can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from expunge.backbones.model_files import modality_of, model_files, view
from expunge.errors import BackboneError


def filled(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_text(name)
    return folder


def test_the_kind_of_samples_is_that_of_the_files(tmp_path: Path) -> None:
    filled(tmp_path, "config.json", "preprocessor_config.json")
    assert modality_of(tmp_path, None) == "image"
    filled(tmp_path, "tokenizer.json")
    with pytest.raises(BackboneError, match="say which with modality"):
        modality_of(tmp_path, None)
    assert modality_of(tmp_path, "text") == "text"
    assert modality_of(tmp_path, "image") == "image"
    (tmp_path / "preprocessor_config.json").unlink()
    assert modality_of(tmp_path, None) == "text"
    with pytest.raises(BackboneError, match="has no preprocessor_config"):
        modality_of(tmp_path, "image")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(BackboneError, match="complete the folder"):
        modality_of(tmp_path, None)


def test_safetensors_come_before_pickles_and_each_alone_is_enough(tmp_path: Path) -> None:
    filled(tmp_path, "config.json", "vocab.txt", "README.md", "pytorch_model.bin")
    assert model_files(tmp_path, "text") == ("config.json", "pytorch_model.bin", "vocab.txt")
    filled(tmp_path, "model.safetensors", "adapter_config.json", "modeling_own.py")
    assert model_files(tmp_path, "text") == ("config.json", "model.safetensors", "vocab.txt")
    assert model_files(tmp_path, "image") == ("config.json", "model.safetensors")


def test_the_shards_of_an_index_are_all_read(tmp_path: Path) -> None:
    filled(tmp_path, "config.json", "a.safetensors", "b.safetensors", "c.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        json.dumps(
            {"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}
        )
    )
    assert model_files(tmp_path, "text") == (
        "config.json",
        index.name,
        "a.safetensors",
        "b.safetensors",
    )
    for name in ("../a.safetensors", "none.safetensors", 3):
        index.write_text(json.dumps({"weight_map": {"x": name}}))
        with pytest.raises(BackboneError, match="which is not in the folder"):
            model_files(tmp_path, "text")
    for text in ("", "[]", "{}", '{"weight_map": []}'):
        index.write_text(text)
        with pytest.raises(BackboneError, match="is damaged"):
            model_files(tmp_path, "text")


def test_an_incomplete_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="has no config"):
        model_files(tmp_path, "text")
    filled(tmp_path, "config.json")
    with pytest.raises(BackboneError, match=r"has no weights \(model.safetensors or"):
        model_files(tmp_path, "text")


@pytest.mark.parametrize("links", [True, False])
def test_a_view_holds_the_named_files_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refused(*_: object) -> None:
        raise OSError("no privilege")

    if not links:
        monkeypatch.setattr("os.symlink", refused)
    filled(tmp_path, "config.json", "model.safetensors", "adapter_config.json")
    with view(tmp_path, ("config.json", "model.safetensors")) as place:
        assert {file.name: file.read_text() for file in place.iterdir()} == {
            "config.json": "config.json",
            "model.safetensors": "model.safetensors",
        }
    assert not place.exists()
    assert (tmp_path / "model.safetensors").read_text() == "model.safetensors"
