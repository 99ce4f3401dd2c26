"""What is printed at any width: sentences are wrapped, and what people copy is never broken."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console, RenderableType
from rich.text import Text

from expunge.cli._output import (
    Screen,
    at_edges,
    bullets,
    facts,
    line,
    next_steps,
    table,
    title,
    unwrapped,
)
from expunge.wire.token import Token
from support.cli import ROWS_A, Federation, run

WIDTHS = (1, 20, 40, 80, 200)
DIGEST = "0123456789abcdef" * 4
SENTENCE = (
    "The ledger is empty until all clients have sent what they hold, which is at their next sync."
)
PATHS = [
    Path("/t/a"),
    Path("/a-folder-with-a-rather-long-name" * 5),
    Path("/a folder whose name has spaces in it, as some have" * 3),
]
COLOURS: list[dict[str, str]] = [
    {},
    {"NO_COLOR": "1"},
    {"FORCE_COLOR": "1"},
    {"FORCE_COLOR": "1", "NO_COLOR": "1"},
    {"TERM": "dumb"},
    {"FORCE_COLOR": "1", "TERM": "dumb"},
]


def printed(width: int, *parts: RenderableType) -> str:
    screen = Screen(as_json=False)
    screen.out = Console(file=(file := StringIO()), width=width, highlight=False, markup=False)
    screen.result({}, *parts)
    return file.getvalue()


@pytest.mark.parametrize("path", PATHS, ids=["short", "long", "spaces"])
@pytest.mark.parametrize("width", WIDTHS)
def test_paths_stand_in_one_line(width: int, path: Path) -> None:
    shown = printed(
        width,
        unwrapped(f"Written to {path}.", indent=2),
        facts([("Folder", path), ("Reached at", unwrapped(f"{path}, on this machine"))]),
        table(("Id", "File"), [("a1", path)]),
        next_steps(f"expunge serve {path}"),
    )
    assert [str(path) in text for text in shown.splitlines()].count(True) == 5


@pytest.mark.parametrize("remark", ["5 ms", "12345.67 s"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_remark_at_the_right_edge_costs_no_word(width: int, remark: str) -> None:
    """A step that takes long has a long remark."""
    words = "2. Every client adds its samples, in a round of secure aggregation"
    shown = printed(width, at_edges(words, remark))
    assert sorted(shown.split()) == sorted(f"{words} {remark}".split())
    first = shown.splitlines()[0]
    assert first.endswith(remark)
    assert width < 40 or len(first) == width


@pytest.mark.parametrize("width", WIDTHS)
def test_digests_are_never_broken_and_sentences_are_wrapped(width: int) -> None:
    sentence = f"{SENTENCE} {DIGEST}, {SENTENCE}"
    prose = [
        title(sentence),
        line(sentence),
        line(Text(sentence)),
        line(sentence, indent=2),
        bullets([sentence]),
        facts([("Digest", DIGEST), ("Which means", sentence)]),
    ]
    tables = [
        table(("Digest", "Meaning", "Samples"), [(DIGEST, SENTENCE, 3)], right=("Samples",)),
        table(("Samples", "Meaning", "Digest"), [(3, SENTENCE, DIGEST)]),
    ]
    for part in (*prose, *tables):
        shown = printed(width, part)
        wide = printed(1000, part)
        assert sorted(shown.split()) == sorted(wide.split())
        assert not any(text.endswith(" ") for text in shown.splitlines())
        too_long = [text for text in shown.splitlines() if len(text) > max(width, 40)]
        assert part in tables or all(DIGEST in text for text in too_long), too_long


def test_a_long_path_takes_no_room_from_its_neighbours() -> None:
    shown = printed(60, facts([("Folder", PATHS[1]), ("Meaning", SENTENCE)])).splitlines()
    assert shown[0] == f"  Folder   {PATHS[1]}"
    assert len(shown) == 3
    assert all(len(text) <= 60 for text in shown[1:])
    assert shown[2].startswith(" " * 11)


def test_columns_share_what_room_there_is() -> None:
    rows = [("clinic-a", SENTENCE, 12), ("clinic-b", "Nothing.", 3)]
    shown = printed(50, table(("Client", "Meaning", "Samples"), rows, right=("Samples",)))
    assert shown.splitlines()[0] == "  Client    Meaning                        Samples"
    assert re.search(r"^  clinic-b  Nothing\. +3$", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) == 50


def test_nothing_at_all_is_shown_as_nothing() -> None:
    assert printed(1, facts([])) == ""
    assert printed(40, line()) == "\n"
    assert printed(40, facts([("Name", "")])) == "  Name\n"


@pytest.mark.parametrize("width", [40, 200])
@pytest.mark.parametrize("colours", COLOURS, ids=str)
def test_errors_and_notes_are_one_line_each_and_their_commands_can_be_copied(
    width: int, colours: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "a folder that is not there, whatever the terminal is like"
    refused = run(
        "client", "sync", "--dir", folder, code=None, env={"COLUMNS": str(width), **colours}
    )
    assert refused.exit_code == 1
    (message,) = refused.stderr.splitlines()
    assert str(folder) in message


@pytest.mark.parametrize("colours", COLOURS, ids=str)
def test_colours_change_no_word(colours: dict[str, str], tmp_path: Path) -> None:
    folder = Federation.found(tmp_path).client("clinic-a", ROWS_A)
    command = ["client", "status", "--dir", folder]
    shown = run(*command, env={"TERM": "xterm", **colours}).stdout
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert plain.split() == run(*command).stdout.split()
    coloured = (
        colours.get("FORCE_COLOR") == "1" and "NO_COLOR" not in colours and "TERM" not in colours
    )
    assert (re.search(r"\x1b\[[0-9;]*3[0-9]", shown) is not None) <= coloured
    assert ("\x1b" in shown) or not coloured


@pytest.mark.parametrize("width", [40, 200])
def test_all_that_people_copy_is_whole_in_the_narrowest_terminal(
    width: int, tmp_path: Path
) -> None:
    """From founding to a restored server, in a folder whose name has spaces."""
    wide, narrow = {"COLUMNS": "1000"}, {"COLUMNS": str(width)}
    above = tmp_path / "a folder with spaces, and a name that is longer than a terminal is wide"
    place = Federation(above)
    above.mkdir()
    made = run(
        "init", place.folder, "--dim", 3, "--labels", "cat,dog", env=narrow
    ).stdout.splitlines()
    for path in (place.office, place.key, place.folder / "server" / "server.key"):
        assert any(str(path) in text for text in made)
    folder = place.client("clinic-a", ROWS_A)
    run("order", "file", "p1", "--office", place.office)
    run("client", "sync", "--dir", folder)
    bundle, receipt = above / "order.html", above / "receipt.json"
    commands = [
        ["order", "bundle", "last", "-o", bundle, "--office", place.office],
        ["client", "receipts", 1, "-o", receipt, "--dir", folder],
        ["client", "status", "--dir", folder],
        ["client", "samples", "--dir", folder],
        ["verify", bundle, "--key", place.key],
        ["head", "-o", above / "head.npz", "--office", place.office],
        ["key", place.folder, "-o", above / "key.pub"],
        ["server", "status", "--office", place.office],
        ["server", "spec", "--office", place.office],
        ["server", "clients", "--office", place.office],
        ["order", "list", "--office", place.office],
        ["audit", "--client-dir", folder, "--office", place.office],
    ]
    for command in commands:
        shown, there = (run(*command, env=env, code=None).stdout for env in (narrow, wide))
        for copied in re.findall(rf"{re.escape(str(above))}[^\s,:;]*|[0-9a-f]{{16,}}", there):
            assert any(copied in text for text in shown.splitlines()), (command, copied)
    shown = run("server", "token", "clinic-b", "--office", place.office, env=narrow).stdout
    token = max(shown.splitlines(), key=len)
    assert Token.from_text(token).urls == (str(place.folder),)
