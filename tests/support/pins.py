"""The files that pin versions: constraints*.txt, and requirements/*.txt with hashes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
REQUIREMENTS = {path.stem: path for path in (ROOT / "requirements").glob("*.txt")}
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})(?= |$)")


@dataclass(frozen=True)
class Pin:
    """A version of a distribution, with the hashes of its files if the file has them."""

    version: str
    hashes: tuple[str, ...]
    is_for_this_python: bool


def pins(path: Path) -> dict[str, Pin]:
    """The pins by canonical names. What else the file says (such as options) is an error."""
    text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        requirement = Requirement(_HASH.sub("", line).strip())
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", line
        name = canonicalize_name(requirement.name)
        assert name not in found, name
        applies = requirement.marker is None or requirement.marker.evaluate()
        found[name] = Pin(specifier.version, tuple(_HASH.findall(line)), applies)
    return found
