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
from expunge.client.folder import ClientFolder
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
from expunge.wire.payloads import ORDER_DAYS
from expunge.wire.token import Token

_MOST_ABORTED = (
    2  # rounds in one sync: whatever aborts more of them will abort the next one as well
)
_MOST_WINDOWS = 3  # in one sync: what they do not bring, the next one will not, either


class _SkippingClock:
    """Clocks of rounds, from which waiting is left out that nobody can end: monotonic seconds, and
    the time by which rounds on a schedule begin.

    While a federation is open in this process, no other process reaches its server: once all
    clients here have had their turn, waiting for more of them, or for a window, is pointless.
    """

    def __init__(self) -> None:
        self._skipped = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._skipped

    def schedule(self) -> float:
        """The time in seconds since 1970, as far as the schedule of rounds is concerned."""
        return time.time() + self._skipped

    def skip(self, seconds: float) -> None:
        """Go on as if these had passed."""
        self._skipped += seconds


class Client:
    """One client of an embedded federation: its store and its agent, with shortcuts for the usual
    steps.

    `Federation.client` makes it; `store` and `agent` have everything that the shortcuts leave out.

    Parameters
    ----------
    store : ClientStore
        The client's samples and receipts.
    agent : Agent
        What brings them to the server.

    Attributes
    ----------
    store : ClientStore
        The client's samples and receipts.
    agent : Agent
        What brings them to the server.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> client = federation.client("north")
    >>> features, labels = [[1.0, 0.5], [0.0, 1.0]], ["cat", "dog"]
    >>> (receipt,) = client.add(["a", "b"], features, labels, subjects=["ann", "bob"])
    >>> receipt.logged.entry["added"]
    2
    >>> preview, (receipt,) = client.forget(subject="ann")
    >>> preview.ids, receipt.logged.entry["deleted"]
    (('a',), 1)
    >>> client.store.status().live
    1
    >>> federation.close()
    >>> folder.cleanup()
    """

    def __init__(self, store: ClientStore, agent: Agent) -> None:
        self.store = store
        self.agent = agent

    @property
    def name(self) -> str:
        """The name under which the client is enrolled."""
        return self.store.name

    def add(self, ids: Any, features: Any, labels: Any, *, subjects: Any = None) -> list[Receipt]:
        """Add samples to the store, and bring them to the server.

        Parameters
        ----------
        ids : sequence of str or int
            One id for each sample, unique within the store.
        features : array-like of shape (n, dim)
            The features; finite and within the spec's grid.
        labels : array-like
            Labels of the spec (texts), class indices (integers), or rows of real targets, shape (n,
            columns).
        subjects : sequence of str or None, optional
            Whom each sample is about; None for samples about nobody.

        Returns
        -------
        list of Receipt
            The verified receipts. Under secure aggregation the list is empty until a round
            completes: call `Federation.sync`. It is empty, too, while the change waits for more
            samples (`Spec.fewest_samples`): `store.backlog` says until when.

        Raises
        ------
        InputError
            A sample cannot be taken; its row is named, and none is added.
        StoreError
            The client is leaving the federation, or has left it.
        RefusedError, CarrierError
            The server refused or cannot be reached; the samples stay pending in the store, and the
            next `sync` brings them.
        """
        self.store.add(ids, features, labels, subjects=subjects, now=time.time())
        return self.agent.push()

    def forget(self, **selection: Any) -> tuple[Preview, list[Receipt]]:
        """Delete the samples of a selection, and bring the deletion to the server.

        Parameters
        ----------
        **selection
            The fields of a `Selection`: `ids`, `subject`, `label`, `since`, `until` or
            `everything`.

        Returns
        -------
        preview : Preview
            What is deleted.
        receipts : list of Receipt
            The verified receipts. With them in hand, the samples are erased from the store. None
            while the deletion waits for more samples (`Spec.fewest_samples`).

        Raises
        ------
        InputError
            The selection is empty or contradicts itself.
        UnknownSampleError
            An id or subject is not in the store; nothing is deleted.
        RefusedError, CarrierError
            The server refused or cannot be reached; the deletion stays pending in the store, and
            the next `sync` brings it.
        """
        gone = self.store.forget(Selection(**selection))
        return gone, self.agent.push()

    def sync(self, *, at_once: bool = False) -> SyncResult:
        """Carry out erasure orders, bring what is pending, answer audits, take over amendments, and
        fetch the newest head.

        Parameters
        ----------
        at_once : bool, default False
            Whether to send what is pending even if it is of fewer samples than the spec's
            `fewest_samples`.

        Returns
        -------
        SyncResult
            What was done; see `Agent.sync` for the errors.
        """
        return self.agent.sync(at_once=at_once)


