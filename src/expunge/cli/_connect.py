"""The way to the server, to an office and to a client's store, from what was typed.

An address is a URL, or the folder of a federation on this machine. With a folder the server is
opened within this process (the local carrier); if a server process has it open, that process is
spoken to at the URL it serves.

Nothing here needs arithmetic, but for the local carrier, which brings the whole server. A client's
agent is in `_agent`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from expunge.cli._output import Screen, typed
from expunge.errors import InputError, ShreddedError, StoreBusyError, StoreError
from expunge.federation.layout import Layout
from expunge.storage.files import FolderLock
from expunge.wire.carrier import Carrier

if TYPE_CHECKING:
    from expunge.client.overview import ClientOverview
    from expunge.office import Office

ATTEMPTS = 4  # to reach a server, within some four seconds
PATIENCE = 10.0  # seconds to wait for another process that is at work on the same folder
BESIDE = (
    "another process is writing to this store: this is a read-only snapshot of its last "
    "complete change"
)
# Seconds to wait for it where nothing is to be changed: then it is looked at beside that process
MOMENT = 0.5
LOOKS = 5  # at a store that changes meanwhile, before it is called busy

_T = TypeVar("_T")
_Store = TypeVar("_Store", bound="ClientOverview")


@dataclass(frozen=True)
class OfficeConnection:
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


def sync_command(folder: Path, address: str, at: str | None = None) -> str:
    """`expunge client sync` as it is to be typed next, for a client's folder that remembers this
    address of its server: with `--at` where that is none, or another one than was typed.
    """
    there = "" if address else "URL"
    if at and absolute(at) != address and (is_url(at) or Layout.is_at(Path(at))):
        there = at
    return f"expunge client sync --dir {typed(folder)}{there and f' --at {shlex.quote(there)}'}"


def layout_at_hand(connection: OfficeConnection) -> Layout | None:
    """The federation's folder, if the server was reached by it."""
    return None if is_url(connection.address) else Layout.at(Path(connection.address))


def layout_at(address: str) -> Layout:
    """The federation in the folder where a server was said to be."""
    if not address:
        raise StoreError(
            "it is not known where the server is: give --at URL, or --at DIR for a folder on this "
            "machine"
        )
    path = Path(address)
    if not Layout.is_at(path):
        raise StoreError(
            f"there is no federation in {path}. If its server has moved, say where it is: give "
            "--at URL, or --at DIR for a folder on this machine"
        )
    return Layout.at(path)


@contextmanager
def carrier_to(address: str, ca: str = "") -> Iterator[Carrier]:
    """The carrier to a server; closed on exit."""
    carrier = _remote(address, ca) if is_url(address) else _local(address)
    try:
        yield carrier
    finally:
        carrier.close()


def _remote(url: str, ca: str) -> Carrier:
    from expunge.transport.http import HttpCarrier  # noqa: PLC0415 - an extra: a local federation needs no HTTP

    return HttpCarrier(url, ca=ca)


def _local(address: str) -> Carrier:
    layout = layout_at(address)
    try:
        if layout.serving():
            FolderLock(layout.server).release()  # before the server's code is imported for nothing
        from expunge.transport.local import LocalCarrier  # noqa: PLC0415 - brings the whole server: not for those who have a URL

        return LocalCarrier.open(
            layout.server, mirrors=layout.mirrors, timeout=0.0 if layout.serving() else PATIENCE
        )
    except StoreBusyError as problem:
        url = layout.serving()
        if not url:
            raise
        Screen.current().note(f"{layout.server} is being served: connecting to {url}")
        try:
            return _remote(url, layout.ca)
        except ImportError:
            raise StoreBusyError(
                f"{problem}. It serves {url}: give --at {shlex.quote(url)}"
            ) from problem


def office_folder(given: Path | None) -> Path:
    """The folder of the office that is meant."""
    candidates = [given] if given is not None else [Path(), Path("operator")]
    for folder in candidates:
        for candidate in (folder, folder / "operator"):
            if (candidate / "office.json").exists():
                return candidate
    if given is not None:
        raise InputError(
            f"{given} is not an office: give the folder that expunge init or expunge enroll made "
            "for you"
        )
    raise InputError(
        "no office is given. Give --office DIR, or set EXPUNGE_OFFICE: the folder that expunge "
        "init (DIR/operator) or expunge enroll made for you"
    )


@contextmanager
def office_at(given: Path | None, at: str | None) -> Iterator[OfficeConnection]:
    """An office, open and connected; reports the outcome of commands that had no answer."""
    from expunge.office import Office  # noqa: PLC0415 - clients have none

    screen = Screen.current()
    with Office.open(office_folder(given), timeout=PATIENCE) as office:
        lost = not is_url(office.address) and not Layout.is_at(Path(office.address))
        address = absolute(at) if at else _beside(office) if lost else office.address
        with carrier_to(address, office.ca) as carrier:
            try:
                yield OfficeConnection(office.connect(carrier), carrier, address)
            finally:  # they tell of earlier commands, whatever becomes of this one
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
    """Refuse a folder that does not belong to a client."""
    from expunge.client.folder import ClientFolder  # noqa: PLC0415 - for clients only

    if not ClientFolder.is_at(folder):
        raise InputError(
            f"{folder} is not a client's folder: enrol one with expunge enroll TOKEN --dir "
            f"{typed(folder)}"
        )


def read_store(kind: type[_Store], folder: Path, ask: Callable[[_Store], _T]) -> tuple[_T, bool]:
    """What a client's store answers to a question that changes nothing; and whether another process
    works on it meanwhile.

    `kind` is `ClientStore`, or `ClientOverview` where no sample is asked for.

    The answer is then a snapshot after that process's last complete change. `ask` may be called
    more than once.
    """
    require_client(folder)
    with suppress(StoreBusyError), kind.open(folder, timeout=MOMENT) as store:
        return ask(store), False
    for _ in range(LOOKS):
        with (
            kind.open_read_only(folder) as store,
            suppress(ShreddedError),
        ):  # something went while we looked: look again
            answer = ask(store)
            Screen.current().note(BESIDE)
            return answer, True
    raise StoreBusyError(
        f"{folder} changes faster than it can be read: retry when the other process has finished"
    )
