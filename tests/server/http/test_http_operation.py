"""What docs/how-to/operate-a-server.md and the files in packaging/ say is so."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from pathlib import Path

import click
import pytest

from expunge.cli.main import main
from expunge.server.http.limits import Limits
from expunge.server.http.metrics import Metrics
from expunge.server.state import Settings
from support.https_server import site

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "operate-a-server.md").read_text()
UNIT = ROOT / "packaging" / "expunge.service"
IMAGE = (ROOT / "packaging" / "Containerfile").read_text()


def commands() -> list[list[str]]:
    """Every command of ours on the page, in the unit and in the image."""
    blocks = "\n".join(re.findall(r"^ *```sh\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL))
    said = [line.strip() for line in blocks.splitlines()] + re.findall(r"`(expunge [^`\n]+)`", PAGE)
    found = [shlex.split(line) for line in said]
    unit = UNIT.read_text().partition("ExecStart=")[2].partition("\n")[0]
    image = [
        json.loads(text)
        for text in re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", IMAGE, re.MULTILINE)
    ]
    found += [shlex.split(unit), [*image[0], *image[1]]]
    ours, names = [], main.list_commands(_top())
    for words in found:
        for place, word in enumerate(words[:-1]):
            if word.rpartition("/")[2] == "expunge" and words[place + 1] in names:
                ours.append(words[place + 1 :])
    return ours


def _top() -> click.Context:
    return click.Context(main, info_name="expunge")


def test_commands_have_the_options_that_they_are_given() -> None:
    found = commands()
    assert len(found) >= 12
    assert {words[0] for words in found} >= {"init", "serve", "server", "audit", "order", "verify"}
    for words in found:
        context, command, rest = _top(), main, words
        while isinstance(command, click.Group):
            _, chosen, rest = command.resolve_command(context, rest)
            assert chosen is not None, words
            command, context = chosen, click.Context(chosen, parent=context, info_name=chosen.name)
        command.make_parser(context).parse_args(
            [word for word in rest if word != "..."]
        )  # raises what it does not know


def test_the_limits_are_those_of_the_page() -> None:
    limits, settings = Limits(), Settings()
    for row in (
        f"| `--largest-request` | {settings.largest_request >> 20} MB |",
        f"| bytes of requests held at once | {settings.most_in_flight >> 20} MB,",
        f"| `--requests-per-minute` | {settings.requests_per_minute} |",
        f"| bytes of an enrolment, question or command | {limits.envelope >> 20} MB |",
        f"| connections | {limits.most_connections} |",
        f"| request line and headers | {limits.head_bytes >> 10} KB, {limits.head_seconds:.0f} s |",
        (
            f"| body | {limits.body_seconds:.0f} s, and one second more for every "
            f"{limits.slowest >> 10} KB |"
        ),
        f"| time between two requests on a connection | {limits.idle_seconds} s |",
        f"wait up to {limits.room_seconds:.0f} s",
        f"| wait for a change | {limits.wait_seconds:.0f} s |",
        f"longer than {limits.free >> 10} KB",
        f"answered (up to {limits.grace_seconds} s)",
        f"`--erase-within` ({settings.erase_within} s)",
    ):
        assert row in PAGE


def test_the_metrics_of_the_page_exist(tmp_path: Path) -> None:
    named = set(re.findall(r"\bexpunge_[a-z_]+", PAGE))
    assert len(named) >= 9
    with site(tmp_path / "server") as place:
        text = Metrics(place.service, lambda: 0.0, lambda: 0.0).text().decode()
    families = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    assert named - families == set()


def test_the_routes_of_the_page_exist() -> None:
    described = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
    named = set(re.findall(r"^\| `GET (/\S+)`", PAGE, re.MULTILINE)) - {"/v1/openapi.json"}
    assert named == {"/healthz", "/readyz", "/metrics"}
    assert named <= set(described)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("StateDirectory", "expunge"),
        ("StateDirectoryMode", "0700"),
        ("LimitCORE", "0"),
        ("MemorySwapMax", "0"),
        ("CapabilityBoundingSet", ""),
        ("User", "expunge"),
    ],
)
def test_the_unit_gives_no_more_than_is_needed(name: str, value: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT.read_text())
    assert unit["Service"][name] == value
    assert int(unit["Service"]["TimeoutStopSec"]) > Limits().grace_seconds


def test_the_image_is_not_roots() -> None:
    assert re.search(r"^USER 10001:10001$", IMAGE, re.MULTILINE)
    assert "/readyz" in IMAGE
    assert "constraints.txt" in IMAGE
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", IMAGE, re.MULTILINE):
        assert all((ROOT / name).exists() for name in copied.split())
