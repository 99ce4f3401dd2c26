"""Commands of other distributions, found by the entry point group `expunge.commands`.

An entry point names a click command: `experiment =
"expunge_experiments.cli.experiment:experiment"`. Nothing of a distribution is imported before its
command is asked for, and one that cannot be imported stops only its own command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import click

from expunge.errors import ExpungeError, MissingExtraError, PlugInError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "expunge.commands"
# Commands of our own that have a distribution of their own, with the first sentence of their help.
OURS = {
    "experiment": (
        "expunge-experiments",
        "Run the paper's experiments: every baseline, table and figure, and the appendix.",
    )
}


class Unavailable(click.Command):
    """A command that cannot be run and, for any arguments, says why."""

    def __init__(self, name: str, problem: ExpungeError) -> None:
        super().__init__(name, short_help="Cannot be loaded; run it to see why.")
        self._problem = problem

    def make_context(self, *_: object, **__: object) -> NoReturn:
        """Refuse."""
        raise self._problem


def short_helps() -> dict[str, str]:
    """Every command that is installed, with its first sentence. Imports none of them."""
    return {
        name: OURS[name][1] if name in OURS else f"A command of {_distribution(entry)}."
        for name, entry in sorted(_installed().items())
    }


def command(name: str) -> click.Command | None:
    """A command by its name; `Unavailable` if it is broken, or ours and not installed."""
    entry = _installed().get(name)
    if entry is not None:
        return _loaded(entry)
    if name not in OURS:
        return None
    distribution = OURS[name][0]
    problem = MissingExtraError(
        f"the command {name} is part of {distribution}, which is not installed: pip install "
        f"{distribution}, or in a checkout pip install ./experiments"
    )
    return Unavailable(name, problem)


def _installed() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - our own commands never ask

    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _loaded(entry: EntryPoint) -> click.Command:
    source = f"the command {entry.name} of {_distribution(entry)} ({entry.value})"
    remedy = f"reinstall it, or remove it: pip uninstall {_distribution(entry)}"
    try:
        loaded = entry.load()
    except Exception as problem:  # a broken plugin must not stop other commands
        text = f"{source} cannot be loaded ({type(problem).__name__}: {problem}); {remedy}"
        return Unavailable(entry.name, PlugInError(text))
    if not isinstance(loaded, click.Command):
        text = f"{source} is of type {type(loaded).__name__}, not a click command; {remedy}"
        return Unavailable(entry.name, PlugInError(text))
    return loaded


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "a distribution without a name"
