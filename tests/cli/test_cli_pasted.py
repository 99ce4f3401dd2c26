"""Whatever command is printed can be pasted into a shell, also where folders have names that a
shell would take apart.
"""

from __future__ import annotations

import itertools
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from expunge.cli._output import next_steps, typed
from support.cli import ROWS_A, ROWS_B, Federation
from support.printed import Printed, run

ODD = "Dr O'Neill's $HOME; \"safe\""  # a space, both quotes, a variable, the end of a command
PATHS = {"--dir", "--office", "--trust", "--key", "--rotation", "--head", "--client-dir"}
NOT_YET = {"CLIENT", "OFFICE", "NAME", "NAME.token", "TOKEN", "OLD.pub", "FILE", "receipt.json"}
_SHELL = 'expunge() { for part; do printf "%s\\0" "$part"; done; }\n'


def split_by_shell(line: str) -> list[str]:
    """The arguments that a shell passes on to `expunge` where this line is pasted."""
    done = subprocess.run(["sh", "-c", _SHELL + line], capture_output=True, text=True, check=True)  # noqa: S603, S607 - the shell that a person pastes into
    assert not done.stderr, line
    return done.stdout.split("\0")[:-1]


def printed_commands(printed: Printed) -> list[list[str]]:
    """The commands of `Next:`, each on a line of its own."""
    lines = [line.strip() for line in str(printed).splitlines()]
    return [split_by_shell(line) for line in lines if line.startswith("expunge ")]


def remedy(printed: Printed, command: str, *, parts: int) -> list[str]:
    """The command within a sentence, from its name on; a stop or comma after it is not of it."""
    text = str(printed)
    lexer = shlex.shlex(text[text.index(command) :], posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    *most, last = itertools.islice(lexer, parts)
    return [*most, last.rstrip(".,;:)")]


class Walk:
    """Commands that are run one after the other, and all that they print to be typed next."""

    def __init__(self) -> None:
        self.printed: list[list[str]] = []

    def run(self, *arguments: object, code: int = 0) -> list[list[str]]:
        commands = printed_commands(run(*arguments, code=code).stdout)
        self.printed += commands
        return commands

    def paste(self, command: list[str], *, code: int = 0) -> list[list[str]]:
        """Run what was printed, as it was printed."""
        assert command in self.printed
        return self.run(*command, code=code)

    def require_paths(self, made: set[str]) -> None:
        """Every path that was printed is there, or is one that the command is to make."""
        assert self.printed
        for command in self.printed:
            paths = [part for part in command if "/" in part]
            paths += [value for name, value in itertools.pairwise(command) if name in PATHS]
            for path in paths:
                assert path in NOT_YET | made or Path(path).exists(), command


def named(commands: list[list[str]], *words: str) -> list[str]:
    """The one command that begins so."""
    (found,) = [command for command in commands if command[: len(words)] == list(words)]
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an odd name, as one types it from beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ODD).mkdir()
    return Path(ODD)


def test_from_founding_to_a_bundle_and_a_restored_server(folder: Path) -> None:
    walk, federation, clinic = Walk(), folder / "federation", folder / "clinic a"
    Path("samples.csv").write_text(ROWS_A)
    founded = walk.run("init", federation, "--dim", 3, "--labels", "cat,dog")
    walk.paste(named(founded, "server", "token"))
    entered = walk.paste(named(founded, "enroll"))
    walk.paste(named(entered, "client", "add"))
    walk.paste(named(entered, "client", "status"))

    (Path("b.csv")).write_text(ROWS_B)
    operator, token = federation / "operator", folder / "b.token"
    (enroll,) = walk.run("server", "token", "clinic-b", "-o", token, "--office", operator)
    assert enroll == ["enroll", str(token), "--dir", "clinic-b"]
    walk.run(*enroll[:3], clinic)
    (sync,) = walk.run("client", "add", "b.csv", "--no-sync", "--dir", clinic)
    walk.paste(sync)
    written = walk.run("client", "receipts", "last", "-o", folder / "r.json", "--dir", clinic)
    walk.paste(named(written, "verify"))
    head = walk.run("head", "-o", folder / "head.expunge", "--dir", clinic)
    walk.paste(named(head, "verify"))
    assert named(head, "predict")[3:] == [
        str(folder / "head.expunge"),
        "--trust",
        str(clinic),
    ]

    filed = walk.run("order", "file", "p1", "--office", operator)
    walk.paste(named(filed, "order", "show"))
    walk.run("client", "sync", "--dir", clinic)
    walk.run("client", "sync", "--dir", "hospital-a")
    walk.paste(named(filed, "order", "bundle"))
    bundled = walk.run("order", "bundle", "last", "-o", folder / "o.html", "--office", operator)
    walk.paste(named(bundled, "verify"))
    assert named(bundled, "order", "close")[3:] == ["--office", str(operator)]
    (shown,) = walk.run("audit", "--office", operator, code=7)
    walk.run("client", "sync", "--dir", clinic)
    walk.run("client", "sync", "--dir", "hospital-a")
    walk.paste(shown)

    walk.run("server", "rotate-key", "--yes", "--office", operator)
    walk.run("server", "backup", "monday", "--office", operator)
    key, new = federation / "server" / "server.key", folder / "new"
    restored = walk.run(
        "server", "restore", new, "--backup", "monday", "--key", key, "--from", federation
    )
    assert named(restored, "serve") == ["serve", str(new)]
    walk.require_paths({"hospital-a", "hospital-a.token", "clinic-b", "order.html"})


