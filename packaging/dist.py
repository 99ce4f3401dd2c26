"""Build both distributions into dist/, install them in fresh environments and try them there.

    make dist

1. Wheels and sdists are built, then once more from the unpacked sdists: the same bytes.
2. The wheel is installed with hashes, as docs/how-to/install.md says, and tried by smoke.py:
   without extras, and with each light extra in an environment of its own. So are the sdist and the
   experiments.
3. SBOMs are written of the environments of the core and of the server, and checksums of all files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PROJECTS = (ROOT, ROOT / "experiments")
LIGHT_EXTRAS = ("http", "server", "parquet", "export", "onnx", "simulation")
BEGAN = time.monotonic()


def say(text: str) -> None:
    """Print one step, with the seconds since the beginning."""
    print(f"[{time.monotonic() - BEGAN:4.0f} s] {text}", flush=True)


def run(*command: object, folder: Path = ROOT, **variables: str) -> str:
    """Run a command without whatever Python, pip or Expunge is told to do in this shell's
    environment; its output is shown if it fails.
    """
    process = subprocess.run(  # noqa: S603 - our own programs
        [str(word) for word in command],
        cwd=folder,
        env=_environment() | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if process.returncode:
        raise SystemExit(f"{process.stdout}\nfailed: {' '.join(map(str, command))}")
    return process.stdout


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "EXPUNGE_", "VIRTUAL_ENV"))
    }


# -- building --------------------------------------------------------------------------------------


def source_date() -> str:
    """Seconds since 1970 at the last commit; in an unpacked sdist, at the one it was built from."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return given
    if (ROOT / "PKG-INFO").exists():
        return str(int((ROOT / "PKG-INFO").stat().st_mtime))
    return run("git", "log", "-1", "--format=%ct").strip()


def build(project: Path, folder: Path, date: str) -> list[Path]:
    """The sdist and the wheel of a project."""
    before = set(folder.iterdir())
    command = (sys.executable, "-m", "hatchling", "build", "-d", folder)
    run(*command, folder=project, SOURCE_DATE_EPOCH=date)
    return sorted(set(folder.iterdir()) - before, key=lambda path: path.suffix)


def build_again(sdist: Path, scratch: Path, date: str) -> list[Path]:
    """The sdist and the wheel, built from the sdist, in another folder."""
    source, folder = scratch / "source", scratch / "built"
    folder.mkdir(parents=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(source, filter="data")
    (project,) = source.iterdir()
    return build(project, folder, date)


def require_same(built: list[Path], again: list[Path]) -> None:
    """Same names and same bytes."""
    for one, other in zip(built, again, strict=True):
        if (one.name, one.read_bytes()) != (other.name, other.read_bytes()):
            raise SystemExit(f"{one.name} has other bytes when it is built from the sdist")


# -- installing ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Environment:
    """A virtual environment, known by its interpreter."""

    python: Path

    def install(self, *arguments: object) -> None:
        """Install by the pip that runs this program."""
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.python)
        run(*pip, "install", "--quiet", "--quiet", "--no-compile", *arguments)

    def try_out(self, *names: str) -> None:
        """Run smoke.py, outside of the source tree; it prints a line for each thing tried."""
        with tempfile.TemporaryDirectory() as folder:
            program = shutil.copy(ROOT / "packaging" / "smoke.py", folder)
            process = subprocess.run(  # noqa: S603 - our own program
                [self.python, "-I", program, *names], cwd=folder, env=_environment(), check=False
            )
        if process.returncode:
            raise SystemExit("dist/ holds files that do not work: see above")

    def write_sbom(self, tools: Path, wheel: Path, suffix: str = "") -> None:
        """The SBOM of what is installed here, by the interpreter of the tools."""
        output = DIST / f"{wheel.name.split('-py3')[0]}{suffix}.cdx.json"
        say(f"Writing {output.name}")
        run(tools, "-I", ROOT / "packaging" / "sbom.py", self.python, wheel, output)


@contextmanager
def fresh_environment() -> Iterator[Environment]:
    """An environment with nothing in it, not even pip; removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="expunge-dist-") as folder:
        venv.create(folder, with_pip=False, symlinks=True)
        yield Environment(Path(folder) / "bin" / "python")


def hashed(name: str) -> tuple[object, ...]:
    """The arguments of pip that install one set of requirements."""
    return ("--require-hashes", "--requirement", ROOT / "requirements" / f"{name}.txt")


def try_core(wheel: Path, tools: Path) -> None:
    """The wheel without extras."""
    say("Core: installing with hashes in a fresh environment, then trying it")
    with fresh_environment() as environment:
        environment.install(*hashed("core"))
        environment.install("--no-deps", "--no-index", wheel)
        environment.try_out("core", "refusals")
        environment.write_sbom(tools, wheel)


def try_sdist(sdist: Path) -> None:
    """The sdist without extras, which pip builds."""
    say("Sdist: installing (pip builds it) in a fresh environment, then trying it")
    with fresh_environment() as environment:
        environment.install(*hashed("core"))
        environment.install("--no-deps", sdist)
        environment.try_out("core")


def try_extra(extra: str, wheel: Path, tools: Path) -> None:
    """The wheel with an extra.

    Nothing may be fetched beyond what the requirements of the extra hold.
    """
    say(f"Extra {extra}: installing with hashes in a fresh environment, then trying it")
    with fresh_environment() as environment:
        environment.install(*hashed(extra))
        environment.install("--no-index", f"{wheel}[{extra}]")
        environment.try_out(extra)
        if extra == "server":
            environment.write_sbom(tools, wheel, f"-{extra}")


def try_experiments(*wheels: Path) -> None:
    """Both wheels together."""
    say("Experiments: installing both wheels in a fresh environment, then trying them")
    with fresh_environment() as environment:
        environment.install("--constraint", ROOT / "constraints.txt", *wheels)
        environment.try_out("experiments")


# -- all of it -------------------------------------------------------------------------------------


def write_checksums() -> None:
    """SHA256SUMS, as `sha256sum --check` reads it."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(DIST.iterdir())
    ]
    (DIST / "SHA256SUMS").write_text("".join(lines), encoding="ascii")


def main(tools: Path) -> None:
    """Make dist/ anew. `tools` is the interpreter that has cyclonedx-bom."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    date = source_date()
    built = []
    for project in PROJECTS:
        say(f"Building {project.name if project != ROOT else 'expunge'}, twice")
        files = build(project, DIST, date)
        with tempfile.TemporaryDirectory() as folder:
            require_same(files, build_again(files[0], Path(folder), date))
        built.append(files)
    (sdist, wheel), (_, experiments) = built
    try_core(wheel, tools)
    try_sdist(sdist)
    for extra in LIGHT_EXTRAS:
        try_extra(extra, wheel, tools)
    try_experiments(wheel, experiments)
    write_checksums()
    say("dist/ holds " + ", ".join(path.name for path in sorted(DIST.iterdir())))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
