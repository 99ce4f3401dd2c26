"""Folders of Hugging Face models: which files a backbone reads, and a view that holds no others.

Law: what is read is what is hashed. transformers looks for many files (adapters, other weights,
code) and takes those that it finds, so it is shown a folder with the hashed files only.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from expunge.errors import BackboneError

CONFIG = "config.json"
IMAGE_FILES = ("preprocessor_config.json", "processor_config.json")
TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "spiece.model",
    "spm.model",
    "bpe.codes",
)
_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def modality_of(folder: Path, given: str | None) -> str:
    """`given`, or what the folder has the files for: "image" or "text"."""
    if given not in (None, "image", "text"):
        raise BackboneError(f"modality={given!r} must be 'image' or 'text'")
    if not folder.is_dir():
        raise BackboneError(
            f"there is no folder {folder}. Models are never downloaded here; fetch it first, for "
            "example with `hf download OWNER/NAME --local-dir FOLDER`"
        )
    modalities = [
        name
        for name, files in (("image", IMAGE_FILES[:1]), ("text", TEXT_FILES))
        if any((folder / file).is_file() for file in files)
    ]
    if given in modalities:
        return str(given)
    if given is not None or not modalities:
        wanted = {"image": IMAGE_FILES[:1], "text": TEXT_FILES}[given or "image"]
        raise BackboneError(
            f"{folder} has no {' or '.join(wanted)}, so samples cannot be prepared; complete the "
            "folder"
        )
    if len(modalities) > 1:
        raise BackboneError(
            f"{folder} is made for images and for texts; say which with modality=image or "
            "modality=text"
        )
    return modalities[0]


def model_files(folder: Path, modality: str) -> tuple[str, ...]:
    """The names of the files that make up the backbone: config, weights, and what prepares
    samples.
    """
    extra = IMAGE_FILES if modality == "image" else TEXT_FILES
    if not (folder / CONFIG).is_file():
        raise BackboneError(
            f"{folder} has no {CONFIG}, so it is not a Hugging Face model; check the path"
        )
    return (CONFIG, *weight_files(folder), *(name for name in extra if (folder / name).is_file()))


def weight_files(folder: Path) -> tuple[str, ...]:
    """The names of the files with the weights; safetensors before pickled ones."""
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return (name, *_shards(folder, name)) if name.endswith(".index.json") else (name,)
    raise BackboneError(f"{folder} has no weights ({' or '.join(_WEIGHTS)}); complete the folder")


def _shards(folder: Path, index: str) -> list[str]:
    try:
        names = sorted(set(json.loads((folder / index).read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise BackboneError(f"{folder / index} is damaged: {problem}; fetch it again") from problem
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not (folder / name).is_file():
            raise BackboneError(
                f"{folder / index} names the file {name!r}, which is not in the folder; fetch it "
                "again"
            )
    return names


@contextmanager
def view(folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """A folder for the time being with these files only."""
    with tempfile.TemporaryDirectory(prefix="expunge-backbone-") as directory:
        for name in names:
            source, target = (folder / name).resolve(), Path(directory) / name
            try:
                os.symlink(source, target)
            except OSError:  # Windows lets only some accounts make symbolic links
                shutil.copyfile(source, target)
        yield Path(directory)
