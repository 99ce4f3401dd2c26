"""The lane of the Flower carrier: a handler and nodes, and parcels in between, without Flower.

An exchange is a message to a node and its reply, as Flower carries them. What is lost or cannot be
read ends the conversation, and a new one is begun, as a ServerApp does.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from expunge import Spec
from expunge.client import ClientStore, Preview, SyncResult, enrol
from expunge.crypto import Envelope
from expunge.errors import CarrierError, ExpungeError, FormatError
from expunge.evidence import Receipt
from expunge.office import Office
from expunge.transport.flower.client import NotYet, ReplayCarrier, run_agent
from expunge.transport.flower.messages import Call, NodeMessage, Payload, ServerMessage
from expunge.transport.flower.server import CallHandler
from expunge.wire.token import Token
from support.carriers import ATTEMPTS, Died, Fault, Lane
from support.samples import SPEC

MOST_TURNS = 60


class FlowerLane(Lane):
    """Nodes that are run once for each message."""

    def __init__(self, path: Path, spec: Spec = SPEC, **options: Any) -> None:
        super().__init__(path, spec, **options)
        self._office: Office | None = None

    @property
    def handler(self) -> CallHandler:
        """As a ServerApp has it that begins now."""
        return CallHandler(self.federation.service, _fail)

    def enrolled(self, path: Path, token: Token, message: str) -> ClientStore:
        says = self.handler.opening()
        for _ in range(MOST_TURNS):
            relay = ReplayCarrier(ServerMessage.read(says.to_parcel()).replies)
            try:
                return enrol(path, token, relay.carrier, message=message)
            except NotYet:
                with suppress(NotYet):
                    relay.carrier.federation()
            said = NodeMessage.read(NodeMessage(says.turn, token.name, relay.noted).to_parcel())
            says = self.handler.answer(said)
        raise AssertionError("the enrolment does not come to an end")

    def sync(self, name: str) -> SyncResult:
        known = set(self.stores[name].documents("receipt"))
        for attempt in range(ATTEMPTS):
            try:
                synced = self._conversation(name)
                break
            except CarrierError:
                if attempt == ATTEMPTS - 1:
                    raise
        store = self.stores[name]
        chain = store.chains()[0]
        new = [data for number, data in store.documents("receipt").items() if number not in known]
        receipts = tuple(Receipt.read(Envelope.from_bytes(data, "receipt"), chain) for data in new)
        return replace(
            synced, receipts=receipts, orders=_orders(receipts), audits=_audits(receipts)
        )

    def _conversation(self, name: str) -> SyncResult:
        says = self.handler.opening()
        for _ in range(MOST_TURNS):
            said, outcome = self._exchange(name, says)
            if isinstance(outcome, ExpungeError):
                raise outcome
            if outcome is not None:
                return outcome
            says = self.handler.answer(said)
        raise AssertionError("the conversation does not come to an end")

    def _exchange(
        self, name: str, says: ServerMessage
    ) -> tuple[NodeMessage, SyncResult | ExpungeError | None]:
        fault = self.next_fault()
        if fault is None:
            return self._deliver(name, says.to_parcel())
        if fault.what in ("lost", "truncated"):
            return self._cut(fault, name, says)
        if fault.what == "repeated":
            first = self._deliver(name, says.to_parcel())
            return first if first[1] is not None else self._deliver(name, says.to_parcel())
        if fault.what == "late":
            self.hold(lambda: self._deliver(name, says.to_parcel()))
            raise CarrierError("the message is late")
        if fault.back:
            self._deliver(name, says.to_parcel())
        if fault.what == "client dies":
            self.restart_client(name)
            raise Died
        self.restart_server()
        if fault.back:
            raise CarrierError("the run has ended")
        return self._deliver(name, says.to_parcel())

    def _cut(self, fault: Fault, name: str, says: ServerMessage) -> NoReturn:
        parcel = says.to_parcel()
        if not fault.back and fault.what == "truncated":
            with pytest.raises(FormatError):
                self._deliver(name, Payload(parcel.note[: len(parcel.note) // 2], parcel.parts))
        if fault.back:
            said, _ = self._deliver(name, parcel)
            reply = said.to_parcel()
            if fault.what == "truncated":
                with pytest.raises(FormatError):
                    NodeMessage.read(Payload(reply.note[: len(reply.note) // 2], reply.parts))
        raise CarrierError("lost on the way")

    def _deliver(
        self, name: str, parcel: Payload
    ) -> tuple[NodeMessage, SyncResult | ExpungeError | None]:
        said, outcome = run_agent(self.stores[name], ServerMessage.read(parcel))
        return NodeMessage.read(said.to_parcel()), outcome

    def offer(self, data: bytes) -> bytes:
        said = NodeMessage("turn", "by-hand", (Call.of("request", data),))
        says = self.handler.answer(NodeMessage.read(said.to_parcel()))
        return bytes(ServerMessage.read(says.to_parcel()).replies[0].result())

    # -- the officer, who has the server at hand ---------------------------------------------------

    @property
    def office(self) -> Office:
        if self._office is not None:
            self._office.close()
        carrier = self.federation.service
        path = self.path / "officer"
        self._office = (
            Office.open(path, carrier)
            if path.exists()
            else Office.enrol(path, self.token("officer", "officer"), carrier)
        )
        return self._office

    def officer_command(self, action: str, **arguments: Any) -> Any:
        return self.office.do(action, arguments)

    def officer_ask(self, action: str, **arguments: Any) -> Any:
        return self.office.ask(action, arguments)

    def close(self) -> None:
        if self._office is not None:
            self._office.close()
        super().close()


def _orders(receipts: tuple[Receipt, ...]) -> tuple[tuple[str, Preview], ...]:
    """What orders have found, by the receipts: the run that carries them out is not the one that
    ends the sync.
    """
    answers = [one for receipt in receipts for one in receipt.logged.entry["orders"]]
    return tuple((one["order"], Preview(ids=("?",) * one["found"])) for one in answers)


def _audits(receipts: tuple[Receipt, ...]) -> tuple[str, ...]:
    return tuple(audit for receipt in receipts for audit in receipt.logged.entry["audits"])


def _fail(what: str, problem: BaseException) -> None:
    pytest.fail(f"{what}: {problem!r}")
