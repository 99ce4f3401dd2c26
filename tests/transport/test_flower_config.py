"""What a run's config says, and what it cannot say."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from expunge.errors import InputError
from expunge.transport.flower.config import RunConfig
from support.pages import ROOT, blocks_of


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


def test_the_page_and_the_app_show_every_setting_with_its_default() -> None:
    (page, _) = blocks_of("docs/how-to/flower.md", "toml")
    app = (ROOT / "packaging" / "flower-app" / "pyproject.toml").read_text(encoding="utf-8")
    for text in (page.text, app):
        config = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
        server = config.pop("expunge-server") or "/srv/federation/server"
        defaults = RunConfig(Path(server))
        assert RunConfig.of({"expunge-server": server, **config}) == defaults
        names = {name.replace("_", "-") for name in defaults.__dataclass_fields__}
        assert config.keys() == {f"expunge-{name}" for name in names - {"server"} | {"clients"}}
