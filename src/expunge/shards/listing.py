"""Which files are shards, and which two .npy files belong together."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from expunge.errors import InputError

SUFFIXES = (".parquet", ".npz", ".npy")

_MAGIC = "*?["

One = str | Path | tuple[str | Path, str | Path]


@dataclass(frozen=True)
class Shard:
    """One piece of a client's data: a Parquet or .npz file, or the .npy file of its features with that of its labels."""

    path: Path
    labels: Path | None = None

    def __str__(self) -> str:
        return str(self.path) if self.labels is None else f"{self.path} with {self.labels}"


def listed(
    shards: One | Shard | Iterable[One | Shard],
    *,
    features: str | Sequence[str] = "feature",
    labels: str | Sequence[str] = "label",
) -> list[Shard]:
    """The shards that are meant: paths, globs, or pairs of .npy files, each file once.

    The labels of an .npy file that is not given as a pair are in the file beside it whose name has `labels` where its own has
    `features`: those of `part-7-features.npy` in `part-7-labels.npy`. Names of several columns say nothing about files.
    """
    features = features if isinstance(features, str) else "feature"
    labels = labels if isinstance(labels, str) else "label"
    given = [shards] if isinstance(shards, (str, Path, Shard)) else list(shards)
    found: list[Shard] = []
    for one in given:
        if isinstance(one, Shard):
            found.append(one)
        elif isinstance(one, tuple):
            found.append(_pair(one))
        else:
            found += [_single(path, features, labels) for path in _expanded(one)]
    partners = {shard.labels for shard in found}
    # A glob such as *.npy brings the files of labels along.
    found = [shard for shard in found if shard.labels is not None or shard.path not in partners]
    _require_good(found)
    return found


def _expanded(one: str | Path) -> list[Path]:
    text = str(one)
    if not any(mark in text for mark in _MAGIC) or Path(text).exists():
        return [Path(text).absolute()]
    paths = sorted(Path(name).absolute() for name in glob.glob(text, recursive=True))
    if not paths:
        raise InputError(f"no file is called like {text!r:.200}: check the folder and the pattern")
    return paths


def _pair(pair: tuple[str | Path, str | Path]) -> Shard:
    if len(pair) != 2:
        raise InputError(f"a pair has the .npy file of features and that of labels, and this one has {len(pair)} entries")
    features, labels = (Path(one).absolute() for one in pair)
    for path in (features, labels):
        if path.suffix.lower() != ".npy":
            raise InputError(f"{path} is half of a pair, and so must be an .npy file. Other files hold features and labels both")
    return Shard(features, labels)


def _single(path: Path, features: str, labels: str) -> Shard:
    if path.suffix.lower() != ".npy":
        return Shard(path)
    before, named, after = path.name.rpartition(features)
    return Shard(path, path.with_name(before + labels + after)) if named else Shard(path)


def _require_good(found: list[Shard]) -> None:
    if not found:
        raise InputError("there are no shards: give the files, or a pattern such as 'data/*.parquet'")
    seen: set[Path] = set()
    for shard in found:
        path = shard.path
        if path.suffix.lower() not in SUFFIXES:
            hint = f"; for all files in a folder write '{path}/*.parquet'" if path.is_dir() else ""
            raise InputError(f"{path} cannot be a shard: shards are files that end in {', '.join(SUFFIXES)}{hint}")
        if path.suffix.lower() == ".npy" and shard.labels is None:
            raise InputError(
                f"{path} has features only, and its name does not say which file has the labels: call them NAME-features.npy and "
                "NAME-labels.npy, or give the two as a pair"
            )
        if path in seen:
            raise InputError(f"{path} is given twice: its samples would be counted twice. Give each shard once")
        seen.add(path)
