"""What a sync has done."""

from __future__ import annotations

from dataclasses import dataclass, replace

from expunge.client.selection import Preview
from expunge.evidence import Receipt


@dataclass(frozen=True)
class Synced:
    """What a sync has done. `orders` are the erasure orders carried out, with what each found.

    `waiting` says what a round of secure aggregation waits for, if this client is in one or could not bring its changes by one.
    """

    status: str
    receipts: tuple[Receipt, ...] = ()
    orders: tuple[tuple[str, Preview], ...] = ()
    audits: tuple[str, ...] = ()
    amended: bool = False
    head: str = ""
    new_head: bool = False
    rejoined: bool = False
    waiting: str = ""

    def followed_by(self, later: Synced) -> Synced:
        """What both have done, and how things stand after the second."""
        return replace(
            later,
            receipts=self.receipts + later.receipts,
            orders=self.orders + later.orders,
            audits=self.audits + later.audits,
            amended=self.amended or later.amended,
            new_head=self.new_head or later.new_head,
            rejoined=self.rejoined or later.rejoined,
        )
