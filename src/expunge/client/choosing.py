"""Choosing: which of the pending samples the next request takes, and which orders it can answer.

Laws: nothing changes by choosing; what an order deletes is never divided; a corrected sample travels with what it replaces.
"""

from __future__ import annotations

from dataclasses import dataclass

from expunge.client import states
from expunge.client.database import Database
from expunge.client.sizes import beyond, fitting
from expunge.spec import Spec


@dataclass(frozen=True)
class Choice:
    """Which samples take part."""

    slots: list[int]
    all_of_them: bool  # nothing pending is left for a later request
    kind: str  # of the message
    problem: str = ""  # why something pending cannot be sent at all


class Choosing:
    """Looks at what is pending in a client's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def next(self, spec: Spec, kind: str, most: int | None, largest: int | None) -> Choice:
        """Pending deletions, those for orders first, each with the sample that replaces it; then the other additions."""
        replaced = dict(
            self._database.rows(
                "SELECT old.slot, new.slot FROM samples old LEFT JOIN samples new ON new.replaces = old.slot"
                " AND new.state = 'adding' AND new.sequence IS NULL"
                " WHERE old.state = 'deleting' AND old.sequence IS NULL ORDER BY old.slot"
            )
        )
        additions = self._database.rows(
            "SELECT slot FROM samples WHERE state = 'adding' AND sequence IS NULL AND replaces IS NULL ORDER BY slot"
        )
        chosen: list[int] = []
        problem = ""
        for old, orders in self._inseparable():
            new = [slot for slot in (replaced.pop(one) for one in old) if slot is not None]
            if most is None or len(chosen) + len(old) + len(new) <= most:
                chosen += [*old, *new]
            elif chosen:
                return Choice(chosen, False, kind)
            elif other := fitting(spec, kind, largest, added=len(new), deleted=len(old), orders=len(orders)):
                return Choice([*old, *new], False, other)
            else:
                problem = problem or beyond(spec, orders, len(old), largest)
        for group in (*replaced.items(), *additions):
            slots = [slot for slot in group if slot is not None]
            if most is not None and chosen and len(chosen) + len(slots) > most:
                return Choice(chosen, False, kind, problem)
            chosen += slots
        return Choice(chosen, not problem, kind, problem)

    def _inseparable(self) -> list[tuple[list[int], list[str]]]:
        """Samples to delete that must travel together, each group with the orders that wait for it.

        An order says how many samples were found for it when the last of them is deleted: that is all of them only if they
        travel together. Orders that wait for the same sample make one group.
        """
        waited: dict[str, set[int]] = {}
        for order, slot in self._database.rows(
            "SELECT id, slot FROM orders JOIN order_samples ON order_samples.order_id = id JOIN samples USING (slot)"
            " WHERE answered = 0 AND state = 'deleting' AND samples.sequence IS NULL ORDER BY id, slot"
        ):
            waited.setdefault(order, set()).add(slot)
        groups: list[tuple[set[int], list[str]]] = []
        for order, slots in waited.items():
            shared = [group for group in groups if not group[0].isdisjoint(slots)]
            groups = [group for group in groups if group[0].isdisjoint(slots)]
            groups.append((slots.union(*(one[0] for one in shared)), [*(name for one in shared for name in one[1]), order]))
        return sorted((sorted(slots), sorted(orders)) for slots, orders in groups)

    def reset(self, spec: Spec, kind: str, most: int | None, largest: int | None) -> Choice:
        """Everything; if that is too much even as statistics, a part of what stays, and the rest is added afterwards."""
        rows = self._database.rows(f"SELECT slot, {states.ADDED} FROM samples ORDER BY slot")  # noqa: S608 - our own words
        staying, going = [slot for slot, stays in rows if stays], [slot for slot, stays in rows if not stays]
        if most is None or len(staying) <= most:
            return Choice([*staying, *going], True, kind)
        if "gram" in spec.messages and fitting(spec, "gram", largest, added=len(staying)):
            return Choice([*staying, *going], True, "gram")
        return Choice([*staying[:most], *going], False, kind)

    def answerable(self, choice: Choice) -> list[str]:
        """Orders that wait for an answer, and all of whose samples are deleted by this request or are gone."""
        waiting = [
            row[0] for row in self._database.rows("SELECT id FROM orders WHERE sequence IS NULL AND answered = 0 ORDER BY id")
        ]
        if not waiting:
            return []
        taken = set(choice.slots)
        late = {order for order, slot in self._database.rows("SELECT order_id, slot FROM order_samples") if slot not in taken}
        return [order for order in waiting if order not in late]
