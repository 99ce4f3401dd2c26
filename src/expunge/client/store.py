"""The client's store: samples under keys of their own, and pending changes.

Trusted for: the samples and pending changes. It may not be lost, because without it deletions
cannot be computed. Each operation is one transaction: it takes effect whole or not at all.
Additions and deletions are pending until the receipt is in hand (`expunge.client.states` describes
the states); then what was deleted is physically erased.

A store may be opened read-only while another process works on it: a snapshot that changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.client import states
from expunge.client.backlog import usual_due_time
from expunge.client.folder import ClientFolder, exclusive, put_settings
from expunge.client.outbox import Outbox
from expunge.client.overview import ClientOverview
from expunge.client.rarity import Rarity, rarity_of
from expunge.client.samples import (
    BLOCK_SAMPLES,
    Preview,
    Progress,
    Recompute,
    SampleBatch,
    SampleTable,
    Selection,
    StoredSample,
    UnsealedSample,
    counted,
)
from expunge.client.settings import checkpoint_text, spec_text
from expunge.crypto import PublicKey, SigningKey, canonical
from expunge.errors import (
    CommitmentError,
    ExpungeError,
    InputError,
    SpecError,
    StoreDamagedError,
    StoreError,
)
from expunge.kinds import MESSAGES
from expunge.ridge.feature_names import FeatureNames, is_cell
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums
from expunge.storage.machine import machine_of
from expunge.wire import schema
from expunge.wire.commitment import SALT_BYTES

MODES = ("cached", "recompute")
_LEAVING = "leaving"  # why the next request is a reset, where nothing else asks for one


class _UnchangedError(Exception):
    """A correction that corrects nothing: its transaction is undone."""


class ClientStore(ClientOverview):
    """A client's samples, pending changes and receipts in a folder; `enrol` creates it, `open`
    opens it.

    Changes are pending until an `Agent` has brought them to the server. Threads may share a store;
    one process at a time may change it, while others may read it (`open_read_only`). Each sample is
    sealed under a key of its own, which is destroyed when the receipt of its deletion is here.

    Parameters
    ----------
    folder : ClientFolder
        The opened folder of the client.

    Attributes
    ----------
    machine : Machine
        The machine that the folder is on: its disk, and its randomness.
    outbox : Outbox
        The request that is being offered; for the agent.
    participation, forwarded, forwarding : SealedValue
        What rounds of secure aggregation and aggregators store between two steps.

    Notes
    -----
    The store is the truth for the client's samples. Keep exactly one living copy of its vault:
    docs/privacy.md says what erasure cannot reach.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from expunge import Spec
    >>> from expunge.client import Agent, ClientStore, Selection, enrol
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> path = Path(folder.name) / "hospital-a"
    >>> enrol(path, federation.token("hospital-a"), federation.carrier).close()

    >>> store = ClientStore.open(path)
    >>> features, labels = [[1.0, 0.5], [0.0, 1.0]], ["cat", "dog"]
    >>> store.add(["a", "b"], features, labels, subjects=["ann", "bob"], now=0.0)
    2
    >>> agent = Agent(store, federation.carrier)
    >>> len(agent.push())
    1
    >>> selection = Selection(subject="ann")
    >>> store.preview(selection).ids  # a dry run
    ('a',)
    >>> preview = store.forget(selection)
    >>> store.status().deleting
    1
    >>> receipts = agent.push()  # only now is the sample physically erased
    >>> [sample.names.id for sample in store.listed(Selection(everything=True))]
    ['b']
    >>> store.close()
    >>> federation.close()
    >>> folder.cleanup()
    """

    def __init__(self, folder: ClientFolder) -> None:
        super().__init__(folder)
        self._samples = SampleTable(folder)
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
        """Create a store for a client whose server and spec are known; `enrol` calls this.

        Parameters
        ----------
        path : Path
            A folder that is empty or does not exist.
        federation : str
            The federation's id.
        name : str
            The client's name.
        server : PublicKey
            The server's key, which is pinned.
        spec : Spec
            The federation's spec.
        key : SigningKey or None, default None
            The key that signs requests; None for a new one.
        address : str, default ""
            Where the server is.
        ca : str, default ""
            The PEM of the server's certificate authority, or empty.
        enrolled : bool, default True
            Whether the server has taken the key in.
        mode : {"cached", "recompute"}, default "cached"
            Whether features are kept, or computed again from sources when needed.
        message : str, default "rows"
            The kind of messages to send.
        mirrors : sequence of Path, default ()
            Files to mirror the vault to; none may exist.

        Returns
        -------
        ClientStore
            The new store, open.

        Raises
        ------
        InputError
            There is no such mode.
        SpecError
            The spec does not allow this kind of messages.
        StoreError
            The folder is not empty.
        FormatError
            The name or the id of the federation is malformed.
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
        key = SigningKey(machine_of(Path(path)).random(32)) if key is None else key
        return cls(
            ClientFolder.create(Path(path), key, settings, [Path(mirror) for mirror in mirrors])
        )

    # -- reading -----------------------------------------------------------------------------------

    @exclusive
    def listed(self, selection: Selection) -> list[StoredSample]:
        """List the samples of a selection, without their features.

        Parameters
        ----------
        selection : Selection
            Which samples are meant.

        Returns
        -------
        list of StoredSample
            Ids, subjects, class indices, states and times.

        Raises
        ------
        UnknownSampleError
            An id or the subject is not in the store.
        UnknownLabelError
            The spec has no such label.
        """
        return self._samples.find(selection, self._spec)

    @exclusive
    def missing(self, ids: Sequence[str]) -> list[str]:
        """Which of these ids no sample in the store has.

        Parameters
        ----------
        ids : sequence of str
            Ids to look up.

        Returns
        -------
        list of str
            The ids that are not there, in alphabetical order.
        """
        return self._samples.missing(ids)

    @exclusive
    def opened(self, selection: Selection) -> list[tuple[StoredSample, UnsealedSample]]:
        """Open the samples of a selection, with everything that the store holds of them.

        Parameters
        ----------
        selection : Selection
            Which samples are meant.

        Returns
        -------
        list of (StoredSample, UnsealedSample)
            In the order of `listed`.

        Raises
        ------
        UnknownSampleError
            An id or the subject is not in the store.
        UnknownLabelError
            The spec has no such label.
        """
        stored = self._samples.find(selection, self._spec, by_tag=False)
        return list(
            zip(stored, self._samples.open([sample.slot for sample in stored]), strict=True)
        )

    @exclusive
    def preview(self, selection: Selection) -> Preview:
        """Say what forgetting a selection would do; nothing changes.

        Parameters
        ----------
        selection : Selection
            Which samples are meant.

        Returns
        -------
        Preview
            What `forget` would return.

        Raises
        ------
        UnknownSampleError
            An id or the subject is not in the store.
        UnknownLabelError
            The spec has no such label.
        """
        return self._preview(self._samples.find(selection, self._spec, by_tag=False))

    def _preview(self, selected: Sequence[StoredSample]) -> Preview:
        going = [sample for sample in selected if sample.state in ("adding", "live")]
        labels = [
            None if sample.label is None else str(self.label(sample.label)) for sample in going
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
        """Recompute the statistics of all samples that the server counts, from the samples
        themselves.

        Parameters
        ----------
        progress : callable or None, default None
            Called with the number of samples done so far.
        recompute : callable or None, default None
            Takes a list of sources and returns their features; for stores that keep none.

        Returns
        -------
        Statistics
            The exact statistics.

        Raises
        ------
        CommitmentError
            A recomputed feature is not the one that was committed to.
        InputError
            Features must be computed again, and `recompute` is not given.
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
    def rarity(self) -> Rarity:
        """Columns and classes that few of the pending samples have, whose sums show these samples
        however many are sent together.

        Returns
        -------
        Rarity
            Counts and labels; false if nothing is rare.
        """
        query = (
            "SELECT slot FROM samples WHERE sequence IS NULL AND state IN ('adding', 'deleting') "
            "ORDER BY slot"
        )
        slots = [row[0] for row in self._database.rows(query)]
        return rarity_of(self._spec, len(slots), self._samples.integers(self._spec, slots))

    @exclusive
    def answered(self, audit: str) -> bool:
        """Whether an audit has been answered.

        Parameters
        ----------
        audit : str
            The id of the audit.

        Returns
        -------
        bool
            True if the receipt of the answer is here.
        """
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
        feature_names: Sequence[str] | None = None,
        now: float,
        progress: Progress | None = None,
        ignore_pending: bool = False,
    ) -> int:
        """Add samples, pending until the receipt; all of them or none.

        Parameters
        ----------
        ids : sequence of str or int
            One id for each sample, unique within the store, 1 to 4,096 characters.
        features : array-like of shape (n, dim)
            The features; finite and within the spec's grid.
        labels : array-like
            Labels of the spec (texts), class indices (integers), or rows of real targets, shape (n,
            columns).
        subjects : sequence of str or None, optional
            Whom each sample is about; None for samples about nobody.
        sources : sequence of str or None, optional
            What each feature can be computed from again; required if the store keeps no features.
        feature_names : sequence of str, optional
            The names of the features. Those of the first table or file are stored, and later ones
            must have the same, in the same order; arrays without names go by position.
        now : float
            The time of the addition, in seconds since 1970.
        progress : callable or None, default None
            Called with the number of samples done so far.
        ignore_pending : bool, default False
            Whether to do nothing if these very samples were added before and some of them have no
            receipt yet.

        Returns
        -------
        int
            How many samples were added; 0 if `ignore_pending` applied.

        Raises
        ------
        InputError
            A sample cannot be taken, or its id is in the store already; the row is named.
            ShapeError, NotFiniteError, GridRangeError and UnknownLabelError are such errors. So is
            a table with other columns than the first, which are named.
        StoreError
            The client is leaving the federation, has left it, or was forgotten by the server; or
            the disk is full.
        """
        if not ignore_pending:
            self._require_staying()
        self._folder.require_room()
        names = FeatureNames(self.feature_names)
        names.require(None if feature_names is None else tuple(feature_names))
        batch = SampleBatch.of(
            self._spec,
            ids,
            features,
            labels,
            subjects=subjects,
            sources=sources,
            feature_names=names,
        )
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
            with self._database.transaction() as changes:
                self._samples.insert(self._spec, slots, batch, int(now), progress)
                put_settings(changes, _named(names))
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
        now: float | None = None,
    ) -> bool:
        """Give a sample another feature or label: one deletion and one addition, which travel in
        one request.

        The id, the subject and the time of the addition stay.

        Parameters
        ----------
        sample : str
            The id of the sample.
        feature : array-like of shape (dim,), optional
            The new feature; None to keep it.
        label : str, int or array-like, optional
            The new label, as in `add`; None to keep it.
        source : str or None, default None
            The new source; required with `feature` if the store keeps no features.
        recompute : callable or None, default None
            Takes a list of sources and returns their features; for stores that keep none.
        now : float or None, default None
            The time, in seconds since 1970, from which the deletion may wait for more samples, if
            the spec has `fewest_samples`; None for the present.

        Returns
        -------
        bool
            False if the sample is so already: then nothing is changed.

        Raises
        ------
        UnknownSampleError
            The sample is not in the store, or is being deleted.
        InputError
            Neither feature nor label is given, or one cannot be taken.
        StoreError
            The client is leaving the federation, has left it, or was forgotten by the server.
        """
        self._require_staying()
        if feature is None and label is None:
            raise InputError("nothing is to be corrected: give a feature, a label or both")
        if self.mode == "recompute" and feature is not None and source is None:
            raise InputError(
                "this store keeps no features: give source=, from which the new feature can be "
                "computed again"
            )
        due = usual_due_time(time.time() if now is None else now)
        slot, unsent, added = self._samples.current(sample)
        (fresh,) = self._folder.vault.new()
        try:
            with self._database.transaction() as changes:
                if self.mode == "recompute":
                    self._samples.keep_features(self._spec, [slot], recompute)
                (old,) = self._samples.open([slot])
                features = [old.content.feature if feature is None else feature]
                batch = SampleBatch.of(
                    self._spec, [sample], features, self._label(old.content.target, label)
                )
                rows, (target,) = batch.rows(self._spec)
                content = replace(
                    old.content,
                    salt=self.machine.random(SALT_BYTES),
                    feature=batch.features[0],
                    target=target,
                )
                names = replace(old.names, source=old.names.source if source is None else source)
                if names == old.names and self._samples.is_committed(self._spec, old, rows):
                    raise _UnchangedError
                earlier = changes.value("SELECT replaces FROM samples WHERE slot = ?", (slot,))
                gone = states.forget(changes, [slot], None, due)
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
        self,
        selection: Selection,
        *,
        order: str | None = None,
        recompute: Recompute | None = None,
        now: float | None = None,
        due: int | None = None,
        reset: bool = False,
    ) -> Preview:
        """Delete the samples of a selection, pending until the receipt; samples that were never
        sent are erased at once.

        Once the server no longer knows this client (`gone`), all of them are erased at once.

        Parameters
        ----------
        selection : Selection
            Which samples are meant.
        order : str or None, default None
            The id of an erasure order that the next request is to answer; then finding nothing is
            an answer. An order whose answer is pending is not carried out again; one that was
            answered is, because the server asks again only if the answer was lost.
        recompute : callable or None, default None
            Takes a list of sources and returns their features; for stores that keep none.
        now : float or None, default None
            The time, in seconds since 1970, from which the deletion may wait for more samples, if
            the spec has `fewest_samples`; None for the present.
        due : int or None, default None
            When the deletion waits for more samples no longer, in seconds since 1970; None for when
            an order that is filed `now`, with the usual deadline, would be due.
        reset : bool, default False
            Whether to delete by a `reset`, which needs no feature of what is deleted.

        Returns
        -------
        Preview
            What is deleted.

        Raises
        ------
        UnknownSampleError
            An id or the subject is not in the store, and there is no `order`.
        UnknownLabelError
            The spec has no such label.
        CommitmentError
            A recomputed feature is not the one that was committed to; nothing is deleted.
        InputError
            A feature cannot be computed again; nothing is deleted.
        """
        if order is not None and self._database.value(
            "SELECT 1 FROM orders WHERE id = ? AND answered = 0", (order,)
        ):
            return Preview()
        selected = self._samples.find(
            selection, self._spec, by_tag=False, for_order=order is not None
        )
        if due is None:
            due = usual_due_time(time.time() if now is None else now)
        if reset:
            self._require_resettable()
            self._require_rest({sample.slot for sample in selected}, recompute)
        self._forget(selected, order=order, recompute=recompute, due=due, reset=reset)
        return self._preview(selected)

    @exclusive
    def carry_out(
        self, orders: Sequence[tuple[str, str, int]], *, recompute: Recompute | None = None
    ) -> tuple[dict[str, Preview], ExpungeError | None]:
        """Carry out erasure orders, or note that nothing is held; for the agent.

        Their samples are found by the sealed names of all samples, once for all orders. An order
        that cannot be carried out holds up no other.

        Parameters
        ----------
        orders : sequence of (str, str, int)
            The id of each, its subject, and when its deletion waits for more samples no longer, in
            seconds since 1970.
        recompute : callable or None, default None
            Takes a list of sources and returns their features; for stores that keep none.

        Returns
        -------
        dict of str to Preview
            What is deleted for each order that was carried out; nothing for one whose answer is
            pending.
        ExpungeError or None
            Why the first of the others was not.
        """
        pending = {
            order for (order,) in self._database.rows("SELECT id FROM orders WHERE answered = 0")
        }
        done = {order: Preview() for order, _, _ in orders if order in pending}
        fresh = [order for order in orders if order[0] not in pending]
        if not fresh:
            return done, None
        try:
            slots = self._samples.about({subject for _, subject, _ in fresh})
        except StoreDamagedError as damaged:
            return done, damaged
        problem: ExpungeError | None = None
        for order, subject, due in fresh:
            try:
                selected = self._samples.stored(slots[subject])
                self._forget(selected, order=order, recompute=recompute, due=due)
            except (
                CommitmentError,
                InputError,
            ) as refused:  # a feature that cannot be computed again
                problem = problem or refused
            else:
                done[order] = self._preview(selected)
        return {order: done[order] for order, _, _ in orders if order in done}, problem

    @exclusive
    def reset(
        self,
        sequence: int = 0,
        *,
        recompute: Recompute | None = None,
        departing: Collection[str] = (),
    ) -> None:
        """Let the next request replace all that the server holds of this client by what is here
        and stays.

        What cannot be deleted by itself, because its feature cannot be computed again, is left out
        by it. Until its receipt is here, nothing is deleted otherwise.

        Parameters
        ----------
        sequence : int, default 0
            How many requests the server has receipted, if this store may know of fewer.
        recompute : callable or None, default None
            Takes a list of sources and returns their features; for stores that keep none.
        departing : collection of str, default ()
            Subjects whose samples will be deleted before that, and need no source.

        Raises
        ------
        StoreError
            The server cannot take one client's share out of its ledger: it knows sums over clients
            only, or computes in float64.
        InputError
            A sample that stays cannot be computed again; nothing is changed.
        """
        self._require_resettable()
        slots = self._samples.about(set(departing)).values() if departing else ()
        self._require_rest({slot for found in slots for slot in found}, recompute)
        with self._database.transaction() as changes:
            put_settings(changes, {"reset": "1", "sequence": str(max(sequence, self.sequence))})

    def _require_rest(self, departing: Collection[int], recompute: Recompute | None) -> None:
        """InputError if a sample that stays could not be sent again."""
        if self.mode != "recompute" or self.gone:
            return
        lost = [slot for slot in self._lost(recompute) if slot not in departing]
        if lost:
            raise InputError(
                f"{len(lost)} of the samples that are to stay cannot be computed again, which a "
                "reset needs: nothing was changed. Put their sources back; or, if they are gone "
                "for good, forget those samples too: expunge client forget --lost shows them "
                "(--dry-run), and with --reset forgets them"
            )

    def _lost(self, recompute: Recompute | None) -> list[int]:
        rows = self._database.rows(
            "SELECT slot FROM samples WHERE state IN ('adding', 'live') ORDER BY slot"
        )
        return self._samples.uncomputable(self._spec, [row[0] for row in rows], recompute)

    def _require_resettable(self) -> None:
        if self.gone:
            return
        if self._spec.is_masked or not self._spec.is_exact:
            raise StoreError(
                f"{self._why_no_reset()}, so {self.name} cannot replace its share: have the "
                f"operator forget it (expunge server forget-client {self.name}), enrol a new "
                "client, and add there what is to stay"
            )

    def _why_no_reset(self) -> str:
        if self._spec.is_masked:
            return "under secure aggregation the server knows sums over clients only"
        return "in float64 a share that is taken out and put back leaves another ledger"

    @exclusive
    def lost(self, *, recompute: Recompute | None) -> list[str]:
        """The samples whose features are not kept, and cannot be computed again as they were: all
        that are not being deleted are tried.

        Parameters
        ----------
        recompute : callable or None
            Takes a list of sources and returns their features.

        Returns
        -------
        list of str
            Their ids.

        Raises
        ------
        InputError
            `recompute` is not given, and is needed.
        """
        return [sample.names.id for sample in self._samples.stored(self._lost(recompute))]

    @exclusive
    def leave(self, *, recompute: Recompute | None = None) -> Preview:
        """Forget everything, and leave the federation by the next request.

        Where features cannot be computed again, that request is a `reset`.

        Parameters
        ----------
        recompute : callable or None, default None
            Takes a list of sources and returns their features; for stores that keep none.

        Returns
        -------
        Preview
            What is deleted.

        Raises
        ------
        CommitmentError, InputError
            A feature cannot be computed again as it was, and the server could not reset this
            client; nothing is deleted.
        """
        selected = [
            sample
            for sample in self._samples.find(Selection(everything=True), self._spec)
            if sample.state in ("adding", "live") or self.gone
        ]
        self._forget(selected, recompute=recompute, due=states.BY_LEAVING, leaving=True)
        return self._preview(selected)

    @exclusive
    def stay(self) -> int:
        """Withdraw a departure that is noted and has not been delivered: what it alone would
        delete stays.

        Samples that had never been sent were erased when the departure was noted.

        Returns
        -------
        int
            How many samples stay that were to be deleted.

        Raises
        ------
        StoreError
            The client is not leaving, has left, or its last request may have arrived.
        """
        composed = self.outbox.composed()
        if self.recall("leaving") != "1" or self.recall("left") == "1" or self.gone:
            raise StoreError(f"{self.name} is not leaving: there is nothing to withdraw")
        if composed is not None and (composed.doubtful or self.participation.read() is not None):
            raise StoreError(
                f"the request by which {self.name} leaves is on its way, and may have arrived: "
                "sync, which tells. If it has not arrived, it is delivered then"
            )
        if composed is not None:
            self.outbox.abandon(composed.sequence, "withdrawn")
        with self._database.transaction() as changes:
            slots = states.stay(changes)
            if self.mode == "recompute":
                self._samples.drop_features(slots)
            asked = self.recall("reset") not in (None, "", _LEAVING)  # for another reason
            put_settings(changes, {"leaving": "", "reset": "1" if asked else ""})
        return len(slots)

    @exclusive
    def drop_orders(self, waiting: Collection[str]) -> None:
        """Answer no orders but those that the server waits for, and those that a composed request
        answers; for the agent.

        Parameters
        ----------
        waiting : collection of str
            The ids of the orders that the server waits for.
        """
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
        due: int,
        leaving: bool = False,
        reset: bool = False,
    ) -> None:
        self._samples.drop_recent()
        settings = {"reset": "1"} if reset and not self.gone else {}
        with self._database.transaction() as changes:
            self._samples.mend_subject_tags(selected)
            if self.gone:
                gone = states.remove(changes, [sample.slot for sample in selected])
            else:
                if self.mode == "recompute" and not (reset or self.is_resetting):
                    settings = self._keep_features(selected, recompute, leaving=leaving)
                slots = [sample.slot for sample in selected]
                gone = states.forget(changes, slots, order, due)
                if order is not None:
                    changes.run(
                        "INSERT OR REPLACE INTO orders (id, due) VALUES (?, ?)", (order, due)
                    )
            if leaving:
                settings |= {"leaving": "1", **({"left": "1"} if self.gone else {})}
            put_settings(changes, settings)
        if gone:
            self._folder.erase(gone)

    def _keep_features(
        self, selected: Sequence[StoredSample], recompute: Recompute | None, *, leaving: bool
    ) -> dict[str, str]:
        """Keep the features of what is to be deleted; settings that say how it is deleted instead,
        if they cannot be computed again and the client is leaving.
        """
        try:
            self._samples.keep_features(
                self._spec, [sample.slot for sample in selected if sample.sent], recompute
            )
        except (CommitmentError, InputError) as problem:
            resettable = not self._spec.is_masked and self._spec.is_exact
            if leaving and resettable:
                return {"reset": _LEAVING}
            if recompute is not None:
                problem.add_note(
                    "If the source is gone for good, let the server drop all of this client and "
                    "send what stays again: --reset, with expunge client forget or, for an order, "
                    "expunge client sync"
                    if resettable
                    else f"If the source is gone for good: {self._why_no_reset()}. Have the "
                    f"operator forget this client (expunge server forget-client {self.name}), and "
                    "enrol a new one with what is to stay"
                )
            raise
        return {}

    # -- choosing ----------------------------------------------------------------------------------

    @exclusive
    def choose(self, message: str) -> None:
        """Send messages of another kind from now on.

        Parameters
        ----------
        message : str
            A kind that the spec allows: `"rows"`, `"gram"`, `"factor"`, `"masked"` or `"group"`.
            `rows` show every feature to the server.

        Raises
        ------
        SpecError
            The spec does not allow it.
        """
        if message not in MESSAGES or message not in self._spec.messages:
            raise SpecError(
                f"message={message!r} must be one of those that the spec allows: "
                f"{', '.join(self._spec.messages)}"
            )
        self.remember({"message": message})


def _named(names: FeatureNames) -> dict[str, str]:
    """The setting for names of features; what looks like a cell may be personal, and is not
    stored in the clear.
    """
    if names.names is None or any(is_cell(name) for name in names.names):
        return {}
    return {"feature-names": canonical.encode(list(names.names)).decode("utf-8")}
