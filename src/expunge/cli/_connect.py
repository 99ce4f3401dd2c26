"""The way to the server, to an office and to a client's store, from what was typed.

An address is a URL, or the folder of a federation on this machine. With a folder the server is
opened within this process (the local carrier); if a server process has it open, that process is
spoken to at the URL it serves.

A carrier may be watched: progress bars show what an agent has sent, what it waits for and what it
has recomputed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from expunge.backbones import Backbone
from expunge.cli._output import Bars, Screen
from expunge.cli._samples import opened_backbone, recomputing
from expunge.client import Agent, ClientStore
from expunge.errors import (
    BackboneError,
    ExpungeError,
    InputError,
    ShreddedError,
    StoreBusyError,
    StoreError,
)
from expunge.federation.layout import Layout
from expunge.office import Office
from expunge.wire import payloads
from expunge.wire.carrier import Carrier

SENDING, RECOMPUTING = "Sending samples", "Recomputing for the audit"
ROUND = "Round"
_PHASES = {
    "sharing": "shares of keys are exchanged",
    "masking": "masked sums are sent",
    "revealing": "the masks of the sum are taken off",
}


def watched(store: ClientStore, carrier: Carrier, show: Bars) -> Carrier:
    """The same carrier; whenever a request is answered, `show` hears how many samples were sent, of
    all there are to send.
    """
    return cast("Carrier", _Watched(store, carrier, show))


class _Watched:
    """Whatever else is asked of it, the carrier does itself."""

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
        composition = self._store.composed()
        samples = 0 if composition is None else composition.added + composition.deleted
        if not samples:
            return self._carrier.request(data)
        standing = self._store.status()
        total = self._sent + max(samples, standing.adding + standing.deleting)
        self._show(SENDING, self._sent, total)
        answer = self._carrier.request(data)
        self._sent += samples
        self._show(SENDING, self._sent, total)
        return answer

    def aggregate(self, data: bytes) -> bytes:
        """Take a turn in a round of secure aggregation, and show how the round stands."""
        answer = self._carrier.aggregate(data)
        standing = how_it_stands(answer)
        if standing:
            self._show(f"{ROUND}: {standing}", 0, None)
        return answer


def how_it_stands(answer: bytes) -> str:
    """The state of a round in a few words, for people who wait; the agent is the one to judge the
    answer.
    """
    try:
        _, content = payloads.open_unverified("standing", answer)
    except ExpungeError:
        return ""
    if content["phase"] == "joining":
        return f"{content['joined']} of at least {content['fewest']} clients are here"
    return _PHASES.get(content["phase"], "")


def recomputed(store: ClientStore, show: Bars) -> Callable[[int], None]:
    """Hears how many samples an audit has gone through."""

    def heard(done: int) -> None:
        standing = store.status()
        show(RECOMPUTING, done, max(done, standing.live + standing.deleting))

    return heard


ATTEMPTS = 4  # to reach a server, within some four seconds
PATIENCE = 10.0  # seconds to wait for another process that is at work on the same folder
BESIDE = (
    "another process is working on this store: this is how it stood after that process's "
    "last whole change"
)
# Seconds to wait for it where nothing is to be changed: then it is looked at beside that process
_MOMENT = 0.5
_LOOKS = 5

_T = TypeVar("_T")


@dataclass(frozen=True)
class Reached:
    """An office with its way to the server at `address`."""

    office: Office
    carrier: Carrier
    address: str


def is_url(address: str) -> bool:
    """Whether an address is a URL rather than a folder."""
    return address.startswith(("https://", "http://"))


def absolute(address: str) -> str:
    """An address as it may be kept: good in any working directory."""
    return address if is_url(address) else str(Path(address).absolute())


def place_at_hand(reached: Reached) -> Layout | None:
    """The federation's folder, if the server was reached by it."""
    return None if is_url(reached.address) else Layout.at(Path(reached.address))


def _federation_at(address: str) -> Layout:
    """The federation in the folder where a server was said to be."""
    path = Path(address)
    if not Layout.is_at(path):
        raise StoreError(
            f"there is no federation in {path}. If its server has moved, say where it is: give "
            "--at URL, or --at DIR for a "
            "folder on this machine"
        )
    return Layout.at(path)


@contextmanager
def carrier_to(address: str, ca: str = "") -> Iterator[Carrier]:
    """The carrier to a server; closed in the end."""
    carrier = _remote(address, ca) if is_url(address) else _local(address)
    try:
        yield carrier
    finally:
        carrier.close()


def _remote(url: str, ca: str) -> Carrier:
    from expunge.transport.http import HttpCarrier  # noqa: PLC0415 - an extra: a local federation needs no HTTP

    return HttpCarrier(url, ca=ca)


