"""What must hold when nothing fails any more and everything has settled. What must hold after every
step is beside what it is about: `server`, `client`.
"""

from __future__ import annotations

from expunge.crypto import Envelope, canonical
from expunge.errors import ExpungeError
from expunge.evidence import Receipt
from expunge.ridge.statistics import Statistics
from expunge.server.clock import TOLERANCE
from expunge.solvers.certify import solve
from expunge.testing.simulation.client import ClientParty, Sample
from expunge.testing.simulation.disputes import judge_disputes
from expunge.testing.simulation.federation import ERASE_WITHIN, SimulatedFederation
from expunge.testing.simulation.parties import Party
from expunge.testing.simulation.world import LawBrokenError
from expunge.wire.schema import time_text

# How often everybody syncs until everything must have settled; masked, a round alone takes six.
_SYNCS, _MASKED_SYNCS = 12, 200
_TURN = 10.0  # seconds between them
_PATIENCE = 20  # turns, after which people do something, or days pass
# Until those are excluded who stay away; until what waits for more samples has to go out.
_SET_ASIDE, _QUARTER = 2 * 3600.0, 8 * 24 * 3600.0
_MORE = 3  # clients, where a sum of the few that are left would show too much


def settle(federation: SimulatedFederation) -> None:
    """Once nothing fails any more, commands are carried out and everything settles."""
    for party in federation.parties:
        party.clock.ahead = 0.0
    federation.office.require("fold", {})
    _correct_clock(federation)
    masked = federation.scenario.is_masked
    for turn in range(_MASKED_SYNCS if masked else _SYNCS):
        if _sync_all(federation):
            return
        if federation.scenario.has_liar:
            judge_disputes(federation)
        if turn % _PATIENCE == _PATIENCE - 1:
            if any("enrol some" in client.last.waiting for client in federation.clients):
                federation.enrol_more(_MORE)
            federation.wait(_QUARTER if federation.scenario.spec.fewest_samples else _SET_ASIDE)
        federation.wait(_TURN)
    unsettled = "; ".join(
        f"{client.name} has {client.open_store.status()} and waits: {client.last.waiting!r}"
        for client in federation.clients
    )
    raise LawBrokenError("everything settles", unsettled)


def _correct_clock(federation: SimulatedFederation) -> None:
    """Stamps go on from the right time, unless the key was rotated while the clock was ahead; one
    that was behind when the server started is not followed.
    """
    state, office = federation.server.running.state, federation.office
    if state.stamps_ahead() <= TOLERANCE or state.clock_ahead() > TOLERANCE:
        return
    before = office.problem
    if office.do("correct-clock", {"time": time_text(office.clock.wall())}) is None:
        office.problem = before
    else:
        federation.world.count("law: corrected clock")
        if state.stamps_ahead():
            raise LawBrokenError(
                "time", f"stamps are {state.stamps_ahead()} seconds ahead after a correction"
            )


def _sync_all(federation: SimulatedFederation) -> bool:
    """Whether nothing is left to do."""
    settled = True
    for client in list(federation.clients):
        result = federation.sync(client)
        if client not in federation.clients:  # it is gone, or another one has taken its place
            return False
        if result is None:
            raise LawBrokenError(
                "everything settles", f"{client.name} cannot sync: {client.problem}"
            )
        client.compare()
        status = client.open_store.status()
        adding = 0 if federation.scenario.spec.fewest_samples else status.adding
        settled &= not (adding or status.deleting or status.orders or result.waiting)
        federation.wait(1.0)
    return settled and not _audits_under_way(federation)


def _audits_under_way(federation: SimulatedFederation) -> bool:
    shown = (federation.office.ask("show-audit", {"audit": id_}) for id_ in federation.audits)
    return any(audit is not None and audit["result"] == "under way" for audit in shown)


