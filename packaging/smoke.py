"""Try an installed Expunge, as somebody would who has only just installed it.

    python -I smoke.py core refusals        without extras
    python -I smoke.py server               with expunge[server]

Run it by the interpreter of the environment, outside of the source tree. One line for each thing
tried; the last one is `N passed, M failed`. Standard library and what is being tried, nothing else.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import distribution, metadata, version
from pathlib import Path
from typing import Any

CASES: dict[str, list[Callable[[Path], None]]] = {}
DONE, FAILED, NO_ANSWER = 0, 1, 4  # exit codes of the command line
SAMPLES = """id,subject,label,u,v
1,alice,cat,0.5,1.0
2,bob,dog,-0.5,0.25
3,carol,cat,1.5,-1.0
4,dan,dog,-1.25,0.75
"""


def case(name: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Register a function under a name of the command line; it gets a new empty folder."""

    def register(function: Callable[[Path], None]) -> Callable[[Path], None]:
        CASES.setdefault(name, []).append(function)
        return function

    return register


def require(condition: object, *told: object) -> None:
    """Fail with `told` unless the condition holds (`assert` can be switched off)."""
    if not condition:
        raise RuntimeError(" ".join(map(str, told)) or "a condition does not hold")


def expunge(*arguments: object, folder: Path, code: int = DONE) -> str:
    """Run the installed command, which must exit with `code`; what it printed, on one line.

    With --json that is the JSON object alone.
    """
    process = subprocess.run(  # noqa: S603 - the program that is tried
        [_program(), *map(str, arguments)], cwd=folder, capture_output=True, text=True, check=False
    )
    printed = process.stdout + process.stderr
    require(process.returncode == code, arguments, "exited with", process.returncode, printed)
    require("Traceback" not in printed, printed)
    return " ".join((process.stdout if "--json" in arguments else printed).split())


def _program() -> str:
    return str(Path(sys.prefix) / "bin" / "expunge")


def data() -> tuple[Any, Any, Any]:
    """A spec, features and labels."""
    import numpy as np

    from expunge import Spec

    features = np.arange(24.0).reshape(12, 2) % 7 - 3
    return Spec(dim=2, labels=("cat", "dog")), features, ["cat", "dog"] * 6


def head() -> Any:
    """A small head."""
    from expunge import Statistics, solve

    spec, features, labels = data()
    return solve(Statistics.of(spec, features, labels))


# -- without extras --------------------------------------------------------------------------------


@case("core")
def the_installed_package_is_imported(_: Path) -> None:
    """Not the one of a source tree; with its type hints and the version that it claims."""
    import expunge

    file = Path(expunge.__file__ or "").resolve()
    require(Path(sys.prefix).resolve() in file.parents, file, "is not of this environment")
    require((file.parent / "py.typed").is_file(), "py.typed is missing")
    require(expunge.__version__ == version("expunge"))
    modules = {
        path.parts[0] for path in distribution("expunge").files or () if ".." not in path.parts
    }
    information = f"expunge-{expunge.__version__}.dist-info"
    require(modules <= {"expunge", information}, sorted(modules))


@case("core")
def a_deletion_equals_retraining(_: Path) -> None:
    """The head after a deletion has the digest of the head that retraining gives."""
    from expunge import Statistics, solve

    spec, features, labels = data()
    departed = Statistics.of(spec, features[:3], labels[:3], lost_columns="accept")
    unlearned = solve(Statistics.of(spec, features, labels) - departed)
    retrained = solve(Statistics.of(spec, features[3:], labels[3:]))
    require(unlearned.digest == retrained.digest)


@case("core")
def the_readme_runs_as_printed(_: Path) -> None:
    """Its Python, top to bottom; the wheel carries it as its description."""
    text = str(metadata("expunge").get_payload())
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    require(len(blocks) > 3, "the description has", len(blocks), "blocks of Python")
    exec(compile("\n".join(blocks), "README", "exec"), {"__name__": "readme"})  # noqa: S102 - ours


@case("core")
def the_command_knows_its_version(folder: Path) -> None:
    """The script that was installed is of the same version."""
    require(expunge("--version", folder=folder) == f"expunge {version('expunge')}")


