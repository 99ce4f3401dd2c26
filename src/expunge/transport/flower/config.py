"""RunConfig: the settings of a run, from the run's config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from expunge.errors import InputError

UNTIL = ("idle", "forever")


@dataclass(frozen=True)
class RunConfig:
    """How nodes are polled. In a run's config each name has `expunge-` before it, and hyphens.

    `server` is the server's folder, on the machine where the ServerApp runs. A run ends when all
    nodes are idle, or never (`until`), with a pause of `poll_seconds` between polls. A poll begins
    when `fewest_nodes` are connected, reaches a `fraction` of them, and gives up on those that are
    not done after `deadline_seconds`. A node that has not replied after `reply_seconds` is asked
    again. Clients that wait for others, in a round of secure aggregation, are asked again until
    nothing has changed for `round_seconds`.
    """

    server: Path
    fraction: float = 1.0
    fewest_nodes: int = 1
    deadline_seconds: float = 3600.0
    reply_seconds: float = 600.0
    round_seconds: float = 60.0
    until: str = "idle"
    poll_seconds: float = 10.0

    def __post_init__(self) -> None:
        if not 0.0 < self.fraction <= 1.0:
            raise InputError(f"expunge-fraction={self.fraction} must be above 0 and at most 1")
        if self.fewest_nodes < 1:
            raise InputError(f"expunge-fewest-nodes={self.fewest_nodes} must be at least 1")
        for name in ("deadline_seconds", "reply_seconds", "round_seconds", "poll_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0.0):
                raise InputError(
                    f"expunge-{name.replace('_', '-')}={value} must be a number of seconds above 0"
                )
        if self.until not in UNTIL:
            raise InputError(f"expunge-until={self.until!r} must be 'idle' or 'forever'")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """The settings in a run's config.

        Settings of others are left alone; one that begins with ours and is unknown is refused.
        """
        settings = {f"expunge-{field.name.replace('_', '-')}": field for field in fields(cls)}
        ours = {
            name: value
            for name, value in config.items()
            if name.startswith("expunge-") and name != "expunge-clients"
        }
        unknown = sorted(set(ours) - set(settings))
        if unknown:
            raise InputError(
                f"the run config has {', '.join(unknown)}, and there are {', '.join(settings)} and "
                "expunge-clients"
            )
        if not ours.get("expunge-server"):
            raise InputError(
                "the run config has no expunge-server: give the server's folder, as `expunge "
                "init` founded it"
            )
        given: dict[str, Any] = {}
        for name, value in ours.items():
            kind = {"server": Path, "until": str, "fewest_nodes": int}.get(
                settings[name].name, float
            )
            if isinstance(value, bool) or not isinstance(
                value, int | float if kind is float else str if kind is Path else kind
            ):
                raise InputError(f"{name}={value!r:.80} in the run config must be {_MEANT[kind]}")
            given[settings[name].name] = kind(value)
        return cls(**given)


_MEANT: dict[type, str] = {Path: "a path", str: "a word", int: "a whole number", float: "a number"}
