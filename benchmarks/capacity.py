"""How much disk, memory and time a federation takes, by the number of features: docs/capacity.md.

Everything is the product itself: ten client stores, a TLS server in a process of its own, durable
writes, a certified head after every deletion.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.data import Data, load
from benchmarks.measure import progress, wrapped
from benchmarks.service import Federation, peak_memory, until_folded

_PAGE = Path(__file__).parent.parent / "docs" / "capacity.md"
_DIMS = (64, 256, 768, 1280)
_CLIENTS = 10
_SAMPLES = 4000
_BURST = 20  # requests of each client at once


@dataclass(frozen=True)
class Capacity:
    """What was measured with `dim` features."""

    dim: int
    sample_bytes: float  # of a client's folder, for each sample
    client_bytes: float  # of the server's folder, for each client
    ledger_bytes: int  # 16 bytes for each sum
    memory: float  # MiB, the server's peak
    milliseconds: float  # from asking for a deletion to its receipt
    rate: float  # requests a second, from all clients at once

    def line(self) -> str:
        """A row of the table."""
        return (
            f"| {self.dim:,} | {self.sample_bytes / 1024:.1f} KiB | {_megabytes(self.ledger_bytes)} "
            f"| {_megabytes(self.client_bytes)} "
            f"| {self.memory:,.0f} MiB | {self.milliseconds:,.0f} ms | {self.rate:,.0f} |"
        )


def _megabytes(size: float) -> str:
    return f"{size / 2**20:.2f} MiB"


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(data: Data, dim: int) -> Capacity:
    """Ten clients with 400 samples each, all of it over HTTPS."""
    picked = np.linspace(0, len(data.labels) - 1, _SAMPLES).astype(int)
    features = np.ascontiguousarray(data.features[picked, :dim])
    data = Data(features, data.labels[picked], data.source, data.real)
    with tempfile.TemporaryDirectory() as folder:
        progress(f"capacity: {dim} features")
        federation = Federation(Path(folder), data, _CLIENTS)
        empty = _size(federation.folder / "server")
        with federation.serving() as (url, process):
            federation.load(url)
            until_folded(url, federation.tls.ca)
            held = _size(federation.folder / "server") - empty
            homes = sum(_size(federation.folder / store.name) for store in federation.stores)
            timing: dict[str, float] = {}
            carrier = federation.carrier(url, timing)
            latency = federation.delete_one_by_one("HTTPS", carrier, "rows", 0, timing)
            carrier.close()
            rate = federation.burst(url, 10, _BURST)
            memory = peak_memory(process)
        width, columns = federation.spec.width, federation.spec.columns
        sums = width * (width + 1) // 2 + width * columns + columns * (columns + 1) // 2
        return Capacity(
            dim=dim,
            sample_bytes=homes / _SAMPLES,
            client_bytes=held / (_CLIENTS + 1),  # the ledger is as large as a client's share
            ledger_bytes=16 * sums,
            memory=memory,
            milliseconds=latency.median,
            rate=rate,
        )


def page(data: Data, measured: list[Capacity]) -> str:
    """docs/capacity.md; the rules to plan by hold for every row."""
    base = measured[0].memory
    times = max(2**20 * (row.memory - base) / row.ledger_bytes for row in measured[1:])
    share = max((row.sample_bytes - 1024) / (4 * row.dim) for row in measured)
    floor = max(row.client_bytes - row.ledger_bytes for row in measured)
    rows = "\n".join(capacity.line() for capacity in measured)
    return f"""# Capacity

What a federation needs, by the number of features. Made by `make bench` (or
`python -m benchmarks.capacity`): ten clients with 400 samples of ten classes each, a TLS server in
a process of its own on the same machine, everything durable, a certified head after every deletion.

- Features: {data.source}, the first so many of each sample, as float32.
- Machine: {platform.machine()}, {os.cpu_count()} cores, which clients and server share.

| features | a client's disk, per sample | the sums | the server's disk, per client | the server's memory, peak | one deletion, receipted | deletions a second, all at once |
|---:|---:|---:|---:|---:|---:|---:|
{rows}

How to read it:

- **A client's disk** grows with its samples: the feature as it was given (4 bytes for each float32
  value), sealed and in pages of a database, and about 1 KiB for keys, commitment and index. A store that recomputes features
  (`--recompute`) has no features on disk.
- **The sums** are 16 bytes for each entry of the upper triangles of S and Y'Y and of G. A `gram`
  request has this size whatever the number of samples; a `rows` request has 8 bytes for each
  feature of each sample.
- **The server's disk** holds one sealed file of that size for the ledger and one for each client.
  With secure aggregation there is the ledger only. While the journal waits to be folded in
  (`--erase-within`, 60 seconds by default), its requests are on disk as well.
- **The server's memory** holds the sums, their cached forms for the solver, and requests in flight
  (`--largest-request`); the peak is that of the initial load. It does not grow with the number of
  samples, nor with that of clients.
- **One deletion** is the median of 40, from the request to the receipt in the client's store, with
  few samples and clients; [benchmarks](benchmarks.md) has 50,000 samples at 100 clients.
- **Deletions a second** is the rate when all clients bring requests at once: the server applies
  what waits in one transaction, with one head. Clients and server share the cores here.

To plan, with rules that hold for every row above:

- server disk: (clients + 1) x (sums + {floor / 2**20:.1f} MiB)
- server memory: {base:.0f} MiB + {np.ceil(times):.0f} x sums
- client disk: samples x ({np.ceil(10 * share) / 10:.1f} x 4 bytes x features + 1 KiB)

Then measure your own.
"""


def main() -> None:
    """Measure, print the page and, on real features, keep it."""
    data = load()
    text = page(data, [measure(data, dim) for dim in _DIMS])
    if data.real:
        _PAGE.write_text(wrapped(text), encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