def _local(address: str) -> Carrier:
    from expunge.transport.local import LocalCarrier  # noqa: PLC0415 - brings the whole server: not for those who have a URL

    place = _federation_at(address)
    try:
        return LocalCarrier.open(
            place.server, mirrors=place.mirrors, timeout=0.0 if place.serving() else PATIENCE
        )
    except StoreBusyError as problem:
        url = place.serving()
        if not url:
            raise
        Screen.current().note(f"{place.server} is being served: speaking to {url}")
        try:
            return _remote(url, place.ca)
        except ImportError:
            raise StoreBusyError(f"{problem}. It serves {url}: give --at {url}") from problem


def office_folder(given: Path | None) -> Path:
    """The folder of the office that is meant."""
    candidates = [given] if given is not None else [Path(), Path("operator")]
    for folder in candidates:
        for place in (folder, folder / "operator"):
            if (place / "office.json").exists():
                return place
    if given is not None:
        raise InputError(
            f"{given} is no office: give the folder that expunge init or expunge enroll made for "
            "you"
        )
    raise InputError(
        "whose command is this? Give --office DIR, or set EXPUNGE_OFFICE: the folder that expunge "
        "init (DIR/operator) or "
        "expunge enroll made for you"
    )


@contextmanager
def office_at(given: Path | None, at: str | None) -> Iterator[Reached]:
    """An office, open and connected; what became of commands that had no answer is told."""
    screen = Screen.current()
    with Office.open(office_folder(given), timeout=PATIENCE) as office:
        lost = not is_url(office.address) and not Layout.is_at(Path(office.address))
        address = absolute(at) if at else _beside(office) if lost else office.address
        with carrier_to(address, office.ca) as carrier:
            yield Reached(office.connect(carrier), carrier, address)
            for notice in office.notices:
                screen.note(notice)
        if lost:  # and the server at the new address has just proved to be the right one
            office.move(address)
            screen.note(f"the office of {office.name} now looks for its server at {address}")


def _beside(office: Office) -> str:
    """Where the server of an office is that does not find it: in the folder around it, if both have
    moved together.
    """
    return str(office.path.parent) if Layout.is_at(office.path.parent) else office.address


def require_client(folder: Path) -> None:
    """Refuse a folder that is no client's."""
    if not (folder / "client.db").exists():
        raise InputError(
            f"{folder} is no client's folder: enrol one with expunge enroll TOKEN --dir {folder}"
        )


@contextmanager
def store_at(folder: Path, *, old_copy: bool = False) -> Iterator[ClientStore]:
    """A client's store; closed in the end.

    An old copy, put back from a backup, drops what has been erased since.
    """
    require_client(folder)
    with ClientStore.open(folder, timeout=PATIENCE, restored=old_copy) as store:
        yield store


def looked(folder: Path, ask: Callable[[ClientStore], _T]) -> tuple[_T, bool]:
    """What a client's store answers to a question that changes nothing; and whether another process
    works on it meanwhile.

    Then the answer is how the store stood after that process's last whole change. `ask` may be
    called more than once.
    """
    require_client(folder)
    with suppress(StoreBusyError), ClientStore.open(folder, timeout=_MOMENT) as store:
        return ask(store), False
    for _ in range(_LOOKS):
        with (
            ClientStore.open_read_only(folder) as store,
            suppress(ShreddedError),
        ):  # something went while we looked: look again
            found = ask(store)
            Screen.current().note(BESIDE)
            return found, True
    raise StoreBusyError(
        f"{folder} changes faster than it can be read: try again when its other process has "
        "finished"
    )


def unserved(store: ClientStore, at: str | None) -> Path | None:
    """The folder of a federation whose clients meet in rounds at a server that is not running:
    nobody else can take part.
    """
    address = at or store.address
    if not store.spec.is_masked or is_url(address) or _federation_at(address).serving():
        return None
    return Path(address)


@contextmanager
def agent_of(
    store: ClientStore, at: str | None, backbone: Backbone | None = None, *, wait: float = 0.0
) -> Iterator[Agent]:
    """A client's agent with its way to the server; features that are not kept are computed by the
    backbone.

    `wait` is how many seconds it waits for the other clients of a round of secure aggregation.
    """
    patience = wait if unserved(store, at) is None else 0.0
    with (
        carrier_to(at or store.address, store.ca) as carrier,
        agent_on(store, carrier, backbone, wait=patience) as agent,
    ):
        yield agent


@contextmanager
def agent_on(
    store: ClientStore, carrier: Carrier, backbone: Backbone | None = None, *, wait: float = 0.0
) -> Iterator[Agent]:
    """A client's agent on a carrier, with bars for what it sends, what it waits for, and what it
    recomputes.
    """
    again, screen = recomputing(backbone), Screen.current()
    if not screen.is_watched:
        yield Agent(store, carrier, recompute=again, attempts=ATTEMPTS, patience=wait)
        return
    with screen.bars() as show:
        way = watched(store, carrier, show)
        yield Agent(
            store,
            way,
            recompute=again,
            attempts=ATTEMPTS,
            progress=recomputed(store, show),
            patience=wait,
        )


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
            "The client was enrolled with this backbone. Put it back, or give --backbone "
            "DESCRIPTION if it has moved"
        )
        raise
