"""How evidence is put into words: times, and text of unknown origin made harmless to show."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)

# Controls, invisible and direction characters, half surrogate pairs, tags. Written out rather than asked of Python's character
# database, which differs between versions: the page of a bundle must not.
_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\uffff"
    "\U000e0000-\U000e0fff]"
)


def moment(time: str) -> str:
    """2026-11-15T09:30:00Z as "15 November 2026, 09:30:00 UTC"."""
    return f"{int(time[8:10])} {_MONTHS[int(time[5:7]) - 1]} {time[:4]}, {time[11:19]} UTC"


def shown(text: str) -> str:
    """`text` with every character that has no honest picture of its own written out as its number."""
    return _HARMFUL.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text)


def samples(count: int) -> str:
    """As in "no samples", "1 sample", "2 samples"."""
    return number(count, "sample")


def number(count: int, noun: str) -> str:
    """A count with its noun, for nouns with a regular plural."""
    plural = noun.removesuffix("y") + "ies" if noun.endswith("y") else noun + "s"
    return f"{count or 'no'} {noun if count == 1 else plural}"


def listed(parts: Sequence[str]) -> str:
    """As in "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
