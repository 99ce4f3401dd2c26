"""`expunge head`: the newest head with its certificate, shown, kept or exported."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import RenderableType

from expunge.cli._command import command
from expunge.cli._connect import office_at, read_store, sync_command
from expunge.cli._evidence import store_head
from expunge.cli._options import at_option, fetched_head_option, office_option, output_option
from expunge.cli._output import Screen, count, facts, next_steps, title, typed
from expunge.client.overview import ClientOverview
from expunge.errors import InputError
from expunge.evidence import Certificate, published_head
from expunge.evidence.wording import moment
from expunge.export import save_npz, save_onnx, save_safetensors
from expunge.ridge.head import Head
from expunge.storage.files import write_whole

_FORMATS = ("safetensors", "onnx", "npz")
_Found = tuple[bytes, Head, Certificate]


@command()
@output_option("Write the head and its certificate to this file.")
@click.option(
    "--export",
    "form",
    type=click.Choice(_FORMATS),
    help="Write the weights alone, for other tools; needs -o.",
)
@fetched_head_option
@office_option
@at_option
def head(
    output: Path | None, form: str | None, folder: Path | None, office: Path | None, at: str | None
) -> None:
    """Show the newest head and its certificate, or write it to a file.

    With --dir, this is the head that the client fetched at its last sync. Otherwise an operator's
    or officer's office asks the server. Signature and digest are verified either way.

    Example:
      expunge head --dir hospital-a
      expunge head --dir hospital-a -o head.expunge
      expunge head --dir hospital-a -o head.safetensors --export safetensors

    Next:
      expunge verify head.expunge --trust hospital-a
      expunge predict features.csv --head head.expunge --trust hospital-a
    """
    if form is not None and output is None:
        raise click.UsageError("--export needs a file to write to: -o FILE")
    (data, weights, certificate), trusted = (
        (_from_client(folder), folder) if folder is not None else _from_server(office, at)
    )
    if output is not None:
        _write(output, form, data, weights)
    value = {
        "digest": certificate.head,
        "samples": certificate.count,
        "clients": certificate.clients,
        "spec": certificate.spec.to_dict(),
        "time": certificate.time,
        "bound": certificate.bound,
        "log": certificate.checkpoint.size,
        "audit": certificate.audit,
        "file": None if output is None else str(output),
    }
    audit = certificate.audit
    Screen.current().result(
        value,
        title(f"Head {certificate.head[:16]}…, certified {moment(certificate.time)}"),
        facts(
            [
                ("Digest", certificate.head),
                (
                    "Trained on",
                    (
                        f"{count(certificate.count, 'sample')} of "
                        f"{count(certificate.clients, 'client')}"
                    ),
                ),
                (
                    "Weights",
                    (
                        f"{weights.spec.width} x {weights.spec.columns}, multiples of "
                        f"2^{-weights.spec.publication_bits}"
                    ),
                ),
                (
                    "Exact",
                    "yes, as certified: bit for bit equal to retraining"
                    if certificate.exact
                    else f"no: {certificate.deviation}",
                ),
                (
                    "Last audit",
                    "none yet" if audit is None else f"{audit['result']}, {moment(audit['time'])}",
                ),
                *([("Written to", output)] if output is not None else []),
            ]
        ),
        *([] if output is None or form is not None else [_next(output, trusted)]),
    )


def _next(output: Path, trusted: Path) -> RenderableType:
    """What to do with a written head; `trusted` is the folder that knows the server's key."""
    return next_steps(
        f"expunge verify {typed(output)} --trust {typed(trusted)}",
        f"expunge predict FILE --head {typed(output)} --trust {typed(trusted)}",
    )


def _from_client(folder: Path) -> _Found:
    def ask(store: ClientOverview) -> _Found:
        held = store_head(store)
        if held is None:
            raise InputError(
                f"the client in {folder} has not fetched a head yet: "
                f"{sync_command(folder, store.address)}"
            )
        return held

    return read_store(ClientOverview, folder, ask)[0]


def _from_server(office: Path | None, at: str | None) -> tuple[_Found, Path]:
    with office_at(office, at) as connection:
        data = connection.carrier.head()
        if data is None:
            raise InputError("the server sent no head: retry")
        connection.office.federation_content()  # so that a key that is newer than ours is known
        return (data, *published_head.read(data, connection.office.chain)), connection.office.path


def _write(output: Path, form: str | None, data: bytes, weights: Head) -> None:
    if form == "safetensors":
        save_safetensors(weights, output)
    elif form == "onnx":
        save_onnx(weights, output)
    elif form == "npz":
        save_npz(weights, output)
    else:
        write_whole(output, data, mode=0o644)
