"""Commands of other distributions: imported when asked for, and never in the way of the others."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from expunge.cli import plugins
from support.cli import run, value
from support.modules import importable

GREETING = """
import click

@click.command("greet")
def greet():
    "Greet."
    click.echo("hello")

BROKEN = 7
"""


def install(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """These commands, and no others, are of other distributions."""
    entries = EntryPoints(EntryPoint(name, value, plugins.GROUP) for name, value in values.items())
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: entries.select(group=group)
    )


@pytest.fixture
def greeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with a command, which is not imported yet."""
    return importable("greeting_commands", GREETING, tmp_path, monkeypatch)


def test_a_command_of_another_distribution_is_listed_without_import_and_run(
    greeting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, greet=f"{greeting}:greet")
    assert "greet" in run("--help").stdout
    assert greeting not in sys.modules
    assert run("greet").stdout == "hello\n"
    assert greeting in sys.modules


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere_at_all:greet", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("greeting_commands:missing", "AttributeError"),
        ("greeting_commands:BROKEN", "is of type int, not a click command"),
    ],
)
def test_a_broken_command_says_so_and_breaks_no_other(
    greeting: str, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    assert source.startswith(greeting) or "nowhere" in source
    install(monkeypatch, greet=source)
    assert "greet" in run("--help").stdout
    assert run("completion", "bash").stdout
    environment = {
        "_EXPUNGE_COMPLETE": "bash_complete",
        "COMP_WORDS": "expunge ",
        "COMP_CWORD": "1",
    }
    assert {"plain,greet", "plain,demo"} <= set(run(env=environment).stdout.splitlines())
    refused = value("greet", "--whatever", code=1)["error"]
    assert refused["kind"] == "plug-in"
    assert words in refused["message"]
    assert "pip uninstall" in refused["message"]


def test_no_distribution_takes_a_command_of_ours(
    greeting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, demo=f"{greeting}:greet")
    assert "expunge demo" in run("demo", "--help").stdout
    assert greeting not in sys.modules


@pytest.mark.parametrize("arguments", [(), ("list",), ("--help",)])
def test_without_the_experiments_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    install(monkeypatch)
    assert "experiment" not in run("--help").stdout
    refused = run("experiment", *arguments, code=1)
    assert "pip install expunge-experiments" in refused.stderr
    assert "No such command 'experimen'" in run("experimen", code=2).stderr


def test_help_imports_nothing_of_the_experiments() -> None:
    """In a process of its own, with the distribution as it is installed here."""
    code = (
        "import sys\nfrom expunge.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "finally:\n    print([name for name in sys.modules if "
        "name.startswith('expunge_experiments')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own Python
    assert plugins.OURS["experiment"][1].split(":")[0] in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_first_sentence_in_the_help_is_the_commands_own() -> None:
    command = plugins.command("experiment")
    assert command is not None
    assert command.get_short_help_str(limit=200) == plugins.OURS["experiment"][1]
