"""One direction: a module imports only from its own layer and from those before it.

Reads the source; runs none of it.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import expunge
import expunge_experiments

LAYERS = (
    "_lazy",
    "_version",
    "errors",
    "frame",
    "kinds",
    "exact",
    "ridge",
    "solvers",
    "approximate",
    "posterior",
    "export",
    "estimators",
    "storage",
    "crypto",
    "wire",
    "evidence",
    "secagg",
    "data",
    "backbones",
    "client",
    "office",
    "server",
    "transport",
    "federation",
    "aggregator",
    "testing",
    "__init__",  # the front door: only the command line goes through it
    "cli",
    "__main__",  # `python -m expunge`
)
FOR_THE_COMMAND_LINE_ONLY = {"argparse", "random", "sys", "time"}
# Layers with files and networks may also look at the time.
WITH_A_CLOCK = {"storage", "crypto", *LAYERS[LAYERS.index("data") :]}
WITH_SEEDS = {"testing"}  # whose chance is to be repeated
WITH_THE_IMPORT_SYSTEM = {"_lazy"}  # sys.modules, sys.meta_path

# Everybody else asks these.
WITH_SQL = ("storage", "client", "server.storage", "testing.simulation.database")
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|PRAGMA|BEGIN)\s")

SOURCE = Path(expunge.__file__).parent
EXPERIMENTS = Path(expunge_experiments.__file__).parent


def module_name(root: Path, file: Path) -> str:
    """`file` as it is imported: expunge, expunge.ridge.spec, expunge.exact, expunge.exact.wide."""
    parts = [root.name, *file.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True)
class Source:
    """The package in a folder: the nodes of each module, and all that it imports."""

    root: Path
    nodes: dict[str, list[ast.AST]]
    arrows: dict[str, set[str]]

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def own(self) -> dict[str, set[str]]:
        """What each module imports of the same package."""
        return {
            name: {target for target in targets if target.split(".")[0] == self.name}
            for name, targets in self.arrows.items()
        }


def read(root: Path) -> Source:
    files = {module_name(root, file): file for file in sorted(root.rglob("*.py"))}
    packages = {name for name, file in files.items() if file.stem == "__init__"}
    nodes = {
        name: list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        for name, file in files.items()
    }
    arrows = {name: imported(name, inside, set(files), packages) for name, inside in nodes.items()}
    return Source(root, nodes, arrows)


@cache
def expunge_source() -> Source:
    """Expunge itself: it takes a second to read."""
    return read(SOURCE)


@cache
def experiments_source() -> Source:
    return read(EXPERIMENTS)


def imported(name: str, nodes: list[ast.AST], modules: set[str], packages: set[str]) -> set[str]:
    """What a module imports, in any place and any form: our own modules in full, others as they are
    written.
    """
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = name.split(".") if name in packages else name.split(".")[:-1]
                base = ".".join(
                    [*here[: len(here) - node.level + 1], *([node.module] if node.module else [])]
                )
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in modules else base)
    return found


def layer(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def misplaced(own: dict[str, set[str]]) -> list[str]:
    """Layers that have no place yet, and imports from later ones."""
    found = []
    for name, targets in own.items():
        unknown = sorted({layer(name), *map(layer, targets)} - set(LAYERS))
        known = sorted(
            target for target in targets if layer(name) in LAYERS and layer(target) in LAYERS
        )
        right = [
            target for target in known if LAYERS.index(layer(target)) > LAYERS.index(layer(name))
        ]
        found += [
            f"{name}: the layer {place!r} has no place in LAYERS; put it where it belongs"
            for place in unknown
        ]
        found += [f"{name} imports {target}, which is a later layer" for target in right]
    return found


def reserved(name: str, nodes: list[ast.AST], targets: set[str], allowed: set[str]) -> list[str]:
    """What a module does that only the command line may, but for what it is allowed."""
    outside = sorted(
        {target.split(".")[0] for target in targets} & (FOR_THE_COMMAND_LINE_ONLY - allowed)
    )
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    prints = any(isinstance(call, ast.Name) and call.id == "print" for call in calls)
    found = [f"{name} imports {target}, which is for the command line only" for target in outside]
    return [*found, f"{name} prints, which is for the command line only"] if prints else found


def queries(name: str, nodes: list[ast.AST], targets: set[str]) -> list[str]:
    """SQL in a module that has to ask a store for what it wants: `sqlite3`, or a text of SQL."""
    texts = (
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    speaks = "sqlite3" in targets or any(SQL.match(text) for text in texts)
    return [f"{name} speaks SQL, which is for stores only"] if speaks else []


def problems(source: Source) -> list[str]:
    """Everything in which the source breaks the rules."""
    found = misplaced(source.own)
    for name, nodes in source.nodes.items():
        targets = source.arrows[name]
        allowed = {"time"} if layer(name) in WITH_A_CLOCK else set()
        allowed |= {"random"} if layer(name) in WITH_SEEDS else set()
        allowed |= {"sys"} if layer(name) in WITH_THE_IMPORT_SYSTEM else set()
        found += [] if layer(name) == "cli" else reserved(name, nodes, targets, allowed)
        with_sql = any(f"{name}.".startswith(f"{source.name}.{place}.") for place in WITH_SQL)
        found += [] if with_sql else queries(name, nodes, targets)
    return found + cycles(source.own)


def cycles(own: dict[str, set[str]]) -> list[str]:
    """A cycle of imports, if there is one."""
    try:
        TopologicalSorter({name: targets - {name} for name, targets in own.items()}).prepare()
    except CycleError as cycle:
        return [f"an import cycle: {' -> '.join(cycle.args[1])}"]
    return []


def experiment_problems(source: Source, runtime: Source) -> list[str]:
    """Everything in which the experiments break theirs: public names only, and only the command
    line uses them.
    """
    found = []
    for name, nodes in source.nodes.items():
        at_the_command_line = layer(name) == "cli"
        found += [] if at_the_command_line else reserved(name, nodes, source.arrows[name], {"time"})
        for target in sorted(source.arrows[name]):
            top, *rest = target.split(".")
            if rest[:1] == ["cli"] and not at_the_command_line:
                found.append(f"{name} imports {target}, which is for the command line only")
            elif (
                top == runtime.name
                and rest[:1] != ["cli"]
                and any(part.startswith("_") for part in rest)
            ):
                found.append(f"{name} imports {target}, which is private")
    found += cycles(source.own)
    for name, targets in runtime.arrows.items():
        theirs = sorted(target for target in targets if target.split(".")[0] == source.name)
        found += [f"{name} imports {target}, which is of the experiments" for target in theirs]
    return found


def test_the_source_keeps_the_rules() -> None:
    assert problems(expunge_source()) == []
    assert experiment_problems(experiments_source(), expunge_source()) == []


def class_names(sources: list[Source]) -> dict[str, list[str]]:
    """The modules that define a class of each name."""
    where: dict[str, list[str]] = {}
    for one in sources:
        for module, nodes in one.nodes.items():
            for node in nodes:
                if isinstance(node, ast.ClassDef):
                    where.setdefault(node.name, []).append(module)
    return where


def test_a_class_name_is_used_for_one_thing() -> None:
    where = class_names([expunge_source(), experiments_source()])
    assert where["RidgeSystem"] == ["expunge.solvers.system"]
    assert where["System"] == ["expunge_experiments.systems.base"]
    assert {name: modules for name, modules in where.items() if len(modules) > 1} == {}


def test_no_helper_of_the_tests_hides_a_module_of_python() -> None:
    """A helper that is run as a program has its folder first in its path."""
    helpers = {path.stem for path in (Path(__file__).parent / "support").glob("*.py")}
    assert "https_server" in helpers
    assert not helpers & sys.stdlib_module_names


def test_the_source_is_really_read() -> None:
    graph = expunge_source().arrows
    assert {"expunge", "expunge.errors", "expunge.exact.wide", "expunge.ridge.statistics"} <= set(
        graph
    )
    assert {"expunge.exact.blas", "expunge.errors", "expunge.ridge.spec"} <= graph[
        "expunge.ridge.statistics"
    ]
    assert "expunge.exact.threads" in graph["expunge.exact.wide"]
    assert "expunge.errors" in experiments_source().arrows["expunge_experiments.runner"]


def source_tree(tmp_path: Path, sources: dict[str, str]) -> Path:
    """A small source tree of the same layers, with these modules in it."""
    root = tmp_path / "expunge"
    modules = ("__init__", "errors", "exact/__init__", "exact/wide", "ridge/__init__", "ridge/spec")
    for name, text in (dict.fromkeys(modules, "") | sources).items():
        file = root / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_a_good_source_has_no_problems(tmp_path: Path) -> None:
    sources = {
        "exact/wide": "import numpy\nfrom expunge.errors import X\nfrom . import grid\n",
        "exact/grid": "from ..errors import X",
        "ridge/spec": "from expunge.exact import wide",
        "__init__": "from expunge.ridge import spec",
        "cli/__init__": "import sys, argparse, expunge\nfrom expunge.cli import demo\nprint(1)",
        "cli/demo": "import time, random",
    }
    assert problems(read(source_tree(tmp_path, sources))) == []


@pytest.mark.parametrize(
    ("module", "text", "expected"),
    [
        (
            "exact/wide",
            "from expunge.ridge.spec import Spec",
            "expunge.exact.wide imports expunge.ridge.spec, which is a later layer",
        ),
        (
            "exact/wide",
            "from expunge.ridge import spec",
            "expunge.exact.wide imports expunge.ridge.spec, which is a later layer",
        ),
        (
            "exact/wide",
            "import expunge.ridge.spec as other",
            "expunge.exact.wide imports expunge.ridge.spec, which is a later layer",
        ),
        (
            "exact/wide",
            "from ..ridge.spec import Spec",
            "expunge.exact.wide imports expunge.ridge.spec, which is a later layer",
        ),
        (
            "exact/wide",
            "from ..ridge import spec",
            "expunge.exact.wide imports expunge.ridge.spec, which is a later layer",
        ),
        (
            "exact/wide",
            "def f():\n    from expunge.ridge.spec import Spec",
            "expunge.exact.wide imports expunge.ridge.spec, which is a later layer",
        ),
        (
            "errors",
            "from expunge.exact import Grid",
            "expunge.errors imports expunge.exact, which is a later layer",
        ),
        (
            "ridge/spec",
            "import expunge",
            "expunge.ridge.spec imports expunge, which is a later layer",
        ),
        (
            "ridge/spec",
            "from expunge import Grid",
            "expunge.ridge.spec imports expunge, which is a later layer",
        ),
        (
            "solvers/float",
            "from expunge.posterior import P",
            "expunge.solvers.float imports expunge.posterior, which is a later layer",
        ),
        (
            "__init__",
            "from expunge.cli import main",
            "expunge imports expunge.cli, which is a later layer",
        ),
        (
            "attic",
            "",
            "expunge.attic: the layer 'attic' has no place in LAYERS; put it where it belongs",
        ),
        (
            "ridge/spec",
            "from expunge.attic import x",
            "expunge.ridge.spec: the layer 'attic' has no place in LAYERS; put it where it belongs",
        ),
        (
            "ridge/spec",
            "import sys",
            "expunge.ridge.spec imports sys, which is for the command line only",
        ),
        (
            "ridge/spec",
            "from time import sleep",
            "expunge.ridge.spec imports time, which is for the command line only",
        ),
        (
            "wire/request",
            "import time",
            "expunge.wire.request imports time, which is for the command line only",
        ),
        ("server/clock", "import time", None),
        (
            "server/clock",
            "import random",
            "expunge.server.clock imports random, which is for the command line only",
        ),
        (
            "ridge/spec",
            "def f():\n    import random",
            "expunge.ridge.spec imports random, which is for the command line only",
        ),
        (
            "exact/wide",
            "import argparse as a",
            "expunge.exact.wide imports argparse, which is for the command line only",
        ),
        ("__init__", "print('hello')", "expunge prints, which is for the command line only"),
        ("exact/wide", "from expunge.exact import threads", None),
        (
            "server/orders",
            "import sqlite3",
            "expunge.server.orders speaks SQL, which is for stores only",
        ),
        (
            "transport/http",
            "def f(x):\n    return f'SELECT {x} FROM orders'",
            "expunge.transport.http speaks SQL, which is for stores only",
        ),
        ("server/orders", "'Select one of the orders'", None),
        ("server/storage/sqlite", "import sqlite3\n'DELETE FROM orders'", None),
        ("client/store", "'DELETE FROM orders'", None),
    ],
)
def test_each_rule_is_seen_to_be_broken(
    tmp_path: Path, module: str, text: str, expected: str | None
) -> None:
    assert problems(read(source_tree(tmp_path, {module: text}))) == (
        [] if expected is None else [expected]
    )


def test_a_cycle_within_a_layer_is_found(tmp_path: Path) -> None:
    root = source_tree(
        tmp_path,
        {"exact/wide": "from expunge.exact.grid import Grid", "exact/grid": "from . import wide"},
    )
    (found,) = problems(read(root))
    assert found.startswith("an import cycle: ")
    assert {"expunge.exact.wide", "expunge.exact.grid"} <= set(
        found.removeprefix("an import cycle: ").split(" -> ")
    )


@pytest.mark.parametrize(
    ("module", "text", "expected"),
    [
        (
            "runs/one",
            (
                "import time\nfrom expunge.solvers import certify\nfrom expunge_experiments import "
                "runner"
            ),
            None,
        ),
        ("cli/command", "import sys\nfrom expunge.cli._output import Screen\nprint(1)", None),
        (
            "runs/one",
            "from expunge._version import x",
            "expunge_experiments.runs.one imports expunge._version, which is private",
        ),
        (
            "cli/command",
            "from expunge._version import x",
            "expunge_experiments.cli.command imports expunge._version, which is private",
        ),
        (
            "runs/one",
            "from expunge.cli._output import Screen",
            (
                "expunge_experiments.runs.one imports expunge.cli._output, which is for the "
                "command line only"
            ),
        ),
        (
            "runner",
            "from expunge_experiments.cli import command",
            (
                "expunge_experiments.runner imports expunge_experiments.cli, which is for the "
                "command line only"
            ),
        ),
        (
            "runner",
            "import random",
            "expunge_experiments.runner imports random, which is for the command line only",
        ),
        (
            "../expunge/ridge/spec",
            "from expunge_experiments.runner import Runner",
            "expunge.ridge.spec imports expunge_experiments.runner, which is of the experiments",
        ),
        ("runner", "from expunge_experiments import runner", None),
    ],
)
def test_each_rule_of_the_experiments_is_seen_to_be_broken(
    tmp_path: Path, module: str, text: str, expected: str | None
) -> None:
    runtime = source_tree(tmp_path, {})
    root = tmp_path / "expunge_experiments"
    for name, content in {"__init__": "", "runner": "", "cli/__init__": "", module: text}.items():
        file = root / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    assert experiment_problems(read(root), read(runtime)) == (
        [] if expected is None else [expected]
    )