class Federation:
    """A federation in a folder, open in this process: server, operator's office and clients.

    Use `found` or `open`, in a `with` statement or with `close`; a crash loses nothing. Only one
    process at a time can have the folder open.

    Parameters
    ----------
    layout : Layout
        The paths of the federation.
    settings : Settings or None, default None
        The operator's choices (`expunge.server.state.Settings`); None for the defaults.
    service : Service or None, default None
        A server that is open already; it is not closed with the federation.
    office : Path or None, default None
        The folder of another operator's office; None for the first operator's.
    timeout : float, default 10.0
        Seconds to wait for another process that has the server open.

    Attributes
    ----------
    layout : Layout
        The paths of the federation.
    carrier : Service
        The server, which is also a carrier for agents and offices in this process.
    office : Office
        The operator's office.

    Notes
    -----
    All parties run in one process here, so nothing is hidden from anybody who controls it.
    Receipts, certificates and bundles are the same as those of a federation over a network, and
    prove the same.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec, Statistics, solve
    >>> from expunge.evidence import verify
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> north, south = federation.client("north"), federation.client("south")
    >>> receipts = north.add(["a", "b"], [[1, 0], [0, 1]], ["cat", "dog"], subjects=["ann", "bob"])
    >>> receipts = south.add(["c"], [[1, 1]], ["dog"], subjects=["ann"])

    Ann asks to be forgotten. One order reaches all clients at their next sync:

    >>> order = federation.order("ann")
    >>> synced = federation.sync()
    >>> verify(federation.bundle(order), federation.office.server).facts[2]
    ('State', 'complete')
    >>> head, certificate = federation.published()
    >>> head.digest == solve(Statistics.of(spec, [[0, 1]], ["dog"])).digest
    True
    >>> federation.audit()["result"]
    'equal'
    >>> federation.close()
    >>> folder.cleanup()
    """

    def __init__(
        self,
        layout: Layout,
        settings: Settings | None = None,
        *,
        service: Service | None = None,
        office: Path | None = None,
        timeout: float = 10.0,
    ) -> None:
        """`service` is the server's, where it is open already; it is not closed here then.

        `office` is another operator's. `timeout` is how many seconds to wait for another process.
        """
        self.layout = layout
        self._clock = _SkippingClock()
        self._is_given = service is not None
        self.carrier: Service = service or LocalCarrier.open(
            layout.server,
            mirrors=layout.mirrors,
            settings=settings or Settings(),
            seconds=self._clock,
            schedule=self._clock.schedule,
            timeout=timeout,
        )
        self._clients: dict[str, Client] = {}
        self._is_closed = False
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
        """Found a new federation in a folder, which appears whole or not at all.

        Parameters
        ----------
        folder : Path or str
            A folder that is empty or does not exist.
        spec : Spec
            What all parties agree on.
        solver : {"woodbury", "cholesky"}, default "woodbury"
            How the server solves; both give the same bytes.
        settings : Settings or None, default None
            The operator's choices for this process.

        Returns
        -------
        Federation
            The federation, open.

        Raises
        ------
        StoreError
            The folder is not empty.
        FormatError
            There is no such solver.
        """
        return cls(found_federation(Path(folder), spec, solver=solver), settings)

    @classmethod
    def open(
        cls, folder: Path | str, *, settings: Settings | None = None, timeout: float = 10.0
    ) -> Federation:
        """Open the federation in a folder, as it was left.

        Parameters
        ----------
        folder : Path or str
            The folder of a federation, also one that `expunge init` made.
        settings : Settings or None, default None
            The operator's choices for this process.
        timeout : float, default 10.0
            Seconds to wait for another process that has it open.

        Returns
        -------
        Federation
            The federation, open.

        Raises
        ------
        StoreError
            There is no federation in the folder, or it is damaged.
        StoreBusyError
            Another process still has it open.
        """
        return cls(Layout.at(Path(folder)), settings, timeout=timeout)

    @property
    def spec(self) -> Spec:
        """The current spec, with all amendments."""
        return self.carrier.state.spec

    # -- clients -----------------------------------------------------------------------------------

    def client(self, name: str, *, message: str = "") -> Client:
        """The client of a name: opened if its folder (`clients/NAME`) exists, enrolled otherwise.

        Parameters
        ----------
        name : str
            The client's name: 1 to 64 of `a-z 0-9 - _ .`, beginning with a letter or digit. It is
            written to the log: name an institution, never a person.
        message : str, default ""
            The kind of messages that a new client sends, among those that the spec allows; empty
            for `rows` if it is allowed.

        Returns
        -------
        Client
            The client; the same object for the same name.

        Raises
        ------
        RefusedError
            The name is malformed, or is or was another client's.
        StoreError
            The folder is the store of a client of another federation, or is damaged; or this
            federation was closed.
        SpecError
            The spec does not allow this kind of messages.
        """
        self._require_open()
        if name not in self._clients:
            folder = self.layout.path / "clients" / name
            store = (
                ClientStore.open(folder)
                if ClientFolder.is_at(folder)
                else self._enrolled(name, folder, message)
            )
            if store.federation != self.office.federation:
                store.close()
                raise StoreError(
                    f"{folder} is the store of a client of another federation: move it away"
                )
            now = time.time if self._is_given else self._clock.schedule
            self._clients[name] = Client(store, Agent(store, self.carrier, wall_clock=now))
        return self._clients[name]

    def _enrolled(self, name: str, folder: Path, message: str) -> ClientStore:
        make_folder(folder.parent)
        return enrol(
            folder, self.token(name), self.carrier, address=str(self.layout.path), message=message
        )

    def token(self, name: str, role: Role = "client") -> Token:
        """Make a one-time token by which a client, officer or operator enrols under a name.

        Parameters
        ----------
        name : str
            The name to enrol under.
        role : {"client", "officer", "operator"}, default "client"
            What the holder may do. An aggregator is a client.

        Returns
        -------
        Token
            The token, good for 7 days; its address is the folder of the federation.

        Raises
        ------
        RefusedError
            The name is malformed or taken.
        """
        return self.office.token(name, role, (str(self.layout.path),))[0]

    def sync(self) -> dict[str, SyncResult]:
        """Sync every client that is open here; under secure aggregation, again until their rounds
        are complete.

        Returns
        -------
        dict of str to SyncResult
            What each client has done. If rounds are aborted more than twice, or wait for clients
            elsewhere, `SyncResult.waiting` says so.

        Notes
        -----
        If rounds are on a schedule and a client has changes, the next window begins at once: all
        parties are in this process, so a schedule hides nothing from anybody. Times in the log are
        the real ones. If the server was given to the constructor, others may use it, and changes
        wait for the window.
        """
        self._require_open()
        syncs = {name: client.sync for name, client in self._clients.items()}
        return sync_all(syncs, self._while_rounds_move())

    def _while_rounds_move(self) -> Callable[[bool], bool]:
        rounds = self.carrier.rounds
        if rounds is None:
            return lambda _: False
        limit = rounds.aborted + _MOST_ABORTED
        seen: int | None = None
        windows = 0

        def go_on(_: bool) -> bool:
            nonlocal seen, windows
            before, (seen, due) = seen, rounds.pulse()
            if rounds.aborted > limit:
                return False
            if seen == before:
                if not math.isfinite(due):
                    return False  # the round waits for clients that are not here
                if self.spec.is_scheduled and rounds.is_between_rounds:
                    windows += 1
                    if self._is_given or windows > _MOST_WINDOWS:
                        return False  # the clients wait for a window, or for something else
                self._wait(due)
            return True

        return go_on

    def _wait(self, seconds: float) -> None:
        """Let a round's time pass; others may use a service that was given."""
        if self._is_given:
            time.sleep(seconds)
        else:
            self._clock.skip(seconds)

    # -- the head ----------------------------------------------------------------------------------

    def published(self) -> tuple[Head, Certificate]:
        """The current head and its certificate, both verified with the office's keys.

        Returns
        -------
        head : Head
            The head, ready to predict.
        certificate : Certificate
            The server's signed statement about it.

        Raises
        ------
        RefusedError
            There is no head to publish (code `unsolvable`).
        EvidenceError
            The signature does not hold, or the weights are not those of the certificate.
        """
        data = self.carrier.head()
        if data is None:
            raise StoreError("the server answered with no head, though none was said to be known")
        return published_head.read(data, self.office.chain)

    # -- orders and audits -------------------------------------------------------------------------

    def order(
        self, subject: str, *, subjects: Mapping[str, str] | None = None, days: int = ORDER_DAYS
    ) -> str:
        """File an erasure order for a subject, which every client answers at its next sync.

        Parameters
        ----------
        subject : str
            Whom the order is about, 1 to 1,000 characters. The server keeps it sealed until the
            order is closed.
        subjects : mapping of str to str, optional
            The subject's name at clients that know it by another one.
        days : int, default 30
            The deadline, 1 to 3,650 days from now.

        Returns
        -------
        str
            The id of the order.

        Raises
        ------
        RefusedError
            An argument is malformed, or names a client that is not enrolled.
        """
        filed = self.office.do(
            "order", {"subject": subject, "subjects": dict(subjects or {}), "days": days}
        )
        return str(filed["order"])

    def bundle(self, order: str) -> bytes:
        """The evidence of an order as an HTML page that `expunge.evidence.verify` checks; complete
        or not.

        Parameters
        ----------
        order : str
            The id that `order` returned.

        Returns
        -------
        bytes
            The content of the HTML file. It names the subject: personal data in the clear.

        Raises
        ------
        RefusedError
            There is no such order, or it is closed.
        """
        return render_bundle(
            Envelope.from_json(self.office.ask("bundle", {"order": order}), "bundle")
        )

    def audit(self) -> dict[str, Any]:
        """Have every open client recompute its statistics from its store, and compare them with the
        ledger.

        Returns
        -------
        dict
            `result` is `"equal"`, `"different"`, or `"under way"` if clients that are not open here
            have yet to answer. `equal`, `different` and `waiting` name the clients; `count` is the
            number of samples; `audit` is the audit's id, `index` the position of its log entry (-1
            before the end), `started` and `finished` are times.

        Raises
        ------
        RefusedError
            The federation computes in float64 and has no exact ledger.

        Notes
        -----
        An audit compares what clients say with what the server holds. It finds errors, lost samples
        and old copies at clients that answer truthfully. It says nothing about a client that lies,
        nor about the head.
        """
        audit = self.office.do("audit", {})["audit"]
        self.sync()
        self.carrier.upkeep.finish_audits()
        result: dict[str, Any] = self.office.ask("show-audit", {"audit": audit})
        return result

    def close(self) -> None:
        """Erase at rest what has been folded into the ledger, and close clients, office and server.

        A server that was given to the constructor stays open.
        """
        self._is_closed = True
        for client in self._clients.values():
            client.store.close()
        self._clients.clear()
        self.office.close()
        self._let_go()

    def _require_open(self) -> None:
        if self._is_closed:
            raise StoreError(
                f"the federation in {self.layout.path} was closed here: open it again by "
                "Federation.open"
            )

    def _let_go(self) -> None:
        """Close the service, unless it is somebody else's."""
        if not self._is_given:
            self.carrier.close()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
