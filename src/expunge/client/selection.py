"""Which samples are meant, and what forgetting them would do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from expunge.errors import InputError
from expunge.spec import Label


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Samples that meet all of the conditions given. To mean all samples, say `everything=True`: no conditions mean nothing.

    `since` and `until` are times at which samples were added, in seconds since 1970; since <= added < until.
    """

    ids: Collection[str] | None = None
    subject: str | None = None
    label: Label | None = None
    since: float | None = None
    until: float | None = None
    everything: bool = False

    def __post_init__(self) -> None:
        conditions = [name for name in ("ids", "subject", "label", "since", "until") if getattr(self, name) is not None]
        if self.everything and conditions:
            raise InputError(f"everything=True and conditions ({', '.join(conditions)}) contradict each other: give one of them")
        if not self.everything and not conditions:
            raise InputError("the selection is empty: give ids, a subject, a label or a time range, or say everything=True")
        if self.ids is not None:
            if isinstance(self.ids, (str, bytes)):
                raise InputError("ids must be several ids, not one text: give a list, even of one id")
            object.__setattr__(self, "ids", tuple(dict.fromkeys(str(one) for one in self.ids)))
            if not self.ids:
                raise InputError("ids is empty: name at least one sample")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise InputError(f"since={self.since:g} must be before until={self.until:g}")


@dataclass(frozen=True)
class Preview:
    """What forgetting a selection does: said before it is done, and again when it has been done.

    `ids` are the samples to be forgotten. Of these `unsent` never reached the server and are gone at once; the others are gone
    when the receipt is here. `pending` are samples of the selection whose deletion had been asked for before.
    """

    ids: tuple[str, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    subjects: Mapping[str, int] = field(default_factory=dict)
    unsent: int = 0
    pending: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many samples are forgotten by this."""
        return len(self.ids)


def counted(values: Iterable[str | None]) -> dict[str, int]:
    """How often each value occurs, None left out, in the order of values."""
    counts = Counter(value for value in values if value is not None)
    return dict(sorted(counts.items()))
