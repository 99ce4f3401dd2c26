"""What results were measured on: versions, BLAS and machine.

Nothing that names a host, a user or a path.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

from expunge import __version__
from expunge_experiments.report.tables import counted

_PACKAGES = ("numpy", "scipy", "scikit-learn", "matplotlib", "flwr", "ray", "torch")
_CPUS = Path("/proc/cpuinfo")


def environment() -> dict[str, Any]:
    """Versions and machine, as values of JSON."""
    return {"versions": _versions(), "blas": _blas(), "machine": _machine()}


def _versions() -> dict[str, str]:
    versions = {"expunge": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _blas() -> list[dict[str, Any]]:
    """Each BLAS in this process, with its kernels and threads; scipy's is the one that we compute
    with.
    """
    from scipy.linalg import blas  # noqa: F401, PLC0415 - so that scipy's BLAS is loaded, and seen

    wanted = ("internal_api", "version", "architecture", "num_threads", "threading_layer")
    libraries = [
        {name: library.get(name) for name in wanted}
        for library in threadpool_info()
        if library.get("user_api") == "blas"
    ]
    different = [
        library for position, library in enumerate(libraries) if library not in libraries[:position]
    ]
    return sorted(different, key=str)  # not in the order in which they happened to be loaded


def _machine() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu": _cpu(),
        "cores": _cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> str:
    """The processor's name, as far as the system tells."""
    if _CPUS.exists():
        for line in _CPUS.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return " ".join(value.split())
    return platform.processor() or "unknown"


def in_words(record: dict[str, Any]) -> str:
    """One sentence for the results page."""
    machine, versions = record["machine"], record["versions"]
    blas = ", ".join(
        (
            f"{library['internal_api']} {library['version']} ({library['architecture']}, "
            f"{counted(library['num_threads'], 'thread')})"
        )
        for library in record["blas"]
    )
    others = ", ".join(f"{name} {number}" for name, number in versions.items() if name != "expunge")
    gigabytes = machine["memory_bytes"] / 2**30
    return (
        f"{machine['cpu']}, {counted(machine['cores'], 'core')}, {gigabytes:.0f} GB of memory, "
        f"{machine['system']} ({machine['architecture']}), no GPU used; expunge "
        f"{versions['expunge']}, {others}; BLAS: {blas or 'unknown'}"
    )
