"""Stores that keep no features: what is computed again must be what was committed to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from expunge import Statistics
from expunge.client import ClientStore, Selection
from expunge.errors import CommitmentError, InputError
from support.client_files import rows_of
from support.clients import NOW, SPEC, Server, deliver, features, ids, make_store


class Pictures:
    """A backbone that computes features from files of numbers, and counts."""

    def __init__(self, folder: Path, rows: NDArray[Any]) -> None:
        self.sources = [str(folder / f"picture-{number}.npy") for number in range(len(rows))]
        self.seen = 0
        for source, row in zip(self.sources, rows, strict=True):
            np.save(source, row)

    def __call__(self, sources: list[str]) -> NDArray[Any]:
        self.seen += len(sources)
        return np.stack([np.load(source) for source in sources])


class TestRecomputing:
    @pytest.fixture
    def pictures(self, tmp_path: Path) -> Pictures:
        return Pictures(tmp_path, features(4))

    @pytest.fixture
    def store(self, tmp_path: Path, pictures: Pictures) -> Any:
        with make_store(tmp_path, mode="recompute") as store:
            store.add(ids(4), features(4), [0, 1, 2, 0], sources=pictures.sources, now=NOW)
            yield store

    def kept(self, store: ClientStore) -> int:
        opened = store.opened(Selection(everything=True))
        return sum(sample.content.feature is not None for _, sample in opened)

    def test_features_are_kept_until_the_receipt_only(
        self, store: ClientStore, pictures: Pictures
    ) -> None:
        assert self.kept(store) == 4
        server = Server()
        deliver(store, server)
        assert self.kept(store) == 0
        assert store.statistics(recompute=pictures) == server.statistics
        assert pictures.seen == 4
        with pytest.raises(InputError, match="not kept"):
            store.statistics()

    def test_a_deletion_needs_the_very_feature(
        self, store: ClientStore, pictures: Pictures
    ) -> None:
        server = Server()
        deliver(store, server)
        with pytest.raises(InputError, match="not kept"):
            store.forget(Selection(ids=["sample-1"]))
        np.save(pictures.sources[1], features(4)[1] * np.float32(1 + 2**-20))
        before = store.status()
        with pytest.raises(CommitmentError, match=r"^the feature of a sample is not the one"):
            store.forget(Selection(ids=ids(3)), recompute=pictures)
        assert store.status() == before
        assert self.kept(store) == 0
        np.save(pictures.sources[1], features(4)[1])
        store.forget(Selection(ids=ids(3)), recompute=pictures)
        for source in pictures.sources:
            Path(source).unlink()
        header = deliver(store, server)
        assert header is not None
        assert header.deleted == 3
        assert server.statistics == Statistics.of(SPEC, features(4)[3:], [0])

    def test_a_correction_of_the_label(self, store: ClientStore, pictures: Pictures) -> None:
        server = Server()
        deliver(store, server)
        store.correct("sample-0", label="dog", recompute=pictures)
        deliver(store, server)
        assert (
            server.statistics
            == Statistics.of(SPEC, features(4), [1, 1, 2, 0])
            == store.statistics(recompute=pictures)
        )
        before = store.status(), rows_of(store, "SELECT content FROM samples ORDER BY slot")
        assert store.correct("sample-0", label="dog", recompute=pictures) is False
        source = pictures.sources[0]
        same = {"feature": features(4)[0], "source": source, "recompute": pictures}
        assert store.correct("sample-0", **same) is False
        assert (
            store.status(),
            rows_of(store, "SELECT content FROM samples ORDER BY slot"),
        ) == before
        with pytest.raises(InputError, match="source="):
            store.correct("sample-0", feature=features(1)[0], recompute=pictures)
        np.save(pictures.sources[0], features(1, 5)[0])
        with pytest.raises(CommitmentError):
            store.correct(
                "sample-0",
                feature=features(1, 5)[0],
                source=pictures.sources[0],
                recompute=pictures,
            )

    def test_sources_are_needed(self, store: ClientStore) -> None:
        with pytest.raises(InputError, match="sources="):
            store.add(["x"], features(1), [0], now=NOW)

    def test_a_reset_computes_everything_again(
        self, store: ClientStore, pictures: Pictures
    ) -> None:
        deliver(store, Server())
        composition = store.outbox.compose(reset=True)
        assert composition is not None
        server = Server(sequence=1)
        store.outbox.settle(2, server.offer(store.outbox.encode(composition, recompute=pictures)))
        assert server.statistics == Statistics.of(SPEC, features(4), [0, 1, 2, 0])
        assert self.kept(store) == 0

    def test_a_wrong_number_of_features_is_refused(self, store: ClientStore) -> None:
        deliver(store, Server())
        with pytest.raises(
            InputError, match="1 features were to be computed again, but 2 came back"
        ):
            store.forget(Selection(ids=["sample-0"]), recompute=lambda _: features(2))
