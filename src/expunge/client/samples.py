"""The samples of a client's store: checked, sealed, selected, opened.

Laws:
- What `add` took, `blocks` gives back as the same integers under the same commitments, or raises: a
  row that was damaged or exchanged is never passed on.
- `SampleNames.from_bytes(n.to_bytes()) == n`, and the same for `Content`, whose feature keeps the
  very bytes and type that it came with. `rows_of` gives the integers that
  `expunge.ridge.encoding.integer_rows` gives for the same features and labels.

A `SampleBatch` is samples as people give them, checked; invalid samples are refused by the number
of their row. Ids, subjects and labels may be personal, so no message shows them. A `Selection` says
which samples are meant, a `Preview` what forgetting them would do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.client.folder import ClientFolder, content_context, names_context
from expunge.crypto import canonical
from expunge.errors import (
    BackboneError,
    CommitmentError,
    FormatError,
    InputError,
    ShapeError,
    StoreDamagedError,
    StoreError,
    UnknownLabelError,
    UnknownSampleError,
)
from expunge.frame import Reader, prefixed
from expunge.kinds import SampleState
from expunge.ridge.encoding import (
    Rows,
    Targets,
    as_array,
    checked_features,
    checked_labels,
    hard_labels,
    integer_rows,
    put_features,
    targets_of,
)
from expunge.ridge.feature_names import FeatureNames
from expunge.ridge.spec import Label, Spec
from expunge.ridge.tables import named
from expunge.wire.commitment import SALT_BYTES, commitments


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The samples of a store that meet all of the given conditions.

    At least one condition must be given; `everything=True` selects all samples.

    Attributes
    ----------
    ids : collection of str or None, default None
        Ids of samples; each must be in the store.
    subject : str or None, default None
        Whom the samples are about.
    label : str or int or None, default None
        A label of the spec.
    since : float or None, default None
        Samples added at this time or later, in seconds since 1970.
    until : float or None, default None
        Samples added before this time, in seconds since 1970.
    everything : bool, default False
        All samples; excludes the other conditions.

    Raises
    ------
    InputError
        There are no conditions, `everything` is combined with others, `ids` is empty or a single
        text, or `since` is not before `until`.

    Examples
    --------
    >>> from expunge.client import Selection
    >>> Selection(subject="patient 12", label="cat").subject
    'patient 12'
    >>> Selection()
    Traceback (most recent call last):
    ...
    expunge.errors.InputError: the selection is empty: ...
    """

    ids: Collection[str] | None = None
    subject: str | None = None
    label: Label | None = None
    since: float | None = None
    until: float | None = None
    everything: bool = False

    def __post_init__(self) -> None:
        conditions = [
            name
            for name in ("ids", "subject", "label", "since", "until")
            if getattr(self, name) is not None
        ]
        if self.everything and conditions:
            raise InputError(
                f"everything=True and conditions ({', '.join(conditions)}) contradict each other: "
                "give one of them"
            )
        if not self.everything and not conditions:
            raise InputError(
                "the selection is empty: give ids, a subject, a label or a time range, or say "
                "everything=True"
            )
        if self.ids is not None:
            if isinstance(self.ids, (str, bytes)):
                raise InputError(
                    "ids must be several ids, not one text: give a list, even of one id"
                )
            object.__setattr__(
                self, "ids", tuple(dict.fromkeys(str(sample) for sample in self.ids))
            )
            if not self.ids:
                raise InputError("ids is empty: name at least one sample")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise InputError(f"since={self.since:g} must be before until={self.until:g}")


