"""Statistics of shards are those of one machine, however the samples are cut, ordered, stored and
shared out.
"""

from __future__ import annotations

import pickle
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge import Spec, Statistics, solve
from expunge.data import Shard, listed, shard_statistics, shards
from expunge.errors import LostColumnError, UnknownLabelError
from expunge.exact import Grid
from support.shards import FORMS, SPEC, samples, whole, write, written

FEATURES, LABELS = samples(40)
EXPECTED = whole(FEATURES, LABELS)


@settings(max_examples=25)
@given(
    cuts=st.lists(st.integers(0, 40), max_size=8),
    forms=st.lists(st.sampled_from(FORMS), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
    workers=st.integers(1, 3),
)
def test_any_cut_any_order_any_form(
    cuts: list[int], forms: list[str], order: Any, workers: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shards = written(Path(folder), FEATURES, LABELS, cuts, forms)
        order.shuffle(shards)
        found = shard_statistics(SPEC, shards, workers=workers)
    assert found.digest == EXPECTED.digest
    assert found.gram_by_construction
    assert solve(found).digest == solve(EXPECTED).digest


@pytest.mark.parametrize("entries", [1, 7, 35, 1 << 20])
@pytest.mark.parametrize("form", FORMS)
def test_blocks_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, entries: int
) -> None:
    monkeypatch.setattr(shards, "BLOCK_ENTRIES", entries)
    path = write(tmp_path / "one", FEATURES, LABELS, form)
    rows = max(1, entries // SPEC.dim)
    sizes = [
        len(block)
        for block, _ in shards.blocks(
            listed([path])[0], shards.ColumnNames("feature", "label"), SPEC.dim
        )
    ]
    assert max(sizes) <= rows
    assert shard_statistics(SPEC, path).digest == EXPECTED.digest


@pytest.mark.parametrize("form", FORMS)
def test_memory_is_bounded_by_the_block_not_by_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    spec = Spec(dim=64, labels=("a",))
    features = np.random.default_rng(0).standard_normal((40_000, 64)).astype(np.float32)  # 10 MB
    path = write(tmp_path / "large", features, np.full(40_000, "a"), form, group=1 << 20)
    monkeypatch.setattr(shards, "BLOCK_ENTRIES", 1 << 14)
    shard_statistics(
        spec, write(tmp_path / "small", features[:9], ["a"] * 9, form)
    )  # whatever is imported on the way
    before = pa.total_allocated_bytes()
    held: list[int] = []
    tracemalloc.start()
    for block, _ in shards.blocks(
        listed([path])[0], shards.ColumnNames("feature", "label"), spec.dim
    ):
        assert block.size <= 1 << 14
        held.append(pa.total_allocated_bytes() - before)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak + max(held) < 5 << 20
    assert shard_statistics(spec, path).count == 40_000


def test_processes_give_the_same(tmp_path: Path) -> None:
    shards = written(tmp_path, FEATURES, LABELS, [3, 20], FORMS)
    assert shard_statistics(SPEC, shards, on="processes", workers=2).digest == EXPECTED.digest


def test_progress_counts_shards(tmp_path: Path) -> None:
    told: list[int] = []
    shards = written(tmp_path, FEATURES, LABELS, [1, 2, 3, 5, 8, 13, 21, 34], ["npz"])
    shard_statistics(SPEC, shards, progress=told.append)
    assert told == list(range(1, 10))


def test_many_shards_are_added_in_a_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen shards need fifteen sums, and no sample is in more than four of them."""
    added: list[tuple[int, int]] = []
    plain = Statistics.__add__

    def add(one: Statistics, other: Statistics) -> Statistics:
        added.append((one.count, other.count))
        return plain(one, other)

    shards = written(tmp_path, FEATURES[:16], LABELS[:16], range(1, 16), ["npz"])
    monkeypatch.setattr(Statistics, "__add__", add)
    assert shard_statistics(SPEC, shards).count == 16
    assert sorted(added) == [(1, 1)] * 8 + [(2, 2)] * 4 + [(4, 4)] * 2 + [(8, 8)]


def test_empty_shards_add_nothing(tmp_path: Path) -> None:
    for form in FORMS:
        empty = write(tmp_path / f"empty-{form}", FEATURES[:0], LABELS[:0], form)
        assert shard_statistics(SPEC, empty) == Statistics.zero(SPEC)
        full = write(tmp_path / f"full-{form}", FEATURES, LABELS, form)
        assert shard_statistics(SPEC, [empty, full]).digest == EXPECTED.digest


def test_globs_and_pairs(tmp_path: Path) -> None:
    written(tmp_path, FEATURES, LABELS, [10, 20], ["npy"])
    assert len(listed(str(tmp_path / "*.npy"))) == 3
    assert shard_statistics(SPEC, f"{tmp_path}/*.npy").digest == EXPECTED.digest
    np.save(tmp_path / "x.npy", FEATURES)
    np.save(tmp_path / "y.npy", LABELS)
    assert (
        shard_statistics(SPEC, [(tmp_path / "x.npy", tmp_path / "y.npy")]).digest == EXPECTED.digest
    )
    assert (
        shard_statistics(SPEC, Shard(tmp_path / "x.npy", tmp_path / "y.npy")).digest
        == EXPECTED.digest
    )
    np.save(tmp_path / "emb_1.npy", FEATURES)
    np.save(tmp_path / "cls_1.npy", LABELS)
    found = shard_statistics(SPEC, f"{tmp_path}/emb_*.npy", features="emb", labels="cls")
    assert found.digest == EXPECTED.digest


def test_a_file_whose_name_looks_like_a_pattern_is_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "part[1]", FEATURES, LABELS)
    assert shard_statistics(SPEC, path).digest == EXPECTED.digest


@pytest.mark.parametrize("kind", ["list", "large_list", "fixed", "columns", "dictionary"])
def test_parquet_in_all_its_forms(tmp_path: Path, kind: str) -> None:
    value = pa.float32()
    types = {
        "list": pa.list_(value),
        "large_list": pa.large_list(value),
        "fixed": pa.list_(value, SPEC.dim),
    }
    text = pa.dictionary(pa.int8(), pa.string()) if kind == "dictionary" else pa.string()
    columns: dict[str, Any] = {"Label ": pa.array(list(LABELS), pa.string()).cast(text)}
    names: str | list[str] = "feature"
    if kind == "columns":
        names = [f"x{place}" for place in range(SPEC.dim)]
        columns |= {name: FEATURES[:, place] for place, name in enumerate(names)}
    else:
        columns["features"] = pa.array(list(FEATURES), types.get(kind, pa.list_(value)))
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=9)
    assert shard_statistics(SPEC, tmp_path / "a.parquet", features=names).digest == EXPECTED.digest


def test_labels_in_all_their_forms(tmp_path: Path) -> None:
    indices = np.array([SPEC.labels.index(label) for label in LABELS])  # type: ignore[union-attr]
    path = write(tmp_path / "a", FEATURES, indices)
    with pytest.raises(UnknownLabelError, match=r"a\.parquet.*class indices"):
        shard_statistics(SPEC, path)
    assert shard_statistics(SPEC, path, label_indices=True).digest == EXPECTED.digest
    plain = Spec(dim=SPEC.dim, labels=(0, 1, 2))
    expected = whole(FEATURES, indices, plain)
    texts = write(tmp_path / "b", FEATURES, [str(index) for index in indices])
    assert (
        shard_statistics(plain, texts).digest
        == shard_statistics(plain, path).digest
        == expected.digest
    )
    soft = write(tmp_path / "c", FEATURES, list(np.eye(3)[indices]))
    assert shard_statistics(SPEC, soft).digest == EXPECTED.digest
    real = Spec(dim=SPEC.dim, outputs=2)
    targets = np.random.default_rng(1).standard_normal((40, 2))
    pq.write_table(
        pa.table({"feature": list(FEATURES), "u": targets[:, 0], "v": targets[:, 1]}),
        tmp_path / "d.parquet",
    )
    assert (
        shard_statistics(real, tmp_path / "d.parquet", labels=["u", "v"]).digest
        == whole(FEATURES, targets, real).digest
    )


def test_a_column_is_lost_only_if_it_lives_in_no_shard(tmp_path: Path) -> None:
    spec = Spec(dim=2, labels=("a",), grid=Grid(2, 10))
    faint, clear = np.array([[1.0, 1e-9]]), np.array([[1.0, 1.0]])
    lost = write(tmp_path / "faint", faint, ["a"], "npz")
    lives = write(tmp_path / "clear", clear, ["a"], "npz")
    assert (
        shard_statistics(spec, [lost, lives]).digest
        == whole(np.vstack([faint, clear]), ["a", "a"], spec).digest
    )
    with pytest.raises(LostColumnError, match="column 1"):
        shard_statistics(spec, [lost])
    accepted = shard_statistics(spec, [lost], lost_columns="accept")
    assert accepted.digest == Statistics.of(spec, faint, ["a"], lost_columns="accept").digest


def test_shards_and_tasks_travel(tmp_path: Path) -> None:
    for one in (
        Shard(tmp_path / "a.npz"),
        SPEC,
        EXPECTED,
        shards.ColumnNames("feature", ("u", "v")),
    ):
        assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - our own bytes
