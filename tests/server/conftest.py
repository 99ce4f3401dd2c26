"""What several tests of the server begin with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import seeds
from support.federation import Clock, Federation, scratch
from support.masked_round import Circle, settled, twin_of


@pytest.fixture(scope="session")
def founded() -> Iterator[Federation]:
    """A federation with one client that has five samples: it is made once, and closed."""
    place = scratch()
    with (
        seeds.apart("founded"),
        Federation(place / "server", clock=Clock()) as federation,
    ):
        federation.enrol("clinic").send(federation.draw(5))
    yield federation
    shutil.rmtree(place)


@pytest.fixture
def federation(founded: Federation, tmp_path: Path) -> Iterator[Federation]:
    """A twin of it, whose clock is moved by hand."""
    with founded.twin(tmp_path / "server") as federation:
        yield federation


@pytest.fixture
def circle_of_four() -> Iterator[Circle]:
    """Four clients under secure aggregation, after one round of all of them."""
    with twin_of(settled()) as circle:
        yield circle
