"""The ServerApp, ready to be run, and what to call in one that is there already."""

from __future__ import annotations

import logging
import time

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from expunge.carriers.flower.desk import Desk
from expunge.carriers.flower.plan import Plan
from expunge.carriers.flower.serving import Tally, converse
from expunge.carriers.local import LocalCarrier
from expunge.server.core import Settings
from expunge.server.service import Service

log = logging.getLogger("flwr")

_LOCK_PATIENCE = 60.0  # seconds that a run which was killed may still hold the server's folder


def server_app(settings: Settings | None = None) -> ServerApp:
    """A ServerApp that does nothing but serve the federation of its run's config."""
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        serve(grid, context, settings=settings)

    app.main()(main)
    return app


def serve(grid: Grid, context: Context, *, settings: Settings | None = None) -> Tally:
    """Open the server's folder, poll the nodes as the run's config says, and leave the folder folded. For the main of any app."""
    plan = Plan.of(context.run_config)
    began = time.monotonic()
    carrier = LocalCarrier(plan.server, settings=settings, timeout=_LOCK_PATIENCE)
    try:
        before = _applied(carrier.service)
        desk = Desk(carrier, lambda what, problem: log.error("Expunge: %s", what, exc_info=problem))
        tally = converse(grid, desk, plan)
        log.info(
            "Expunge: %d samples, head %s; %d requests applied, %d clients seen, %d with problems, %d waiting for "
            "others, %d nodes late; %d exchanges in %.2f s",
            carrier.service.status()["samples"],
            carrier.service.head_digest() or "none",
            _applied(carrier.service) - before,
            len(tally.done | set(tally.problems)),
            len(tally.problems),
            len(tally.waiting),
            len(tally.late),
            tally.exchanges,
            time.monotonic() - began,
        )
    finally:
        carrier.close()
    return tally


def _applied(service: Service) -> int:
    """How many requests of clients have been applied, by messages of their own or by rounds of secure aggregation."""
    return int(service.core.database.value("SELECT coalesce(sum(sequence), 0) FROM actors WHERE role = 'client'"))
