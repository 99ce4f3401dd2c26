"""The examples in the help of every command are run, where all that they name is there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from support.disputes import lied_to
from support.onnx_models import image_network
from support.pages import PAGES, parse
from support.printed import run
from support.shell import Command, commands

REFERENCE = "docs/reference/command-line.md"
OFFICE = ("--office", "federation/operator")
CLIENTS = ("hospital-a", "hospital-b", "clinic-a", "clinic-b")
FEATURES = np.random.default_rng(5).standard_normal((40, 6)).round(3)
# What stands for something in the help, and places that are not here.
STAND_INS = {
    "CLIENT": "hospital-a",
    "NAME": "hospital-a",
    "OFFICE": "federation/operator",
    "ORDER": "last",
    "OTHER": "other",
    "NEW": "new",
    "3fa9": "last",
    "/mnt/elsewhere": "safe",
    "server.example.org": "localhost",
}
# Examples that enrol a client take one that is not enrolled yet.
ENROLLING = {"init", "serve", "server", "server token", "enroll"}
NOT_ENROLLED = {"hospital-a": "hospital-c"}
# Not run here, and why. tests/test_examples.py checks that there are such commands and options.
NOT_RUN = {
    "expunge audit --wait": "waits for clients that sync meanwhile",
    "expunge demo": "tests/test_demo.py",
    "expunge experiment": "measures for long; only --show-config and list are run",
    "expunge init federation --backbone hf:dinov2": "needs torch",
    "expunge server accept-loss": "needs a server that has lost the end of its log: "
    "tests/server/test_server_lost_log.py",
    "expunge server correct-clock": "needs a clock that was ahead: "
    "tests/cli/test_cli_server_clock.py",
    "expunge serve": "runs until it is stopped: tests/cli/test_cli_serve.py",
}
# Exit codes other than 0, and why
CODES = {
    "expunge client forget --label otter --until 2026-01-01 --dir hospital-a": 6,  # none is so old
    "expunge client forget --lost --reset --dir hospital-a": 6,  # features are kept
    "expunge audit --client-dir clinic-a --client-dir clinic-b": 7,  # others have yet to answer
}


def is_run(command: Command) -> bool:
    if command.arguments[:1] == ("experiment",):
        return bool({"--show-config", "list"} & set(command.arguments))
    texts = tuple(f"{name} " for name in NOT_RUN)
    return command.program in ("cp", "expunge") and not f"{command} ".startswith(texts)


def examples() -> dict[str, list[Command]]:
    """Every command of the reference page, with the commands in its examples that are run."""
    text = PAGES[REFERENCE].read_text(encoding="utf-8")
    _, *parts = re.split(r"^##+ expunge (.*)\n", text, flags=re.MULTILINE)
    found = {
        name: [command for block in parse(name, part)[0] for command in commands(block.text)]
        for name, part in zip(parts[::2], parts[1::2], strict=True)
    }
    return {name: [one for one in listed if is_run(one)] for name, listed in found.items()}


EXAMPLES = examples()


def rows(first: int, count: int, prefix: str) -> str:
    """Samples in a table: three of one patient, one that is called scan-17 at the first client."""
    lines = ["id,subject,label," + ",".join(f"x{k}" for k in range(6))]
    for number in range(first, first + count):
        name = "scan-17" if number == 3 else f"{prefix}{number}"
        subject = "patient-4711" if number % 5 < 2 else f"patient-{number}"
        label = ("cat", "dog", "healthy")[number % 3]
        lines.append(f"{name},{subject},{label},{','.join(map(str, FEATURES[number]))}")
    return "\n".join(lines) + "\n"


def write_files() -> None:
    """Files that the examples name."""
    image_network(Path("model.onnx"))
    Path("labels.txt").write_text("cat\ndog\n")
    Path("samples.csv").write_text(rows(20, 6, "s"))
    for name in ("new.csv", "features.csv"):
        lines = [line.split(",") for line in rows(30, 4, "n").splitlines()]
        Path(name).write_text("".join(",".join([row[0], *row[3:]]) + "\n" for row in lines))
    labels = np.array(["cat", "dog"] * 3)
    np.savez("features.npz", features=FEATURES[34:], labels=labels)
    Path("data").mkdir()
    table = pa.table({"feature": list(FEATURES[:6]), "label": list(labels)})
    parquet.write_table(table, "data/0.parquet")
    for name in ("part-0", "part-1"):
        np.save(f"{name}-features.npy", FEATURES[:6])
        np.save(f"{name}-labels.npy", labels)
    draw = np.random.default_rng(6)
    for name in ("scans/cat/1.png", "scans/dog/2.png", "scan.png"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), np.uint8)).save(name)


def token(name: str, file: str | None = None, **options: str) -> str:
    """The file with a token for this name."""
    file = file or f"{name}.token"
    given = [part for key, text in options.items() for part in (f"--{key}", text)]
    Path(file).unlink(missing_ok=True)
    run("server", "token", name, "-o", file, *given, *OFFICE)
    return file


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A federation, and all that the examples name: the folder, and a copy as it was at first."""
    folder = tmp_path_factory.mktemp("workspace")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_files()
        backbone = ("--backbone", "onnx:model.onnx?size=224")
        options = ("--labels", "cat,dog,healthy", "--messages", "rows,gram,group")
        run("init", "federation", *backbone, *options)
        run("enroll", token("dpo", role="officer"), "--dir", "privacy-office")
        for place, name in enumerate(CLIENTS):
            run("enroll", token(name), "--dir", name)
            Path(f"{name}.csv").write_text(rows(5 * place, 5, name))
            run("client", "add", f"{name}.csv", "--dir", name)
    return folder, Path(shutil.copytree(folder, tmp_path_factory.mktemp("copy") / "workspace"))


