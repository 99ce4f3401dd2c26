"""A federation for programs: server, operator's office and clients in one process, each with its
own folder and key.

Nothing is left out: requests are signed, journalled, logged and receipted as over a network, and
`expunge serve`, `expunge client` and all other commands work on the same folders.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from expunge.client import Agent, ClientStore, Preview, Selection, SyncResult, enrol
from expunge.client.sync import sync_all
from expunge.crypto import Envelope
from expunge.errors import StoreError
from expunge.evidence import Certificate, Receipt, published_head, render_bundle
from expunge.federation.founding import found_federation
from expunge.federation.layout import Layout
from expunge.kinds import Role
from expunge.office import Office
from expunge.ridge.head import Head
from expunge.ridge.spec import Spec
from expunge.server.service import Service
from expunge.server.state import Settings
from expunge.storage.files import make_folder
from expunge.transport.local import LocalCarrier
from expunge.wire.token import Token

_GATHER_FOR = 0.2  # seconds: the clients here join one right after another
_MOST_ABORTED = (
    2  # rounds in one sync: whatever aborts more of them will abort the next one as well
)


class Client:
    """One client of an embedded federation.

    `store` and `agent` have all that the shortcuts here leave out.
    """

    def __init__(self, store: ClientStore, agent: Agent) -> None:
        self.store = store
        self.agent = agent

    @property
    def name(self) -> str:
        """As it is enrolled."""
        return self.store.name

    def add(self, ids: Any, features: Any, labels: Any, *, subjects: Any = None) -> list[Receipt]:
        """Add samples, and bring them to the server; the receipts."""
        self.store.add(ids, features, labels, subjects=subjects, now=time.time())
        return self.agent.push()

    def forget(self, **selection: Any) -> tuple[Preview, list[Receipt]]:
        """Forget what a `Selection` of these fields chooses (ids, subject, label, ...): what went,
        and the receipts.
        """
        gone = self.store.forget(Selection(**selection))
        return gone, self.agent.push()

    def sync(self) -> SyncResult:
        """Carry out orders, answer audits, take on amendments, fetch the newest head."""
        return self.agent.sync()


class Federation:
    """A federation in a folder, open in this process.

    Close it, or use it in a `with` statement; a crash loses nothing.
    """

    def __init__(
        self,
        layout: Layout,
        settings: Settings | None = None,
        *,
        service: Service | None = None,
        office: Path | None = None,
    ) -> None:
        """`service` is the server's, where it is open already; it is not closed here then.

        `office` is another operator's.
        """
        self.layout = layout
        chosen = settings or Settings(gather_for=_GATHER_FOR)
        self._is_given = service is not None
        self.carrier: Service = service or LocalCarrier.open(
            layout.server, mirrors=layout.mirrors, settings=chosen
        )
        self._clients: dict[str, Client] = {}
        try:
            self.office = Office.open(office or layout.operator, self.carrier)
        except BaseException:
            self._let_go()
            raise

    @classmethod
    def found(
        cls,
        folder: Path | str,
        spec: Spec,
        *,
        solver: str = "woodbury",
        settings: Settings | None = None,
    ) -> Federation:
        """A new federation, in a folder that is empty or not there yet."""
        return cls(found_federation(Path(folder), spec, solver=solver), settings)

    @classmethod
    def open(cls, folder: Path | str, *, settings: Settings | None = None) -> Federation:
        """The federation in a folder, as it was left."""
        return cls(Layout.at(Path(folder)), settings)

    @property
    def spec(self) -> Spec:
        """The current spec, with all amendments."""
        return self.carrier.state.spec

    # -- clients -----------------------------------------------------------------------------------

    def client(self, name: str, *, message: str = "") -> Client:
        """The client of this name: opened if it has a folder (`clients/NAME`), enrolled anew
        otherwise.
        """
        if name not in self._clients:
            folder = self.layout.path / "clients" / name
            store = (
                ClientStore.open(folder)
                if (folder / "client.db").exists()
                else self._enrolled(name, folder, message)
            )
            if store.federation != self.office.federation:
                store.close()
                raise StoreError(
                    f"{folder} is the store of a client of another federation: move it away"
                )
            self._clients[name] = Client(store, Agent(store, self.carrier))
        return self._clients[name]

    def _enrolled(self, name: str, folder: Path, message: str) -> ClientStore:
        make_folder(folder.parent)
        return enrol(
            folder, self.token(name), self.carrier, address=str(self.layout.path), message=message
        )

    def token(self, name: str, role: Role = "client") -> Token:
        """A token by which somebody of this name enrols: a client with a store elsewhere, an
        aggregator, an officer.
        """
        return self.office.token(name, role, (str(self.layout.path),))[0]

    def sync(self) -> dict[str, SyncResult]:
        """Sync every client that is open here; under secure aggregation, as often as the rounds
        that they make up take.

        If rounds come to nothing several times, or wait for clients elsewhere, each client's
        `waiting` says so.
        """
        syncs = {name: client.sync for name, client in self._clients.items()}
        return sync_all(syncs, self._while_rounds_move())

    def _while_rounds_move(self) -> Callable[[bool], bool]:
        rounds = self.carrier.rounds
        if rounds is None:
            return lambda _: False
        limit = rounds.aborted + _MOST_ABORTED
        seen: int | None = None

        def go_on(_: bool) -> bool:
            nonlocal seen
            before, (seen, due) = seen, rounds.pulse()
            if rounds.aborted > limit:
                return False
            if seen == before:
                if not math.isfinite(due):
                    return False  # the round waits for clients that are not here
                time.sleep(due)
            return True

        return go_on

    # -- the head ----------------------------------------------------------------------------------

    def published(self) -> tuple[Head, Certificate]:
        """The current head with its certificate, both verified."""
        data = self.carrier.head()
        if data is None:
            raise StoreError("the server answered with no head, though none was said to be known")
        return published_head.read(data, self.office.chain)

    # -- orders and audits -------------------------------------------------------------------------

    def order(
        self, subject: str, *, subjects: Mapping[str, str] | None = None, days: int = 30
    ) -> str:
        """File an erasure order; its id.

        `subjects` has the names of clients that know the subject by another.
        """
        filed = self.office.do(
            "order", {"subject": subject, "subjects": dict(subjects or {}), "days": days}
        )
        return str(filed["order"])

    def bundle(self, order: str) -> bytes:
        """The evidence of an order, as an HTML page that `expunge.evidence.verify` checks."""
        return render_bundle(
            Envelope.from_json(self.office.ask("bundle", {"order": order}), "bundle")
        )

    def audit(self) -> dict[str, Any]:
        """Have every open client recompute its statistics; the result names who differs."""
        audit = self.office.do("audit", {})["audit"]
        self.sync()
        self.carrier.upkeep.finish_audits()
        result: dict[str, Any] = self.office.ask("show-audit", {"audit": audit})
        return result

    def close(self) -> None:
        """Close everything, after erasing at rest."""
        for client in self._clients.values():
            client.store.close()
        self._clients.clear()
        self.office.close()
        self._let_go()

    def _let_go(self) -> None:
        """Close the service, unless it is somebody else's."""
        if not self._is_given:
            self.carrier.close()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
