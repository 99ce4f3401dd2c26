"""The client: its store of samples, its outbox, its agent, and the ways in for files of features."""

from expunge.client.agent import Agent, Synced
from expunge.client.columns import Loaded
from expunge.client.enrolment import enrol
from expunge.client.loaders import load
from expunge.client.outbox import Composition
from expunge.client.selection import Preview, Selection
from expunge.client.store import ClientStore, Status

__all__ = ["Agent", "ClientStore", "Composition", "Loaded", "Preview", "Selection", "Status", "Synced", "enrol", "load"]