@pytest.fixture
def folder(workspace: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the examples, as it was at first."""
    here, copy = workspace
    monkeypatch.chdir(here.parent)
    shutil.rmtree(here)
    shutil.copytree(copy, here)
    monkeypatch.chdir(here)
    return here


# -- what commands take for granted ----------------------------------------------------------------


def copy_keys() -> None:
    """What an operator has in a safe."""
    Path("safe").mkdir()
    shutil.copy("federation/server/server.key", "safe")
    shutil.copy("federation/server/server.key", "server.key")
    shutil.copytree("federation/tls", "safe/tls")


def back_up() -> None:
    """A backup in the safe, and what is left of the old folder."""
    copy_keys()
    run("server", "backup", "monday", *OFFICE)
    shutil.copy("federation/server/backups/monday", "safe")
    shutil.copytree("federation", "old")


def write_evidence() -> None:
    """A receipt, the bundle of an order, and the head after it."""
    run("client", "add", "samples.csv", "--dir", "hospital-a")
    run("client", "receipts", "last", "-o", "receipt.json", "--dir", "hospital-a")
    shutil.copy("federation/server.pub", "server.pub")
    file_order()
    run("head", "-o", "head.expunge", "--office", "privacy-office")
    run("order", "bundle", "last", "-o", "order.html", "--office", "privacy-office")


def file_order() -> None:
    run("order", "file", "patient-4711", "--office", "privacy-office")
    answer_orders()


def answer_orders() -> None:
    for name in CLIENTS:
        run("client", "sync", "--dir", name)


def write_keys() -> None:
    run("client", "peers", "-o", "peers.json", "--dir", "hospital-a")
    run("client", "key", "-o", "hospital-b.pub", "--dir", "hospital-b")


def found_group() -> None:
    """A group with a client that has sent seven requests."""
    run("aggregator", "found", "region-north", token("region-north"))
    office = "region-north/operator"
    run("server", "token", "clinic-a", "-o", "group.token", "--office", office)
    run("enroll", "group.token", "--dir", "group")
    for number in range(7):
        Path("one.csv").write_text(rows(number, 1, "g"))
        run("client", "add", "one.csv", "--dir", "group")
    run("aggregator", "sync", "region-north")
    shutil.copy("federation/server.pub", "root.pub")


def lie() -> None:
    """A masked federation in the place of the other one, with a false sum."""
    shutil.rmtree("federation")
    lied_to(Path.cwd())


def write_dispute() -> None:
    lie()
    run("server", "dispute", "-o", "dispute", *OFFICE)


def write_verdict() -> None:
    write_dispute()
    run("arbiter", "judge", "dispute", "-o", "verdict.json")


SETUPS: dict[str, Callable[[], object]] = {
    "arbiter judge": write_dispute,
    "server dispute": lie,
    "server disputes": lie,
    "server judge": write_verdict,
    "enroll": lambda: token("hospital-c"),
    "aggregator": lambda: token("region-north"),
    "aggregator found": lambda: (token("region-north"), token("north")),
    "aggregator passage": found_group,
    "aggregator sync": found_group,
    "client restore": lambda: run("client", "backup", "monday", "--dir", "hospital-a"),
    "client forget": lambda: run("server", "amend", "--add-label", "otter", "--yes", *OFFICE),
    "client pin": write_keys,
    "key": write_evidence,
    "order bundle": write_evidence,
    "order close": file_order,
    "order list": file_order,
    "order show": file_order,
    "predict": write_evidence,
    "server backup": copy_keys,
    "server restore": back_up,
    "server rotate-key": write_evidence,
    "verify": write_evidence,
}


def run_example(command: Command, stand_ins: dict[str, str]) -> None:
    """Run a command with what stands for something put in."""
    words = list(command.arguments)
    for name, here in stand_ins.items():
        words = [re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", here, word) for word in words]
    if command.program == "cp":
        shutil.copy(*words)
        return
    remove_earlier(words)
    environment = {"EXPUNGE_OFFICE": "federation/operator", **dict(command.exported)}
    run(*words, given="y\n", env=environment, code=CODES.get(str(command), 0))
    if words[:2] == ["order", "file"]:
        answer_orders()


def remove_earlier(words: list[str]) -> None:
    """An example that founds something founds it instead of what the one before it did."""
    new = {"init": 1, "enroll": 3}.get(words[0], 2 if words[1:2] == ["restore"] else None)
    new = 2 if words[:2] == ["client", "backup"] else new
    if new is not None and Path(words[new]).exists():
        shutil.rmtree(words[new])
        if words[0] == "enroll":
            token("hospital-d", words[1])


@pytest.mark.parametrize("name", [name for name, listed in EXAMPLES.items() if listed])
def test_examples_run(name: str, folder: Path) -> None:
    SETUPS.get(name, lambda: None)()
    for command in EXAMPLES[name]:
        run_example(command, STAND_INS | (NOT_ENROLLED if name in ENROLLING else {}))


def test_what_is_said_of_examples_is_about_examples_that_there_are() -> None:
    shown = {str(command) for listed in EXAMPLES.values() for command in listed}
    assert set(CODES) <= shown
    assert SETUPS.keys() | ENROLLING <= EXAMPLES.keys()
    text = PAGES[REFERENCE].read_text(encoding="utf-8")
    assert [name for name in NOT_RUN if f"\n{name}" not in text] == []
