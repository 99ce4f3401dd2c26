"""What a run's config says, and what it cannot say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from expunge.errors import InputError
from expunge.transport.flower.config import RunConfig


def test_a_config_has_what_it_says_and_otherwise_what_is_usual() -> None:
    config = {
        "expunge-server": "/srv/fed",
        "expunge-clients": "/x/*",
        "lr": 0.1,
        "expunge-deadline-seconds": 30,
        "expunge-until": "forever",
    }
    assert RunConfig.of(config) == RunConfig(
        Path("/srv/fed"), deadline_seconds=30.0, until="forever"
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"expunge-server": ""}, "expunge-server"),
        ({"expunge-server": 7}, "expunge-server"),
        ({"expunge-fraction": 0.0}, "expunge-fraction"),
        ({"expunge-fraction": 1.5}, "expunge-fraction"),
        ({"expunge-fraction": "half"}, "expunge-fraction"),
        ({"expunge-fraction": True}, "expunge-fraction"),
        ({"expunge-fewest-nodes": 0}, "expunge-fewest-nodes"),
        ({"expunge-fewest-nodes": 1.5}, "expunge-fewest-nodes"),
        ({"expunge-deadline-seconds": 0}, "expunge-deadline-seconds"),
        ({"expunge-reply-seconds": float("nan")}, "expunge-reply-seconds"),
        ({"expunge-poll-seconds": float("inf")}, "expunge-poll-seconds"),
        ({"expunge-until": "noon"}, "expunge-until"),
        ({"expunge-rounds": 3}, "expunge-rounds"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        RunConfig.of({"expunge-server": "/srv/fed"} | change)