@dataclass(frozen=True)
class Preview:
    """What forgetting a selection does: returned by `ClientStore.preview` before, and by
    `ClientStore.forget` and `leave` after.

    Attributes
    ----------
    ids : tuple of str
        The samples to be forgotten.
    labels : mapping of str to int
        How many of them have each label; samples without a hard label are not counted.
    subjects : mapping of str to int
        How many of them are about each subject.
    unsent : int
        How many of them were never sent, and are erased at once. The others are erased when the
        receipt is here.
    pending : tuple of str
        Samples of the selection whose deletion was asked for before.

    Examples
    --------
    >>> from expunge.client import Preview
    >>> preview = Preview(ids=("a", "b"), labels={"cat": 2}, unsent=1)
    >>> preview.count
    2
    """

    ids: tuple[str, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    subjects: Mapping[str, int] = field(default_factory=dict)
    unsent: int = 0
    pending: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many samples are forgotten."""
        return len(self.ids)


def counted(values: Iterable[str | None]) -> dict[str, int]:
    """How often each value occurs, None left out, in the order of values."""
    counts = Counter(value for value in values if value is not None)
    return dict(sorted(counts.items()))


FILE_SOURCE, TEXT_SOURCE = (
    "file:",
    "text:",
)  # how sources begin that are a file, or the text of the sample itself


@dataclass(frozen=True)
class SampleNames:
    """A sample's id, whom it is about, and the source that its feature can be computed from."""

    id: str
    subject: str | None
    source: str | None

    @property
    def file(self) -> str | None:
        """The file that is the source; None where the source is something else, such as a text,
        which is never shown.
        """
        source = self.source or ""
        return source.removeprefix(FILE_SOURCE) if source.startswith(FILE_SOURCE) else None

    def to_bytes(self) -> bytes:
        """Canonical bytes, to be sealed."""
        return canonical.encode([self.id, self.subject, self.source])

    @classmethod
    def from_bytes(cls, data: bytes) -> SampleNames:
        """The inverse of `to_bytes`."""
        return cls(*canonical.decode(data, "the names of a sample"))


@dataclass(frozen=True, eq=False)
class Content:
    """A sample's feature (None if it is computed again when needed), target (class index or real
    row) and salt.
    """

    salt: bytes
    feature: NDArray[Any] | None
    target: int | NDArray[Any]

    def to_bytes(self) -> bytes:
        """Bytes to be sealed."""
        head: dict[str, Any] = {"feature": None, "salt": self.salt.hex(), "target": self.target}
        tail = b""
        if self.feature is not None:
            head["feature"] = [self.feature.dtype.str, self.feature.size]
            tail += self.feature.tobytes()
        if not isinstance(self.target, int):
            head["target"] = [self.target.dtype.str, self.target.size]
            tail += self.target.tobytes()
        return prefixed(canonical.encode(head)) + tail

    @classmethod
    def from_bytes(cls, data: bytes) -> Content:
        """The inverse of `to_bytes`."""
        reader = Reader(data, "the content of a sample", "the store is damaged")
        head = canonical.decode(bytes(reader.prefixed("the head")), "the content of a sample")
        feature, target = head["feature"], head["target"]
        arrays = [
            reader.array(form[0], (form[1],), "the numbers")
            for form in (feature, target)
            if isinstance(form, list)
        ]
        reader.end()
        return cls(
            bytes.fromhex(head["salt"]),
            arrays[0] if feature is not None else None,
            arrays[-1] if isinstance(target, list) else int(target),
        )


def rows_of(
    spec: Spec, features: Sequence[NDArray[Any]], targets: Sequence[int | NDArray[Any]]
) -> Rows:
    """The integers of samples, whose features and targets may be of different types.

    Targets made for fewer labels are padded.
    """
    integers = np.empty((len(features), spec.width))
    largest = 0.0
    for indices in _alike([feature.dtype.str for feature in features]):
        block = np.empty((len(indices), spec.width))
        largest = max(
            largest, put_features(spec, np.stack([features[index] for index in indices]), block)
        )
        integers[indices] = block
    return Rows(integers, largest, _targets_of(spec, targets))


def _targets_of(spec: Spec, targets: Sequence[int | NDArray[Any]]) -> Targets:
    integers = np.zeros((len(targets), spec.columns))
    counts = np.zeros(spec.columns if spec.is_classification else 0, dtype=np.int64)
    kinds = [
        "" if isinstance(target, int) else f"{target.dtype.str} {target.size}" for target in targets
    ]
    for indices in _alike(kinds):
        labels = np.array([targets[index] for index in indices])
        if labels.ndim == 2:
            labels = np.pad(labels, ((0, 0), (0, spec.columns - labels.shape[1])))
        part = targets_of(spec, labels)
        integers[indices] = part.integers
        counts += part.class_counts
    return Targets(integers, counts)


def _alike(kinds: Sequence[str]) -> list[list[int]]:
    """The places of each kind: a type common to different arrays could round."""
    indices: dict[str, list[int]] = {}
    for index, kind in enumerate(kinds):
        indices.setdefault(kind, []).append(index)
    return list(indices.values())


_LONGEST = 4096  # characters of an id, subject or source


@dataclass(frozen=True)
class SampleBatch:
    """Samples to be added.

    Features and labels are arrays, perhaps memory-mapped; they are read block by block.
    """

    ids: list[str]
    features: NDArray[Any]
    labels: NDArray[Any]
    subjects: list[str | None]
    sources: list[str | None]
    first: int = 0  # the number of the first row, where this is a part of a batch
    feature_names: tuple[str, ...] | None = None  # of the columns of features, for errors

    @classmethod
    def of(
        cls,
        spec: Spec,
        ids: Any,
        features: Any,
        labels: Any,
        *,
        subjects: Any = None,
        sources: Any = None,
        feature_names: FeatureNames | None = None,
    ) -> SampleBatch:
        """A batch whose parts belong together; the values of features and labels are not yet looked
        at.
        """
        names = [
            _text(value, f"the id of row {row}") for row, value in enumerate(_several(ids, "ids"))
        ]
        array = np.asarray(checked_features(spec, features, feature_names))
        targets = as_array(labels, "labels")
        if "" in names:
            raise InputError(
                f"the id of row {names.index('')} is empty: every sample needs an id of its own"
            )
        batch = cls(
            names,
            array,
            targets,
            _texts(subjects, "subjects", names),
            _texts(sources, "sources", names),
            feature_names=None if feature_names is None else feature_names.names,
        )
        for what, number in (("features", len(array)), ("labels", len(targets))):
            if number != len(names):
                raise ShapeError(f"{len(names)} ids need as many {what}, got {number}")
        return batch

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, rows: slice) -> SampleBatch:
        """Some of the samples, which follow one another."""
        first = self.first + rows.indices(len(self))[0]
        return SampleBatch(
            self.ids[rows],
            self.features[rows],
            self.labels[rows],
            self.subjects[rows],
            self.sources[rows],
            first,
            self.feature_names,
        )

    def names(self) -> list[SampleNames]:
        """What each is called."""
        return [
            SampleNames(*parts) for parts in zip(self.ids, self.subjects, self.sources, strict=True)
        ]

    def rows(self, spec: Spec) -> tuple[Rows, list[int | NDArray[Any]]]:
        """The integers, and each target as it is kept: the class index of a hard label, the row as
        it came otherwise.
        """
        try:
            rows = integer_rows(spec, named(self.features, self.feature_names), self.labels)
        except InputError as problem:
            raise self._by_row(spec, problem) from problem
        hard = hard_labels(spec, rows.targets.integers)
        indices = rows.targets.integers.argmax(axis=1)
        if hard.all():
            return rows, [int(index) for index in indices]
        checked = checked_labels(spec, self.labels, len(self))
        return rows, [
            int(indices[row]) if hard[row] else np.ascontiguousarray(checked[row])
            for row in range(len(self))
        ]

    def _by_row(self, spec: Spec, problem: InputError) -> InputError:
        """The same refusal with the number of the row in the whole batch."""
        for row in range(len(self)):
            try:
                features = named(self.features[row : row + 1], self.feature_names)
                integer_rows(spec, features, self.labels[row : row + 1])
            except InputError as refused:
                text = str(refused).replace("row 0, column", "column").replace(" of row 0", "")
                which = (
                    "the sample"
                    if self.first + len(self) == 1
                    else f"row {self.first + row} (counted from 0)"
                )
                return type(refused)(f"{which} cannot be taken, and nothing was added: {text}")
        return problem


