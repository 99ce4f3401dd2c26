"""The modules whose `__all__` is public: docs/reference has them all."""

from __future__ import annotations

import ast
from pathlib import Path

import expunge

SOURCE = Path(expunge.__file__).parent
# Those that can be imported without Flower; tests/test_api.py runs their examples.
WITHOUT_FLOWER = (
    "expunge",
    "expunge.aggregator",
    "expunge.approximate",
    "expunge.backbones",
    "expunge.client",
    "expunge.crypto",
    "expunge.data",
    "expunge.errors",
    "expunge.evidence",
    "expunge.export",
    "expunge.federation",
    "expunge.office",
    "expunge.posterior",
    "expunge.server.http.limits",
    "expunge.server.http.run",
    "expunge.server.state",
    "expunge.solvers.float64",
    "expunge.testing.simulation",
    "expunge.transport.http",
    "expunge.transport.local",
    "expunge.wire.carrier",
    "expunge.wire.token",
)
# Those that need flwr; tests/transport/flower/test_flower_api.py runs their examples.
WITH_FLOWER = (
    "expunge.transport.flower.client_app",
    "expunge.transport.flower.inprocess",
    "expunge.transport.flower.server_app",
)
PUBLIC = (*WITHOUT_FLOWER, *WITH_FLOWER)


def public_names(module: str) -> list[str]:
    """The `__all__` of a module, read and not imported: some modules need an extra."""
    path = SOURCE.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise AssertionError(f"{module} has no __all__")
