"""The client: its store of samples, its outbox, its agent, and the ways in for files of features."""

from expunge.client.agent import Agent
from expunge.client.columns import Loaded
from expunge.client.enrolment import enrol
from expunge.client.loaders import load
from expunge.client.outbox import Composition
from expunge.client.selection import Preview, Selection
from expunge.client.status import Status
from expunge.client.store import ClientStore
from expunge.client.synced import Synced

__all__ = ["Agent", "ClientStore", "Composition", "Loaded", "Preview", "Selection", "Status", "Synced", "enrol", "load"]
