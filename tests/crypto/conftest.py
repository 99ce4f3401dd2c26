"""Tests of keys verify every signature."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import signatures


@pytest.fixture(autouse=True)
def _verifying() -> Iterator[None]:
    with signatures.forgotten():
        yield
