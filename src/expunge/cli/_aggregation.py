"""The rules of secure aggregation on the command line: as options, and in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from expunge.cli._options import Function
from expunge.kinds import MessageKind
from expunge.ridge.spec import Aggregation, message_kinds
from expunge.secagg import plan

_SET_BY_OPTIONS = ("fewest", "dropouts", "colluding")


def rules_options(function: Function) -> Function:
    """The options of `expunge init` by which secure aggregation is chosen."""
    usual = Aggregation()
    options = (
        click.option(
            "--secure-aggregation",
            is_flag=True,
            help="Mask clients' messages: the server sees only the exact sum of each round.",
        ),
        click.option(
            "--fewest",
            type=click.IntRange(2),
            help=f"Masked rounds: fewest clients whose sum is unmasked. [default: {usual.fewest}]",
        ),
        click.option(
            "--dropouts",
            type=click.IntRange(0, 99),
            metavar="PERCENT",
            help=f"Masked rounds: clients that may drop out. [default: {usual.dropouts}]",
        ),
        click.option(
            "--colluding",
            type=click.IntRange(0, 99),
            metavar="PERCENT",
            help=(
                "Masked rounds: clients that may collude with the server. [default: "
                f"{usual.colluding}]"
            ),
        ),
        click.option(
            "--clients",
            "expected",
            type=click.IntRange(2),
            metavar="N",
            help="Masked rounds: show what these rules mean for N clients. Sets nothing.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def rules_of(given: dict[str, Any]) -> Aggregation | None:
    """The rules that the options give; None without secure aggregation, of which no option may
    speak then.
    """
    chosen = {name: given[name] for name in _SET_BY_OPTIONS if given[name] is not None}
    if given["secure_aggregation"]:
        return Aggregation(**chosen)
    if chosen:
        raise click.UsageError(
            f"--{next(iter(chosen))} is a rule of secure aggregation: also give "
            "--secure-aggregation"
        )
    return None


def messages_of(given: dict[str, Any], rules: Aggregation | None) -> tuple[MessageKind, ...]:
    """What clients may send, by --messages; under secure aggregation nothing but masked ones."""
    usual = "rows,gram" if rules is None else "masked"
    listed = tuple(part.strip() for part in (given["messages"] or usual).split(","))
    if rules is not None and listed != ("masked",):
        raise click.UsageError(
            "--secure-aggregation allows masked messages only: leave out --messages"
        )
    return message_kinds(listed)


def rules_in_words(rules: Aggregation) -> str:
    """What the rules ask for and allow."""
    return (
        f"at least {rules.fewest} clients; {rules.dropouts} % may drop out, "
        f"{rules.colluding} % may collude with the server"
    )


def plan_in_words(rules: Aggregation, clients: int) -> str:
    """What the rules mean for a round of this many clients."""
    chosen = plan(rules, clients)
    masks = "every other client" if chosen.degree == clients - 1 else f"{chosen.degree} others"
    shares = "1 share opens" if chosen.threshold == 1 else f"{chosen.threshold} shares open"
    return (
        f"each shares masks with {masks}; {shares} a mask; {chosen.quorum} must agree on who is "
        f"in a sum; the sum of {chosen.survivors} or more is unmasked; {chosen.colluders or 'none'}"
        " may collude with the server"
    )


def rounds_facts(rules: Aggregation | None, clients: int | None) -> list[tuple[str, str]]:
    """What founding reports about rounds, for `facts`; empty if there are none."""
    if rules is None:
        return []
    rows = [("Rounds", rules_in_words(rules))]
    if clients is not None:
        rows.append((f"With {clients} clients", plan_in_words(rules, clients)))
    return rows


def require_rules(rules: Aggregation | None, clients: int | None) -> None:
    """Refuse `--clients` where no round is ever made."""
    if clients is not None and rules is None:
        raise click.UsageError(
            "--clients shows what the rules of secure aggregation mean: also give "
            "--secure-aggregation"
        )


def plan_value(rules: Aggregation | None, clients: int | None) -> dict[str, int] | None:
    """The same as JSON."""
    return (
        None
        if rules is None or clients is None
        else {"clients": clients, **asdict(plan(rules, clients))}
    )
