"""The client's store: samples under keys of their own, and what is pending.

Trusted for: the samples and what is pending. It may not be lost, for without it deletions cannot be
computed. Each operation is one transaction: it takes effect whole or not at all. Adds and deletes
are pending until the receipt is in hand (the states are described in `expunge.client.states`); then
what was deleted is physically gone.

A store may be opened read-only, beside the process that works on it: a snapshot that changes
nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.client import states
from expunge.client.folder import ClientFolder, exclusive, put_settings
from expunge.client.outbox import Outbox
from expunge.client.overview import ClientOverview
from expunge.client.samples import (
    BLOCK_SAMPLES,
    Batch,
    Preview,
    Progress,
    Recompute,
    Samples,
    Selection,
    StoredSample,
    UnsealedSample,
    counted,
)
from expunge.client.settings import checkpoint_text, spec_text
from expunge.crypto import PublicKey, SigningKey
from expunge.errors import InputError, SpecError, StoreError
from expunge.kinds import MESSAGES
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums
from expunge.wire import schema
from expunge.wire.commitment import SALT_BYTES

MODES = ("cached", "recompute")


class _UnchangedError(Exception):
    """A correction that corrects nothing: its transaction is undone."""


class ClientStore(ClientOverview):
    """A client's samples and outbox in a folder.

    Any thread may use it; one process at a time, while others may read it.
    """

    def __init__(self, folder: ClientFolder) -> None:
        super().__init__(folder)
        self._samples = Samples(folder)
        self.outbox = Outbox(self, folder, self._samples)

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        federation: str,
        name: str,
        server: PublicKey,
        spec: Spec,
        key: SigningKey | None = None,
        address: str = "",
        ca: str = "",
        enrolled: bool = True,
        mode: str = "cached",
        message: str = "rows",
        mirrors: Sequence[Path] = (),
    ) -> ClientStore:
        """A new store, for a client of this name in this federation, whose server signs with this
        key.
        """
        if mode not in MODES:
            raise InputError(
                f"mode={mode!r} must be 'cached' (features are kept) or 'recompute' (they are "
                "computed again)"
            )
        if message not in MESSAGES or message not in spec.messages:
            raise SpecError(
                f"message={message!r} must be one of {', '.join(MESSAGES)}, and the spec allows "
                f"{', '.join(spec.messages)}"
            )
        settings = {
            "federation": schema.federation(federation, "the federation"),
            "name": schema.name(name, "the name"),
            "server": server.text,
            "spec": spec_text(spec),
            "address": address,
            "ca": ca,
            "enrolled": "1" if enrolled else "",
            "mode": mode,
            "message": message,
            "sequence": "0",
            "checkpoint": checkpoint_text(0, b""),
        }
        key = SigningKey(secrets.token_bytes(32)) if key is None else key
        return cls(
            ClientFolder.create(Path(path), key, settings, [Path(mirror) for mirror in mirrors])
        )

    # -- reading -----------------------------------------------------------------------------------

    @exclusive
    def listed(self, selection: Selection) -> list[StoredSample]:
        """The samples of a selection: ids, subjects, class indices, states and times, without their
        features.
        """
        return self._samples.find(selection, self._spec)

    @exclusive
    def missing(self, ids: Sequence[str]) -> list[str]:
        """Which of these ids no sample in the store has."""
        return self._samples.missing(ids)

    @exclusive
    def opened(self, selection: Selection) -> list[tuple[StoredSample, UnsealedSample]]:
        """The samples of a selection with all that the store holds of them, in the order of
        `listed`.
        """
        stored = self._samples.find(selection, self._spec)
        return list(
            zip(stored, self._samples.open([sample.slot for sample in stored]), strict=True)
        )

    @exclusive
    def preview(self, selection: Selection) -> Preview:
        """What forgetting would do; nothing changes."""
        return self._preview(self._samples.find(selection, self._spec))

    def _preview(self, selected: Sequence[StoredSample]) -> Preview:
        going = [sample for sample in selected if sample.state in ("adding", "live")]
        labels = [
            None if sample.label is None else str((self._spec.labels or ())[sample.label])
            for sample in going
        ]
        return Preview(
            ids=tuple(sample.names.id for sample in going),
            labels=counted(labels),
            subjects=counted(sample.names.subject for sample in going),
            unsent=sum(not sample.sent for sample in going),
            pending=tuple(
                sample.names.id for sample in selected if sample.state not in ("adding", "live")
            ),
        )

    @exclusive
    def statistics(
        self, progress: Progress | None = None, *, recompute: Recompute | None = None
    ) -> Statistics:
        """The statistics of all samples that the server counts, computed afresh from the
        samples.
        """
        query = f"SELECT slot FROM samples WHERE {states.COUNTED} ORDER BY slot"  # noqa: S608 - our own words
        slots = [row[0] for row in self._database.rows(query)]
        sums = Sums(self._spec)
        for number, block in enumerate(self._samples.blocks(self._spec, slots, recompute), start=1):
            sums.change(block.rows, 1)
            if progress is not None:
                progress(min(number * BLOCK_SAMPLES, len(slots)))
        return Statistics.snapshot(sums, by_construction=True)

    @exclusive
    def answered(self, audit: str) -> bool:
        """Whether an audit has been answered."""
        return bool(self._database.value("SELECT 1 FROM audits WHERE id = ?", (audit,)))

    # -- adding and correcting ---------------------------------------------------------------------

    @exclusive
    def add(
        self,
        ids: Any,
        features: Any,
        labels: Any,
        *,
        subjects: Any = None,
        sources: Any = None,
        now: float,
        progress: Progress | None = None,
        ignore_pending: bool = False,
    ) -> int:
        """Add samples, pending until the receipt; how many.

        If one of them cannot be taken, it is named and none is added. With `ignore_pending`, 0 if
        these very samples were added before and some of them are yet to be receipted: a sync
        finishes that.
        """
        if not ignore_pending:
            self._require_staying()
        batch = Batch.of(self._spec, ids, features, labels, subjects=subjects, sources=sources)
        if ignore_pending:
            if self._samples.pending_again(self._spec, batch):
                return 0
            self._require_staying()
        if self.mode == "recompute" and None in batch.sources:
            raise InputError(
                "this store keeps no features: give sources=, from which each can be computed again"
            )
        self._samples.require_new(batch.ids)
        slots = self._folder.vault.new(len(batch))
        try:
            with self._database.transaction():
                self._samples.insert(self._spec, slots, batch, int(now), progress)
        except BaseException:
            self._folder.drop(slots)
            raise
        return len(batch)

    @exclusive
    def correct(
        self,
        sample: str,
        *,
        feature: Any = None,
        label: Any = None,
        source: str | None = None,
        recompute: Recompute | None = None,
    ) -> bool:
        """Give a sample another feature or label: one delete and one add, which travel in one
        request. Its id stays.

        False if it is so already: then nothing is changed, and nothing is to be sent.
        """
        self._require_staying()
        if feature is None and label is None:
            raise InputError("nothing is to be corrected: give a feature, a label or both")
        if self.mode == "recompute" and feature is not None and source is None:
            raise InputError(
                "this store keeps no features: give source=, from which the new feature can be "
                "computed again"
            )
        slot, unsent, added = self._samples.current(sample)
        (fresh,) = self._folder.vault.new()
        try:
            with self._database.transaction() as changes:
                if self.mode == "recompute":
                    self._samples.keep_features(self._spec, [slot], recompute)
                (old,) = self._samples.open([slot])
                features = [old.content.feature if feature is None else feature]
                batch = Batch.of(
                    self._spec, [sample], features, self._label(old.content.target, label)
                )
                rows, (target,) = batch.rows(self._spec)
                content = replace(
                    old.content,
                    salt=secrets.token_bytes(SALT_BYTES),
                    feature=batch.features[0],
                    target=target,
                )
                names = replace(old.names, source=old.names.source if source is None else source)
                if names == old.names and self._samples.is_committed(self._spec, old, rows):
                    raise _UnchangedError
                earlier = changes.value("SELECT replaces FROM samples WHERE slot = ?", (slot,))
                gone = states.forget(changes, [slot], None)
                replaces = earlier if unsent else slot
                self._samples.insert_one(
                    self._spec, fresh, names, content, rows, now=added, replaces=replaces
                )
        except BaseException as problem:
            self._folder.drop([fresh])
            if isinstance(problem, _UnchangedError):
                return False
            raise
        if gone:
            self._folder.erase(gone)
        return True

    def _label(self, old: int | NDArray[Any], new: Any) -> NDArray[Any]:
        if new is not None:
            return np.asarray([new])
        return (
            np.array([old])
            if isinstance(old, int)
            else np.pad(old, (0, self._spec.columns - old.size)).reshape(1, -1)
        )

    def _require_staying(self) -> None:
        if self.gone:
            raise StoreError(
                f"the server knows {self.name} no longer: nothing can be added or corrected. "
                "Enrol a new client"
            )
        if self.recall("leaving") == "1":
            raise StoreError(
                "this client is leaving the federation, or has left it: nothing can be added. "
                "Enrol a new client"
            )

    # -- forgetting --------------------------------------------------------------------------------

    @exclusive
    def forget(
        self, selection: Selection, *, order: str | None = None, recompute: Recompute | None = None
    ) -> Preview:
        """Delete the samples of a selection, pending until the receipt; those that never left home
        are gone at once.

        Once the server knows this client no longer (`gone`), nobody else holds them, and all of
        them are gone at once.

        With `order`, the id of an erasure order, the next request also answers that order, and
        finding nothing is an answer. An order whose answer is pending is not carried out again; one
        that was answered is, for then the answer has been lost.
        """
        if order is not None and self._database.value(
            "SELECT 1 FROM orders WHERE id = ? AND answered = 0", (order,)
        ):
            return Preview()
        selected = self._samples.find(selection, self._spec, for_order=order is not None)
        self._forget(selected, order=order, recompute=recompute)
        return self._preview(selected)

    @exclusive
    def leave(self, *, recompute: Recompute | None = None) -> Preview:
        """Forget everything, and say in the next request that this client leaves the federation."""
        selected = self._samples.find(Selection(everything=True), self._spec)
        self._forget(selected, recompute=recompute, leaving=True)
        return self._preview(selected)

    @exclusive
    def drop_orders(self, waiting: Collection[str]) -> None:
        """Answer no orders but those waited for, and those that a composed request answers."""
        rows = self._database.rows("SELECT id FROM orders WHERE answered = 0 AND sequence IS NULL")
        with self._database.transaction() as changes:
            others = [(order,) for (order,) in rows if order not in waiting]
            changes.run_many("UPDATE orders SET answered = 1 WHERE id = ?", others)

    def _forget(
        self,
        selected: Sequence[StoredSample],
        *,
        order: str | None = None,
        recompute: Recompute | None,
        leaving: bool = False,
    ) -> None:
        self._samples.drop_recent()
        with self._database.transaction() as changes:
            if self.gone:
                gone = states.remove(changes, [sample.slot for sample in selected])
            else:
                if self.mode == "recompute":
                    self._samples.keep_features(
                        self._spec, [sample.slot for sample in selected if sample.sent], recompute
                    )
                gone = states.forget(changes, [sample.slot for sample in selected], order)
                if order is not None:
                    changes.run("INSERT OR REPLACE INTO orders (id) VALUES (?)", (order,))
            if leaving:
                put_settings(changes, {"leaving": "1", **({"left": "1"} if self.gone else {})})
        if gone:
            self._folder.erase(gone)

    # -- choosing ----------------------------------------------------------------------------------

    @exclusive
    def choose(self, message: str) -> None:
        """Send messages of another kind from now on."""
        if message not in MESSAGES or message not in self._spec.messages:
            raise SpecError(
                f"message={message!r} must be one of those that the spec allows: "
                f"{', '.join(self._spec.messages)}"
            )
        self.remember({"message": message})
