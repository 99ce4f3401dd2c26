"""The rules of secure aggregation on the command line: as options, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from expunge.cli._options import FILE, Function, duration_option
from expunge.errors import InputError
from expunge.kinds import MessageKind
from expunge.ridge.spec import Aggregation, Spec, message_kinds
from expunge.secagg import plan
from expunge.secagg.schedule import DAY, Schedule, duration_text
from expunge.secagg.traffic import RoundSizes

ARBITER_PUBLIC = "expunge-arbiter-public-1."  # with which the file of its public keys begins
_SET_BY_OPTIONS = (
    "fewest",
    "dropouts",
    "colluding",
    "every",
    "window",
    "arbiter",
    "set_aside_after",
)
_NAMED = "client-{:09}"  # clients whose traffic is computed before they have names


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
        duration_option(
            "--every",
            "Masked rounds: begin them on a schedule, such as 1h. "
            "[default: when a client has changes]",
        ),
        duration_option(
            "--window", "Masked rounds on a schedule: how long clients may join, such as 5m."
        ),
        click.option(
            "--arbiter",
            type=FILE,
            help="Masked rounds: the arbiter.pub of who finds out whose statistics are false.",
        ),
        duration_option(
            "--set-aside-after",
            "Masked rounds: go on without a client that others have waited for so long. "
            "[default: 7d]",
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
        if ("every" in chosen) != ("window" in chosen):
            raise click.UsageError(
                "--every and --window belong together: rounds begin every so often, and are "
                "joined while the window is open"
            )
        if "arbiter" in chosen:
            chosen["arbiter"] = _public(chosen["arbiter"])
        return Aggregation(**chosen)
    if chosen:
        raise click.UsageError(
            f"--{next(iter(chosen)).replace('_', '-')} is a rule of secure aggregation: also give "
            "--secure-aggregation"
        )
    return None


def _public(file: Path) -> str:
    """The public keys in an arbiter's file; never those of the file that is secret."""
    text = file.read_text("ascii", errors="replace").strip()
    if not text.startswith(ARBITER_PUBLIC):
        raise InputError(
            f"{file} has no public keys of an arbiter: give the arbiter.pub that `expunge arbiter "
            "create` wrote, and keep its arbiter.key secret"
        )
    return text.removeprefix(ARBITER_PUBLIC)


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
    schedule = Schedule.of(rules)
    return (
        f"at least {rules.fewest} clients; {rules.dropouts} % may drop out, "
        f"{rules.colluding} % may collude with the server"
        f"{'' if schedule is None else f'; {schedule}'}"
        f"{f'; arbiter {rules.arbiter[:8]}…' if rules.arbiter else ''}"
        f"; go on without a client after {duration_text(rules.set_aside_after)}"
    )


def held_up(rounds: dict[str, Any]) -> str:
    """Why the round of all clients that is wanted cannot take place, and what to do, by the
    server's status; empty if it can.
    """
    barred, culprits, fewest = rounds["barred"], rounds["culprits"], rounds["fewest"]
    active = len(rounds["needed"])
    reasons = [
        *(
            [f"{', '.join(barred)} barred by the arbiter: forget it (expunge server forget-client)"]
            if barred
            else []
        ),
        *([culprits_in_words(culprits)] if culprits else []),
        *([f"{active} active, and {fewest} needed: enrol more clients"] if active < fewest else []),
    ]
    return "; ".join(reasons)


def culprits_in_words(culprits: Sequence[str]) -> str:
    """Clients that dealt wrong shares, and what to do."""
    return (
        f"{', '.join(culprits)} dealt wrong shares, so no join of it is taken: restart the server "
        "to try again, or forget it (expunge server forget-client)"
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


def rounds_facts(spec: Spec, clients: int | None) -> list[tuple[str, str]]:
    """What founding reports about rounds, for `facts`; empty if there are none."""
    rules = spec.aggregation
    if rules is None:
        return []
    rows = [("Rounds", rules_in_words(rules))]
    if clients is None:
        return rows
    rows.append((f"With {clients} clients", plan_in_words(rules, clients)))
    cost = schedule_value(spec, clients)
    if cost is not None:
        daily = cost["rounds_a_day"]
        rows += [
            ("Rounds a day", f"{daily:g}, also when nobody changes anything"),
            *(
                (f"Each client {verb}", _each(cost[name], daily))
                for verb, name in (("sends", "sent"), ("receives", "received"))
            ),
            ("Audit log", f"grows by {_bytes(daily * cost['logged'])} a day"),
        ]
    return rows


def _each(size: int, daily: float) -> str:
    return f"{_bytes(size)} a round, {_bytes(daily * size)} a day"


def _bytes(number: float) -> str:
    """Bytes in a unit in which they are easy to read."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:.3g} {unit}"


def schedule_value(spec: Spec, clients: int | None) -> dict[str, Any] | None:
    """The schedule as JSON, and what its rounds cost with this many clients: bytes of a round that
    a client sends and receives, and that are logged. None without a schedule.
    """
    schedule = Schedule.of(spec.aggregation)
    if schedule is None:
        return None
    value: dict[str, Any] = {**asdict(schedule), "rounds_a_day": DAY / schedule.every}
    if clients is None:
        return value
    names = [_NAMED.format(number) for number in range(clients)]
    return value | asdict(RoundSizes(spec, names).of(names[0]))


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
