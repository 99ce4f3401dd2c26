"""The pages that lead to a first federation, and to one with secure aggregation, are run as they
stand.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.pages import free_port, run_shell


def server_log(folder: Path) -> str:
    """The log of a server that has come to its end."""
    log = (folder / "server.log").read_text()
    assert '"event": "stopped"' in log
    return log


@pytest.mark.long
def test_every_command_of_the_first_page_works(tmp_path: Path) -> None:
    port = {"8443": str(free_port())}
    printed = run_shell("docs/how-to/first-federation.md", tmp_path, changes=port)
    assert server_log(tmp_path)
    assert printed.words.count("carried out: 2 samples found and deleted") == 2
    assert re.search(r"Audit [0-9a-f]{8}: equal", printed.words)
    assert "Verified: Evidence of erasure order" in printed
    assert "Verified: Receipt for request 2 of garden-a" in printed
    assert "Error: altered.html failed verification" in printed
    rows = [row.split(",")[:2] for row in (tmp_path / "predictions.csv").read_text().splitlines()]
    assert rows == [["id", "label"], ["x1", "setosa"], ["x2", "versicolor"], ["x3", "virginica"]]


@pytest.mark.long
def test_every_command_of_the_page_on_secure_aggregation_works(tmp_path: Path) -> None:
    port = {"8443": str(free_port())}
    printed = run_shell("docs/how-to/secure-aggregation.md", tmp_path, changes=port)
    log = server_log(tmp_path)
    assert "it waits for 2 more clients" in printed
    assert "3 keys pinned by garden-a: garden-a, garden-b, garden-c." in printed
    assert "Verified: Receipt for request 2 of garden-b, in a round of 3 clients" in printed
    assert re.search(r"Deleted by all of them +4 samples", printed.words)
    assert re.search(r"Evidence of erasure order [0-9a-f]{32}, complete", printed.words)
    assert re.search(r"Audit [0-9a-f]{8}: equal", printed.words)
    assert '"route": "/v1/aggregations"' in log
    assert "bob" not in log
