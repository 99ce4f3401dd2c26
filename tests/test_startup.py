"""Commands that need no arithmetic import none, those that do import no more than they need, and
packages import their names when asked.
"""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import numpy as np
import pytest

from expunge import Spec, Statistics, solve
from expunge.cli._command import Group
from expunge.cli.main import main
from support.cli import ROWS_A, Federation, run
from support.serving import Server

LAZY = (
    "expunge",
    "expunge.backbones",
    "expunge.client",
    "expunge.data",
    "expunge.evidence",
    "expunge.federation",
    "expunge.solvers",
)
LIGHT = (
    *LAZY,
    "expunge.client.overview",
    "expunge.evidence.verification",
    "expunge.federation.layout",
    "expunge.office",
    "expunge.transport.http",
)
ARITHMETIC = ("numpy", "scipy", "sklearn", "threadpoolctl")
NOT_TO_ASK_A_SERVER = (
    "_strptime",
    "cryptography.hazmat.primitives.serialization",
    "expunge.client",
    "expunge.evidence.bundle",
    "expunge.evidence.certificate",
    "expunge.evidence.page",
    "expunge.evidence.receipt",
    "expunge.evidence.verification",
    "expunge.exact",
    "expunge.ridge",
    "html",
)

# What is slow to import, and not needed to compute statistics, heads and predictions.
SLOW = ("scipy.linalg", "sklearn", "numpy.testing", "numpy.f2py")
SOLVED = """
import numpy as np
from expunge import CholeskySolver, Spec, Statistics, WoodburySolver, solve
features = np.arange(40.0).reshape(10, 4) % 7
spec = Spec(dim=4, labels=("cat", "dog"))
statistics = Statistics.of(spec, features, ["cat", "dog"] * 5)
digests = {solve(statistics).digest}
for variant in (CholeskySolver, WoodburySolver):
    solver = variant(spec, statistics)
    solver.add(features[:3], ["cat", "dog", "cat"])
    solver.delete(features[:3], ["cat", "dog", "cat"])
    digests.add(solver.head().digest)
assert digests == {"DIGEST"}, digests
"""
# Ways in which a scipy of another version may differ, each played by a loader of Python's: an
# extension module is not where it was, needs the package around it, or has lost a routine to
# another module.
GONE = """
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_other(name, path=None, target=None):
    is_gone = name == "scipy.linalg.{extension}" and "scipy.linalg" not in sys.modules
    return None if is_gone else find(name, path, target)
PathFinder.find_spec = find_other
"""
UNLOADABLE = """
import sys
from importlib.machinery import ExtensionFileLoader
execute = ExtensionFileLoader.exec_module
def execute_inside(loader, module):
    if module.__name__.startswith("scipy.linalg.") and "scipy.linalg" not in sys.modules:
        raise ImportError("this module needs scipy.linalg")
    execute(loader, module)
ExtensionFileLoader.exec_module = execute_inside
"""
MOVED = """
import sys
from importlib.machinery import ExtensionFileLoader
from types import SimpleNamespace
execute = ExtensionFileLoader.exec_module
def execute_without(loader, module):
    execute(loader, module)
    if module.__name__ == "scipy.linalg._flapack":
        sys.modules["scipy.linalg.lapack"] = SimpleNamespace(dpotrf=module.dpotrf)
        del module.dpotrf
ExtensionFileLoader.exec_module = execute_without
"""
SAME_MODULES = """
import gc
import sys
import types
import scipy.linalg
import scipy.linalg.cython_blas
from expunge.exact.blas import scipy_blas, scipy_lapack
assert scipy.linalg.blas.dgemm is scipy_blas.dgemm
assert scipy.linalg.lapack.dpotrf is scipy_lapack.dpotrf
for name in ("_fblas", "_flapack", "cython_blas"):
    module = sys.modules[f"scipy.linalg.{name}"]
    assert getattr(scipy.linalg, name) is module
    modules = [one for one in gc.get_objects() if isinstance(one, types.ModuleType)]
    assert [one for one in modules if one.__name__ == module.__name__] == [module]
    assert module.__spec__.origin == module.__file__
assert scipy.linalg.solve([[2.0]], [1.0]) == [0.5]
assert "dgemm" in scipy.linalg.cython_blas.__pyx_capi__
"""