def compare_ledger(federation: SimulatedFederation) -> None:
    """The head is that of a retrain on what the clients hold."""
    service = federation.server.running
    counted = [sample for client in federation.clients for sample in _counted(client)]
    count = service.status()["samples"]
    if count != len(counted):
        raise LawBrokenError("ledger", f"it has {count} samples, the clients {len(counted)}")
    if counted:
        features = [list(sample.features) for sample in counted]
        labels = [sample.label for sample in counted]
        retrained = solve(Statistics.of(service.state.spec, features, labels))
        if service.head_digest() != retrained.digest:
            raise LawBrokenError("ledger", "the head is not that of a retrain")
    federation.world.count("law: ledger")


def _counted(client: ClientParty) -> list[Sample]:
    """What a client holds and has sent."""
    adding = client.adding()
    return [sample for id_, sample in sorted(client.held.items()) if id_ not in adding]


def compare_evidence(federation: SimulatedFederation) -> None:
    """Orders are complete in time, audits equal, and receipts hold."""
    office = federation.office
    office.attempt("federation", office.running.federation_content)  # with the newest key
    held = [sample for client in federation.clients for sample in client.held.values()]
    for order, subject in federation.orders.items():
        shown = office.ask("show-order", {"order": order})
        if shown is None or shown["state"] not in ("complete", "closed"):
            raise LawBrokenError("orders complete", f"order {order}: {shown}")
        if shown["completed"] > shown["deadline"]:
            raise LawBrokenError("orders complete", f"order {order} after its deadline: {shown}")
        if any(sample.subject == subject for sample in held):
            raise LawBrokenError("orders complete", f"{subject} is still held")
        federation.world.count("law: order")
    for audit in federation.audits:
        shown = office.ask("show-audit", {"audit": audit})
        if shown is None or shown["result"] not in ("equal", "abandoned"):
            raise LawBrokenError("audits equal", f"audit {audit}: {shown}")
        federation.world.count("law: audit")
    for client in federation.clients:
        _compare_receipts(federation, client)


def _compare_receipts(federation: SimulatedFederation, client: ClientParty) -> None:
    """Each verifies, is in the log, and is of another request."""
    chain, log = federation.office.running.chain, federation.server.log
    sequences = set()
    for data in client.open_store.documents("receipt").values():
        try:
            receipt = Receipt.read(Envelope.from_bytes(data, "receipt"), chain)
        except ExpungeError as problem:
            if client.accepts_restored and "was retired" in str(problem):
                continue  # it is of a lost log, whose times were later than those of the new one
            client.problem = problem
            raise LawBrokenError("receipts verify", f"{client.name}: {problem}") from problem
        index = receipt.logged.index
        if receipt.sequence in sequences or receipt.client != client.name:
            raise LawBrokenError("receipts verify", f"{client.name} has two of one request")
        entry = canonical.encode(receipt.logged.entry)
        if not client.accepts_restored and log[index : index + 1] != [entry]:
            raise LawBrokenError("receipts verify", f"{client.name}: entry {index} is not logged")
        sequences.add(receipt.sequence)
        federation.world.count("law: receipt")


def compare_keys(federation: SimulatedFederation) -> None:
    """What has been erased is nowhere: no vault has keys that nothing needs, and no byte of any
    disk has one that was destroyed.
    """
    for party in federation.parties:
        if party.machine.had_trouble:  # what it could not finish then, it does when it starts
            party.stop()
            federation.begin_again(party)
    federation.wait(ERASE_WITHIN)
    federation.server.tick()
    needed = len(federation.server.running.state.storage.files.slots())
    _compare_count(federation.server, needed)
    for client in federation.clients:
        _compare_count(client, 1 + len(client.held))
    for party in federation.parties:
        gone = sorted(party.keys - party.note_keys())
        found = party.disk.finds(gone)
        if found:
            raise LawBrokenError(
                "erased", f"{len(found)} of {len(gone)} destroyed keys of {party.name}"
            )
        federation.world.coverage["law: destroyed keys"] += len(gone)
        federation.world.trace(party.disk.digest())


def _compare_count(party: Party, needed: int) -> None:
    count = len(party.note_keys())
    if count != needed:
        raise LawBrokenError(
            "erased", f"the vault of {party.name} has {count} keys, where {needed} are needed"
        )
