"""Samples from files, and statistics of data that outgrow one machine.

`formats` opens .npz, .npy, .csv and .parquet files, and `readers` makes samples of them.
`shard_statistics` adds up many files on threads, processes, Ray or Dask, with the digest that one
machine would give.
"""

from expunge.data.shards import Shard, listed, shard_statistics

__all__ = ["Shard", "listed", "shard_statistics"]