@case("core")
def the_demo_runs(folder: Path) -> None:
    """Ten clients, an erasure order, its evidence; it exits with 3 if anything is not exact."""
    require(json.loads(expunge("demo", "--json", folder=folder))["deleted"] > 0)


@case("core")
def samples_of_a_local_federation_are_forgotten(folder: Path) -> None:
    """All by commands, on this machine, without a server process."""
    expunge("init", "federation", "--dim", 2, "--labels", "cat,dog", folder=folder)
    _forget_bob(folder)


def _forget_bob(folder: Path) -> None:
    (folder / "samples.csv").write_text(SAMPLES, encoding="utf-8")
    office, client = ("--office", "federation/operator"), ("--dir", "client")
    expunge("server", "token", "client", "-o", "client.token", *office, folder=folder)
    expunge("enroll", "client.token", *client, folder=folder)
    expunge("client", "add", "samples.csv", *client, folder=folder)
    expunge("client", "forget", "--subject", "bob", "--yes", *client, folder=folder)
    expunge("client", "receipts", "last", "-o", "receipt.json", *client, folder=folder)
    expunge("verify", "receipt.json", "--key", "federation/server.pub", folder=folder)
    status = json.loads(expunge("server", "status", "--json", *office, folder=folder))
    require(status["samples"] == 3, status)


# -- what is refused without extras ----------------------------------------------------------------


def refused(extra: str, action: Callable[[], object]) -> None:
    """The action fails by an error that tells how to install the extra."""
    from expunge.errors import MissingExtraError

    try:
        action()
    except MissingExtraError as problem:
        _require_remedy(extra, str(problem))
    else:
        raise RuntimeError(f"it was not refused without expunge[{extra}]")


def _require_remedy(extra: str, printed: str) -> None:
    require(f"pip install 'expunge[{extra}]'" in printed, extra, "is not named:", printed)


@case("refusals")
def serving_names_its_extra(folder: Path) -> None:
    """`expunge serve` without expunge[server]."""
    expunge("init", "f", "--dim", 2, "--labels", "cat,dog", "--host", "localhost", folder=folder)
    _require_remedy("server", expunge("serve", "f", folder=folder, code=FAILED))


@case("refusals")
def a_remote_server_names_its_extra(folder: Path) -> None:
    """A token with a URL cannot be used without expunge[http]."""
    expunge("init", "f", "--dim", 2, "--labels", "cat,dog", "--host", "localhost", folder=folder)
    expunge(
        "server", "token", "c", "-o", "token", "--office", "f/operator", "--at", "f", folder=folder
    )
    _require_remedy("http", expunge("enroll", "token", "--dir", "c", folder=folder, code=FAILED))


@case("refusals")
def parquet_files_name_their_extra(folder: Path) -> None:
    """Reading and writing."""
    from expunge.client.export import file_of
    from expunge.data.readers import load

    spec, _, _ = data()
    (folder / "samples.parquet").write_bytes(b"PAR1")
    refused("parquet", lambda: load(folder / "samples.parquet"))
    refused("parquet", lambda: file_of(folder / "out.parquet", [], spec))


@case("refusals")
def simulations_name_their_extra(folder: Path) -> None:
    """By the command."""
    _require_remedy("simulation", expunge("simulate", folder=folder, code=FAILED))


@case("refusals")
def exports_name_their_extra(folder: Path) -> None:
    """Both formats, reading and writing."""
    from expunge.export import load_onnx, load_safetensors, save_onnx, save_safetensors

    (folder / "file").write_bytes(b"anything")
    refused("export", lambda: save_onnx(head(), folder / "head.onnx"))
    refused("export", lambda: save_safetensors(head(), folder / "head.safetensors"))
    refused("export", lambda: load_onnx(folder / "file"))
    refused("export", lambda: load_safetensors(folder / "file"))


@case("refusals")
def backbones_name_their_extras(folder: Path) -> None:
    """ONNX Runtime, transformers, timm."""
    from expunge.backbones import backbone_from

    for name in ("config.json", "model.safetensors", "preprocessor_config.json"):
        (folder / name).write_text("{}", encoding="utf-8")
    refused("onnx", lambda: backbone_from(f"onnx:{folder}/config.json"))
    refused("huggingface", lambda: backbone_from(f"hf:{folder}"))
    refused("timm", lambda: backbone_from(f"timm:{folder}"))


