"""Columns and classes that few of the pending samples have.

In a sum, a column of the feature is the sum over those samples alone whose value there is not zero,
and a column of G the sum over the samples of one class. So what few samples have shows these
samples, however many others the sum is of: `Spec.fewest_samples` does not help them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from expunge.ridge.encoding import Rows
from expunge.ridge.spec import Spec, recommended_fewest_samples


@dataclass(frozen=True)
class Rarity:
    """How many columns, and which classes, few of the pending samples have: one or more, but at
    most half of them, and fewer than `recommended_fewest_samples`.

    Half, because features that are zero now and then are no rarer than the sum itself.

    Attributes
    ----------
    samples : int
        How many samples are pending, added and deleted ones.
    columns : int
        How many columns of the feature are not zero in few of them.
    labels : mapping of str to int
        The labels that few of them have, and how many; empty for regression.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), messages=("gram",))
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> store = federation.client("north").store
    >>> features, labels = [[1.0, 0.0], [2.0, 0.0], [3.0, 7.0]], ["cat", "cat", "dog"]
    >>> store.add(["a", "b", "c"], features, labels, now=0.0)
    3
    >>> store.rarity()
    Rarity(samples=3, columns=1, labels={'dog': 1})
    >>> federation.close()
    >>> folder.cleanup()
    """

    samples: int = 0
    columns: int = 0
    labels: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything is rare."""
        return bool(self.columns or self.labels)


def rarity_of(spec: Spec, samples: int, blocks: Iterable[Rows]) -> Rarity:
    """Of this many samples, whose integers come in blocks."""
    few = min(recommended_fewest_samples(spec.width) - 1, samples // 2)
    columns = np.zeros(spec.width, dtype=np.int64)
    classes = np.zeros(spec.columns if spec.is_classification else 0, dtype=np.int64)
    for rows in blocks:
        columns += np.count_nonzero(rows.integers, axis=0)
        if spec.is_classification:
            classes += np.count_nonzero(rows.targets.integers, axis=0)
        if (columns > few).all() and (classes > few).all():
            break  # nothing can be rare any more
    return Rarity(
        samples,
        int(np.count_nonzero((columns > 0) & (columns <= few))),
        {
            str(label): int(count)
            for label, count in zip(spec.labels or (), classes, strict=True)
            if 0 < count <= few
        },
    )