def _several(values: Any, what: str) -> Sequence[Any]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InputError(
            f"{what} must be a sequence with one entry for each sample, got {type(values).__name__}"
        )
    return list(values)


def _texts(values: Any, what: str, ids: Sequence[str]) -> list[str | None]:
    if values is None:
        return [None] * len(ids)
    texts = [
        None if value is None else _text(value, f"the {what[:-1]} of row {row}")
        for row, value in enumerate(_several(values, what))
    ]
    if len(texts) != len(ids):
        raise ShapeError(f"{len(ids)} ids need as many {what}, got {len(texts)}")
    return texts


def _text(value: object, what: str) -> str:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (str, int, np.integer)):
        raise InputError(f"{what} must be a text or an integer, got {type(value).__name__}")
    text = str(value)
    if len(text) > _LONGEST:
        raise InputError(f"{what} has {len(text)} characters, more than the {_LONGEST} allowed")
    return text


Progress = Callable[[int], None]
Recompute = Callable[[list[str]], Any]

BLOCK_SAMPLES = 500
RECENT_BYTES = 32 << 20  # of integers that are kept in memory from `insert` to `blocks`
_MANY = 500  # arguments of one query


@dataclass(frozen=True)
class StoredSample:
    """One sample of a selection, without its feature.

    Attributes
    ----------
    slot : int
        Its place in the vault.
    state : {"adding", "live", "withdrawn", "deleting"}
        As `expunge.client.states` describes.
    sent : bool
        Whether a request has sent it to the server, or is about to.
    label : int or None
        The class index; None if the target is a real row.
    names : SampleNames
        `id`, `subject` and `source`.
    added : int
        When it was added, in seconds since 1970.
    """

    slot: int
    state: SampleState
    sent: bool  # whether a request has sent it to the server, or is about to
    label: int | None
    names: SampleNames
    added: int  # seconds since 1970

    @property
    def shown_state(self) -> SampleState:
        """The state for people: a withdrawn sample is shown as deleting."""
        return "deleting" if self.state == "withdrawn" else self.state