@case("refusals")
def clusters_name_their_extras(folder: Path) -> None:
    """Statistics on Ray and on Dask."""
    import numpy as np

    from expunge.data import shard_statistics

    spec, features, labels = data()
    np.savez(folder / "shard.npz", features=features, labels=labels)
    refused("ray", lambda: shard_statistics(spec, folder / "shard.npz", on="ray"))
    refused("dask", lambda: shard_statistics(spec, folder / "shard.npz", on="dask"))


@case("refusals")
def flower_names_its_extra(_: Path) -> None:
    """Both apps."""
    refused("flower", partial(import_module, "expunge.transport.flower.client_app"))
    refused("flower", partial(import_module, "expunge.transport.flower.server_app"))


@case("refusals")
def the_experiments_name_their_distribution(folder: Path) -> None:
    """`expunge experiment` without expunge-experiments."""
    printed = expunge("experiment", "--help", folder=folder, code=FAILED)
    require("pip install expunge-experiments" in printed, printed)


# -- extras ----------------------------------------------------------------------------------------


@case("http")
def a_server_that_is_not_there_is_told_as_that(_: Path) -> None:
    """The carrier is there, and says clearly that nobody answers."""
    from expunge.errors import CarrierError
    from expunge.transport.http import HttpCarrier

    url = f"https://127.0.0.1:{free_port()}"
    try:
        HttpCarrier(url).federation()
    except CarrierError as problem:
        require(url in str(problem), problem)
    else:
        raise RuntimeError("an answer came from where nobody listens")


@case("http")
def a_command_says_that_nobody_answers(folder: Path) -> None:
    """Exit code 4, which says that the same command again is safe."""
    url = ("--host", "localhost", "--port", free_port())
    expunge("init", "f", "--dim", 2, "--labels", "cat,dog", *url, folder=folder)
    expunge(
        "server", "token", "c", "-o", "token", "--office", "f/operator", "--at", "f", folder=folder
    )
    expunge("enroll", "token", "--dir", "c", folder=folder, code=NO_ANSWER)


def free_port() -> int:
    """A port of this machine at which nobody listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def serving(folder: Path) -> Iterator[None]:
    """`expunge serve federation` in a process of its own, until the block is left."""
    command = (_program(), "serve", "federation", "--host", "127.0.0.1", "--json")
    with (
        (folder / "server.log").open("w", encoding="utf-8") as log,
        subprocess.Popen(  # noqa: S603 - the program that is tried
            command, cwd=folder, stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        try:
            require(process.stdout and process.stdout.readline(), "the server did not start")
            yield
        except BaseException:
            print((folder / "server.log").read_text(encoding="utf-8"))
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=60)
    require(code == DONE, "the server exited with", code)


@case("server")
def samples_are_forgotten_over_https(folder: Path) -> None:
    """A server in a process of its own; the client enrols, adds, forgets, verifies its receipt."""
    url = ("--host", "127.0.0.1", "--port", free_port())
    expunge("init", "federation", "--dim", 2, "--labels", "cat,dog", *url, folder=folder)
    with serving(folder):
        _forget_bob(folder)
    logged = (folder / "server.log").read_text(encoding="utf-8")
    require("/v1/" in logged, "no request came over HTTPS:", logged)


@case("parquet")
def samples_come_back_from_parquet(folder: Path) -> None:
    """Export by a client writes Parquet; reading gives the same samples."""
    from expunge.data.readers import load

    expunge("init", "federation", "--dim", 2, "--labels", "cat,dog", folder=folder)
    _forget_bob(folder)
    expunge("client", "export", "--all", "-o", "held.parquet", "--dir", "client", folder=folder)
    loaded = load(folder / "held.parquet")
    require(sorted(loaded.ids) == ["1", "3", "4"], loaded.ids)
    require(sorted(map(tuple, loaded.features.tolist()))[0] == (-1.25, 0.75), loaded.features)


@case("parquet")
def parquet_shards_add_up(folder: Path) -> None:
    """The digest of the statistics is the one of the same samples in memory."""
    import pyarrow as pa
    from pyarrow import parquet

    from expunge import Statistics
    from expunge.data import shard_statistics

    spec, features, labels = data()
    for number, part in enumerate((slice(0, 5), slice(5, None))):
        table = pa.table({"feature": list(features[part]), "label": labels[part]})
        parquet.write_table(table, folder / f"{number}.parquet")
    files = [folder / "0.parquet", folder / "1.parquet"]
    require(shard_statistics(spec, files).digest == Statistics.of(spec, features, labels).digest)


@case("simulation")
def a_simulated_federation_keeps_every_law(folder: Path) -> None:
    """From a seed, on simulated disks."""
    printed = expunge("simulate", "--seeds", "0-1", "--steps", 40, folder=folder)
    require("every law held" in printed, printed)


@case("export")
def a_head_comes_back_from_safetensors(folder: Path) -> None:
    """With its digest, and readable by the library itself."""
    from safetensors.numpy import load_file

    from expunge.export import load_safetensors, save_safetensors

    save_safetensors(head(), folder / "head.safetensors")
    require(load_safetensors(folder / "head.safetensors").digest == head().digest)
    require(load_file(folder / "head.safetensors")["weight"].shape == (2, 2))


@case("export")
def a_head_comes_back_from_onnx(folder: Path) -> None:
    """With its digest, and a model that ONNX's own checker accepts."""
    import onnx

    from expunge.export import load_onnx, save_onnx

    save_onnx(head(), folder / "head.onnx")
    onnx.checker.check_model(onnx.load(folder / "head.onnx"), full_check=True)
    require(load_onnx(folder / "head.onnx").digest == head().digest)


