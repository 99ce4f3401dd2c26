"""Trees of aggregators: groups of clients whose server is itself a client of the server above."""

from expunge.tree.aggregator import Aggregator

__all__ = ["Aggregator"]
