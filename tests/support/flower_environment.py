"""What tests need that run Flower: its settings before it is imported, and its log.

Nothing here imports flwr when tests are collected, so `make test` can deselect these tests without
having it. A test that runs and lacks it fails.
"""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

# Before flwr is first imported, which reads them then. The processes that tests start inherit them.
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
os.environ.update(OFFLINE)


def mark(items: Iterable[pytest.Item], folder: Path) -> None:
    """All tests of this folder need Flower."""
    for item in items:
        if item.path.is_relative_to(folder):
            item.add_marker(pytest.mark.extras)
            item.add_marker(pytest.mark.flower)


@pytest.fixture(scope="session", autouse=True)
def imported() -> None:
    """What flwr's own imports warn of is not ours to mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("client_app", "inprocess", "server_app"):
            importlib.import_module(f"expunge.transport.flower.{name}")


@pytest.fixture(autouse=True)
def heard(imported: None) -> Iterator[None]:
    """Flower's logger keeps its lines to itself, unless it is asked to pass them on."""
    logger = logging.getLogger("flwr")
    before, logger.propagate = logger.propagate, True
    yield
    logger.propagate = before
