"""Fixtures that tests of the office share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.offices import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    here = Place(tmp_path)
    yield here
    here.office.close()
    here.service.close()
