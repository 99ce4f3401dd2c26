"""What all tests share: one Hypothesis profile, and surroundings that differ from test to test.

No test may depend on the length of the temporary path, or on the terminal's width or colours. So
each test has surroundings of its own: a narrow or a wide terminal, and a temporary folder whose
path is short or long. They are drawn from the test's name and the seed of pytest-randomly, so that
the same seed draws the same ones again, and each test meets all of them in the course of time.
`--surroundings narrow-long` has all tests run in these.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline, because the machine is shared; the blob replays a failure anywhere.
settings.register_profile(
    "expunge",
    deadline=None,
    print_blob=True,
    max_examples=50,
    derandomize="CI" in os.environ,
)
settings.load_profile("expunge")

_COLUMNS = {"narrow": 40, "wide": 200}
_SURROUNDINGS = [f"{width}-{folder}" for width, folder in product(_COLUMNS, ("short", "long"))]
_LONG = 160  # characters at least
_TERMINAL = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "TERM", "LINES")


@dataclass(frozen=True)
class Surroundings:
    """Where a test runs."""

    columns: int
    has_long_path: bool


def pytest_addoption(parser: pytest.Parser) -> None:
    """The same surroundings for all tests."""
    parser.addoption(
        "--surroundings", choices=_SURROUNDINGS, help="of all tests; else drawn for each of them"
    )


@pytest.fixture
def surroundings(request: pytest.FixtureRequest) -> Surroundings:
    """The surroundings of one test; a failing one says which."""
    seed = request.config.getoption("randomly_seed", 0)
    drawn = random.Random(f"{seed} {request.node.nodeid}").choice(_SURROUNDINGS)  # noqa: S311 - no secret
    name = request.config.getoption("surroundings") or drawn
    request.node.add_report_section("setup", "surroundings", name)
    width, folder = name.split("-")
    return Surroundings(_COLUMNS[width], folder == "long")


@pytest.fixture(autouse=True)
def _terminal(surroundings: Surroundings) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in _TERMINAL:
            patch.delenv(name, raising=False)
        patch.setenv("COLUMNS", str(surroundings.columns))
        yield


@pytest.fixture
def tmp_path(tmp_path: Path, surroundings: Surroundings) -> Iterator[Path]:
    """An empty folder, whose path is short or long."""
    if surroundings.has_long_path:
        while len(str(tmp_path)) < _LONG:
            tmp_path /= "a-folder-with-a-rather-long-name"
        tmp_path.mkdir(parents=True, exist_ok=True)  # pytest's own may be long enough
        yield tmp_path
        return
    short = Path(tempfile.mkdtemp(prefix="t"))
    yield short
    shutil.rmtree(short, ignore_errors=True)
