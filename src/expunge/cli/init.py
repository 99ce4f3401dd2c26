"""`expunge init`: found a federation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from expunge.backbones import backbone_from
from expunge.cli import _warnings
from expunge.cli._aggregation import (
    messages_of,
    plan_value,
    require_rules,
    rounds_facts,
    rules_of,
    rules_options,
    schedule_value,
)
from expunge.cli._command import command
from expunge.cli._options import (
    FILE,
    FOLDER,
    backbone_argument,
    backbone_option,
    host_option,
    mirror_option,
    port_option,
)
from expunge.cli._output import Screen, count, facts, line, next_steps, typed, unwrapped
from expunge.errors import FormatError, InputError
from expunge.exact import Grid
from expunge.federation.founding import found_federation
from expunge.federation.layout import url_of
from expunge.office import Office
from expunge.ridge.spec import Spec
from expunge.server.ledger import SOLVERS

_GRID_HELP = "DIGITS,FRACTION_BITS (a digit has 21 bits)"


@command()
@click.argument("directory", type=FOLDER)
@click.option("--dim", type=int, help="Length of a feature. [default: the backbone's]")
@click.option(
    "--labels",
    metavar="A,B,C",
    help="Labels, for classification; @FILE reads one per line, except '# comments'.",
)
@click.option("--outputs", type=int, help="Number of outputs, for regression.")
@click.option("--gamma", type=float, default=1.0, show_default=True, help="The ridge parameter.")
@click.option(
    "--intercept/--no-intercept",
    default=True,
    show_default=True,
    help="Add a constant feature.",
)
@click.option("--grid", default="2,35", show_default=True, help=f"Feature grid: {_GRID_HELP}.")
@click.option(
    "--label-grid", default="2,35", show_default=True, help="Label grid, in the same form."
)
@click.option(
    "--publication-bits",
    type=int,
    default=40,
    show_default=True,
    help="Publish weights as multiples of 2^-BITS.",
)
@backbone_option("Pin a backbone, such as hf:FOLDER?pooling=cls or onnx:model.onnx.")
@click.option(
    "--fingerprint",
    metavar="TEXT",
    help="Pin a backbone by its fingerprint, or by any agreed text.",
)
@click.option("--messages", help="Messages that clients may send. [default: rows,gram]")
@click.option(
    "--fewest-samples",
    type=click.IntRange(0),
    metavar="N",
    help="A change of fewer samples waits for more; with masked or gram messages. [default: 0]",
)
@rules_options
@click.option(
    "--spec",
    "spec_file",
    type=FILE,
    help="Read the spec from this JSON file, instead of the options above.",
)
@click.option(
    "--solver",
    type=click.Choice(sorted(SOLVERS)),
    default="woodbury",
    show_default=True,
    help="Both give the same heads, bit for bit.",
)
@host_option("A name or address at which clients reach the server. Repeatable.")
@port_option()
@mirror_option()
def init(
    directory: Path,
    solver: str,
    hosts: tuple[str, ...],
    port: int,
    mirrors: tuple[Path, ...],
    **given: Any,
) -> None:
    r"""Create a federation in the new folder DIRECTORY.

    Creates the server's folder with its signing key, an office for the first operator
    (DIRECTORY/operator), and a TLS certificate. This fixes the spec that every client must agree
    on: dim, grid, intercept and backbone permanently; gamma, labels and messages can be amended.
    With --host, tokens point clients to https://HOST:PORT; without it, to this folder (a federation
    on one machine).

    With --secure-aggregation clients send masked messages in rounds at the running server. It sees
    only the exact sum of a round, even if it lies about who takes part; a sum over few samples can
    still reveal them. With --every and --window rounds are on a schedule, in which all clients take
    part, so that the server does not see who changes something. This choice and its rules are
    permanent; --spec can set all of them.

    With --fewest-samples a client sends a change only when it has that many samples to add and
    delete, or when a deletion in it has waited for a quarter of its order's time. Also permanent.

    Example:
      expunge init federation --dim 768 --labels cat,dog --host server.example.org
      expunge init federation --backbone hf:dinov2 --labels @labels.txt
      expunge init federation --dim 768 --labels cat,dog --secure-aggregation
      expunge init federation --dim 768 --labels cat,dog \
          --secure-aggregation --every 1h --window 5m

    Next:
      expunge serve federation
      expunge server token hospital-a --office federation/operator
    """
    spec = _spec_file(given) if given["spec_file"] is not None else _spec(given)
    rules, expected = spec.aggregation, given["expected"]
    require_rules(rules, expected)
    urls = [url_of(host, port) for host in hosts]
    layout = found_federation(
        directory, spec, solver=solver, hosts=hosts, urls=urls, mirrors=mirrors
    )
    with Office.open(layout.operator) as office:
        federation, key = office.federation, office.server
    screen = Screen.current()
    for caution in _warnings.of_founding(spec, clients=expected):
        screen.note(caution)
    backbone = backbone_argument(spec, given["backbone"])
    screen.result(
        {
            "directory": str(layout.path),
            "federation": federation,
            "key": key.text,
            "operator": str(layout.operator),
            "public_key": str(layout.public_key),
            "spec": spec.to_dict(),
            "spec_digest": spec.digest,
            "urls": urls,
            "plan": plan_value(rules, expected),
            "schedule": schedule_value(spec, expected),
        },
        unwrapped(f"Federation {federation} created in {directory}", "bold"),
        facts(
            [
                ("Spec", _in_words(spec)),
                ("Backbone", spec.backbone or "none pinned: clients supply features"),
                ("Clients may send", ", ".join(spec.messages)),
                *rounds_facts(spec, expected),
                *(
                    [("A change waits", f"until it is of {count(spec.fewest_samples, 'sample')}")]
                    if spec.fewest_samples
                    else []
                ),
                ("Reached at", unwrapped(", ".join(urls) or f"{layout.path}, on this machine")),
                ("Operator's office", directory / "operator"),
                ("Server's public key", directory / "server.pub"),
            ]
        ),
        line(),
        unwrapped(
            f"Keep copies of {directory}/server/server.key and of {directory}/operator in a safe "
            "place."
        ),
        line(
            "Keep the vault (server.vault) out of ordinary backups: Expunge forgets by destroying "
            "keys in it."
        ),
        next_steps(
            *([f"expunge serve {typed(directory)}"] if urls or spec.is_masked else []),
            "expunge server token hospital-a -o hospital-a.token --office "
            f"{typed(directory / 'operator')}",
            f"expunge enroll hospital-a.token --dir hospital-a{backbone}",
        ),
    )


def _in_words(spec: Spec) -> str:
    target = count(spec.columns, "label" if spec.is_classification else "output")
    features = f"{count(spec.dim, 'feature')}{' and an intercept' * spec.intercept}"
    return f"{features}, {target}, gamma {spec.gamma:g}"


def _spec_file(given: dict[str, Any]) -> Spec:
    path: Path = given["spec_file"]
    if given["secure_aggregation"] or rules_of(given) is not None:
        raise click.UsageError(
            "--spec includes the rules of secure aggregation: give either --spec or "
            "--secure-aggregation"
        )
    if given["fewest_samples"] is not None:
        raise click.UsageError("--spec includes fewest_samples: leave out --fewest-samples")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise FormatError(
            f"{path} is not JSON: {problem}. expunge server spec -o FILE writes one"
        ) from problem
    return Spec.from_dict(content)


def _spec(given: dict[str, Any]) -> Spec:
    if given["backbone"] is not None and given["fingerprint"] is not None:
        raise InputError(
            "give either --backbone or --fingerprint: a backbone has its own fingerprint"
        )
    fingerprint, dim = given["fingerprint"] or "", given["dim"]
    if given["backbone"] is not None:
        backbone = backbone_from(given["backbone"])
        fingerprint, dim = backbone.fingerprint, backbone.dim if dim is None else dim
        if dim != backbone.dim:
            raise InputError(
                f"--dim {dim} contradicts the backbone, whose features have length "
                f"{backbone.dim}: leave --dim out"
            )
    if dim is None:
        raise click.UsageError(
            "give --dim, the length of a feature (or --backbone, which knows it, or --spec)"
        )
    if (given["labels"] is None) == (given["outputs"] is None):
        raise click.UsageError("give either --labels (classification) or --outputs (regression)")
    rules = rules_of(given)
    messages = messages_of(given, rules)
    return Spec(
        dim=dim,
        labels=None if given["labels"] is None else _labels(given["labels"]),
        outputs=given["outputs"],
        gamma=given["gamma"],
        intercept=given["intercept"],
        grid=_grid("--grid", given["grid"]),
        label_grid=_grid("--label-grid", given["label_grid"]),
        publication_bits=given["publication_bits"],
        backbone=fingerprint,
        messages=messages,
        aggregation=rules,
        fewest_samples=given["fewest_samples"] or 0,
    )


def _labels(text: str) -> tuple[str, ...]:
    if text.startswith("@"):
        rows = [row.strip() for row in Path(text[1:]).read_text(encoding="utf-8").splitlines()]
        return tuple(row for row in rows if row and row != "#" and not row.startswith("# "))
    labels = tuple(part.strip() for part in text.split(","))
    if "" in labels:
        raise InputError(f"--labels {text!r:.80} has an empty label: remove the extra comma")
    return labels


def _grid(option: str, text: str) -> Grid:
    try:
        digits, fraction_bits = (int(part) for part in text.split(","))
    except ValueError as problem:
        raise InputError(
            f"{option} {text!r:.40} must be DIGITS,FRACTION_BITS, such as 2,35"
        ) from problem
    return Grid(digits, fraction_bits)
