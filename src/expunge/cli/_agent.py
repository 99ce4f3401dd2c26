"""A client's store, agent and backbone, from what was typed.

A carrier may be watched: progress bars show what an agent has sent, what it waits for and what it
has recomputed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from expunge import backbones
from expunge.cli import _connect
from expunge.cli._connect import carrier_to, is_url, layout_at, require_client
from expunge.cli._options import WAIT, WAIT_AFTER
from expunge.cli._output import Bars, Screen
from expunge.client import Agent, ClientStore
from expunge.client.samples import FILE_SOURCE, TEXT_SOURCE, Recompute
from expunge.errors import BackboneError, ExpungeError
from expunge.kinds import AnsweredPhase
from expunge.ridge.spec import Spec
from expunge.wire import payloads
from expunge.wire.carrier import Carrier

if TYPE_CHECKING:
    from expunge.backbones import Backbone

SENDING, RECOMPUTING = "Sending samples", "Recomputing for the audit"
ROUND = "Round"
_PHASES: dict[AnsweredPhase, str] = {
    "sharing": "exchanging key shares",
    "masking": "sending masked sums",
    "agreeing": "agreeing on who is in the sum",
    "revealing": "unmasking the sum",
}


def with_progress(store: ClientStore, carrier: Carrier, show: Bars) -> Carrier:
    """The same carrier; whenever a request is answered, `show` hears how many samples were sent, of
    all there are to send.
    """
    return cast("Carrier", _ProgressCarrier(store, carrier, show))


class _ProgressCarrier:
    """Everything else is delegated to the carrier."""

    def __init__(self, store: ClientStore, carrier: Carrier, show: Bars) -> None:
        self._store = store
        self._carrier = carrier
        self._show = show
        self._sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._carrier, name)

    def request(self, data: bytes) -> bytes:
        """Offer a request.

        Its samples are pending until it is settled, which is after this returns.
        """
        composition = self._store.outbox.composed()
        samples = 0 if composition is None else composition.added + composition.deleted
        if not samples:
            return self._carrier.request(data)
        status = self._store.status()
        total = self._sent + max(samples, status.adding + status.deleting)
        self._show(SENDING, self._sent, total)
        answer = self._carrier.request(data)
        self._sent += samples
        self._show(SENDING, self._sent, total)
        return answer

    def aggregate(self, data: bytes) -> bytes:
        """Take a turn in a round of secure aggregation, and show the round's progress."""
        answer = self._carrier.aggregate(data)
        state = round_state(answer)
        if state:
            self._show(f"{ROUND}: {state}", 0, None)
        return answer


def round_state(answer: bytes) -> str:
    """The state of a round in a few words, for people who wait; the agent is the one to judge the
    answer.
    """
    try:
        _, content = payloads.open_unverified("standing", answer)
    except ExpungeError:
        return ""
    if content["phase"] == "joining":
        return f"{content['joined']} of at least {content['fewest']} clients have joined"
    return _PHASES.get(content["phase"], "")


def recomputed(store: ClientStore, show: Bars) -> Callable[[int], None]:
    """Hears how many samples an audit has gone through."""

    def report(done: int) -> None:
        status = store.status()
        show(RECOMPUTING, done, max(done, status.live + status.deleting))

    return report


@contextmanager
def store_at(folder: Path, *, old_copy: bool = False) -> Iterator[ClientStore]:
    """A client's store; closed on exit, when what was found wrong with its vault is told.

    An old copy, put back from a backup, drops what has been erased since.
    """
    require_client(folder)
    with ClientStore.open(folder, timeout=_connect.PATIENCE, restored=old_copy) as store:
        try:
            yield store
        finally:
            for warning in store.warnings:
                Screen.current().note(warning)


def unserved(store: ClientStore, at: str | None) -> Path | None:
    """The folder of a masked federation whose server is not running, so that no client can take
    part.
    """
    address = at or store.address
    if not store.spec.is_masked or is_url(address) or layout_at(address).serving():
        return None
    return Path(address)


@contextmanager
def agent_of(
    store: ClientStore,
    at: str | None,
    backbone: Backbone | None = None,
    *,
    wait: float | None = 0.0,
) -> Iterator[Agent]:
    """A client's agent with its way to the server; features that are not kept are computed by the
    backbone.

    `wait` is how many seconds it waits for the other clients of a round of secure aggregation.
    """
    patience = _usual_wait(store) if wait is None else wait
    patience = patience if unserved(store, at) is None else 0.0
    with (
        carrier_to(at or store.address, store.ca) as carrier,
        agent_on(store, carrier, backbone, wait=patience) as agent,
    ):
        yield agent


def _usual_wait(store: ClientStore) -> float:
    """Seconds to wait for others: on a schedule, until the round of a window must be over."""
    rules = store.spec.aggregation
    return WAIT if rules is None or not store.spec.is_scheduled else rules.window + WAIT_AFTER


def next_round(store: ClientStore) -> str:
    """When the next round on the federation's schedule begins; empty without a schedule.

    There, commands that change something leave it to the next sync: a client that speaks to the
    server out of turn tells that it has changed something.
    """
    if not store.spec.is_scheduled:
        return ""
    from expunge.secagg.schedule import Schedule  # noqa: PLC0415 - for masked federations only

    schedule = Schedule.of(store.spec.aggregation)
    return "" if schedule is None else schedule.next_round(time.time())


@contextmanager
def agent_on(
    store: ClientStore, carrier: Carrier, backbone: Backbone | None = None, *, wait: float = 0.0
) -> Iterator[Agent]:
    """A client's agent on a carrier, with bars for what it sends, what it waits for, and what it
    recomputes.
    """
    again, screen = recomputing(backbone), Screen.current()
    if not screen.is_watched:
        yield Agent(store, carrier, recompute=again, attempts=_connect.ATTEMPTS, patience=wait)
        return
    with screen.bars() as show:
        reporting = with_progress(store, carrier, show)
        yield Agent(
            store,
            reporting,
            recompute=again,
            attempts=_connect.ATTEMPTS,
            progress=recomputed(store, show),
            patience=wait,
        )


def opened_backbone(spec: Spec, description: str | Mapping[str, Any]) -> Backbone:
    """The backbone of a description, if it is the one that the spec pins."""
    backbone = backbones.backbone_from(description)
    backbones.require_fingerprint(spec, backbone)
    return backbone


def recomputing(backbone: Backbone | None) -> Recompute | None:
    """What computes features again from their sources."""
    if backbone is None:
        return None

    def recompute(sources: Sequence[str]) -> NDArray[Any]:
        given = [
            Path(source.removeprefix(FILE_SOURCE))
            if source.startswith(FILE_SOURCE)
            else source.removeprefix(TEXT_SOURCE)
            for source in sources
        ]
        return np.asarray(backbone.features(given))

    return recompute


def backbone_of(store: ClientStore, description: str | None) -> Backbone | None:
    """The backbone that is named, or the one that the client was enrolled with, as it was then."""
    if description is not None:
        return opened_backbone(store.spec, description)
    recorded = store.recall("backbone")
    if recorded is None:
        return None
    try:
        return opened_backbone(store.spec, json.loads(recorded))
    except BackboneError as problem:
        problem.add_note(
            "The client was enrolled with this backbone. Restore it, or give --backbone "
            "DESCRIPTION if it has moved"
        )
        raise
