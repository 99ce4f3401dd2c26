"""What all tests share: one seed, one Hypothesis profile, surroundings that differ between tests.

EXPUNGE_SEED is the seed of whatever is drawn (`tests/support/seeds.py`).

No test may depend on the length of the temporary path, or on the terminal's width or colours. So
each test has surroundings of its own: a narrow or a wide terminal, and a temporary folder whose
path is short or long. They are drawn from the test's name and the seed, so that the same seed draws
the same ones again, and each test meets all of them in the course of time.
`--surroundings narrow-long` has all tests run in these.

Temporary folders are in memory where the machine has room for them: many tests write, and none asks
what a disk keeps when the power fails. Where TMPDIR is set, they are there.
"""

from __future__ import annotations

import gc
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support import seeds, signatures

seeds.rule_secrets()
signatures.remember()

_COLUMNS = {"narrow": 40, "wide": 200}
_SURROUNDINGS = [f"{width}-{folder}" for width, folder in product(_COLUMNS, ("short", "long"))]
_LONG = 160  # characters at least
_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
_ROOM = 1 << 30  # bytes; a run has less than 100 MB at a time
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


# -- the seed --------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)  # before the plugins that draw look at their options
def pytest_configure(config: pytest.Config) -> None:
    """One seed for Hypothesis, pytest-randomly and all that is drawn by hand."""
    try:
        seeds.settle()
    except ValueError as problem:
        raise pytest.UsageError(str(problem)) from problem
    number = seeds.given()
    if getattr(config.option, "randomly_seed", None) == "default":
        config.option.randomly_seed = seeds.seed()
    if number is not None and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(number)
    # What the machine's speed decides is left out, for it is shared: deadlines, one health check.
    # So are examples of earlier runs. The blob replays a failure anywhere.
    settings.register_profile(
        "expunge",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        database=None,
        print_blob=True,
        max_examples=50,
        derandomize=config.option.hypothesis_seed is None,
    )
    settings.load_profile("expunge")
    if "TMPDIR" not in os.environ and _has_room(_MEMORY):
        folder = tempfile.mkdtemp(prefix="e", dir=_MEMORY)
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ["TMPDIR"] = tempfile.tempdir = folder  # for processes that tests start, too


def _has_room(folder: Path) -> bool:
    """Whether much can be written to a folder, and what is written can be run."""
    if not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= _ROOM and not found.f_flag & os.ST_NOEXEC


def pytest_report_header() -> str:
    """The seed, or that it is the usual one."""
    number = seeds.given()
    return f"{seeds.VARIABLE}: {'unset, so the same for every run' if number is None else number}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How to replay what has failed, where that takes a seed."""
    number, stats = seeds.given(), terminalreporter.stats
    failed = [*stats.get("failed", []), *stats.get("error", [])]
    if number is not None and failed:
        names = shlex.join(dict.fromkeys(report.nodeid for report in failed[:10]))
        terminalreporter.write_line(f"Replay: {seeds.VARIABLE}={number} pytest {names}")


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a module draws when it is imported."""
    seeds.begin(collector.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that take long begin first, so that at the end no worker waits for one of them. What
    has the same seed has the same order.
    """
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the garbage collector need not look at it again. Nor
    need it look so often at what tests make, which is soon gone.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a test draws."""
    seeds.begin(item.nodeid)


# -- surroundings ----------------------------------------------------------------------------------


@pytest.fixture
def surroundings(request: pytest.FixtureRequest) -> Surroundings:
    """The surroundings of one test; a failing one says which."""
    drawn = seeds.chance(request.node.nodeid).choice(_SURROUNDINGS)
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