# A network of one node, y = x * [0.5, 2, -1], written by `onnx`, which this extra does not bring.
NETWORK = bytes.fromhex(
    "08093a560a0e0a01780a017712017922034d756c1201672a15080310014201774a0c0000003f000000400000"
    "80bf5a140a0178120f0a0d080112090a0312016e0a02080362140a0179120f0a0d080112090a0312016e0a02"
    "080342040a001011"
)


@case("onnx")
def a_network_gives_features(folder: Path) -> None:
    """The backbone computes what the network says, and its fingerprint stays the same."""
    import numpy as np

    from expunge.backbones import backbone_from, check_backbone

    (folder / "network.onnx").write_bytes(NETWORK)
    backbone = backbone_from(f"onnx:{folder}/network.onnx")
    rows = np.array([[1, 2, 3], [4, 5, 6], [-1, 0, 1]], np.float32)
    check_backbone(backbone, list(rows))
    require((backbone.features(rows) == rows * [0.5, 2, -1]).all(), backbone.features(rows))


@case("onnx")
def images_are_prepared(_: Path) -> None:
    """Pillow is there and resizes."""
    import numpy as np

    from expunge.backbones import ImagePreprocessing

    picture = np.zeros((6, 8, 3), np.uint8)
    require(ImagePreprocessing(size=(4, 4))(picture, 0, extra="onnx").shape == (3, 4, 4))


@case("experiments")
def the_experiments_are_a_command(folder: Path) -> None:
    """The second distribution is found, and is of the same version."""
    require(version("expunge-experiments") == version("expunge"))
    require("Usage: expunge experiment" in expunge("experiment", "--help", folder=folder))


# -- running ---------------------------------------------------------------------------------------


def attempt(name: str, function: Callable[[Path], None]) -> bool:
    """Run one function in a new folder and print how it went."""
    title = f"{name}: {function.__name__.replace('_', ' ')}"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="expunge-smoke-") as folder:
        try:
            function(Path(folder))
        except Exception:
            print(f"FAILED  {title}\n{traceback.format_exc()}", flush=True)
            return False
    print(f"passed  {title} ({time.monotonic() - began:.1f} s)", flush=True)
    return True


def main(names: list[str]) -> int:
    """Try everything of these names."""
    unknown = sorted(set(names) - set(CASES))
    if unknown or not names:
        print(f"Give one or more of {', '.join(CASES)}" + f"; not {unknown}" * bool(unknown))
        return 2
    for variable in [name for name in os.environ if name.startswith("EXPUNGE_")]:
        del os.environ[variable]
    results = [attempt(name, function) for name in names for function in CASES[name]]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
