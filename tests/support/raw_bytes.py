"""What is left of samples in the files that a server wrote: raw bytes, rows of databases, envelopes
within envelopes.
"""

from __future__ import annotations

import base64
import binascii
import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np

from expunge import Spec
from support.federation import Federation
from support.samples import Sample, rows_of, statistics_of


def raw_bytes(folder: Path) -> dict[str, bytes]:
    """Every file beneath a folder, and what stands in it as base64: envelopes, and envelopes within
    them.
    """
    found = {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    for file in [name for name in found if found[name].startswith(b"SQLite format 3\0")]:
        found[f"rows of {file}"] = _rows_of(folder / file)  # whole, where pages would cut them
    for name in list(found):
        layer = found[name]
        for depth in range(3):
            layer = b"\n".join(
                _decoded(text) for text in re.findall(rb"[A-Za-z0-9+/]{40,}={0,2}", layer)
            )
            found[f"{name}, decoded {depth + 1}"] = layer
    return found


def _rows_of(path: Path) -> bytes:
    """Every text and every blob in a database."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        tables = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        cells = [
            cell
            for name in tables
            for row in database.execute(f"SELECT * FROM {name}")  # noqa: S608
            for cell in row
        ]
    return b"\n".join(
        cell.encode() if isinstance(cell, str) else cell
        for cell in cells
        if isinstance(cell, str | bytes)
    )


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4))
    except binascii.Error:
        return b""


def needles(spec: Spec, samples: Iterable[Sample]) -> dict[str, bytes]:
    """By what a sample could be recognised in raw bytes: floats, integers, entries of its Gram and
    moment, its salt.
    """
    found: dict[str, bytes] = {}
    for number, sample in enumerate(samples):
        rows, statistics = rows_of(spec, [sample]), statistics_of(spec, [sample])
        integers = rows.integers[0, : spec.dim]
        forms = {
            "float32": np.asarray(sample.features, dtype="<f4"),
            "float64": np.asarray(sample.features, dtype="<f8"),
            "integers": integers.astype("<i8"),
            "integers as float64": integers.astype("<f8"),
        }
        for name, row in forms.items():
            for place in range(spec.dim - 1):
                found[f"{number}: {name} {place}"] = row[place : place + 2].tobytes()
        data = statistics.to_bytes()
        start = data.index(int(statistics.diagonal()[0]).to_bytes(16, "little"))
        for place in range(start, start + 16 * (spec.dim - 1), 16):
            found[f"{number}: gram at {place}"] = data[place : place + 16]
        found[f"{number}: salt"] = sample.salt
        found[f"{number}: salt in hexadecimal"] = sample.salt.hex().encode()
    return found


def found_in(folder: Path, wanted: dict[str, bytes]) -> list[tuple[str, str]]:
    """Which needles are in which file."""
    files = raw_bytes(folder)
    return [
        (what, name)
        for what, needle in wanted.items()
        for name, content in files.items()
        if needle in content
    ]


def nothing_lingers(federation: Federation) -> None:
    """After a fold every key and every sealed file is one that the database refers to, and the log
    says what was erased.
    """
    state = federation.service.state
    tables = ("ledger", "subledgers", "generations", "orders", "audits")
    referred = [
        row
        for table in tables
        for row in state.storage.database.rows(f"SELECT slot FROM {table} WHERE slot IS NOT NULL")  # noqa: S608
    ]
    assert state.vault.live() == {slot for (slot,) in referred}
    files = state.storage.database.rows(
        "SELECT file FROM ledger UNION ALL SELECT file FROM subledgers"
    )
    assert {path.name for path in (federation.path / "sealed").iterdir()} == {
        name for (name,) in files
    }
    assert state.storage.database.value("SELECT count(*) FROM generations") == 1
    erased = [entry["generation"] for entry in federation.entries("erased")]
    assert erased == sorted(set(erased))
    assert max(erased, default=0) == state.record.generation - 1
