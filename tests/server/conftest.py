"""What several tests of the server begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.federation import Clock, Federation


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    """A federation whose clock is moved by hand, with one client that has five samples."""
    with Federation(tmp_path / "server", clock=Clock()) as federation:
        federation.enrol("clinic").send(federation.draw(5))
        yield federation
