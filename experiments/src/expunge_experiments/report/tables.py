"""Text for results: tables in Markdown, and numbers as people read them."""

from __future__ import annotations

import math

from expunge_experiments.runs.base import Summary, Table

MISSING = "–"  # noqa: RUF001 - an en dash marks a missing value
_UNITS = ("B", "kB", "MB", "GB", "TB")


def table_text(table: Table) -> str:
    """A table as Markdown, with its title above and its note below."""
    align = ["---:" if name in table.right else "---" for name in table.columns]
    lines = [_row(table.columns), _row(align), *(_row(row) for row in table.rows)]
    parts = [f"**{table.title}**", "\n".join(lines), *([table.note] if table.note else [])]
    return "\n\n".join(parts) + "\n"


def _row(cells: object) -> str:
    texts = (str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells)  # type: ignore[attr-defined]
    return f"| {' | '.join(texts)} |"


def fixed(value: float | None, digits: int = 4) -> str:
    """As in 0.8831; a dash for None."""
    return MISSING if value is None else f"{value:.{digits}f}"


def scientific(value: float | None) -> str:
    """As in 1.4e-09, 0 and a dash for None: for deviations."""
    if value is None:
        return MISSING
    return "0" if value == 0.0 else f"{value:.2e}"


def with_deviation(summary: Summary | None, digits: int = 4) -> str:
    """As in 0.8831 ± 0.0012; without the deviation where there is one value only, or all are
    equal.
    """
    if summary is None:
        return MISSING
    text = f"{summary.mean:.{digits}f}"
    return (
        text
        if summary.count == 1 or summary.deviation == 0.0
        else f"{text} ± {summary.deviation:.{digits}f}"
    )


def seconds_text(seconds: float | None) -> str:
    """As in 3.2 ms, 41 s and 2 min 5 s; three digits at most."""
    if seconds is None:
        return MISSING
    if seconds >= 99.5:
        whole = round(seconds)
        hours, rest = divmod(whole, 3600)
        return f"{hours} h {rest // 60} min" if hours else f"{whole // 60} min {whole % 60} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{_three(seconds / size)} {unit}"
    return "0 s" if seconds == 0.0 else f"{_three(seconds / 1e-9)} ns"


def bytes_text(number: float | None) -> str:
    """As in 512 B, 13.1 MB: decimal units."""
    if number is None:
        return MISSING
    power = min(len(_UNITS) - 1, int(math.log10(number) // 3)) if number >= 1 else 0
    return f"{_three(number / 1000**power)} {_UNITS[power]}"


def counted(number: int, noun: str) -> str:
    """As in "1 seed" and "5 seeds"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _three(value: float) -> str:
    """Three significant digits, without an exponent and without needless zeros after a point."""
    if value >= 99.95:
        return f"{value:,.0f}"
    text = f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".")
