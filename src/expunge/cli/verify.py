"""`expunge verify`: what a file of evidence proves, offline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from expunge.cli import _command
from expunge.cli._command import command
from expunge.cli._evidence import chains_from, head_from, key_from, rotations_from
from expunge.cli._options import FILE, FOLDER
from expunge.cli._output import BAD, GOOD, QUIET, Screen, bullets, facts, line
from expunge.errors import EvidenceError, ExpungeError, FormatError
from expunge.evidence import Finding, KeyChain
from expunge.evidence import verify as verified
from expunge.wire.schema import time_text

if TYPE_CHECKING:
    from expunge.ridge.head import Head


@command()
@click.argument("file", type=FILE)
@click.option("--key", type=FILE, help="The server's public key (server.pub).")
@click.option(
    "--trust",
    type=FOLDER,
    help="Take the key, and the rotations known there, from an office, client or federation.",
)
@click.option(
    "--rotation",
    "rotations",
    type=FILE,
    multiple=True,
    help="A rotation that links the key to another. Repeatable.",
)
@click.option(
    "--head", type=FILE, help="Compare this head with the one that the evidence is about."
)
@click.option(
    "-q", "--quiet", is_flag=True, help="Print nothing: the exit code says whether it holds."
)
def verify(
    *,
    file: Path,
    key: Path | None,
    trust: Path | None,
    rotations: tuple[Path, ...],
    head: Path | None,
    quiet: bool,
) -> None:
    """Check a receipt, bundle, certificate, head, result, rotation or checkpoint, offline.

    Needs the file and the server's public key, and nothing else: no server, no network. Says in
    plain words what is proved, under which assumptions, and what is not. Exits with 3 if a single
    byte was altered, or another key signed it.

    Example:
      expunge verify order.html --key server.pub
      expunge verify receipt.json --key server.pub --head head.expunge
      expunge verify order.html --key server.pub --quiet && echo good

    To get the key, from somewhere you trust:
      expunge key federation -o server.pub
    """
    if (key is None) == (trust is None):
        raise click.UsageError(
            "give either --key FILE (the server's public key) or --trust DIR (a folder that knows "
            "it)"
        )
    if quiet and Screen.current().as_json:
        raise click.UsageError("give either --quiet, which prints nothing, or --json")
    try:
        finding = _finding(file, key, trust, rotations, head)
    except (ExpungeError, OSError) as problem:
        if not quiet:
            raise
        raise click.exceptions.Exit(_command.exit_code(problem)) from problem
    if not quiet:
        show(finding)


def _finding(
    file: Path, key: Path | None, trust: Path | None, rotations: tuple[Path, ...], head: Path | None
) -> Finding:
    """What a file proves to whoever trusts a key, or what a folder trusts."""
    known = [KeyChain(key_from(key))] if key is not None else chains_from(trust or Path())
    more = rotations_from(rotations)
    chains = [KeyChain(chain.pinned, [*chain.envelopes, *more]) for chain in known[:1]] + known[1:]
    given = None if head is None else head_from(head, chains)
    try:
        return _verified(file.read_bytes(), chains, given)
    except (EvidenceError, FormatError) as problem:
        raise EvidenceError(f"{file} does not hold: {problem}") from problem


def _verified(data: bytes, chains: Sequence[KeyChain], head: Head | None) -> Finding:
    """What the evidence says; by the first chain, if none of them signed it."""
    now, problems = time_text(time.time()), []
    for chain in chains:
        try:
            return verified(data, chain.pinned, head=head, now=now, rotations=chain.envelopes)
        except (EvidenceError, FormatError) as problem:
            problems.append(problem)
    raise problems[0]


def show(finding: Finding) -> None:
    """A finding in plain words."""
    value = asdict(finding) | {"facts": dict(finding.facts), "holds": True}
    Screen.current().result(
        value,
        line(Text.assemble(("It holds. ", f"bold {GOOD}"), (finding.title, "bold"))),
        line(),
        facts(finding.facts),
        line(),
        line("What this proves", "bold"),
        bullets(finding.proved, "+", GOOD),
        line(),
        line("Assuming that", "bold"),
        bullets(finding.assumptions, "~", QUIET),
        line(),
        line("What this does not prove", "bold"),
        bullets(finding.not_proved, "-", BAD),
    )
