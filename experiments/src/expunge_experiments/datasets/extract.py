"""Raw samples through a backbone into a file of features, made once.

Law: the file depends on the raw samples (by their digest) and the backbone (by its fingerprint)
alone, and is named after both. Features are computed in blocks, each of which is kept as soon as it
is done, so an extraction that was interrupted goes on where it was and makes the same bytes. The
file is whole or absent.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from expunge.backbones import Backbone
from expunge.backbones.base import parsed
from expunge.errors import BackboneError, InputError
from expunge.storage.files import FolderLock, erase_drafts, sync_folder, write_whole
from expunge_experiments.datasets.raw import RawDataset, Samples

FOLDER = "features"  # within the folder of data
BLOCK = 1024  # samples whose features are kept together
Report = Callable[[str, int, int | None], None]  # what is being done, how much so far, of how much


def extract(
    raw: RawDataset, backbone: Backbone, folder: Path, *, report: Report | None = None
) -> Path:
    """The file with the features of these samples in the folder of data, made now if it is not
    there.
    """
    require_fit(raw, backbone)
    key = hashlib.sha256(
        f"{backbone.fingerprint}\n{raw.digest}\n{backbone.independent}".encode()
    ).hexdigest()[:16]
    path = folder / FOLDER / f"{raw.name}-{key}.npz"
    if path.exists():
        return path
    parts = path.with_suffix(".parts")
    try:
        parts.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(
            f"features cannot be kept in {path.parent}: {problem.strerror}. Use a folder of data "
            "that can be written to; links in it to the originals will do"
        ) from problem
    lock = FolderLock(parts)
    try:
        erase_drafts(parts)
        files = {part: _blocks(raw, part, backbone, parts, report) for part in ("train", "test")}
        _assemble(raw, backbone, files, path)
        for file in sorted(parts.iterdir()):
            file.unlink()
        parts.rmdir()
    finally:
        lock.release()
    return path


def require_fit(raw: RawDataset, backbone: Backbone) -> None:
    """Raise BackboneError if the backbone takes other samples than these, as far as its description
    says.
    """
    kind, _, options = parsed(backbone.text)
    takes = {
        "hf": options.get("modality"),
        "timm": "image",
        "onnx": "image",
        "precomputed": "number",
    }.get(kind)
    if takes not in (None, raw.modality):
        raise BackboneError(
            f"{raw.name} has {raw.modality}s, and {backbone.text} takes {takes}s; choose another "
            "backbone"
        )


def named(backbone: Backbone) -> str:
    """A backbone in words: its description without the folders that it lies in."""
    kind, location, options = parsed(backbone.text)
    chosen = ", ".join(
        f"{name}={value}"
        for name, value in options.items()
        if name in ("pooling", "max_length", "size", "output")
    )
    return f"{kind} {Path(location).name}" + (f" ({chosen})" if chosen else "")


def _blocks(
    raw: RawDataset, part: str, backbone: Backbone, parts: Path, report: Report | None
) -> list[Path]:
    """The files of a part's blocks, of which those that are not there yet are made."""
    samples: Samples = getattr(raw, part)
    files = []
    for start in range(0, len(samples), BLOCK):
        block = samples[start : start + BLOCK]
        file = parts / f"{part}-{start}.float32"
        if not _is_whole(file, (len(block), backbone.dim)):
            write_whole(file, _computed(block, start, part, backbone), 0o644)
        files.append(file)
        if report is not None:
            report(f"Features of {part} samples", start + len(block), len(samples))
    return files


def _computed(block: Samples, start: int, part: str, backbone: Backbone) -> bytes:
    """Features of a block in float32, which is what datasets have: those of a backbone in float64
    are rounded once, here.
    """
    try:
        computed = backbone.features(block)
    except BackboneError as problem:
        problem.add_note(f"Samples are counted from number {start} of the {part} samples")
        raise
    with np.errstate(over="ignore"):  # an overflow becomes infinity and is refused below
        features = computed.astype("<f4")
    if not np.isfinite(features).all():
        raise BackboneError(
            f"a feature of the {part} samples from number {start} on is beyond float32; check the "
            "backbone"
        )
    return features.tobytes()


def _is_whole(file: Path, shape: tuple[int, int]) -> bool:
    """Blocks are written whole or not at all; one of another size was written by another program
    and is recomputed.
    """
    return file.is_file() and file.stat().st_size == 4 * shape[0] * shape[1]


def _assemble(
    raw: RawDataset, backbone: Backbone, files: dict[str, list[Path]], path: Path
) -> None:
    """One .npz file, written block by block, so that features need not fit into memory."""
    small = {
        "train_labels": raw.train_labels,
        "test_labels": raw.test_labels,
        "classes": np.array(raw.classes),
        "dataset": np.array(raw.name),
        "source": np.array(f"{raw.source}; features by {named(backbone)}"),
        "backbone": np.array(backbone.fingerprint),
        "raw_digest": np.array(raw.digest),
    } | ({} if raw.groups is None else {"train_groups": raw.groups})
    draft = path.with_name(path.name + ".part")
    with draft.open("wb") as target:
        with zipfile.ZipFile(target, "w") as archive:
            for part, blocks in files.items():
                with archive.open(f"{part}_features.npy", "w", force_zip64=True) as member:
                    shape = (len(getattr(raw, part)), backbone.dim)
                    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(member, header)
                    for block in blocks:
                        member.write(block.read_bytes())
            for name, array in small.items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        target.flush()
        os.fsync(target.fileno())
    draft.replace(path)
    sync_folder(path.parent)
