"""The standard files of the paper's datasets, small, and a backbone for them."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from expunge.backbones import CallableBackbone

Array = np.ndarray[Any, Any]
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


class Payload:
    """What a malicious pickle does when it is read."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


def images(count: int, seed: int = 0) -> Array:
    """Rows as CIFAR has them: all red pixels of an image, then green, then blue."""
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)


def python2(values: dict[str, Any]) -> bytes:
    """A dictionary of byte arrays and lists of small integers as Python 2 pickled it, which is how
    the official files are.
    """
    out = b"\x80\x02}("
    for key, value in values.items():
        out += b"U" + bytes([len(key)]) + key.encode()
        if isinstance(value, list):
            out += b"](" + b"".join(b"K" + bytes([one]) for one in value) + b"e"
            continue
        out += b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        out += (
            b"(K\x01"
            + b"".join(b"J" + struct.pack("<i", length) for length in value.shape)
            + b"\x86"
        )
        out += b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN"
        out += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        out += b"\x89T" + struct.pack("<i", value.nbytes) + value.tobytes() + b"tb"
    return out + b"u."


def cifar10(folder: Path, count: int = 4) -> dict[str, dict[str, Any]]:
    """A folder cifar-10-batches-py with this many images a batch; what is in it."""
    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True)
    batches = {}
    for number, name in enumerate(BATCHES):
        labels = [(number + one) % 10 for one in range(count)]
        batches[name] = {"data": images(count, number), "labels": labels}
        (place / name).write_bytes(python2(batches[name]))
    return batches


def cifar100(folder: Path) -> dict[str, Any]:
    """CIFAR-100, pickled by Python 3."""
    place = folder / "cifar-100-python"
    place.mkdir(parents=True)
    parts = {}
    for number, name in enumerate(("train", "test")):
        parts[name] = {
            b"data": images(5, 10 + number),
            b"fine_labels": [0, 99, 3, 4, 50 + number],
            b"coarse_labels": [0] * 5,
        }
        (place / name).write_bytes(pickle.dumps(parts[name], protocol=2 + 2 * number))
    return parts


def packed(folder: Path, name: str, archive: str) -> Path:
    """A folder as an archive, without the folder."""
    path = folder / archive
    with tarfile.open(path, "w:gz") as content:
        for file in sorted((folder / name).iterdir()):
            content.add(file, f"{name}/{file.name}")
            file.unlink()
    (folder / name).rmdir()
    return path


def drawings(seed: int, count: int) -> dict[str, list[Any]]:
    """A writer's entry in LEAF's files."""
    draw = np.random.default_rng(seed)
    rows = draw.integers(0, 256, (count, 784)) / 255
    return {"x": rows.tolist(), "y": draw.integers(0, 62, count).tolist()}


def leaf(path: Path, writers: dict[str, dict[str, list[Any]]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(entry["y"]) for entry in writers.values()]
    path.write_text(
        json.dumps({"users": list(writers), "num_samples": counts, "user_data": writers})
    )
    return path


def tweets(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    """Polarity, user and text of each tweet, as the official csv has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows(
        [polarity, 7, "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, said]
        for polarity, user, said in rows
    )
    path.write_bytes(text.getvalue().encode("latin-1"))
    return path


def backbone(
    called: list[int] | None = None, *, fails_after: int | None = None, together: bool = False
) -> CallableBackbone:
    """The means of three strips of an image, and how long a text is.

    `called` hears how many samples were asked for.
    """
    seen: list[int] = [] if called is None else called

    def function(samples: list[Any]) -> Any:
        if fails_after is not None and len(seen) >= fails_after:
            raise RuntimeError("the power is gone")
        seen.append(len(samples))
        return [
            [len(one), one.count("a"), 1]
            if isinstance(one, str)
            else [float(part.mean()) for part in np.array_split(one.astype(np.float64), 3)]
            for one in samples
        ]

    return CallableBackbone(function, name="strips", version="1", dim=3, together=together)
