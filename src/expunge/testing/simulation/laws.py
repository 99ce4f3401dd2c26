"""What must hold when nothing fails any more and everything has settled. What must hold after every
step is beside what it is about: `server`, `client`.
"""

from __future__ import annotations

from expunge.crypto import Envelope, canonical
from expunge.errors import ExpungeError
from expunge.evidence import Receipt, verify
from expunge.ridge.statistics import Statistics
from expunge.server.clock import TOLERANCE
from expunge.solvers.certify import solve
from expunge.testing.simulation.aggregator import AggregatorParty
from expunge.testing.simulation.client import ClientParty, Sample
from expunge.testing.simulation.disputes import judge_disputes
from expunge.testing.simulation.federation import ERASE_WITHIN, SimulatedFederation
from expunge.testing.simulation.homes import Home
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
    for home in federation.homes:
        home.office.require("fold", {})
        _correct_clock(federation, home)
    masked = federation.scenario.is_masked
    for turn in range(_MASKED_SYNCS if masked else _SYNCS):
        if _sync_all(federation):
            return
        if federation.scenario.has_liar:
            judge_disputes(federation)
        if turn % _PATIENCE == _PATIENCE - 1:
            for home in federation.homes:
                clients = [client for client in federation.clients if client.home is home]
                if any("enrol some" in client.last.waiting for client in clients):
                    federation.enrol_more(home, _MORE)
            federation.wait(_QUARTER if federation.scenario.spec.fewest_samples else _SET_ASIDE)
        federation.wait(_TURN)
    unsettled = "; ".join(
        f"{client.name} has {client.open_store.status()} and waits: {client.last.waiting!r}"
        for client in federation.clients
    )
    raise LawBrokenError("everything settles", unsettled)


def _correct_clock(federation: SimulatedFederation, home: Home) -> None:
    """Stamps go on from the right time, unless the key was rotated while the clock was ahead; one
    that was behind when the server started is not followed.
    """
    state, office = home.server.running.state, home.office
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
    for aggregator in federation.aggregators:
        result = aggregator.forward()
        if result is None:
            raise LawBrokenError(
                "everything settles", f"{aggregator.name} cannot forward: {aggregator.problem}"
            )
        settled &= not (result.receipts or result.orders or result.audits or result.waiting)
    return settled and not any(map(_audits_under_way, federation.homes))


def _audits_under_way(home: Home) -> bool:
    shown = (home.office.ask("show-audit", {"audit": id_}) for id_ in home.audits)
    return any(audit is not None and audit["result"] == "under way" for audit in shown)


def compare_ledger(federation: SimulatedFederation) -> None:
    """The head of every server is that of a retrain on what the clients below it hold."""
    for home in federation.homes:
        service, name = home.server.running, home.server.name
        clients = federation.clients_of(home)
        counted = [sample for client in clients for sample in _counted(client)]
        count = service.status()["samples"]
        if count != len(counted):
            raise LawBrokenError(
                "ledger", f"that of {name} has {count} samples, the clients {len(counted)}"
            )
        if counted:
            features = [list(sample.features) for sample in counted]
            labels = [sample.label for sample in counted]
            retrained = solve(Statistics.of(service.state.spec, features, labels))
            if service.head_digest() != retrained.digest:
                raise LawBrokenError("ledger", f"the head of {name} is not that of a retrain")
        federation.world.count("law: ledger")


def _counted(client: ClientParty) -> list[Sample]:
    """What a client holds and has sent."""
    adding = client.adding()
    return [sample for id_, sample in sorted(client.held.items()) if id_ not in adding]


def compare_evidence(federation: SimulatedFederation) -> None:
    """Orders are complete in time, audits equal, and receipts and passages hold."""
    for home in federation.homes:
        office = home.office
        office.attempt("federation", office.running.federation_content)  # with the newest key
        _compare_orders(federation, home)
        for audit in home.audits:
            shown = office.ask("show-audit", {"audit": audit})
            if shown is None or shown["result"] not in ("equal", "abandoned"):
                raise LawBrokenError("audits equal", f"audit {audit}: {shown}")
            federation.world.count("law: audit")
    for client in federation.clients:
        _compare_receipts(federation, client)
    for aggregator in federation.aggregators:
        _compare_passages(federation, aggregator)


def _compare_orders(federation: SimulatedFederation, home: Home) -> None:
    clients = federation.clients_of(home)
    held = {sample.subject for client in clients for sample in client.held.values()}
    for order, subject in home.orders.items():
        shown = home.office.ask("show-order", {"order": order})
        if shown is None or shown["state"] not in ("complete", "closed"):
            raise LawBrokenError("orders complete", f"order {order}: {shown}")
        if shown["completed"] > shown["deadline"]:
            raise LawBrokenError("orders complete", f"order {order} after its deadline: {shown}")
        if subject in held:
            raise LawBrokenError("orders complete", f"{subject} is still held")
        federation.world.count("law: order")


def _compare_receipts(federation: SimulatedFederation, client: ClientParty) -> None:
    """Each verifies, is in the log, and is of another request."""
    chain, log = client.home.office.running.chain, client.home.server.log
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


def _compare_passages(federation: SimulatedFederation, aggregator: AggregatorParty) -> None:
    """The last change of every client of a group is proved to be in the ledger of the root."""
    chain = federation.root.office.running.chain
    for client in federation.clients:
        last = _last_change(client) if client.home.server is aggregator else None
        if last is not None:
            try:
                proof = aggregator.forwarding.passage(client.name, last)
                verify(proof, chain.pinned, rotations=chain.envelopes)
            except ExpungeError as problem:
                aggregator.problem = problem
                raise LawBrokenError("passages verify", f"{client.name}: {problem}") from problem
            federation.world.count("law: passage")


def _last_change(client: ClientParty) -> int | None:
    """The number of the last request that added or deleted, and is in the log as it is."""
    log, last = client.home.server.log, None
    for sequence, data in sorted(client.open_store.documents("receipt").items()):
        entry = Envelope.from_bytes(data, "receipt").unverified()["entry"]
        if (entry["added"] or entry["deleted"]) and canonical.encode(entry) in log:
            last = sequence
    return last


def compare_keys(federation: SimulatedFederation) -> None:
    """What has been erased is nowhere: no vault has keys that nothing needs, and no byte of any
    disk has one that was destroyed.
    """
    for party in federation.parties:
        if party.machine.had_trouble:  # what it could not finish then, it does when it starts
            party.stop()
            federation.begin_again(party)
    federation.wait(ERASE_WITHIN)
    federation.tick()
    for party in federation.parties:
        for vault, needed in party.needed_keys().items():
            count = len(party.keys_of(vault))
            if count != needed:
                raise LawBrokenError(
                    "erased",
                    f"{vault} of {party.name} has {count} keys, where {needed} are needed",
                )
        gone = sorted(party.keys - party.note_keys())
        found = party.disk.finds(gone)
        if found:
            raise LawBrokenError(
                "erased", f"{len(found)} of {len(gone)} destroyed keys of {party.name}"
            )
        federation.world.coverage["law: destroyed keys"] += len(gone)
        federation.world.trace(party.disk.digest())
