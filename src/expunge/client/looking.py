"""What can be asked of a client's store. Nothing here changes anything, so it can be asked of a glance too."""

from __future__ import annotations

from collections.abc import Sequence

from expunge.client import states
from expunge.client.folder import Folder
from expunge.client.samples import BLOCK_SAMPLES, Found, Opened, Progress, Recompute, Samples
from expunge.client.selection import Preview, Selection, counted
from expunge.client.standing import Standing, alone
from expunge.client.status import Status
from expunge.statistics import Statistics
from expunge.sums import Sums


class Looking(Standing):
    """Samples, and where the client stands."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        self._samples = Samples(folder)

    @alone
    def listed(self, selection: Selection) -> list[Found]:
        """The samples of a selection: ids, subjects, class indices, states and times, without their features."""
        return self._samples.find(selection, self._spec)

    @alone
    def missing(self, ids: Sequence[str]) -> list[str]:
        """Which of these ids no sample in the store has."""
        return self._samples.missing(ids)

    @alone
    def opened(self, selection: Selection) -> list[tuple[Found, Opened]]:
        """The samples of a selection with all that the store holds of them, in the order of `listed`."""
        found = self._samples.find(selection, self._spec)
        return list(zip(found, self._samples.open([one.slot for one in found]), strict=True))

    @alone
    def preview(self, selection: Selection) -> Preview:
        """What forgetting would do; nothing changes."""
        return self._preview(self._samples.find(selection, self._spec))

    def _preview(self, found: Sequence[Found]) -> Preview:
        going = [one for one in found if one.state in ("adding", "live")]
        labels = [None if one.label is None else str((self._spec.labels or ())[one.label]) for one in going]
        return Preview(
            ids=tuple(one.names.id for one in going),
            labels=counted(labels),
            subjects=counted(one.names.subject for one in going),
            unsent=sum(not one.sent for one in going),
            pending=tuple(one.names.id for one in found if one.state not in ("adding", "live")),
        )

    @alone
    def statistics(self, progress: Progress | None = None, *, recompute: Recompute | None = None) -> Statistics:
        """The statistics of all samples that the server counts, computed afresh from the samples."""
        query = f"SELECT slot FROM samples WHERE {states.COUNTED} ORDER BY slot"  # noqa: S608 - our own words
        slots = [row[0] for row in self._database.rows(query)]
        sums = Sums(self._spec)
        for number, block in enumerate(self._samples.blocks(self._spec, slots, recompute), start=1):
            sums.change(block.rows, 1)
            if progress is not None:
                progress(min(number * BLOCK_SAMPLES, len(slots)))
        return Statistics.snapshot(sums, by_construction=True)

    @alone
    def answered(self, audit: str) -> bool:
        """Whether an audit has been answered."""
        return bool(self._database.value("SELECT 1 FROM audits WHERE id = ?", (audit,)))

    @alone
    def status(self) -> Status:
        """Where this client stands."""
        numbers = dict(self._database.rows("SELECT state, count(*) FROM samples GROUP BY state"))
        query = "SELECT label, count(*) FROM samples WHERE state IN ('adding', 'live') AND label IS NOT NULL GROUP BY label"
        names = self._spec.labels or ()
        return Status(
            name=self.name,
            federation=self.federation,
            mode=self.mode,
            message=self.message,
            enrolled=self.recall("enrolled") == "1",
            live=numbers.get("live", 0),
            adding=numbers.get("adding", 0),
            deleting=numbers.get("deleting", 0) + numbers.get("withdrawn", 0),
            labels={str(names[label]): number for label, number in self._database.rows(query)},
            sequence=self.sequence,
            composed=self._database.value("SELECT sequence FROM compositions"),
            orders=self._database.value("SELECT count(*) FROM orders WHERE answered = 0"),
            checkpoint=self.checkpoint[0],
            head=self.recall("head") or "",
            refusal=self.recall("refusal") or "",
            leaving=self.recall("leaving") == "1",
            left=self.recall("left") == "1",
            gone=self.gone and self.recall("left") != "1",
        )
