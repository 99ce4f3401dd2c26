"""How much code a command goes through, counted: see benchmarks/modules.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.modules import profiles

UNWANTED = (
    "server.",
    "secagg",
    "client.secagg",
    "client.contributor",
    "solvers.certify",
    "backbones.base",
)


@pytest.mark.long
def test_a_client_goes_through_few_modules_and_once_to_the_grid(tmp_path: Path) -> None:
    """It loads neither server nor solvers nor masks nor backbones."""
    client = profiles(tmp_path, over_https=True)
    for profile in client.values():
        assert {"expunge.client.outbox", "expunge.client.delivery"} <= profile.entered
        assert len(profile.entered) <= 65
        assert len(profile.loaded) <= 90
        assert profile.on_grid == 1
    loaded = [name.removeprefix("expunge.") for name in client["client add"].loaded]
    assert [name for name in loaded if name.startswith(UNWANTED)] == []


@pytest.mark.long
def test_both_parties_in_one_process_go_to_the_grid_once(tmp_path: Path) -> None:
    """The client does; what it sends is integers, and the server takes them as they are."""
    both = profiles(tmp_path, over_https=False)
    for profile in both.values():
        assert "expunge.server.requests" in profile.by_server
        assert "expunge.client.outbox" not in profile.by_server
        assert len(profile.by_server) <= 68
        assert "expunge.client.secagg" not in profile.loaded
        assert profile.on_grid == 1
