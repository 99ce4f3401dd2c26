"""Tests that need torch and its kin: all of this folder, and only in `make test-extras`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.extras_environment import dinov2, library, mark, minilm, offline, torch

__all__ = ["dinov2", "library", "minilm", "offline", "torch"]  # fixtures of tests here


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, Path(__file__).parent)
