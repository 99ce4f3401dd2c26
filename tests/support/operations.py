"""What parties that are killed have done and attempted, kept outside Expunge: the oracle.

Each party appends to a file of its own, which a kill leaves as it is. A sample's feature and label
follow from its id and version, so the file needs neither.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LABELS, DIM = ("no", "yes"), 4

Held = dict[str, tuple[int, str]]  # by id: the version and the subject of a sample


def sample(id_: str, version: int) -> tuple[tuple[float, ...], str]:
    """The feature and the label of a version of a sample."""
    drawn = hashlib.sha256(f"{id_}/{version}".encode()).digest()
    feature = tuple(
        int.from_bytes(drawn[2 * place : 2 * place + 2], "big", signed=True) / 2**10
        for place in range(DIM)
    )
    return feature, LABELS[drawn[-1] % 2]


class Operations:
    """The file of one party."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, what: str, **content: Any) -> None:
        """One more line, with the time that all processes share."""
        line = {"what": what, "at": time.monotonic(), **content}
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file, without one that is not yet whole."""
    if path.exists():
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield json.loads(line)


def ordered(path: Path) -> dict[str, float]:
    """The subjects about whom an order was attempted, with the time."""
    return {line["subject"]: line["at"] for line in read(path) if line["what"] == "order"}


def filed(path: Path) -> dict[str, float]:
    """Of these, the ones whose order the server has certainly taken, with the time before it."""
    taken, last = {}, ("", 0.0)
    for line in read(path):
        if line["what"] == "order":
            last = line["subject"], line["at"]
        elif (line["what"], line.get("of")) == ("done", "order"):
            taken[last[0]] = last[1]
    return taken


@dataclass
class Story:
    """What a client must hold: what was done, or that and what was attempted last."""

    held: Held = field(default_factory=dict)
    attempted: Held | None = None
    added: dict[str, float] = field(default_factory=dict)  # when, by id
    counts: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, path: Path) -> Story:
        """As the client's file tells it."""
        story = cls()
        for line in read(path):
            story.follow(line)
        return story

    def follow(self, line: Mapping[str, Any]) -> None:
        """One more line."""
        what = line["what"]
        if what == "held":
            self.held = {id_: (version, subject) for id_, version, subject in line["samples"]}
            self.attempted = None
        elif what == "done":
            self.held, self.attempted = self.attempted if self.attempted is not None else {}, None
            self.counts[line["of"]] += 1
        elif what in ("add", "forget", "correct"):
            self.attempted = self._after(line)
            if what == "add":
                self.added |= dict.fromkeys(line["ids"], line["at"])
        else:
            self.counts[what] += 1

    def _after(self, line: Mapping[str, Any]) -> Held:
        if line["what"] == "add":
            fresh = zip(line["ids"], line["subjects"], strict=True)
            return self.held | {id_: (0, subject) for id_, subject in fresh}
        if line["what"] == "forget":
            return {id_: each for id_, each in self.held.items() if id_ not in line["ids"]}
        _, subject = self.held[line["id"]]
        return self.held | {line["id"]: (line["version"], subject)}

    def explained(self, stored: Mapping[str, tuple[Any, ...]], ordered: set[str]) -> Held:
        """What of it explains what a store holds (feature, label and subject by id), with all
        samples of some subjects missing about whom there are orders; AssertionError if nothing.
        """
        for held in (self.held, self.attempted):
            if held is not None:
                expected = {
                    id_: (*sample(id_, version), subject)
                    for id_, (version, subject) in held.items()
                }
                missing = {each[-1] for id_, each in expected.items() if stored.get(id_) != each}
                left = {id_: each for id_, each in expected.items() if each[-1] not in missing}
                if missing <= ordered and left == stored:
                    return {id_: held[id_] for id_ in stored}
        lost, strange = self.held.keys() - stored.keys(), stored.keys() - self.held.keys()
        raise AssertionError(f"a store lacks {sorted(lost)} or has {sorted(strange)} besides")
