"""Scrubs: everything in a store is read, and compared with what it must agree with.

What nobody reads for years may be damaged for years: evidence, tags, the share of a client that is
silent. A scrub reads all of it. What is kept twice, or is authenticated, can be put right: indexes
from their tables, tags from sealed names, hashes from entries, and one flipped bit from whatever it
was sealed or hashed with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from expunge.errors import ExpungeError
from expunge.storage.sqlite import Database

Progress = Callable[[str, int, int | None], None]
_INDEX_ONLY = ("missing from index", "wrong # of entries in index", "non-unique entry in index")


def no_progress(_: str, __: int, ___: int | None) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Finding:
    """Something that is damaged.

    Attributes
    ----------
    what : str
        The part of the store: `"database"`, `"samples"`, `"receipts"`, ...
    text : str
        What is wrong with it; nothing personal.
    repaired : bool
        Whether it has been put right.
    remedy : str
        What to do if it has not.
    """

    what: str
    text: str
    repaired: bool = False
    remedy: str = ""


@dataclass
class ScrubResult:
    """What a scrub has read and found.

    Attributes
    ----------
    read : dict of str to int
        How many of each kind were read.
    findings : list of Finding
        What was damaged; empty if all is whole.
    """

    read: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is damaged any more."""
        return all(finding.repaired for finding in self.findings)


class Scrub:
    """One scrub of one store, step by step; `repair` says whether damage is to be put right."""

    def __init__(self, *, repair: bool, progress: Progress = no_progress) -> None:
        self.repair = repair
        self.result = ScrubResult()
        self._progress = progress

    def count(self, what: str, done: int, total: int | None = None) -> None:
        """So many of something have been read."""
        self.result.read[what] = done
        self._progress(what, done, total)

    def found(self, what: str, text: str, *, repaired: bool = False, remedy: str = "") -> None:
        """Note that something is damaged."""
        self.result.findings.append(Finding(what, text, repaired, "" if repaired else remedy))

    def attempt(self, what: str, step: Callable[[], None], remedy: str) -> None:
        """Take a step; that it cannot be taken is a finding."""
        try:
            step()
        except ExpungeError as problem:
            self.found(what, str(problem), remedy=remedy)

    def database(self, database: Database) -> None:
        """The file of a database; indexes are made anew from their tables."""
        problems = database.damage()
        of_indexes = [text for text in problems if any(words in text for words in _INDEX_ONLY)]
        mended = False
        if self.repair and of_indexes:
            database.rebuild_indexes()
            mended = True
            problems = [*of_indexes, *database.damage()]
        for text in problems:
            is_index = text in of_indexes
            self.found(
                "database",
                text,
                repaired=mended and is_index,
                remedy="its indexes can be made anew (--repair)" if is_index else database.remedy,
            )
        self.count("database", 1, 1)


def one_bit_off(data: bytes) -> Iterator[bytes]:
    """All bytes that differ from these by one bit."""
    for place in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        yield bytes(flipped)