@dataclass(frozen=True)
class UnsealedSample:
    """One sample with everything that the store holds of it."""

    slot: int
    id_tag: bytes
    commitment: bytes
    names: SampleNames
    content: Content


@dataclass(frozen=True)
class Block:
    """Consecutive samples as the protocol takes them."""

    commitments: list[bytes]
    salts: list[bytes]
    rows: Rows


class SampleTable:
    """The rows of the table `samples`, opened and sealed by the vault.

    Changes are made within a transaction of the caller.
    """

    def __init__(self, folder: ClientFolder) -> None:
        self._folder = folder
        self._database = folder.database
        self._vault = folder.vault
        # A cache: what was added last, as integers, until it is sent. The truth is in the database.
        self._recent: dict[tuple[bytes, ...], tuple[Spec, Block]] = {}

    # -- putting in --------------------------------------------------------------------------------

    def insert(
        self,
        spec: Spec,
        slots: Sequence[int],
        batch: SampleBatch,
        now: int,
        progress: Progress | None,
    ) -> None:
        """Put a whole batch in, block by block, pending, under keys that are there already."""
        for start in range(0, len(batch), BLOCK_SAMPLES):
            part = batch.part(slice(start, start + BLOCK_SAMPLES))
            rows, targets = part.rows(spec)
            salts = [self._folder.machine.random(SALT_BYTES) for _ in part.ids]
            block = Block(commitments(spec, salts, rows), salts, rows)
            sealed = zip(
                slots[start:],
                part.names(),
                salts,
                part.features,
                targets,
                block.commitments,
                strict=False,
            )
            self._database.run_many(
                _INSERT,
                [
                    self._sealed(
                        slot,
                        names,
                        Content(salt, np.ascontiguousarray(feature), target),
                        commitment,
                        now,
                    )
                    for slot, names, salt, feature, target, commitment in sealed
                ],
            )
            self._keep_recent(spec, block)
            if progress is not None:
                progress(start + len(part))

    def _keep_recent(self, spec: Spec, block: Block) -> None:
        """Spare `blocks` the way to the grid, if these samples are sent as they were added."""
        held = sum(other.rows.integers.nbytes for _, other in self._recent.values())
        if held + block.rows.integers.nbytes <= RECENT_BYTES:
            self._recent[tuple(block.commitments)] = spec, block

    def drop_recent(self) -> None:
        """Drop what was added from memory: it has been sent, or forgotten."""
        self._recent.clear()

    def is_committed(self, spec: Spec, old: UnsealedSample, rows: Rows) -> bool:
        """Whether the sample of this one row is the one that was committed to: the same
        integers.
        """
        return commitments(spec, [old.content.salt], rows) == [old.commitment]

    def insert_one(
        self,
        spec: Spec,
        slot: int,
        names: SampleNames,
        content: Content,
        rows: Rows,
        *,
        now: int,
        replaces: int | None,
    ) -> None:
        """Put a corrected sample in, in place of one that is to be deleted or has just been
        removed; `rows` is its content as integers.
        """
        (commitment,) = commitments(spec, [content.salt], rows)
        self._database.run(_INSERT, self._sealed(slot, names, content, commitment, now))
        self._database.run("UPDATE samples SET replaces = ? WHERE slot = ?", (replaces, slot))

    def _sealed(
        self, slot: int, names: SampleNames, content: Content, commitment: bytes, now: int
    ) -> tuple[Any, ...]:
        id_tag = self._folder.id_tag(names.id)
        subject_tag = None if names.subject is None else self._folder.subject_tag(names.subject)
        return (
            slot,
            id_tag,
            subject_tag,
            content.target if isinstance(content.target, int) else None,
            now,
            commitment,
            self._vault.seal(slot, names.to_bytes(), names_context(id_tag)),
            self._vault.seal(slot, content.to_bytes(), content_context(id_tag, commitment)),
        )

    def require_new(self, ids: Sequence[str]) -> None:
        """Refuse ids that occur twice or are in the store already."""
        first: dict[str, int] = {}
        for row, sample in enumerate(ids):
            if first.setdefault(sample, row) != row:
                raise InputError(
                    f"rows {first[sample]} and {row} (counted from 0) have the same id: every "
                    "sample needs an id of its own"
                )
        tags = {self._folder.id_tag(sample): sample for sample in ids}
        states: dict[str, SampleState] = {}
        for tag, state in self._where_any(
            list(tags), "SELECT id_tag, state FROM samples WHERE id_tag IN ({})"
        ):
            if states.get(tags[tag]) not in ("adding", "live"):
                states[tags[tag]] = state
        taken = [first[sample] for sample, state in states.items() if state in ("adding", "live")]
        if taken:
            raise InputError(
                f"{_listed(taken)}: a sample with that id is in the store already. To change a "
                "sample, correct it. Nothing was added"
            )
        if states:
            raise InputError(
                f"{_listed([first[sample] for sample in states])}: the deletion of a sample with "
                "that id is pending, and the id is free again when its receipt is here. Sync "
                "first; nothing was added"
            )

    def pending_again(self, spec: Spec, batch: SampleBatch) -> bool:
        """Whether all of a batch is in the store already, the very same samples, and some are yet
        to be receipted.
        """
        tags = [self._folder.id_tag(sample) for sample in batch.ids]
        query = (
            "SELECT id_tag, slot, state FROM samples WHERE state IN ('adding', 'live') "
            "AND id_tag IN ({})"
        )
        entries = {tag: (slot, state) for tag, slot, state in self._where_any(tags, query)}
        if (
            len(set(tags)) < len(tags)
            or set(entries) != set(tags)
            or all(state == "live" for _, state in entries.values())
        ):
            return False
        slots = [entries[tag][0] for tag in tags]
        for start in range(0, len(batch), BLOCK_SAMPLES):
            part = batch.part(slice(start, start + BLOCK_SAMPLES))
            opened = self.open(slots[start : start + BLOCK_SAMPLES])
            rows, _ = part.rows(spec)
            if [sample.names.subject for sample in opened] != part.subjects:
                return False
            if commitments(spec, [sample.content.salt for sample in opened], rows) != [
                sample.commitment for sample in opened
            ]:
                return False
        return True

    # -- finding -----------------------------------------------------------------------------------

    def find(
        self, selection: Selection, spec: Spec, *, by_tag: bool = True, for_order: bool = False
    ) -> list[StoredSample]:
        """The samples of a selection.

        Ids and subjects that are not there are an error, except that an order may find nothing. A
        subject's samples are found by the tag of its name, which is a cache, or, if not `by_tag`,
        by the sealed names of all samples: then a damaged tag hides none.
        """
        conditions, arguments = self._conditions(selection, spec, by_tag=by_tag)
        columns = f"SELECT {_STORED} FROM samples"  # noqa: S608 - our own words
        if selection.ids is None:
            rows = self._database.rows(
                f"{columns} WHERE {' AND '.join(conditions) or '1'} ORDER BY slot", arguments
            )
        else:
            missing = self.missing(selection.ids)
            if missing:
                raise UnknownSampleError(_not_here(selection.ids, missing))
            where = " AND ".join(["id_tag IN ({})", *conditions])
            tags = [self._folder.id_tag(sample) for sample in selection.ids]
            rows = self._where_any(tags, f"{columns} WHERE {where} ORDER BY slot", arguments)
        if selection.subject is None or by_tag:
            stored = [self._stored(row) for row in rows]
        else:
            stored = list(self._about({selection.subject}, rows))
        if selection.subject is not None and not stored and not for_order:
            raise UnknownSampleError(
                "no sample of that subject is in the store that meets the conditions"
            )
        return stored

    def about(self, subjects: Collection[str]) -> dict[str, list[int]]:
        """The slots of all samples about each of these subjects, by the sealed names of every
        sample.

        StoreDamagedError if the names of any sample cannot be read: it may be about one of them.
        """
        by_subject: dict[str, list[int]] = {subject: [] for subject in subjects}
        rows = self._database.rows(f"SELECT {_STORED} FROM samples NOT INDEXED ORDER BY slot")  # noqa: S608 - our own words
        for sample in self._about(by_subject, rows):
            by_subject[str(sample.names.subject)].append(sample.slot)
        return by_subject

    def stored(self, slots: Sequence[int]) -> list[StoredSample]:
        """The samples in these slots, as they are now."""
        query = f"SELECT {_STORED} FROM samples WHERE slot IN ({{}}) ORDER BY slot"  # noqa: S608 - our own words
        return [self._stored(row) for row in self._where_any(slots, query)]

    def _about(
        self, subjects: Collection[str], rows: Iterable[tuple[Any, ...]]
    ) -> Iterator[StoredSample]:
        unreadable = 0
        for row in rows:
            try:
                sample = self._stored(row)
            except (StoreError, FormatError):
                unreadable += 1
                continue
            if sample.names.subject in subjects:
                yield sample
        if unreadable:
            raise StoreDamagedError(
                f"the names of {unreadable} samples in {self._folder.path} cannot be read, so it "
                "cannot be told whether they are about the subject. Nothing was forgotten: run "
                f"expunge client scrub --repair --dir {self._folder.path}"
            )

    def _stored(self, row: tuple[Any, ...]) -> StoredSample:
        slot, tag, state, sequence, label, names, added = row
        sent = sequence is not None or state in ("live", "deleting")
        return StoredSample(slot, state, sent, label, self._names(slot, tag, names), added)

    def mend_subject_tags(self, samples: Iterable[StoredSample]) -> None:
        """Within a transaction: let the tags of these samples, and the index of tags, say what
        their sealed names say. SQLite deletes no row that its index does not have.
        """
        wrong = [
            (tag, sample.slot)
            for sample in samples
            if sample.names.subject is not None
            and not self._is_tagged(
                sample.slot, tag := self._folder.subject_tag(sample.names.subject)
            )
        ]
        if wrong:
            self._database.run("REINDEX samples_by_subject")
            self._database.run_many("UPDATE samples SET subject_tag = ? WHERE slot = ?", wrong)

    def _is_tagged(self, slot: int, tag: bytes) -> bool:
        """Whether the row in a slot and the index of tags have this tag: each is looked into for
        itself, as SQLite does when it deletes the row.
        """
        row = "SELECT slot FROM samples NOT INDEXED WHERE slot = ?2 AND subject_tag = ?1"
        entry = (
            "SELECT slot FROM samples INDEXED BY samples_by_subject "
            "WHERE subject_tag = ?1 AND slot = ?2"
        )
        return all(self._database.value(query, (tag, slot)) == slot for query in (row, entry))

    def missing(self, ids: Iterable[str]) -> list[str]:
        """Which of these ids no sample has, in alphabetical order."""
        tags = {self._folder.id_tag(sample): sample for sample in ids}
        stored_tags = {
            tag
            for (tag,) in self._where_any(
                list(tags), "SELECT id_tag FROM samples WHERE id_tag IN ({})"
            )
        }
        return sorted(sample for tag, sample in tags.items() if tag not in stored_tags)

    def _conditions(
        self, selection: Selection, spec: Spec, *, by_tag: bool
    ) -> tuple[list[str], list[Any]]:
        conditions: list[str] = []
        arguments: list[Any] = []
        if selection.subject is not None and by_tag:
            conditions.append("subject_tag = ?")
            arguments.append(self._folder.subject_tag(selection.subject))
        if selection.label is not None:
            indices = {str(label): index for index, label in enumerate(spec.labels or ())}
            if str(selection.label) not in indices:
                raise UnknownLabelError(
                    f"the spec has no label {selection.label!r}, so no sample can have it"
                )
            conditions.append("label = ?")
            arguments.append(indices[str(selection.label)])
        for name, sign in (("since", ">="), ("until", "<")):
            if getattr(selection, name) is not None:
                conditions.append(f"added {sign} ?")
                arguments.append(getattr(selection, name))
        return conditions, arguments

    def current(self, sample: str) -> tuple[int, bool, int]:
        """Slot of the sample with this id that is adding or live, whether it never left home, and
        when it was added.
        """
        query = "SELECT slot, state, sequence, added FROM samples WHERE id_tag = ?"
        rows = self._database.rows(query, (self._folder.id_tag(sample),))
        for slot, state, sequence, added in rows:
            if state in ("adding", "live"):
                return slot, state == "adding" and sequence is None, added
        if rows:
            raise UnknownSampleError(
                "the sample with that id is being deleted: it can no longer be corrected"
            )
        raise UnknownSampleError("no sample with that id is in the store")

    def _where_any(
        self, values: Sequence[Any], query: str, arguments: Sequence[Any] = ()
    ) -> list[tuple[Any, ...]]:
        """All rows of a query for any of these values, replacing {}; `arguments` follow."""
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(values), _MANY):
            chunk = values[start : start + _MANY]
            rows += self._database.rows(
                query.format(", ".join("?" * len(chunk))), [*chunk, *arguments]
            )
        return rows

    # -- opening -----------------------------------------------------------------------------------

    def _names(self, slot: int, id_tag: bytes, sealed: bytes) -> SampleNames:
        return SampleNames.from_bytes(self._vault.unseal(slot, sealed, names_context(id_tag)))

    def open(self, slots: Sequence[int]) -> list[UnsealedSample]:
        """Samples in this order."""
        samples = {}
        query = "SELECT slot, id_tag, commitment, names, content FROM samples WHERE slot IN ({})"
        for slot, id_tag, commitment, names, content in self._where_any(slots, query):
            unsealed = Content.from_bytes(
                self._vault.unseal(slot, content, content_context(id_tag, commitment))
            )
            samples[slot] = UnsealedSample(
                slot, id_tag, bytes(commitment), self._names(slot, id_tag, names), unsealed
            )
        return [samples[slot] for slot in slots]

    def commitments(self, slots: Sequence[int]) -> list[bytes]:
        """The commitments of samples, in this order."""
        by_slot = dict(
            self._where_any(slots, "SELECT slot, commitment FROM samples WHERE slot IN ({})")
        )
        return [bytes(by_slot[slot]) for slot in slots]

    def blocks(
        self, spec: Spec, slots: Sequence[int], recompute: Recompute | None = None
    ) -> Iterator[Block]:
        """Samples in this order, a block at a time; features that are not kept are computed again.

        Each opens its commitment.
        """
        for start in range(0, len(slots), BLOCK_SAMPLES):
            opened = self.open(slots[start : start + BLOCK_SAMPLES])
            recent = self._recent.pop(tuple(sample.commitment for sample in opened), None)
            if recent is not None and recent[0] == spec:
                yield recent[1]  # the vault has just opened the same samples, bound to these
            else:
                yield _verified(spec, _with_features(spec, opened, recompute))

    def integers(self, spec: Spec, slots: Sequence[int]) -> Iterator[Rows]:
        """The integers of pending samples, whose features are kept, a block at a time; those added
        last need not be opened, and stay in memory.
        """
        for start in range(0, len(slots), BLOCK_SAMPLES):
            chunk = slots[start : start + BLOCK_SAMPLES]
            recent = self._recent.get(tuple(self.commitments(chunk)))
            if recent is not None and recent[0] == spec:
                yield recent[1].rows
            else:
                yield _verified(spec, _with_features(spec, self.open(chunk), None)).rows

    # -- features that are not kept ----------------------------------------------------------------

    def keep_features(self, spec: Spec, slots: Sequence[int], recompute: Recompute | None) -> None:
        """Compute the missing features of samples that are to be deleted, check them, and keep them
        until the receipt is here.
        """
        for start in range(0, len(slots), BLOCK_SAMPLES):
            bare = [
                sample
                for sample in self.open(slots[start : start + BLOCK_SAMPLES])
                if sample.content.feature is None
            ]
            if bare:
                computed = _with_features(spec, bare, recompute)
                _verified(spec, computed)
                self._reseal(computed)

    def uncomputable(
        self, spec: Spec, slots: Sequence[int], recompute: Recompute | None
    ) -> list[int]:
        """Which of these samples have a feature that is not kept and cannot be computed again, as
        it was; all of them are tried.
        """
        missing: list[int] = []
        for start in range(0, len(slots), BLOCK_SAMPLES):
            bare = [
                sample
                for sample in self.open(slots[start : start + BLOCK_SAMPLES])
                if sample.content.feature is None
            ]
            missing += _uncomputable(spec, bare, recompute)
        return missing

    def drop_features(self, slots: Sequence[int]) -> None:
        """From now on the features of these samples are computed again when they are needed."""
        for start in range(0, len(slots), BLOCK_SAMPLES):
            chunk = self.open(slots[start : start + BLOCK_SAMPLES])
            self._reseal(
                [replace(sample, content=replace(sample.content, feature=None)) for sample in chunk]
            )

    def _reseal(self, samples: Iterable[UnsealedSample]) -> None:
        for sample in samples:
            sealed = self._vault.seal(
                sample.slot,
                sample.content.to_bytes(),
                content_context(sample.id_tag, sample.commitment),
            )
            self._database.run(
                "UPDATE samples SET content = ? WHERE slot = ?", (sealed, sample.slot)
            )