RUN = "import runpy; runpy.run_module('expunge', run_name='__main__', alter_sys=True)"
TELLING = """import gc
from expunge.cli import _command
screen = _command.screen
def tell(**named):
    print("frozen" if gc.isenabled() and gc.get_freeze_count() else "searched", file=sys.stderr)
    return screen(**named)
_command.screen = tell
"""


def imported_by(code: str, *arguments: str) -> set[str]:
    """The modules that a Python which runs this code has imported in the end."""
    listed = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))"
    made = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", f"{listed}; {code}", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(made.stderr.split())


def imported_by_command(*arguments: str) -> set[str]:
    """The modules that `python -m expunge` with these arguments has imported in the end."""
    return imported_by(RUN, *arguments)


def declared(package: str) -> dict[str, str]:
    """The names that a package imports for editors and mypy only, with their modules."""
    file = import_module(package).__file__
    assert file is not None
    checking = [node for node in ast.parse(Path(file).read_text()).body if isinstance(node, ast.If)]
    imports = [node for block in checking for node in block.body]
    return {
        alias.name: str(node.module)
        for node in imports
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("package", LAZY)
def test_a_package_gives_the_names_that_it_declares(package: str) -> None:
    module = import_module(package)
    names = declared(package)
    assert names
    assert set(names) <= set(module.__all__) <= set(dir(module))
    for name, source in names.items():
        assert getattr(module, name) is getattr(import_module(source), name)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        module.nonsense  # noqa: B018 - that it raises is the test


@pytest.mark.parametrize("package", LAZY)
def test_names_are_found_in_a_fresh_process(package: str) -> None:
    names = import_module(package).__all__
    code = f"from {package} import {', '.join(names)}; import expunge; expunge.errors.ExpungeError"
    assert set(declared(package).values()) <= imported_by(code)
    assert set(declared(package).values()).isdisjoint(imported_by(f"import {package}"))


@pytest.mark.parametrize("module", LIGHT)
def test_a_light_module_imports_no_arithmetic(module: str) -> None:
    assert imported_by(f"import {module}").isdisjoint(ARITHMETIC)


def solved() -> str:
    """A script that solves a small system in all ways, and checks the digest of the heads."""
    features = np.arange(40.0).reshape(10, 4) % 7
    spec = Spec(dim=4, labels=("cat", "dog"))
    return SOLVED.replace("DIGEST", solve(Statistics.of(spec, features, ["cat", "dog"] * 5)).digest)


def test_heads_are_solved_without_what_is_slow_to_import() -> None:
    assert imported_by(solved()).isdisjoint(SLOW)


def test_a_package_imported_later_has_the_modules_that_were_loaded_without_it() -> None:
    imported_by(solved() + SAME_MODULES)
    imported_by(SAME_MODULES + solved())


@pytest.mark.parametrize(
    "change",
    [
        *(GONE.format(extension=name) for name in ("_fblas", "_flapack", "cython_blas")),
        UNLOADABLE,
    ],
)
def test_where_scipy_has_changed_its_package_is_imported(change: str) -> None:
    is_imported = "assert 'scipy.linalg' in sys.modules\n"
    imported_by(change + solved() + is_imported + SAME_MODULES)


def test_a_routine_that_has_moved_is_found_where_it_is_public() -> None:
    assert "scipy.linalg.lapack" in imported_by(MOVED + solved())


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_what_needs_no_screen_imports_none(option: str) -> None:
    loaded = imported_by_command(option)
    assert "click" in loaded
    assert loaded.isdisjoint({*ARITHMETIC, "rich", "cryptography", "sqlite3"})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    place = Federation.found(tmp_path_factory.mktemp("startup"))
    folder = place.client("clinic-a", ROWS_A)
    run("client", "receipts", "last", "-o", place.path / "receipt.json", "--dir", folder)
    run("order", "file", "p1", "--office", place.office)
    run("audit", "--office", place.office, code=7)
    run("client", "sync", "--dir", folder)
    return place


@pytest.mark.parametrize(
    "command",
    [
        "client --help",
        "client status --dir {path}/clinic-a",
        "client receipts --dir {path}/clinic-a",
        "verify {path}/receipt.json --key {path}/federation/server.pub",
        "verify {path}/receipt.json --trust {path}/clinic-a",
        "key {path}/clinic-a",
    ],
)
def test_a_command_that_computes_nothing_imports_no_arithmetic(
    place: Federation, command: str
) -> None:
    loaded = imported_by_command(*command.format(path=place.path).split())
    assert "expunge" in loaded
    assert loaded.isdisjoint(ARITHMETIC)


def test_a_client_that_shows_its_state_imports_no_office(place: Federation) -> None:
    loaded = imported_by_command("client", "status", "--dir", str(place.path / "clinic-a"))
    assert "expunge.client.overview" in loaded
    assert loaded.isdisjoint({"expunge.office", "expunge.evidence.bundle", "urllib3"})


def test_whoever_asks_a_server_imports_no_arithmetic(place: Federation) -> None:
    server = Server(place.folder)
    try:
        asked = ("order", "list", "--office", str(place.office), "--at", server.url)
        loaded = imported_by_command(*asked)
        by_folder = imported_by_command(*asked[:-2])
        synced = imported_by_command("client", "sync", "--dir", str(place.path / "clinic-a"))
        shown = imported_by_command("audit", "--show", "last", "--office", str(place.office))
    finally:
        server.stop()
    assert "urllib3" in loaded
    assert loaded.isdisjoint({*ARITHMETIC, *NOT_TO_ASK_A_SERVER})
    assert by_folder.isdisjoint({*ARITHMETIC, "expunge.server.service"})
    assert shown.isdisjoint({*ARITHMETIC, "expunge.client.store"})
    assert synced.isdisjoint({*SLOW, "scipy", "expunge.data.readers", "expunge.server.service"})


def test_what_is_left_when_a_command_ends_is_not_searched_for_cycles() -> None:
    told = "atexit.register(lambda: gc.get_freeze_count() and print('frozen', file=sys.stderr))"
    assert "frozen" in imported_by(f"import gc; {told}; import expunge.cli.main")
    assert "frozen" not in imported_by(f"import gc; {told}; import expunge.errors")


def test_what_a_process_imports_for_its_command_is_not_searched_for_cycles(
    place: Federation,
) -> None:
    before = gc.get_freeze_count()
    run("key", place.path / "clinic-a")
    assert gc.isenabled()
    assert gc.get_freeze_count() <= before  # whoever calls a command from Python keeps all
    told = imported_by(f"{TELLING}{RUN}", "key", str(place.path / "clinic-a"))
    assert "frozen" in told


@pytest.mark.parametrize(
    "command",
    [
        "client list --dir {path}/clinic-a",
        "client export --subject p2 --dry-run --dir {path}/clinic-a",
        "client forget --subject p2 --dry-run --dir {path}/clinic-a",
        "predict {path}/clinic-a.csv --dir {path}/clinic-a",
    ],
)
def test_a_command_that_opens_samples_imports_numpy_and_no_blas(
    place: Federation, command: str
) -> None:
    loaded = imported_by_command(*command.format(path=place.path).split())
    assert "numpy" in loaded
    assert loaded.isdisjoint({*SLOW, "scipy", "concurrent.futures.thread", "expunge.solvers.base"})


def test_a_command_that_multiplies_imports_no_more_of_scipy_than_that(place: Federation) -> None:
    spec, shard = place.path / "spec.json", place.path / "shard.npz"
    run("server", "spec", "-o", spec, "--office", place.office)
    np.savez(shard, feature=np.eye(3), label=np.array(["cat", "dog", "cat"]))
    loaded = imported_by_command("statistics", str(shard), "--spec", str(spec))
    assert "scipy" in loaded
    assert loaded.isdisjoint(SLOW)


def groups(group: Group) -> list[Group]:
    """A group and all below it."""
    context = click.Context(group)
    found = [group.get_command(context, name) for name in (*group.commands, *group.lazy)]
    below = [one for command in found if isinstance(command, Group) for one in groups(command)]
    return [group, *below]


def test_groups_show_the_first_sentences_of_their_commands() -> None:
    assert isinstance(main, Group)
    compared = 0
    for group in groups(main):
        for name, lazy in group.lazy.items():
            command = lazy.load()
            assert command.name == name
            assert lazy.first_sentence == command.get_short_help_str(limit=200)
            compared += 1
    assert compared >= len(main.lazy) + 1
