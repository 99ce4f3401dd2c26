"""The same statistics on a real Ray and a real Dask; what was running before goes on afterwards."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge.data import shard_statistics
from expunge.data.engines import engine_of
from expunge.errors import ExpungeError, FormatError, NotFiniteError
from support.shards import FORMS, SPEC, samples, whole, write, written

pytestmark = [
    pytest.mark.extras,
    # Of Ray and Dask themselves, while they start and stop.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
    ),
]

FEATURES, LABELS = samples(60)
EXPECTED = whole(FEATURES, LABELS).digest


@pytest.fixture(autouse=True, scope="module")
def cleaned() -> Iterator[None]:
    """Files that Ray forgets to close are closed while its warnings are still ignored."""
    yield
    gc.collect()


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return written(tmp_path, FEATURES, LABELS, [0, 4, 9, 20, 33, 50], FORMS)


def refusals(shards: list[Path], folder: Path, **options: Any) -> None:
    """What is wrong with a shard comes back as it was said where it was read."""
    bad = FEATURES[:5].copy()
    bad[3, 1] = np.inf
    spoilt = write(folder / "spoilt", bad, LABELS[:5], "npz")
    with pytest.raises(NotFiniteError, match=r"row 3 of .*spoilt\.npz: column 1"):
        shard_statistics(SPEC, [*shards, spoilt], **options)
    spoilt.write_bytes(spoilt.read_bytes()[:200])
    with pytest.raises(FormatError, match=r"spoilt\.npz"):
        shard_statistics(SPEC, [spoilt, *shards], **options)
    assert shard_statistics(SPEC, shards, **options).digest == EXPECTED


def dies(on: Any) -> None:
    """A worker that ends whenever it is given this shard."""
    with pytest.raises(ExpungeError, match="a worker was lost"), engine_of(on, 1) as engine:
        engine.finished([engine.run(os._exit, 3)])


class TestRay:
    @pytest.fixture(scope="class")
    def ray(self) -> Iterator[Any]:
        ray = pytest.importorskip("ray")
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()

    def test_one_that_is_running_is_used_and_left(
        self, ray: Any, shards: list[Path], tmp_path: Path
    ) -> None:
        told: list[int] = []
        assert shard_statistics(SPEC, shards, on="ray", progress=told.append).digest == EXPECTED
        assert told == list(range(1, 8))
        assert ray.is_initialized()
        refusals(shards, tmp_path, on="ray", workers=2)
        assert ray.is_initialized()

    @pytest.mark.usefixtures("ray")
    def test_a_worker_that_dies_is_told_as_that(self) -> None:
        dies("ray")


def test_a_ray_that_was_started_for_it_is_stopped(shards: list[Path]) -> None:
    ray = pytest.importorskip("ray")
    assert shard_statistics(SPEC, shards, on="ray", workers=1).digest == EXPECTED
    assert not ray.is_initialized()


def test_a_cluster_that_others_have_left_is_not_joined(
    shards: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as place:
        (Path(place) / "ray").mkdir()
        (Path(place) / "ray" / "ray_current_cluster").write_text("127.0.0.1:9")
        monkeypatch.setenv("RAY_TMPDIR", place)
        assert shard_statistics(SPEC, shards, on="ray", workers=1).digest == EXPECTED


class TestDask:
    @pytest.fixture(scope="class")
    def client(self) -> Iterator[Any]:
        distributed = pytest.importorskip("distributed")
        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address=None
            ) as cluster,
            distributed.Client(cluster, set_as_default=False) as client,
        ):
            yield client

    def test_a_client_that_is_given(self, client: Any, shards: list[Path], tmp_path: Path) -> None:
        assert shard_statistics(SPEC, shards, on=client).digest == EXPECTED
        refusals(shards, tmp_path, on=client, workers=1)
        assert client.status == "running"

    def test_the_current_client(self, client: Any, shards: list[Path]) -> None:
        with client.as_current():
            assert shard_statistics(SPEC, shards, on="dask").digest == EXPECTED
        assert client.status == "running"

    def test_a_worker_that_dies_is_told_as_that(self, client: Any) -> None:
        dies(client)


def test_a_dask_that_was_started_for_it_is_stopped(shards: list[Path]) -> None:
    distributed = pytest.importorskip("distributed")
    assert shard_statistics(SPEC, shards, on="dask", workers=1).digest == EXPECTED
    with pytest.raises(ValueError, match="No "):
        distributed.get_client()
