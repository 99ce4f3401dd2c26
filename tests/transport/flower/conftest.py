"""Tests that need flwr: all of this folder, and only in `make test-extras`, in an environment of
their own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.flower_environment import heard, imported, mark

__all__ = ["heard", "imported"]  # fixtures of every test here


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, Path(__file__).parent)