def test_a_group_under_an_aggregator(folder: Path) -> None:
    walk, root, north = Walk(), folder / "root", folder / "north"
    walk.run("init", root, "--dim", 3, "--labels", "cat,dog", "--messages", "rows,gram,group")
    token = folder / "north.token"
    walk.run("server", "token", "north", "-o", token, "--office", root / "operator")
    founded = walk.run("aggregator", "found", north, token)
    assert named(founded, "serve") == ["serve", str(north)]
    walk.paste(named(founded, "server", "token"))
    walk.paste(named(founded, "enroll"))
    Path("samples.csv").write_text(ROWS_A)
    run("client", "add", "samples.csv", "--dir", "clinic-a")
    walk.run("aggregator", "sync", north)
    proof = folder / "passage.json"
    (verify,) = walk.run("aggregator", "passage", north, "clinic-a", 1, "-o", proof)
    walk.paste(verify)
    walk.require_paths({"hospital-a", "hospital-a.token", "north", "clinic-a", "clinic-a.token"})


def test_a_server_rebuilt_from_its_clients(folder: Path) -> None:
    walk, place = Walk(), Federation.found(folder)
    clinic, new = place.client("clinic-a", ROWS_A), folder / "new"
    rebuilt = walk.run("audit", "--rebuild", new, "--client-dir", clinic)
    walk.paste(named(rebuilt, "audit", "--office"))
    asked = walk.paste(named(rebuilt, "audit", "--rebuild"))
    walk.paste(named(asked, "server", "status"))
    walk.require_paths(set())


def test_an_office_and_a_client_that_is_forgotten(folder: Path) -> None:
    walk, place = Walk(), Federation.found(folder)
    clinic, token = place.client("clinic-a", ROWS_A), folder / "officer.token"
    run("server", "token", "dpo", "--role", "officer", "-o", token, "--office", place.office)
    lines = str(run("enroll", token, "--dir", folder / "office").stdout).splitlines()
    (export,) = [line.strip() for line in lines if "export EXPUNGE_OFFICE=" in line]
    assert split_by_shell(f'{export}; expunge "$EXPUNGE_OFFICE"') == [str(folder / "office")]
    run("server", "forget-client", "clinic-a", "--yes", "--office", place.office)
    (leave,) = walk.run("client", "sync", "--dir", clinic, code=1)
    assert leave == ["client", "leave", "--dir", str(clinic)]


def test_clients_that_wait_for_a_round(folder: Path) -> None:
    walk, federation = Walk(), folder / "federation"
    options = ("--dim", 3, "--labels", "cat,dog", "--secure-aggregation")
    founded = walk.run("init", federation, *options)
    place = Federation(folder)
    clinic, rows = place.enrol("clinic-a"), place.file("a.csv", ROWS_A)
    serve, sync = walk.run("client", "add", rows, "--no-wait", "--dir", clinic, code=7)
    assert serve == named(founded, "serve") == ["serve", str(federation)]
    walk.paste(sync, code=7)
    place.enrol("clinic-b")
    written, pinned = walk.run("client", "peers", "--dir", clinic)
    walk.paste(written)
    walk.paste(pinned)
    walk.run("server", "forget-client", "clinic-b", "--yes", "--office", place.office)
    walk.require_paths({"hospital-a", "hospital-a.token", "peers.json"})


def test_remedies_within_sentences(folder: Path) -> None:
    place, sync = Federation.found(folder), "expunge client sync"
    clinic, nobody = place.enrol("clinic-a"), folder / "nobody"
    refused = run("client", "status", "--dir", nobody, code=1).stderr
    assert remedy(refused, "expunge enroll", parts=5)[-1] == str(nobody)
    refused = run("serve", nobody, code=1).stderr
    assert remedy(refused, "expunge init", parts=3)[-1] == str(nobody)
    refused = run("head", "--dir", clinic, code=1).stderr
    assert remedy(refused, sync, parts=5)[-1] == str(clinic)
    rows = place.file("a.csv", ROWS_A)
    lost = run("client", "add", rows, "--dir", clinic, "--at", nobody, code=1).stderr
    assert remedy(lost, sync, parts=5)[-1] == str(clinic)
    pending = run("client", "add", rows, "--dir", clinic, "--no-sync").stderr
    assert remedy(pending, sync, parts=5)[-1] == str(clinic)
    run("client", "sync", "--dir", clinic)
    run("server", "forget-client", "clinic-a", "--yes", "--office", place.office)
    more = place.file("b.csv", ROWS_B)
    gone = run("client", "add", more, "--dir", clinic, code=1).stderr
    assert remedy(gone, "expunge client leave", parts=5)[-1] == str(clinic)


def test_a_path_is_never_taken_for_an_option(tmp_path: Path) -> None:
    assert split_by_shell(f"expunge {typed(Path('-o'))}") == ["./-o"]


def test_the_program_itself_may_lie_in_such_a_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(folder / "bin" / "expunge")])
    *_, line = next_steps("expunge demo").renderables
    assert shlex.split(str(line)) == [str(folder / "bin" / "expunge"), "demo"]