def _with_features(
    spec: Spec, samples: Sequence[UnsealedSample], recompute: Recompute | None
) -> list[UnsealedSample]:
    """The same samples with features, computed again where they are not kept."""
    bare = [sample for sample in samples if sample.content.feature is None]
    if not bare:
        return list(samples)
    if recompute is None:
        raise InputError(
            f"the features of {len(bare)} samples are not kept and must be computed again: "
            "say how, by the backbone that they were made with (recompute=)"
        )
    try:
        made = recompute([str(sample.names.source) for sample in bare])
    except (BackboneError, OSError) as problem:
        raise InputError(f"a feature cannot be computed again: {problem}") from problem
    features = np.asarray(checked_features(spec, made))
    if len(features) != len(bare):
        raise ShapeError(
            f"{len(bare)} features were to be computed again, but {len(features)} came back"
        )
    computed = {
        sample.slot: replace(
            sample, content=replace(sample.content, feature=np.ascontiguousarray(feature))
        )
        for sample, feature in zip(bare, features, strict=True)
    }
    return [computed.get(sample.slot, sample) for sample in samples]


def _uncomputable(
    spec: Spec, samples: list[UnsealedSample], recompute: Recompute | None
) -> list[int]:
    """Tried all together, and by halves where that fails."""
    try:
        if samples:
            _verified(spec, _with_features(spec, samples, recompute))
    except (CommitmentError, InputError):
        if recompute is None:
            raise
        if len(samples) == 1:
            return [samples[0].slot]
        half = len(samples) // 2
        return [
            *_uncomputable(spec, samples[:half], recompute),
            *_uncomputable(spec, samples[half:], recompute),
        ]
    return []


