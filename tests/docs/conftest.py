"""Tests of the documentation site: all of this folder, and only in `make docs`, in an environment
of its own.

Nothing here imports MkDocs when tests are collected, so `make test` can deselect these tests
without having it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.docs)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The site, built strictly, and what MkDocs printed."""
    folder = tmp_path_factory.mktemp("site")
    process = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    printed = process.stdout + process.stderr
    assert process.returncode == 0, printed
    return folder, printed


@pytest.fixture(scope="session")
def site(build: tuple[Path, str]) -> Path:
    return build[0]
