"""Write requirements/*.txt: what each set of extras installs, with hashes of all its files.

    make requirements

Versions are those of constraints.txt (constraints-dist.txt for the tools). uv reads the hashes of
every wheel and sdist of a version from the package index, so that a file serves all platforms and
all versions of Python that Expunge runs on. It asks the index that uv is configured for (by its own
settings, such as UV_DEFAULT_INDEX; not pip's), and no address of one is written.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
OLDEST_PYTHON = "3.11"
LIGHT_EXTRAS = ("export", "http", "onnx", "parquet", "server", "simulation")
TOOLS = ("cyclonedx-bom", "uv")
OPTIONS = (
    "--universal",
    "--generate-hashes",
    "--no-header",
    "--no-annotate",
    "--no-emit-index-url",
    "--no-progress",
    "--quiet",
)


def compiled(source: str, constraints: str, *options: str, stdin: str = "") -> str:
    """Pins with hashes, one distribution after another."""
    process = subprocess.run(  # noqa: S603 - a tool that make installed
        [
            *(str(Path(sys.executable).with_name("uv")), "pip", "compile", source),
            *("--constraint", constraints, "--python-version", OLDEST_PYTHON),
            *OPTIONS,
            *options,
        ],
        cwd=ROOT,
        input=stdin,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return process.stdout


def write(name: str, contents: str, constraints: str, pins: str) -> None:
    """Replace one file and say so."""
    header = (
        f"# {contents}, with the hashes of all files of each version.\n"
        f"# Made by `make requirements` from {constraints}; do not edit.\n"
    )
    (FOLDER / f"{name}.txt").write_text(header + pins, encoding="utf-8")
    print(
        f"requirements/{name}.txt: {pins.count('==')} distributions, {pins.count('sha256:')} files"
    )


def main() -> None:
    """Write all files; those of sets that are no more are removed."""
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.txt"):
        if path.stem not in {"core", "tools", *LIGHT_EXTRAS}:
            path.unlink()
    for name in ("core", *LIGHT_EXTRAS):
        extra = () if name == "core" else ("--extra", name)
        contents = "What `expunge` needs" if name == "core" else f"What `expunge[{name}]` needs"
        pins = compiled("pyproject.toml", "constraints.txt", *extra)
        write(name, contents, "pyproject.toml and constraints.txt", pins)
    pins = compiled("-", "constraints-dist.txt", stdin="\n".join(TOOLS))
    write("tools", "The tools of `make dist`", "constraints-dist.txt", pins)


if __name__ == "__main__":
    main()
