"""Pages of the documentation: their blocks of code, and how these are run.

The language of a block says who runs it:

    python    `make test`, all blocks of a page as one script
    py        `make test-extras`, as they need libraries that `make test` does not have
    bash      real processes, all blocks of a page as one script
    console   nobody: it holds a command that cannot be run here; commands are still checked

`tests/test_examples.py` holds every page to that. A page with `py` or `bash` has one test that
calls `run_python` or `run_shell` with its name.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt  # comes with rich

from support.printed import Printed

ROOT = Path(__file__).parents[2]
_PATTERNS = ("README.md", "CONTRIBUTING.md", "experiments/README.md", "docs/**/*.md")
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for pattern in _PATTERNS
    for path in sorted(ROOT.glob(pattern))
}


@dataclass(frozen=True)
class Block:
    """A block of code. One that is indented instead of fenced has no language."""

    page: str
    line: int  # of the page, at which the code begins
    language: str
    text: str
    is_fenced: bool = True

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def parse(page: str, text: str) -> tuple[list[Block], list[str]]:
    """The blocks of code of a text in Markdown, and the code within its sentences."""
    blocks, spans = [], []
    for token in MarkdownIt().parse(text):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            fenced = token.type == "fence"
            language, line = token.info.strip(), token.map[0] + 1 + fenced
            blocks.append(Block(page, line, language, token.content, fenced))
        spans += [child.content for child in token.children or () if child.type == "code_inline"]
    return blocks, spans


def blocks_of(page: str, *languages: str) -> list[Block]:
    """The blocks of a page in these languages; in all, if none is named."""
    blocks, _ = parse(page, PAGES[page].read_text(encoding="utf-8"))
    return [block for block in blocks if not languages or block.language in languages]


def script(page: str, *languages: str) -> str:
    """All blocks of a page in these languages, at the lines where they stand on the page."""
    lines: list[str] = []
    for block in blocks_of(page, *languages):
        lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    assert lines, f"{page} has no block in {languages}"
    return "\n".join(lines) + "\n"


def run_python(page: str, *languages: str, **given: Any) -> dict[str, Any]:
    """Run the Python of a page in the working directory; the names that it leaves.

    `given` are names that the page takes for granted.
    """
    names = {"__name__": "documentation", **given}
    exec(compile(script(page, *languages), str(PAGES[page]), "exec"), names)  # noqa: S102 - our own documentation
    return names


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_shell(
    page: str,
    folder: Path,
    *,
    prelude: str = "",
    changes: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float = 300,
) -> Printed:
    """Run the bash of a page in a folder; what it printed. Any command that fails fails the test.

    `prelude` comes first: what the page takes for granted. `changes` replaces what differs here,
    such as the names of hosts; each must be on the page.
    """
    text = script(page, "bash")
    for printed, here in (changes or {}).items():
        assert printed in text, f"{printed} is not on {page}"
        text = text.replace(printed, here)
    process = subprocess.Popen(  # noqa: S603 - our own page
        [str(shutil.which("bash")), "-c", f"set -euo pipefail\n{prelude}\n{text}"],
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if name[:8] != "EXPUNGE_"},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **(environment or {}),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=seconds)
    finally:
        with suppress(ProcessLookupError):  # servers too, if the script did not come to its end
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, printed
    return Printed(printed)
