"""What several tests of the server begin with."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import seeds
from support.federation import Clock, Federation, scratch
from support.masked_round import Circle, settled, twin_of


def made_once(
    name: str, fill: Callable[[Federation], object], **options: Any
) -> Iterator[Federation]:
    """A federation for many tests, each of which takes a twin of it; it is closed."""
    place = scratch()
    with seeds.apart(name), Federation(place / "server", **options) as federation:
        fill(federation)
    yield federation
    shutil.rmtree(place)


@pytest.fixture(scope="session")
def founded() -> Iterator[Federation]:
    """A federation with one client that has five samples."""

    def fill(federation: Federation) -> None:
        federation.enrol("clinic").send(federation.draw(5))

    yield from made_once("founded", fill, clock=Clock())


@pytest.fixture(scope="session")
def two_kinds() -> Iterator[Federation]:
    """A federation whose clients send rows and statistics."""

    def fill(federation: Federation) -> None:
        federation.enrol("clinic").send(federation.draw(6))
        federation.enrol("lab").send(federation.draw(3), kind="gram")

    yield from made_once("two kinds", fill)


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
