"""`expunge aggregator`: groups of clients whose server is itself a client of the server above."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from expunge.aggregator import Aggregator, Forwarder, upstream_address
from expunge.cli._aggregation import (
    messages_of,
    require_rules,
    rounds_facts,
    rules_of,
    rules_options,
)
from expunge.cli._command import group
from expunge.cli._connect import ATTEMPTS, PATIENCE, carrier_to
from expunge.cli._identifiers import Identifier, resolve
from expunge.cli._options import (
    FOLDER,
    at_option,
    backbone_argument,
    host_option,
    mirror_option,
    output_option,
    port_option,
)
from expunge.cli._output import Screen, Style, count, facts, next_steps, title, typed, unwrapped
from expunge.cli.enroll import addresses, token_from
from expunge.errors import StoreBusyError
from expunge.federation.layout import Layout, url_of
from expunge.server.service import Service
from expunge.storage.files import write_whole


@group()
def aggregator() -> None:
    """Serve a group of clients under another server, which sees only the group's sums.

    An aggregator is the server of its group and a client of the server above, whose spec must allow
    group messages (expunge init --messages rows,gram,group). The head at the root still equals, bit
    for bit, the head retrained on all samples of all groups.

    Example:
      expunge aggregator found region-north region-north.token
      expunge serve region-north
    """


@aggregator.command()
@click.argument("directory", type=FOLDER)
@click.argument("token")
@click.option("--messages", help="Messages that the group's clients may send. [default: rows,gram]")
@rules_options
@host_option("A name or address at which its clients reach it. Repeatable.")
@port_option()
@mirror_option()
@at_option
def found(
    *,
    directory: Path,
    token: str,
    hosts: tuple[str, ...],
    port: int,
    mirrors: tuple[Path, ...],
    at: str | None,
    **given: Any,
) -> None:
    """Create a group in the new folder DIRECTORY, with a one-time TOKEN from the operator above.

    The group uses the spec of the server above; only the messages within the group can be chosen.
    With --secure-aggregation the aggregator itself sees only sums over rounds. If interrupted, run
    the same command again to finish.

    Example:
      expunge aggregator found region-north region-north.token
      expunge aggregator found north north.token --secure-aggregation

    Next:
      expunge serve region-north
      expunge server token clinic-a --office region-north/operator
    """
    rules, expected = rules_of(given), given["expected"]
    require_rules(rules, expected)
    messages = messages_of(given, rules)
    whole = token_from(token)
    address = addresses(whole, at)[0]
    urls = [url_of(host, port) for host in hosts]
    options: dict[str, Any] = {"hosts": hosts, "urls": urls, "mirrors": mirrors}
    with (
        carrier_to(address, whole.ca) as carrier,
        Aggregator.found(
            directory,
            whole,
            carrier,
            messages=messages,
            aggregation=rules,
            address=address,
            **options,
        ) as made,
    ):
        name, above = made.name, made.upstream.federation
        own, spec = made.group.office.federation, made.group.spec
    Screen.current().result(
        {
            "directory": str(directory),
            "name": name,
            "above": above,
            "federation": own,
            "urls": urls,
            "spec": spec.to_dict(),
        },
        unwrapped(f"Group {name} created in {directory}", "bold"),
        facts(
            [
                ("Under", unwrapped(f"federation {above}, at {address}")),
                ("Clients may send", ", ".join(spec.messages)),
                *rounds_facts(spec, expected),
                ("Reached at", unwrapped(", ".join(urls) or f"{directory}, on this machine")),
                ("Operator's office", directory / "operator"),
            ]
        ),
        next_steps(
            f"expunge serve {typed(directory)}",
            "expunge server token clinic-a -o clinic-a.token --office "
            f"{typed(directory / 'operator')}",
            f"expunge enroll clinic-a.token --dir clinic-a{backbone_argument(spec)}",
        ),
    )


@aggregator.command()
@click.argument("directory", type=FOLDER)
@click.option(
    "--accept-restored",
    is_flag=True,
    help="The server above was restored from a backup: accept its shorter log.",
)
@at_option
def sync(*, directory: Path, accept_restored: bool, at: str | None) -> None:
    """Forward the changes of the group in DIRECTORY; fetch orders, amendments and audits.

    A running server (expunge serve) does this by itself, every --forward-every seconds.

    Example:
      expunge aggregator sync region-north
    """
    with opened(directory, at) as instance:
        done = instance.sync(accept_restored=accept_restored)
        samples = instance.group.carrier.status()["samples"]
        name = instance.name
    rows = [
        (
            f"Request {receipt.sequence}",
            _changes(receipt.logged.entry) + f" (log entry {receipt.logged.index} above)",
        )
        for receipt in done.receipts
    ]
    Screen.current().result(
        {
            "name": name,
            "samples": samples,
            "receipts": [receipt.sequence for receipt in done.receipts],
            "orders": [order for order, _ in done.orders],
            "audits": list(done.audits),
            "head": done.head,
        },
        title(
            f"{name} is up to date with the server above"
            if done.status == "active"
            else f"The server above no longer knows {name}"
        ),
        facts(
            [
                ("Group", count(samples, "sample")),
                *(rows or [("Forwarded", "nothing has changed")]),
                *((f"Order {order[:8]}", "filed in the group") for order, _ in done.orders),
                *([("Audits answered", str(len(done.audits)))] if done.audits else []),
                ("Head of the root", done.head or "none"),
            ]
        ),
    )


@aggregator.command()
@click.argument("directory", type=FOLDER)
@click.argument("client")
@click.argument("sequence")
@output_option("The file to write.", required=True)
@at_option
def passage(*, directory: Path, client: str, sequence: str, output: Path, at: str | None) -> None:
    """Write the passage of a CLIENT's request SEQUENCE: evidence that it is in the ledger above.

    SEQUENCE is the number of the request, or last. To verify the passage offline, only the public
    key of the server above is needed.

    Example:
      expunge aggregator passage region-north clinic-a 7 -o passage.json
      expunge verify passage.json --key root.pub
    """
    with opened(directory, at) as instance:
        identifiers = [Identifier(str(number)) for number in instance.sequences(client)]
        number = int(resolve(sequence, identifiers, "request", abbreviated=False))
        data, name = instance.passage(client, number), instance.name
    write_whole(output, data)
    Screen.current().result(
        {"file": str(output), "client": client, "sequence": number, "aggregator": name},
        unwrapped(
            f"The passage of request {number} of {client} through {name} is in {output}.",
            Style.GOOD,
        ),
        next_steps(f"expunge verify {typed(output)} --trust {typed(directory / 'upstream')}"),
    )


@contextmanager
def opened(directory: Path, at: str | None) -> Iterator[Aggregator]:
    """An aggregator with its way to the server above; its group must not be served meanwhile."""
    layout = Layout.at(directory)
    if layout.serving():
        raise StoreBusyError(
            f"{directory} is being served, and that process keeps it up to date (expunge serve "
            "--forward-every)"
        )
    address, ca = upstream_address(layout.path, timeout=PATIENCE)
    with (
        carrier_to(at or address, ca) as carrier,
        Aggregator(directory, carrier, attempts=ATTEMPTS) as instance,
    ):
        yield instance


@contextmanager
def forwarding(
    directory: Path,
    service: Service,
    every: float,
    report: Callable[[str, BaseException | None], None],
) -> Iterator[None]:
    """Keep the group of a running service in step with the server above."""
    address, ca = upstream_address(Layout.at(directory).path, timeout=PATIENCE)
    with (
        carrier_to(address, ca) as carrier,
        Aggregator(directory, carrier, service=service, attempts=1) as instance,
    ):
        forwarder = Forwarder(instance, every, report)
        forwarder.start()
        try:
            yield
        finally:
            forwarder.stop()


def _changes(entry: dict[str, Any]) -> str:
    parts = [
        f"{count(entry[name], 'sample')} {name}" for name in ("added", "deleted") if entry[name]
    ]
    return ", ".join(parts) or "answers only"