def _verified(spec: Spec, samples: Sequence[UnsealedSample]) -> Block:
    """The samples as integers, if each is the one that was committed to."""
    features = [sample.content.feature for sample in samples if sample.content.feature is not None]
    rows = rows_of(spec, features, [sample.content.target for sample in samples])
    salts = [sample.content.salt for sample in samples]
    for sample, commitment in zip(samples, commitments(spec, salts, rows), strict=True):
        if commitment != sample.commitment:
            file = sample.names.file
            origin = "" if file is None else f", computed again from {file},"
            raise CommitmentError(
                f"the feature of a sample{origin} is not the one that was committed to when it was "
                "added. Nothing was deleted: put its source and the backbone back as they were"
            )
    return Block([sample.commitment for sample in samples], salts, rows)


def _not_here(ids: Collection[str], missing: Collection[str]) -> str:
    """That some ids are not in the store; they are counted, since they may be personal."""
    if len(ids) == 1:
        return "the id is not in the store: mistyped, or gone already"
    first = next(number for number, sample in enumerate(ids, start=1) if sample in missing)
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{len(missing)} of the {len(ids)} ids {verb} not in the store, such as number "
        f"{first}: mistyped, or gone already"
    )


def _listed(rows: Iterable[int]) -> str:
    """The numbers of a few rows, and how many more there are."""
    numbers = sorted(rows)
    more = len(numbers) - 5
    shown = ", ".join(str(row) for row in numbers[:5]) + (f" and {more} more" if more > 0 else "")
    return f"row{'s' if len(numbers) > 1 else ''} {shown} (counted from 0)"


_STORED = "slot, id_tag, state, sequence, label, names, added"  # the columns of a StoredSample
_INSERT = (
    "INSERT INTO samples (slot, id_tag, subject_tag, label, added, state, commitment, names, "
    "content)"
    " VALUES (?, ?, ?, ?, ?, 'adding', ?, ?, ?)"
)
