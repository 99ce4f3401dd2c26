"""The client: its store of samples, its outbox, its agent, and readers for files of features."""

from typing import TYPE_CHECKING

from expunge._lazy import lazy_names

if TYPE_CHECKING:
    from expunge.client.backlog import Backlog
    from expunge.client.enrolment import enrol
    from expunge.client.overview import Status
    from expunge.client.rarity import Rarity
    from expunge.client.samples import Preview, Selection
    from expunge.client.store import ClientStore
    from expunge.client.sync import Agent, SyncResult
    from expunge.data.columns import Loaded
    from expunge.data.readers import load

__all__ = [
    "Agent",
    "Backlog",
    "ClientStore",
    "Loaded",
    "Preview",
    "Rarity",
    "Selection",
    "Status",
    "SyncResult",
    "enrol",
    "load",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Agent": "expunge.client.sync",
        "Backlog": "expunge.client.backlog",
        "ClientStore": "expunge.client.store",
        "Loaded": "expunge.data.columns",
        "Preview": "expunge.client.samples",
        "Rarity": "expunge.client.rarity",
        "Selection": "expunge.client.samples",
        "Status": "expunge.client.overview",
        "SyncResult": "expunge.client.sync",
        "enrol": "expunge.client.enrolment",
        "load": "expunge.data.readers",
    },
)
