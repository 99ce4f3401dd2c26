"""Every example of the documentation is run by a test, or holds a command that no test can run.

Of the latter, all that can be checked is: commands and options of Expunge, targets of make, extras
and files. So are commands within sentences.
"""

from __future__ import annotations

import ast
import subprocess
from collections import Counter

import pytest

from support.pages import PAGES, ROOT, Block, blocks_of, parse
from support.shell import commands, problem, span_problem

# The examples of the commands' own help: tests/cli/test_cli_examples.py
REFERENCE = "docs/reference/command-line.md"
LANGUAGES = {"python", "py", "bash", "console"}
NOT_CODE = {"text", "toml", "nginx", ""}
# Commands that these tests cannot run, and why. A block without any of them is bash, and is run.
NOT_RUN = {
    "expunge experiment": "measures for minutes or hours, on data that are not here",
    "flower-superlink": "runs until it is stopped: tests/transport/flower/test_flower_runtimes.py",
    "flower-supernode": "the same",
    "hf": "downloads a model",
    "make": "sets up environments, for minutes",
    "pip": "takes packages from an index",
    "podman": "needs a container engine",
    "sudo": "changes the machine",
}
BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def claims() -> Counter[tuple[str, str]]:
    """The pages that tests run, with the language: calls of `run_python` and `run_shell`."""
    found: Counter[tuple[str, str]] = Counter()
    for folder in (ROOT / "tests", ROOT / "experiments" / "tests"):
        for file in folder.rglob("test_*.py"):
            text = file.read_text(encoding="utf-8")
            if "support.pages" in text:
                for node in ast.walk(ast.parse(text)):
                    found.update(claim(node))
    return found


def claim(node: ast.AST) -> list[tuple[str, str]]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return []
    texts = [str(word.value) for word in node.args if isinstance(word, ast.Constant)]
    if texts[:1] and texts[0] in PAGES:
        languages = {"run_shell": ["bash"], "run_python": texts[1:]}.get(node.func.id, [])
        return [(texts[0], language) for language in languages]
    return []


def test_code_is_fenced() -> None:
    """An indented block has no language, so nobody would run it."""
    assert [str(block) for block in BLOCKS if not block.is_fenced] == []


def test_each_block_has_a_language_that_says_who_runs_it() -> None:
    unknown = [f"{b}: {b.language}" for b in BLOCKS if b.language not in LANGUAGES | NOT_CODE]
    assert unknown == []


@pytest.mark.parametrize("language", ["py", "bash"])
def test_each_page_is_run_by_one_test(language: str) -> None:
    """`python` is run on all pages by tests/test_docs.py."""
    pages = {block.page for block in of(language)}
    claimed = Counter({page: n for (page, spoken), n in claims().items() if spoken == language})
    assert claimed == Counter(pages)


@pytest.mark.parametrize("block", [b for b in of("console") if b.page != REFERENCE], ids=str)
def test_what_is_not_run_cannot_be_run(block: Block) -> None:
    texts = [f"{command} " for command in commands(block.text)]
    reasons = tuple(f"{name} " for name in NOT_RUN)
    assert any(text.startswith(reasons) for text in texts), "make it bash, and run it"


def test_every_reason_not_to_run_is_still_needed() -> None:
    texts = [f"{command} " for block in of("console") for command in commands(block.text)]
    assert [name for name in NOT_RUN if not any(t.startswith(f"{name} ") for t in texts)] == []


@pytest.mark.parametrize("block", of("console"), ids=str)
def test_what_is_not_run_is_right_as_far_as_one_can_see(block: Block) -> None:
    found = commands(block.text)
    assert found
    assert [wrong for command in found if (wrong := problem(command))] == []


def test_a_shell_can_read_what_is_not_run() -> None:
    for block in of("console"):
        done = subprocess.run(  # noqa: S603 - our own page
            ["bash", "-n", "-c", block.text],  # noqa: S607 - any
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), block


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("expunge serve federation", ""),
        ("expunge server status --office o && echo done > file  # here", ""),
        ("export EXPUNGE_CLIENT=a\nexpunge client status", ""),
        ('WHEEL=$(echo dist/*.whl)\npip install "$WHEEL[server]"', ""),
        ("make test-random MINUTES=60", ""),
        ("sudo -u expunge /opt/bin/expunge init f --dim 3 --labels a,b", ""),
        ("python3 - <<'END'\nexpunge nothing\nEND\n", ""),
        ("expunge surve federation", "no command surve"),
        ("expunge server stattus", "no command stattus"),
        ("expunge serve federation --hots x", "No such option"),
        ("expunge serve federation \\\n  --port many", "not a valid integer"),
        ("expunge client status", "Missing option '--dir'"),
        ("expunge demo   see for yourself", "unexpected extra arguments"),
        ("true && sudo -u x expunge serve", "Missing argument"),
        ("podman run --rm expunge init", "Missing argument"),
        ("make tests", "no such target"),
        ("pip install '.[servers]'", "no such extra"),
        ("python3 -m pip download -r requirements/servers.txt", "no requirements/servers.txt"),
        ("cp packaging/expunge.servise x", "no packaging/expunge.servise"),
    ],
)
def test_each_kind_of_mistake_is_seen(text: str, wrong: str) -> None:
    found = [seen for command in commands(text) if (seen := problem(command))]
    assert wrong in "".join(found)
    assert bool(found) is bool(wrong)


@pytest.mark.parametrize(
    ("span", "wrong"),
    [
        ("expunge client add", ""),
        ("expunge COMMAND --help", ""),
        ("expunge serve --port", ""),
        ("expunge init ... --mirror FILE", ""),
        ("expunge.errors", ""),
        ("expunge client ad", "no command ad"),
        ("expunge serve --prot", "No such option"),
        ("make doc", "no such target"),
    ],
)
def test_each_kind_of_mistake_is_seen_within_sentences(span: str, wrong: str) -> None:
    assert wrong in span_problem(span)
    assert bool(span_problem(span)) is bool(wrong)


def test_blocks_are_found_wherever_they_stand() -> None:
    text = "- a\n\n  ```py\n  x = 1\n  ```\n\nb `c d`\n\n    e\n\n~~~bash\nf\n~~~\n"
    blocks, spans = parse("page", text)
    assert [(block.language, block.text, block.line) for block in blocks] == [
        ("py", "x = 1\n", 4),
        ("", "e\n", 9),
        ("bash", "f\n", 12),
    ]
    assert [block.is_fenced for block in blocks] == [True, False, True]
    assert spans == ["c d"]


@pytest.mark.parametrize("page", PAGES)
def test_commands_within_sentences_are_right(page: str) -> None:
    _, spans = parse(page, PAGES[page].read_text(encoding="utf-8"))
    assert [wrong for span in spans if (wrong := span_problem(span))] == []
