"""Write the CycloneDX SBOM of an environment in which Expunge is installed.

    python sbom.py PYTHON WHEEL OUTPUT        by an interpreter that has cyclonedx-bom

The same environment gives the same bytes: no time, no serial number. Where a file was installed
from (an index, a folder of this machine) is left out. Expunge itself, with the hash of its wheel,
is the component that the document is about. The result is validated against the schema.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

SCHEMA = SchemaVersion.V1_6
NAME = "expunge"


def environment(python: Path) -> dict[str, Any]:
    """What cyclonedx-bom says of an environment."""
    process = subprocess.run(  # noqa: S603 - a tool that make installed
        [
            *(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"),
            *("--short-PURLs", "--output-format", "JSON", "--spec-version", SCHEMA.to_version()),
            str(python),
        ],
        env={},  # without SOURCE_DATE_EPOCH there is no time in it
        stdout=subprocess.PIPE,
        check=True,
    )
    content: dict[str, Any] = json.loads(process.stdout)
    return content


def cleaned(content: dict[str, Any], wheel: Path) -> dict[str, Any]:
    """The same, about Expunge, and without places that files were installed from."""
    components, metadata = content["components"], content["metadata"]
    for component in (*components, *metadata["tools"]["components"]):
        references = component.pop("externalReferences", [])
        kept = [each for each in references if not each["type"].startswith("distribution")]
        if kept:
            component["externalReferences"] = kept
    (root,) = [component for component in components if component["name"] == NAME]
    components.remove(root)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    metadata["component"] = root | {"hashes": [{"alg": "SHA-256", "content": digest}]}
    return content


def main(python: Path, wheel: Path, output: Path) -> None:
    """Write one document."""
    content = cleaned(environment(python), wheel)
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    problem = JsonStrictValidator(SCHEMA).validate_str(text)
    if problem is not None:
        raise SystemExit(f"{output.name} is not valid CycloneDX: {problem}")
    output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
