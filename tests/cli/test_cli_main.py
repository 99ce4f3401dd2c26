"""The command line as a whole: help, exit codes, JSON, completion, the reference page; raw samples
through a backbone.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest

from expunge.cli import _command
from expunge.cli._command import command
from expunge.cli._output import Screen
from expunge.cli.main import main
from expunge.cli.reference import page
from expunge.errors import (
    CarrierError,
    CommitmentError,
    EvidenceError,
    InputError,
    RefusedError,
    StoreBusyError,
    StoreError,
)
from support.cli import ROWS_A, Federation, run, value
from support.printed import Printed

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"


def commands(
    group: click.Group = main, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield (*path, name), found
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))


ALL = dict(commands())


def test_all_commands_are_there() -> None:
    names = {" ".join(path) for path in ALL}
    wanted = "init serve enroll head predict verify audit demo key completion"
    groups = {
        "server": (
            "token clients status spec amend forget-client rotate-key backup restore "
            "renew-certificate"
        ),
        "client": "add forget correct sync status leave receipts",
        "order": "file list show bundle close",
    }
    assert set(wanted.split()) <= names
    for group, members in groups.items():
        assert {f"{group} {one}" for one in members.split()} <= names


def test_help_has_both_names_whichever_context_asks_first() -> None:
    """Click keeps the help option that the first context made: a bare one must not take -h away
    from the rest.
    """

    @command("plain")
    def plain() -> None:
        """Nothing."""

    assert plain.get_help_option(click.Context(plain)).opts == ["-h", "--help"]


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_teaches(path: tuple[str, ...]) -> None:
    shown = run(*path, "--help").stdout
    assert "Example:" in shown
    assert f"expunge {' '.join(path)}" in shown
    assert run(*path, "-h").stdout == shown
    if not isinstance(ALL[path], click.Group):
        assert "--json" in shown
        assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("path", list(ALL), ids=" ".join)
def test_files_are_written_by_one_option(path: tuple[str, ...]) -> None:
    names = [one.opts for one in ALL[path].params if isinstance(one, click.Option)]
    assert [one for one in names if {"-o", "--out", "--output"} & set(one)] in (
        [],
        [["-o", "--output"]],
    )


def test_the_exit_codes_are_in_the_help() -> None:
    shown = run("--help").stdout
    for code, text in _command.EXIT_CODES.items():
        assert f"{code:<3}  {text}" in shown


def test_the_reference_page_is_current() -> None:
    assert REFERENCE.read_text() == page(), (
        "write it anew: python -m expunge.cli.reference > docs/reference/command-line.md"
    )


@pytest.mark.parametrize(
    ("problem", "code", "kind"),
    [
        (InputError("x"), 1, "input"),
        (CommitmentError("x"), 1, "commitment"),
        (StoreError("x"), 1, "store"),
        (RefusedError("gone", "x"), 1, "refused"),
        (RefusedError("too-many", "x"), 4, "refused"),
        (EvidenceError("x"), 3, "evidence"),
        (CarrierError("x"), 4, "carrier"),
        (StoreBusyError("x"), 5, "store-busy"),
        (OSError(errno.ENOSPC, "No space left on device", "file"), 1, "failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_errors_are_messages_and_codes_never_tracebacks(
    problem: Exception, code: int, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr("expunge.cli.key.chains_from", fail)
    result = run("key", tmp_path, code=code)
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.stderr
    assert value("key", tmp_path, code=code)["error"]["kind"] == kind


def test_what_is_typed_wrong_is_explained() -> None:
    assert "No such command 'forgive'" in run("forgive", code=2).stderr
    assert value("client", "forgive", code=2)["error"]["kind"] == "usage"
    assert "Missing argument" in value("init", code=2)["error"]["message"]


def test_interrupted_by_the_keyboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("expunge.cli.key.chains_from", interrupt)
    assert "safe to retry" in run("key", tmp_path, code=130).stderr
    assert "error" in value("key", tmp_path, code=130)


@pytest.mark.parametrize(
    ("shell", "words"),
    [("bash", "complete -o"), ("zsh", "#compdef expunge"), ("fish", "complete --no-files")],
)
def test_completion_scripts(shell: str, words: str) -> None:
    script = run("completion", shell).stdout
    assert words in script
    assert "_EXPUNGE_COMPLETE" in script
    assert value("completion", shell)["script"].strip() == script.strip()
    assert "'powershell' is not one of" in run("completion", "powershell", code=2).stderr


def test_completion_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "_EXPUNGE_COMPLETE": "bash_complete",
        "COMP_WORDS": "expunge client for",
        "COMP_CWORD": "2",
    }
    assert run(env=environment).stdout.splitlines() == ["plain,forget"]


def test_colours_and_bars_are_for_terminals_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    with Screen(as_json=True).progress("Working", 3) as progress:
        progress(1)
    assert capsys.readouterr() == ("", "")
    with Screen(as_json=False).progress("Working", 30_000) as progress:
        progress(10_000)
    out, err = capsys.readouterr()
    assert out == ""
    assert "10,000 of 30,000" in err
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR")
    with Screen(as_json=False).progress("Working", 3) as progress:
        progress(1)
    assert capsys.readouterr() == ("", "")


def test_names_that_would_play_tricks_on_a_terminal_are_made_harmless(tmp_path: Path) -> None:
    place = Federation.found(tmp_path)
    folder = place.enrol("clinic-a")
    tricky = ROWS_A.replace("a1,p1", "a1\x1b[2J,[red]p1[/red]")
    run("client", "add", place.file("a.csv", tricky), "--no-sync", "--dir", folder)
    shown = run("client", "forget", "--all", "--dry-run", "--dir", folder).stdout
    assert "\x1b" not in shown
    assert "a1\\u{1b}[2J" in shown
    assert "[red]p1[/red]" in shown


# -- raw samples -----------------------------------------------------------------------------------


def lengths(samples: list[object]) -> np.ndarray:
    """A backbone for tests: three numbers of a text, or of a text file."""
    texts = [one.read_text() if isinstance(one, Path) else str(one) for one in samples]
    return np.array(
        [[len(text), text.count("e"), text.count(" ")] for text in texts], dtype=np.float32
    )


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Federation, str]:
    (tmp_path / "lengths_for_tests.py").write_text("from test_cli_main import lengths\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    described = "callable:lengths_for_tests:lengths?name=lengths&version=1&dim=3"
    return Federation.found(tmp_path, "--backbone", described, "--labels", "ham,spam"), described


def write_texts(folder: Path) -> Path:
    for name, text in (
        ("ham/1.txt", "see you later"),
        ("ham/2.txt", "here we are"),
        ("spam/3.txt", "free free"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_folder_a_list_and_single_files_go_through_the_backbone(
    texts: tuple[Federation, str],
) -> None:
    place, described = texts
    folder = place.enrol("mail", "--backbone", described)
    corpus = write_texts(place.path / "corpus")
    run("client", "add", corpus, "--dir", folder)
    listing = place.file(
        "list.csv",
        "id,file,text,label,subject\nl1,corpus/ham/1.txt,,ham,eve\nl2,,buy now,spam,bob\n",
    )
    run("client", "add", listing, "--dir", folder)
    run(
        "client",
        "add",
        corpus / "spam" / "3.txt",
        "--label",
        "spam",
        "--subject",
        "eve",
        "--dir",
        folder,
    )
    status = value("client", "status", "--dir", folder)
    assert (status["live"], status["labels"]) == (6, {"ham": 3, "spam": 3})
    assert value("client", "forget", "--subject", "eve", "--dry-run", "--dir", folder)["count"] == 2
    assert value("predict", corpus, "--dir", folder)["accuracy"] is not None
    run(
        "client",
        "correct",
        "l2",
        "--file",
        corpus / "ham" / "2.txt",
        "--label",
        "ham",
        "--dir",
        folder,
    )
    assert (
        "has no label"
        in run("client", "add", corpus / "ham" / "1.txt", "--dir", folder, code=1).stderr
    )


def test_a_store_that_keeps_no_features_recomputes_them_or_refuses(
    texts: tuple[Federation, str],
) -> None:
    place, described = texts
    folder = place.enrol("mail", "--backbone", described, "--recompute")
    corpus = write_texts(place.path / "corpus")
    run("client", "add", corpus, "--dir", folder)
    gone = value("client", "forget", "--id", "ham/1.txt", "--yes", "--dir", folder)
    assert gone["sync"]["receipts"][0]["deleted"] == 1
    assert value("audit", "--client-dir", folder, "--office", place.office)["result"] == "equal"
    (corpus / "ham" / "2.txt").write_text("something else")
    refused = run("client", "forget", "--id", "ham/2.txt", "--yes", "--dir", folder, code=1)
    words = refused.stderr.words
    assert "is not the one that was committed to" in words
    assert f"computed again from {corpus / 'ham' / '2.txt'}," in words
    assert place.samples() == 2


def test_orders_are_carried_out_from_any_working_directory(
    texts: tuple[Federation, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, described = texts
    place.file("weights.bin", "1")
    run(
        "init",
        place.path / "other",
        "--backbone",
        f"{described}&weights=weights.bin",
        "--labels",
        "ham,spam",
        code=1,
    )
    monkeypatch.chdir(place.path)
    run("init", "other", "--backbone", f"{described}&weights=weights.bin", "--labels", "ham,spam")
    token = value("server", "token", "mail", "--office", "other")["token"]
    relative = ("--at", "other", "--backbone", f"{described}&weights=weights.bin")
    run("enroll", token, "--dir", "mail", "--recompute", *relative)
    listing = place.file(
        "list.csv", "id,text,label,subject\nl1,see you,ham,eve\nl2,buy now,spam,bob\n"
    )
    run("client", "add", listing, "--dir", "mail")
    run("order", "file", "eve", "--office", "other")
    (place.path / "elsewhere").mkdir()
    monkeypatch.chdir(place.path / "elsewhere")
    assert value("client", "sync", "--dir", place.path / "mail")["receipts"][0]["deleted"] == 1
    assert (
        value("order", "list", "--office", place.path / "other")["orders"][0]["state"] == "complete"
    )
    (place.path / "weights.bin").unlink()
    gone = run("client", "sync", "--dir", place.path / "mail", code=1).stderr.words
    assert "was enrolled with this backbone" in gone
    assert "give --backbone" in gone


def test_json_is_one_object_even_where_a_person_would_be_asked_or_told(tmp_path: Path) -> None:
    place = Federation.found(tmp_path)
    printed = run("server", "rotate-key", "--office", place.office, "--json", code=1).stdout
    assert set(json.loads(printed)) == {"error"}


BLOCKED = (
    "urllib3",
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "pyarrow",
    "PIL",
    "onnx",
    "onnxruntime",
    "safetensors",
)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--help"], 0, "Exit codes"),
        (["demo"], 0, "equal, bit for bit"),
        (["serve", "{folder}"], 1, "pip install 'expunge[server]'"),
        (
            ["server", "status", "--office", "{folder}", "--at", "https://localhost:1"],
            1,
            "pip install 'expunge[http]'",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_needs_no_extra_works_without_and_the_rest_names_it(
    tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    folder = Federation.found(tmp_path).folder
    block = (
        f"import sys; sys.modules.update(dict.fromkeys({BLOCKED!r})); from expunge.cli.main "
        "import main; main()"
    )
    typed = [part.format(folder=folder) for part in arguments]
    done = subprocess.run(  # noqa: S603 - ours
        [sys.executable, "-c", block, *typed], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert words in Printed(done.stdout + done.stderr)
    assert "Traceback" not in done.stderr
