"""How many modules of Expunge `client add` and `client forget` go through: `python -m
benchmarks.modules` prints a table.

A module is *loaded* if it is imported when the command has ended, and *entered* if one of its
functions ran, in any thread, be it only because another module was being imported; what a module or
a class does when it is defined does not count, nor do methods that a dataclass has made. *On the
grid* is how often a block of samples was turned into integers. Over HTTPS the process is the client
alone; with the server's folder at hand it is both parties, and *by the server* are the modules that
the server's code went through, itself included.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_FUNCTION = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS
_GRID = "expunge.exact.grid:Grid.put"
_ROWS = """id,subject,label,a,b,c
s1,p1,cat,1,2,3
s2,p1,dog,2,1,0
s3,p2,cat,0,1,5
"""


@dataclass(frozen=True)
class Profile:
    """What a command went through."""

    loaded: frozenset[str]
    entered: frozenset[str]
    by_server: frozenset[str]
    on_grid: int

    @classmethod
    def of(cls, *arguments: str, folder: Path) -> Profile:
        """The profile of one command, run in a process of its own; `folder` is for scratch."""
        file = folder / "profile.json"
        subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-m", "benchmarks.modules", str(file), *arguments],
            cwd=Path(__file__).parent.parent,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        content = json.loads(file.read_text())
        loaded, entered, by_server = (
            frozenset(content[name]) for name in ("loaded", "entered", "by_server")
        )
        return cls(loaded, entered, by_server, content["on_grid"])


def _trace(file: Path, arguments: list[str]) -> None:
    """Run a command in this process, and write down what it went through."""
    calls: dict[str, int] = {}
    by_server: set[str] = set()
    names: dict[CodeType, str] = {}

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        name = names.get(frame.f_code)
        if name is None:
            name = names[frame.f_code] = _name_of(frame)
        if name:
            calls[name] = calls.get(name, 0) + 1
            module = name.partition(":")[0]
            if module not in by_server and _is_at_server(frame):
                by_server.add(module)

    threading.setprofile(called)
    sys.setprofile(called)
    try:
        from expunge.cli.main import main  # noqa: PLC0415 - its import is part of the profile

        main(arguments)
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
    content = {
        "loaded": [name for name in sys.modules if name.partition(".")[0] == "expunge"],
        "entered": sorted({name.partition(":")[0] for name in calls}),
        "by_server": sorted(by_server),
        "on_grid": calls.get(_GRID, 0),
    }
    file.write_text(json.dumps(content))


def _name_of(frame: FrameType) -> str:
    """The function of ours that a frame runs; nothing if it is none."""
    code, module = frame.f_code, frame.f_globals
    is_function = code.co_flags & _FUNCTION == _FUNCTION
    is_ours = str(module.get("__name__")).startswith("expunge.")
    if is_function and is_ours and code.co_filename == module.get("__file__"):
        return f"{module['__name__']}:{code.co_qualname}"
    return ""


def _is_at_server(frame: FrameType | None) -> bool:
    """Whether the server's code is at work, or has called what is."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("expunge.server"):
            return True
        frame = frame.f_back
    return False


def _expunge(*arguments: object) -> None:
    subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "expunge", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        check=True,
    )


@contextmanager
def served(federation: Path) -> Iterator[str]:
    """`expunge serve` in a process of its own; its URL."""
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "expunge", "serve", str(federation), "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            yield str(json.loads(line)["urls"][0])
        finally:
            process.terminate()
            process.wait()


def profiles(folder: Path, *, over_https: bool) -> dict[str, Profile]:
    """`client add` and `client forget`, in a new federation without secure aggregation."""
    federation, client, rows = folder / "federation", folder / "clinic", folder / "rows.csv"
    rows.write_text(_ROWS)
    _expunge("init", federation, "--dim", 3, "--labels", "cat,dog", "--host", "localhost")
    token = folder / "clinic.token"
    _expunge("server", "token", "clinic", "--office", federation / "operator", "-o", token)
    if over_https:
        with served(federation) as url:
            return _profiles(folder, client, token, rows, url)
    return _profiles(folder, client, token, rows, str(federation))


def _profiles(folder: Path, client: Path, token: Path, rows: Path, at: str) -> dict[str, Profile]:
    place = ("--dir", str(client), "--at", at)
    _expunge("enroll", token, *place)
    return {
        "client add": Profile.of("client", "add", str(rows), *place, folder=folder),
        "client forget": Profile.of(
            *("client", "forget", "--subject", "p1", "--yes", *place), folder=folder
        ),
    }


def main() -> None:
    """Print the table."""
    print("| command | way to the server | loaded | entered | by the server | on the grid |")
    print("|---|---|---:|---:|---:|---:|")
    for way, over_https in (("HTTPS", True), ("its folder", False)):
        with tempfile.TemporaryDirectory() as folder:
            for name, profile in profiles(Path(folder), over_https=over_https).items():
                modules = (profile.loaded, profile.entered, profile.by_server)
                counts = (*map(len, modules), profile.on_grid)
                print(f"| {name} | {way} | {' | '.join(map(str, counts))} |")


if __name__ == "__main__":
    if sys.argv[1:]:
        _trace(Path(sys.argv[1]), sys.argv[2:])
    else:
        main()
