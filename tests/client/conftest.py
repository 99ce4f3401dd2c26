"""Fixtures that tests of the client share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A federation with one client and its agent."""
    home = Home(tmp_path)
    yield home
    home.close()
