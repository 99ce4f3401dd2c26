"""The notebooks run from top to bottom, and what is stored in them is what they print.

Only `make docs` has the packages: nothing here imports them when tests are collected. A cell whose
text differs from machine to machine is tagged "varies".
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.docs

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
LARGEST = 600_000  # bytes
# /home/x, ~/x, C:\x; not 1/2, and/or, https://x, </b>
ABSOLUTE_PATH = re.compile(r"(?<![\w./:<])~?/[\w.-]{2,}|\b[A-Za-z]:\\\w")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")

Cell = dict[str, Any]


def cells(notebook: Path) -> list[Cell]:
    return [c for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]


def text_of(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def printed(cell: Cell) -> str:
    """What a cell wrote, in however many pieces it came."""
    return "".join(text_of(o["text"]) for o in cell["outputs"] if o["output_type"] == "stream")


def texts(cell: Cell) -> list[str]:
    """All texts of a cell's outputs; pictures left out."""
    shown = [o["data"] for o in cell["outputs"] if "data" in o]
    return [printed(cell)] + [
        text_of(value) for data in shown for kind, value in data.items() if kind[:6] != "image/"
    ]


def pictures(cell: Cell) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell["outputs"])


def varies(cell: Cell) -> bool:
    return "varies" in cell["metadata"].get("tags", [])


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) == 2


def test_every_cell_was_executed_in_order(notebook: Path) -> None:
    counts = [cell["execution_count"] for cell in cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))


def test_stored_outputs_are_pictures_and_prints(notebook: Path) -> None:
    outputs = [output for cell in cells(notebook) for output in cell["outputs"]]
    assert sum(pictures(cell) for cell in cells(notebook)) >= 3
    # A warning or a traceback would stand there for readers.
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data"}
    assert {o["name"] for o in outputs if o["output_type"] == "stream"} == {"stdout"}


def test_stored_notebook_is_small_and_of_no_machine(notebook: Path) -> None:
    assert notebook.stat().st_size < LARGEST
    content = json.loads(notebook.read_text())
    assert set(content["metadata"]) == {"kernelspec", "language_info"}
    assert set(content["metadata"]["language_info"]) == {"name", "version"}
    found = {t for cell in cells(notebook) for t in texts(cell) if ABSOLUTE_PATH.search(t)}
    assert found == set()


def test_links_lead_somewhere(notebook: Path) -> None:
    text = "".join(
        text_of(cell["source"])
        for cell in json.loads(notebook.read_text())["cells"]
        if cell["cell_type"] == "markdown"
    )
    links = LINK.findall(text)
    assert links
    assert [link for link in links if not (notebook.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("text", "is_path"),
    [
        ("in /home/somebody/x", True),
        ("'/tmp/t8a'", True),
        ("~/federation", True),
        (r"C:\Users", True),
        ("a quarter is 1/4, and/or 3 / 4", False),
        ("https://example.org/a/b", False),
        ("<time> and </b>", False),
    ],
)
def test_absolute_paths_are_told_from_other_slashes(text: str, is_path: bool) -> None:
    assert bool(ABSOLUTE_PATH.search(text)) is is_path


def test_runs_and_prints_what_is_stored(notebook: Path, tmp_path: Path) -> None:
    import nbformat  # noqa: PLC0415 - not there when tests are collected
    from nbclient import NotebookClient  # noqa: PLC0415

    copy = Path(shutil.copy(notebook, tmp_path))
    content = nbformat.read(copy, as_version=4)
    NotebookClient(
        content, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    nbformat.write(content, copy)

    assert list(tmp_path.iterdir()) == [copy]  # nothing is left behind
    for stored, fresh in zip(cells(notebook), cells(copy), strict=True):
        assert varies(stored) or printed(fresh) == printed(stored)
        assert pictures(fresh) == pictures(stored)
