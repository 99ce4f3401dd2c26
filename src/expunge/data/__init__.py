"""Samples from files, and statistics of data that outgrow one machine.

`formats` opens .npz, .npy, .csv and .parquet files, and `readers` makes samples of them.
`shard_statistics` adds up many files on threads, processes, Ray or Dask, with the digest that one
machine would give.
"""

from typing import TYPE_CHECKING

from expunge._lazy import lazy_names

if TYPE_CHECKING:
    from expunge.data.shards import Shard, listed, shard_statistics

__all__ = ["Shard", "listed", "shard_statistics"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Shard": "expunge.data.shards",
        "listed": "expunge.data.shards",
        "shard_statistics": "expunge.data.shards",
    },
)
