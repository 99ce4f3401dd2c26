"""Statistics of data that outgrow one machine: shard by shard, on threads, processes, Ray or Dask,
with one machine's digest.
"""

from expunge.data.shards import Shard, listed, shard_statistics

__all__ = ["Shard", "listed", "shard_statistics"]
