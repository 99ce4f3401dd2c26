"""An aggregator: a group's server, which is a client of the server above it. Groups of groups work the same way.

Statistics add up, so the server above needs the group's sums and nothing of its clients. Clients enrol at the aggregator, which
applies, logs and receipts their requests; `sync` forwards what the group has changed as one request, whose receipt names the
group's log. With both, `passage` proves to a client that its request is in the ledger at the root (expunge.evidence.passage).
Within the group there may be secure aggregation: then the aggregator sees sums, and the server above sums of sums.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from expunge.aggregation import Aggregation
from expunge.client import ClientStore, Synced, enrol
from expunge.client.trust import Trust
from expunge.embedded import Federation
from expunge.embedded.founding import found_federation
from expunge.embedded.place import Place
from expunge.errors import EvidenceError, StoreError
from expunge.evidence import Logged, Receipt, read_entry
from expunge.evidence.passage import passage_bytes
from expunge.office import Office
from expunge.protocol.carrier import Carrier
from expunge.protocol.token import Token
from expunge.server.core import Settings
from expunge.server.service import Service
from expunge.signing import Envelope
from expunge.spec import Spec
from expunge.tree.agent import GroupAgent

_UPSTREAM = "upstream"
_OFFICE = "aggregator"


class Aggregator:
    """A group in a folder and a way to the server above.

    The folder is that of a federation, with two more in it: `upstream`, the aggregator's store as a client of the server above,
    and `aggregator`, the office by which it files orders and amends the spec in its group.
    """

    def __init__(
        self,
        folder: Path,
        carrier: Carrier,
        *,
        settings: Settings | None = None,
        service: Service | None = None,
        **options: Any,
    ) -> None:
        """`service` is the group's, where it is open already; `options` are those of the agent that goes to the server above."""
        place = Place.at(folder)
        require_aggregator(place.path)
        self.group = Federation(place, settings, service=service, office=place.path / _OFFICE)
        self._carrier = carrier
        try:
            self.upstream = ClientStore.open(place.path / _UPSTREAM)
        except BaseException:
            self.group.close()
            raise
        self._trust = Trust(self.upstream, carrier)
        self._agent = GroupAgent(self.upstream, carrier, self.group.carrier.service, self.group.office, **options)

    @classmethod
    def found(
        cls,
        folder: Path,
        token: Token,
        carrier: Carrier,
        *,
        messages: tuple[str, ...] = ("gram", "rows"),
        aggregation: Aggregation | None = None,
        address: str = "",
        settings: Settings | None = None,
        **options: Any,
    ) -> Aggregator:
        """A new group under the server above, which gave the token; after an interruption, the same call again finishes it.

        `messages` and `aggregation` are what is allowed within the group; all else of the spec is that of the server above.
        `options` are those of `found_federation`: hosts, urls, mirrors, solver.
        """
        chosen = Spec(dim=1, outputs=1, messages=messages, aggregation=aggregation)  # refuses what cannot be, before anything is
        draft = folder.absolute().with_name(folder.name + ".upstream")
        unfinished = draft.exists() and Place.is_at(folder) and not is_aggregator(folder)
        if not unfinished and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise StoreError(f"{folder} is not empty: choose another folder for the group")
        with _enrolled(draft, token, carrier, address) as store:
            within = replace(store.spec, messages=chosen.messages, aggregation=chosen.aggregation)
        place = Place.at(folder) if unfinished else found_federation(folder, within, **options)
        if not (place.path / _OFFICE / "office.json").exists():
            with Federation(place) as group:  # an office of its own: the operator's stays free while the group is served
                Office.enrol(place.path / _OFFICE, group.token("aggregator", "operator"), group.carrier).close()
        draft.rename(place.path / _UPSTREAM)
        return cls(folder, carrier, settings=settings)

    @property
    def name(self) -> str:
        """As it is enrolled at the server above."""
        return self.upstream.name

    def sync(self) -> Synced:
        """Forward what has changed, take orders, amendments and audits down, and answers and the root's head back."""
        return self._agent.sync()

    def sequences(self, client: str) -> range:
        """The numbers of the requests that a client of the group has made, the newest last."""
        return range(1, self.group.carrier.service.core.actor(client).sequence + 1)

    def passage(self, client: str, sequence: int) -> bytes:
        """The proof that a request of a client of the group has been forwarded, and stands in the log of the server above."""
        index, entry = self._entry(client, sequence)
        for number, data in sorted(self.upstream.documents("receipt").items()):
            receipt = Receipt.read(Envelope.from_bytes(data, "receipt"), self._trust.chain)
            if receipt.logged.entry.get("message") != "group":
                continue
            place = receipt.logged.index + 1
            (forwarded,) = self._carrier.entries(place, place + 1)
            told = read_entry(forwarded)
            if told["kind"] != "forwarded" or told["sequence"] != number:
                raise EvidenceError(f"the server above does not show which log request {number} of {self.name} was the state of")
            if told["size"] > index:
                checkpoint = Envelope.from_bytes(self._trust.checkpoint(), "checkpoint")
                size = checkpoint.unverified()["size"]
                within = Logged.of(entry, index, self.group.carrier.inclusion(index, told["size"]))
                above = Logged.of(forwarded, place, self._carrier.inclusion(place, size))
                return passage_bytes(client, sequence, within, above, checkpoint)
        raise StoreError(f"request {sequence} of {client} has not been forwarded yet: sync the aggregator first")

    def _entry(self, client: str, sequence: int) -> tuple[int, bytes]:
        """The entry of a client's request in the group's log."""
        core = self.group.carrier.service.core
        row = core.database.row("SELECT position FROM members WHERE client = ? AND sequence = ?", (client, sequence))
        if row is None:
            row = core.database.row(
                "SELECT position FROM log WHERE json_extract(CAST(entry AS TEXT), '$.kind') = 'changed'"
                " AND json_extract(CAST(entry AS TEXT), '$.client') = ? AND json_extract(CAST(entry AS TEXT), '$.sequence') = ?",
                (client, sequence),
            )
        if row is None:
            raise StoreError(f"there is no request {sequence} of {client} in the log of this group")
        return int(row[0]), core.log.entry(int(row[0]))

    def close(self) -> None:
        """Close everything, after erasing at rest."""
        self.upstream.close()
        self.group.close()

    def __enter__(self) -> Aggregator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _enrolled(draft: Path, token: Token, carrier: Carrier, address: str) -> ClientStore:
    """The store of the aggregator as a client: enrolled now, or by an attempt that went no further."""
    if (draft / "client.db").exists():
        store = ClientStore.open(draft)
        if store.recall("enrolled") == "1" and (store.name, store.federation) == (token.name, token.federation):
            return store
        store.close()
    return enrol(draft, token, carrier, message="group", address=address)


def is_aggregator(path: Path) -> bool:
    """Whether the federation in a folder is a group of another."""
    return (path / _UPSTREAM / "client.db").exists()


def require_aggregator(path: Path) -> Path:
    """The folder of an aggregator's store as a client of the server above; refused where there is none."""
    if not is_aggregator(path):
        raise StoreError(
            f"{path} is a federation of its own, not a group: a group is founded with a token of the server above it (expunge "
            "aggregator found)"
        )
    return path / _UPSTREAM
