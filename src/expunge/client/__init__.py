"""The client: its store of samples, its outbox, its agent, and the ways in for files of
features.
"""

from expunge.client.enrolment import enrol
from expunge.client.outbox import Composition
from expunge.client.samples import Preview, Selection
from expunge.client.store import ClientStore, Status
from expunge.client.sync import Agent, Synced
from expunge.data.columns import Loaded
from expunge.data.readers import load

__all__ = [
    "Agent",
    "ClientStore",
    "Composition",
    "Loaded",
    "Preview",
    "Selection",
    "Status",
    "Synced",
    "enrol",
    "load",
]
