"""Timing two sides in turns, and the table of results."""

from __future__ import annotations

import resource
import statistics
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass

# Seconds between sides: BLAS threads spin for a while after a call, and would slow the other side
# down
PAUSE = 0.25


@dataclass(frozen=True)
class Row:
    """One claim: what was measured, against what, the medians, and what is asked of their ratio."""

    what: str
    against: str
    ours: float
    theirs: float
    wanted: str
    holds: bool
    unit: str = "ms"
    faster: bool = False

    @property
    def ratio(self) -> str:
        """How many times slower or, where that is the claim, faster."""
        return (
            f"{self.theirs / self.ours:.1f}x faster"
            if self.faster
            else f"{self.ours / self.theirs:.2f}x"
        )


def seconds(work: Callable[[], object]) -> float:
    """How long some work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def cpu_seconds(work: Callable[[], object]) -> float:
    """How long the processes computed that some work has waited for, on all cores together."""
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime - start.ru_utime + end.ru_stime - start.ru_stime


def in_turns(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    turns: int,
    burst: int | tuple[int, int] = 1,
    timed: Callable[[Callable[[], object]], float] = seconds,
) -> tuple[float, float]:
    """Median milliseconds of both sides, run in turns so that a slow phase of the machine hits
    both.

    Short work is repeated `burst` times a turn (ours and theirs, if they differ), as in a stream of
    requests: otherwise waking up would be measured.
    """
    bursts = (burst, burst) if isinstance(burst, int) else burst
    ours(), theirs()
    timings: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns):
        for work, times, collected in zip((ours, theirs), bursts, timings, strict=True):
            time.sleep(PAUSE)
            collected.extend(timed(work) for _ in range(times))
    return 1e3 * statistics.median(timings[0]), 1e3 * statistics.median(timings[1])


def at_most(what: str, against: str, limit: float, timings: tuple[float, float]) -> Row:
    """The claim that ours takes at most `limit` times as long as theirs."""
    ours, theirs = timings
    return Row(what, against, ours, theirs, f"at most {limit:g}x", ours <= limit * theirs)


def at_least(what: str, against: str, limit: float, timings: tuple[float, float]) -> Row:
    """The claim that ours is at least `limit` times faster than theirs."""
    ours, theirs = timings
    return Row(
        what,
        against,
        ours,
        theirs,
        f"at least {limit:g}x faster",
        theirs >= limit * ours,
        faster=True,
    )


def progress(text: str) -> None:
    """What is being measured now."""
    sys.stderr.write(f"  measuring {text} ...\n")
    sys.stderr.flush()


def wrapped(page: str) -> str:
    """A page of Markdown with its prose in lines of at most 100 characters."""
    lines: list[str] = []
    for line in page.splitlines():
        starts = not lines or not lines[-1] or lines[-1].startswith(("|", "#"))
        if not line or starts or line.startswith(("|", "#", "- ")):
            lines.append(line)
        else:
            lines[-1] += f" {line.strip()}"
    return "\n".join(map(_wrapped_line, lines)) + "\n"


def _wrapped_line(line: str) -> str:
    if line.startswith(("|", "#")):
        return line
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(
        line, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def table(rows: list[Row]) -> str:
    """The results in Markdown."""
    lines = [
        "| what | against | ours | theirs | ratio | wanted | holds |",
        "|---|---|---:|---:|---:|---|---|",
    ]
    for row in rows:
        cells = (
            f"{row.ours:.4g} {row.unit}",
            f"{row.theirs:.4g} {row.unit}",
            row.ratio,
            row.wanted,
            "yes" if row.holds else "**no**",
        )
        lines.append(f"| {row.what} | {row.against} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
