"""`expunge serve`: the server over HTTPS."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from expunge.aggregator import is_aggregator
from expunge.cli._command import command
from expunge.cli._options import FILE, FOLDER
from expunge.cli._output import Screen, facts, line, title
from expunge.cli.aggregator import forwarding
from expunge.exact import threads
from expunge.federation.layout import Layout
from expunge.server.service import Service
from expunge.server.state import Settings

_DEFAULT_PORT = 8443
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_MEGABYTE = 1 << 20
_PATIENCE = 2.0  # seconds to wait for a command that has the folder open


@command()
@click.argument("directory", type=FOLDER)
@click.option(
    "--host",
    help="The name or address to listen on. [default: all if init had --host, else localhost]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="The port; 0 takes any free port. [default: as given to init]",
)
@click.option(
    "--tls-cert",
    type=FILE,
    help="Your own certificate (PEM, with chain). [default: the one init created]",
)
@click.option("--tls-key", type=FILE, help="Key of --tls-cert (PEM, unencrypted).")
@click.option(
    "--insecure-http",
    is_flag=True,
    help="Serve plain HTTP. Use only behind a TLS reverse proxy.",
)
@click.option(
    "--trust-proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Trust X-Forwarded-For from this proxy. Repeatable.",
)
@click.option(
    "--erase-within",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="Seconds until a request is erased at rest.",
)
@click.option(
    "--group-commit/--no-group-commit",
    default=True,
    show_default=True,
    help="Apply waiting requests together as one round.",
)
@click.option(
    "--gather-for",
    type=click.FloatRange(0.0),
    default=Settings.gather_for,
    show_default=True,
    metavar="SECONDS",
    help="Secure aggregation: how long a round with enough clients waits for more.",
)
@click.option(
    "--phase-for",
    type=click.FloatRange(0.0, min_open=True),
    default=Settings.phase_for,
    show_default=True,
    metavar="SECONDS",
    help="Secure aggregation: time per phase before a client counts as dropped out.",
)
@click.option(
    "--forward-every",
    type=click.FloatRange(0.0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Aggregator: how often to forward the group's changes to the server above.",
)
@click.option(
    "--largest-request",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Largest accepted request, in megabytes.",
)
@click.option(
    "--requests-per-minute",
    type=click.IntRange(0),
    default=6000,
    show_default=True,
    help="Rate limit per client; 0 for no limit.",
)
@click.option(
    "--solver",
    type=click.Choice(["woodbury", "cholesky"]),
    help="Variant B or A; both give the same heads. [default: as given to init]",
)
@click.option(
    "--scrub-every",
    type=click.FloatRange(0.0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="How often to look for damage in the store; 0 for never.",
)
@click.option(
    "--blas-threads",
    type=click.IntRange(1),
    help="Threads for linear algebra. [default: number of cores]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level to log.",
)
@click.option("--log-peers", is_flag=True, help="Also log the addresses of clients.")
def serve(
    *,
    directory: Path,
    host: str | None,
    port: int | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure_http: bool,
    proxies: tuple[str, ...],
    forward_every: float,
    largest_request: int,
    blas_threads: int | None,
    log_level: str,
    log_peers: bool,
    **given: Any,
) -> None:
    """Serve the federation in DIRECTORY over HTTPS.

    Runs until Ctrl-C or SIGTERM, and answers requests in flight before it stops; a crash loses
    nothing. Logs go to standard error, one JSON line per request, without personal data;
    --log-level warning omits successful requests. Monitor /healthz, /readyz and /metrics. An
    aggregator's group is served in the same way, and kept up to date with the server above.

    Example:
      expunge serve federation
      expunge serve federation --tls-cert fullchain.pem --tls-key privkey.pem

    Next, in another terminal:
      expunge server token hospital-a --office federation/operator
    """
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError(
            "--tls-cert and --tls-key belong together: give both, or neither for the ones that "
            "init created"
        )
    from expunge.server.http import logs, run, tls  # noqa: PLC0415 - an extra, needed only to serve

    layout, screen = Layout.at(directory), Screen.current()
    own = tls_cert is not None or insecure_http
    threads.limit_blas_threads(blas_threads or threads.cores())
    handler, began = logs.write_to(sys.stderr, log_level), False
    # what never began is an error
    handler.addFilter(lambda record: began or '"event": "stopped"' not in record.getMessage())
    try:
        federation = ""

        def opened(progress: run.Progress) -> Service:
            nonlocal federation
            service = Service.open(
                layout.server,
                settings=_settings(largest_request, **given),
                mirrors=layout.mirrors,
                report=logs.report,
                timeout=_PATIENCE,
                progress=progress,
            )
            federation = service.state.federation
            return service

        def ready(listening: run.Listening) -> None:
            nonlocal began
            began = True
            layout.write_serving(listening.urls[0] if own else _local_url(listening.urls[0]))
            screen.result(
                {"federation": federation, "urls": list(listening.urls), "pid": os.getpid()},
                title(f"Serving federation {federation}"),
                facts([("At", url) for url in listening.urls] + [("Process", str(os.getpid()))]),
                line("Press Ctrl-C to stop.", indent=2),
            )
            sys.stdout.flush()

        run.serve(
            opened,
            host=_host(layout) if host is None else host,
            port=_port(layout) if port is None else port,
            certificate=None if insecure_http else tls_cert or layout.tls / tls.CERTIFICATE,
            key=None if insecure_http else tls_key or layout.tls / tls.KEY,
            insecure=insecure_http,
            trusted_proxies=proxies,
            log_peers=log_peers,
            ready=ready,
            beside=(lambda service: forwarding(layout.path, service, forward_every, logs.report))
            if is_aggregator(layout.path)
            else None,
        )
    finally:
        layout.drop_serving()
        logs.stop_writing(handler)


def _settings(
    largest_request: int, *, solver: str | None, scrub_every: float, **given: Any
) -> Settings:
    return Settings(
        solver=solver or "",
        scrub_every=scrub_every * 3600.0,
        largest_request=largest_request * _MEGABYTE,
        most_in_flight=max(largest_request, 256) * _MEGABYTE,
        **given,
    )


def _host(layout: Layout) -> str:
    """All addresses if clients are elsewhere, this machine's own otherwise."""
    hosts = {urlsplit(url).hostname for url in layout.urls}
    return "localhost" if hosts <= set(_THIS_MACHINE) else ""


def _port(layout: Layout) -> int:
    ports = [urlsplit(url).port for url in layout.urls]
    return ports[0] or _DEFAULT_PORT if ports else _DEFAULT_PORT


def _local_url(url: str) -> str:
    """The same for who speaks from this machine, by a name that the certificate has."""
    parts = urlsplit(url)
    return url if parts.hostname in _THIS_MACHINE else f"{parts.scheme}://localhost:{parts.port}"
