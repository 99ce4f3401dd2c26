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
from expunge.cli._evidence import (
    chains_from,
    fewest_samples_from,
    head_from,
    key_from,
    rotations_from,
)
from expunge.cli._options import FILE, trust_option
from expunge.cli._output import Screen, Style, bullets, facts, line
from expunge.errors import EvidenceError, ExpungeError, FormatError
from expunge.evidence import KeyChain, VerifiedFile
from expunge.evidence import verify as verified
from expunge.wire.schema import time_text

if TYPE_CHECKING:
    from expunge.ridge.head import Head


@command()
@click.argument("file", type=FILE)
@click.option("--key", type=FILE, help="The server's public key (server.pub).")
@trust_option
@click.option(
    "--rotation",
    "rotations",
    type=FILE,
    multiple=True,
    help="A rotation that links the key to another. Repeatable.",
)
@click.option("--head", type=FILE, help="Compare this head with the one in the evidence.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code gives the result.")
def verify(
    *,
    file: Path,
    key: Path | None,
    trust: Path | None,
    rotations: tuple[Path, ...],
    head: Path | None,
    quiet: bool,
) -> None:
    """Verify evidence offline: a receipt, bundle, certificate, head or other signed file.

    FILE can also be the signed result of a command, a rotation, a checkpoint or a passage. Needs
    only the file and the server's public key: no server, no network. States in plain words what the
    file proves, under which assumptions, and what it does not prove. Exits with 3 if a single byte
    was altered, or if another key signed it.

    Example:
      expunge verify order.html --key server.pub
      expunge verify order.html --key server.pub --head head.expunge
      expunge verify order.html --key server.pub --quiet && echo verified

    To get the key, through a channel that you trust:
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
) -> VerifiedFile:
    """What a file proves given a trusted key, or the keys a folder trusts."""
    trusted_chains = [KeyChain(key_from(key))] if key is not None else chains_from(trust or Path())
    more = rotations_from(rotations)
    chains = [
        KeyChain(chain.pinned, [*chain.envelopes, *more]) for chain in trusted_chains[:1]
    ] + trusted_chains[1:]
    given = None if head is None else head_from(head, chains)
    try:
        fewest = 0 if trust is None else fewest_samples_from(trust)
        return _verified(file.read_bytes(), chains, given, fewest)
    except (EvidenceError, FormatError) as problem:
        raise EvidenceError(f"{file} failed verification: {problem}") from problem


def _verified(
    data: bytes, chains: Sequence[KeyChain], head: Head | None, fewest: int
) -> VerifiedFile:
    """What the evidence says; by the first chain, if none of them signed it."""
    now, problems = time_text(time.time()), []
    for chain in chains:
        try:
            return verified(
                data,
                chain.pinned,
                head=head,
                now=now,
                rotations=chain.envelopes,
                fewest_samples=fewest,
            )
        except (EvidenceError, FormatError) as problem:
            problems.append(problem)
    raise problems[0]


def show(finding: VerifiedFile) -> None:
    """A finding in plain words."""
    value = asdict(finding) | {"facts": dict(finding.facts), "holds": True}
    Screen.current().result(
        value,
        line(Text.assemble(("Verified: ", f"bold {Style.GOOD}"), (finding.title, "bold"))),
        line(),
        facts(finding.facts),
        line(),
        line("What this proves", "bold"),
        bullets(finding.proved, "+", Style.GOOD),
        line(),
        line("Assuming that", "bold"),
        bullets(finding.assumptions, "~", Style.QUIET),
        line(),
        line("What this does not prove", "bold"),
        bullets(finding.not_proved, "-", Style.BAD),
    )
