"""Which versions of the protocol a party speaks, and what to do where two have none in common.

A party says it in a header of each HTTP message, `expunge-protocols: 1-2`. Expunge 0.1 sent none,
and is known by its user agent; who sends neither is taken at its word, whatever it sends.

    version  since  what is new
    1        0.1.0
    2        0.2.0  entries of the log that say what their digest binds; rounds of secure
                    aggregation whose clients agree on who is in the sum
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from expunge.errors import RefusedError

HEADER = "expunge-protocols"
# The user agents of clients of version 1, which send no header: when they ask, and when they send.
_FIRST_AGENTS = ("expunge", "python-urllib3/")
_RELEASES = {1: "0.1.0", 2: "0.2.0"}  # the first that speaks a version
_TEXT = re.compile(r"([1-9][0-9]{0,5})-([1-9][0-9]{0,5})")


@dataclass(frozen=True)
class Window:
    """The versions that a party speaks, both ends included."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return f"{self.oldest}-{self.newest}"

    @property
    def text(self) -> str:
        """It, for people."""
        return (
            f"version {self.newest}"
            if self.oldest == self.newest
            else f"versions {self.oldest} to {self.newest}"
        )

    def overlaps(self, other: Window) -> bool:
        """Whether there is a version that both speak."""
        return self.oldest <= other.newest and other.oldest <= self.newest


FIRST = Window(1, 1)
BY_SERVERS = Window(2, 2)
BY_CLIENTS = Window(1, 2)  # offices and aggregators too
BY_MASKED_CLIENTS = Window(2, 2)  # in rounds of secure aggregation


def window_of(text: str) -> Window | None:
    """The window that a header says; None if it says none."""
    match = _TEXT.fullmatch(text.strip())
    if match is None or int(match[1]) > int(match[2]):
        return None
    return Window(int(match[1]), int(match[2]))


def sender(header: str | None, agent: str, method: str) -> Window | None:
    """The window of whoever sent a request; None if that is not known."""
    if header is not None:
        return window_of(header)
    asks, sends = _FIRST_AGENTS
    return FIRST if agent == asks or (method == "POST" and agent.startswith(sends)) else None


def require_client(theirs: Window | None, ours: Window = BY_SERVERS) -> None:
    """Refuse a client, office or aggregator that speaks no version in common with this server."""
    if theirs is not None and not theirs.overlaps(ours):
        raise RefusedError(
            "wrong-protocol",
            f"{_remedy('this server', ours, 'the client', theirs)}. Nothing was changed",
        )


def problem_with_server(theirs: Window, ours: Window = BY_CLIENTS) -> str:
    """Why this client cannot speak to a server, and what to do; empty if it can."""
    return "" if theirs.overlaps(ours) else _remedy("this client", ours, "the server", theirs)


def _remedy(here: str, ours: Window, there: str, theirs: Window) -> str:
    """Which of the two has to be upgraded is the one that speaks older versions."""
    behind, least = (there, ours.oldest) if theirs.newest < ours.oldest else (here, theirs.oldest)
    release = _RELEASES.get(least)
    to = f"Expunge {release}" if release else f"a release that speaks version {least}"
    return (
        f"{there} speaks {theirs.text} of the protocol, {here} {ours.text}: upgrade {behind} to at "
        f"least {to} (docs/how-to/upgrade.md)"
    )
