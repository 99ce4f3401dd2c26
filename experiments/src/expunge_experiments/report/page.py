"""What is written of an experiment's outcome: results, config, tables and figures; and one page
about all experiments.

Everything here is made from outcomes alone, so it can be made again from what is kept, and is then
the same, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from expunge.storage.files import write_whole
from expunge_experiments import config, machine
from expunge_experiments.datasets.dataset import USUAL
from expunge_experiments.report import figures, paper
from expunge_experiments.report.tables import seconds_text, table_text
from expunge_experiments.runner import ExperimentOutcome
from expunge_experiments.runs.base import Drawing, Finding, Table
from expunge_experiments.store import FORMAT, plain

PAGE, CONFIG = "README.md", "config.toml"
_NAMED = 3  # cells that are named for a reason


def write_outcome(outcome: ExperimentOutcome, folder: Path) -> None:
    """Write results, config, tables and figures into the experiment's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "results.json", json.dumps(as_json(outcome), indent=1, allow_nan=False) + "\n")
    _write(folder / CONFIG, config.written(outcome.experiment, outcome.settings))
    for drawing in drawings(outcome):
        figures.render(drawing, folder)
    _write(folder / "table.md", section(outcome, folder, seen_from=folder, level=1))


def as_json(outcome: ExperimentOutcome) -> dict[str, Any]:
    """An outcome with everything that it depends on."""
    experiment = outcome.experiment
    return {
        "format": FORMAT,
        "experiment": experiment.name,
        "title": experiment.title,
        "version": experiment.version,
        "quick": outcome.quick,
        "config": plain(config.as_dict(outcome.settings)),
        "data": plain(outcome.data),
        "environments": plain(outcome.environments),
        "seconds": outcome.seconds,
        "findings": [
            {"text": finding.text, "holds": finding.holds} for finding in findings(outcome)
        ],
        "results": [
            {"key": plain(done.key), "seconds": done.seconds, "result": plain(done.result)}
            for done in outcome.results
        ],
        "failed": [{"cell": failure.cell, "error": failure.error} for failure in outcome.failures],
        "not_run": [{"cell": failure.cell, "reason": failure.error} for failure in outcome.not_run],
    }


def tables(outcome: ExperimentOutcome) -> list[Table]:
    """The tables of what has been measured; none of nothing."""
    return outcome.experiment.tables(outcome.settings, outcome.results) if outcome.results else []


def drawings(outcome: ExperimentOutcome) -> list[Drawing]:
    """The figures of what has been measured; none of nothing."""
    return outcome.experiment.drawings(outcome.settings, outcome.results) if outcome.results else []


def findings(outcome: ExperimentOutcome) -> list[Finding]:
    """What follows from what has been measured; nothing from nothing."""
    return outcome.experiment.findings(outcome.settings, outcome.results) if outcome.results else []


def section(outcome: ExperimentOutcome, folder: Path, *, seen_from: Path, level: int) -> str:
    """One experiment: question, tables, figures, findings, command and time, for a page in the
    folder `seen_from`.
    """
    experiment = outcome.experiment
    prefix = "" if folder == seen_from else f"{folder.relative_to(seen_from)}/"
    parts = [f"{'#' * level} {experiment.title}", experiment.question]
    if experiment.paper:
        parts.append(f"*In the paper:* {experiment.paper}")
    parts += [table_text(table).rstrip("\n") for table in tables(outcome)]
    for drawing in drawings(outcome):
        if (folder / f"{drawing.name}.png").exists():  # drawn already
            name = f"{prefix}{drawing.name}"
            parts.append(f"[![{experiment.title}]({name}.png)]({name}.svg)\n\n*{drawing.caption}*")
    lines = [f"- {_marked(finding)}" for finding in findings(outcome)]
    if lines:
        parts.append("\n".join(lines))
    parts += [*_coarser_grids(outcome), *_unfinished(outcome)]
    parts.append(
        f"Command: `{command(outcome)}`, with the settings in [{CONFIG}]({prefix}{CONFIG}). "
        f"Measured in {seconds_text(outcome.seconds)}. Everything that it depends on, and every "
        f"number, is in [results.json]({prefix}results.json)."
    )
    return "\n\n".join(parts) + "\n"


def command(outcome: ExperimentOutcome) -> str:
    """What to type to get these results: with a config, where settings are not those of the full or
    the quick run.
    """
    usual = outcome.experiment.quick if outcome.quick else outcome.experiment.full
    own = "" if outcome.settings == usual else f" --config {CONFIG}"
    return (
        f"expunge experiment {outcome.experiment.name}"
        + (" --quick" if outcome.quick else "")
        + own
    )


def _coarser_grids(outcome: ExperimentOutcome) -> list[str]:
    """What is to be said of data that the usual grid cannot hold."""
    return [
        f"Features of `{name}` reach {identity['largest']:.4g} in magnitude, and the usual grid "
        f"holds what is below {USUAL.limit:g}. Exact variants take them on the finest grid that "
        f"holds them, of {identity['fraction_bits']} fraction bits, whatever is said of "
        f"{USUAL.fraction_bits} above."
        for name, identity in outcome.data.items()
        if "fraction_bits" in identity
    ]


def _marked(finding: Finding) -> str:
    return finding.text if finding.holds is None else f"**{_verdict(finding)}:** {finding.text}"


def _verdict(finding: Finding) -> str:
    return "Holds" if finding.holds else "Does not hold"


def missing(outcome: ExperimentOutcome) -> list[tuple[str, str]]:
    """What is missing: "failed" or "not run", and the reason with the first few of its cells;
    results.json has them all.
    """
    entries = []
    for kind, cells in (("failed", outcome.failures), ("not run", outcome.not_run)):
        reasons: dict[str, list[str]] = {}
        for failure in cells:
            reasons.setdefault(failure.error, []).append(failure.cell)
        for reason, names in reasons.items():
            more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            entries.append(
                (
                    kind,
                    (
                        f"{reason} ({len(names)} of {outcome.wanted} cells: "
                        f"{'; '.join(names[:_NAMED])}{more})"
                    ),
                )
            )
    return entries


def _unfinished(outcome: ExperimentOutcome) -> list[str]:
    lines = [f"- {kind}: {reason}" for kind, reason in missing(outcome)]
    return ["Not complete:\n\n" + "\n".join(lines)] if lines else []


# -- the page about all ----------------------------------------------------------------------------


def write_page(outcomes: Sequence[ExperimentOutcome], out: Path) -> Path:
    """Write the page about all experiments."""
    _write(out / PAGE, page(outcomes, out))
    return out / PAGE


def page(outcomes: Sequence[ExperimentOutcome], out: Path) -> str:
    """The page: the claims, what was run on what, then one section for each experiment, whose files
    are below `out`.
    """
    quick = any(outcome.quick for outcome in outcomes)
    about = (
        f"{paper.PAPER}: its tables and figures, measured anew, and those of its appendix. Made by "
        f"`expunge experiment all{' --quick' if quick else ''}`, which writes this page; no number "
        "here is typed by hand but the paper's own, which are marked as such."
    )
    if any(CONFIG in command(outcome) for outcome in outcomes):
        about += (
            " Where a section's command has a config, settings are others than the usual "
            "ones: they are in that file."
        )
    parts = ["# The paper, reproduced", about]
    if quick:
        parts.append(
            "**A quick run:** fewer requests and seeds than a full one; dimensions, classes and "
            "clients are the same."
        )
    parts += [_contents(outcomes), _claims(outcomes), _data(outcomes), _machines(outcomes)]
    parts += [
        section(outcome, out / outcome.experiment.name, seen_from=out, level=2).rstrip("\n")
        for outcome in outcomes
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _contents(outcomes: Sequence[ExperimentOutcome]) -> str:
    return "Sections: " + " · ".join(map(_link, outcomes)) + "." if len(outcomes) > 1 else ""


def _link(outcome: ExperimentOutcome) -> str:
    return f"[{outcome.experiment.name}](#{_anchor(outcome.experiment.title)})"


def _claims(outcomes: Sequence[ExperimentOutcome]) -> str:
    """All claims, those first that do not hold."""
    claims = [
        (outcome, finding)
        for outcome in outcomes
        for finding in findings(outcome)
        if finding.holds is not None
    ]
    if not claims:
        return ""
    rows = [
        (
            f"| {'holds' if finding.holds else '**does not hold**'} | "
            f"{finding.text.replace('|', chr(92) + '|')} | {_link(outcome)} |"
        )
        for outcome, finding in sorted(claims, key=lambda claim: bool(claim[1].holds))
    ]
    hold = sum(bool(finding.holds) for _, finding in claims)
    count = (
        f"Of {len(rows)} claims that these results could refute, {hold} "
        f"{'holds' if hold == 1 else 'hold'}."
    )
    return "\n".join(
        ["## What holds", "", count, "", "| | claim | experiment |", "| --- | --- | --- |", *rows]
    )


def _anchor(title: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    characters = (
        character for character in title.lower() if character.isalnum() or character in " -_"
    )
    return "".join(characters).replace(" ", "-")


def _data(outcomes: Sequence[ExperimentOutcome]) -> str:
    used: dict[str, Mapping[str, Any]] = {}
    for outcome in outcomes:
        used.update(outcome.data)
    if not used:
        return ""
    rows = []
    for name, identity in used.items():
        theirs = paper.DATASETS.get(name)
        instead = (
            f"{theirs} by {paper.BACKBONES[theirs]}" if theirs is not None else "not in the paper"
        )
        shape = (
            f"{identity['train']:,} + {identity['test']:,} | {identity['dim']} | "
            f"{identity['classes']}"
        )
        rows.append(
            f"| `{name}` | {identity['source']} | {shape} | {instead} | "
            f"`{identity['digest'][:12]}` |"
        )
    head = "| name | features | samples, train + test | dim | classes | in the paper | digest |"
    why = (
        "The paper's backbones and some of its data are others, so accuracies are to be compared "
        "within a column of ours, not with the paper's; where the paper's number stands beside "
        "ours, it shows the shape to expect. Whoever has the originals gets the paper's setting by "
        "`expunge experiment features`."
    )
    return "\n".join(
        ["## Data", "", head, "| --- | --- | --- | ---: | ---: | --- | --- |", *rows, "", why]
    )


def _machines(outcomes: Sequence[ExperimentOutcome]) -> str:
    environments: list[Mapping[str, Any]] = []
    for outcome in outcomes:
        environments += [
            environment for environment in outcome.environments if environment not in environments
        ]
    if not environments:
        return ""
    total = seconds_text(sum(outcome.seconds for outcome in outcomes))
    each = ", ".join(
        f"{outcome.experiment.name} {seconds_text(outcome.seconds)}"
        for outcome in outcomes
        if outcome.results
    )
    lines = [f"- {machine.in_words(dict(environment))}" for environment in environments]
    theirs = (
        f"The paper used {paper.MACHINE}: times are to be compared between systems, not with "
        "the paper's."
    )
    return "\n".join(
        [
            "## Machine",
            "",
            f"All cells together took {total} to measure: {each}.",
            "",
            *lines,
            "",
            theirs,
        ]
    )


def _write(path: Path, text: str) -> None:
    write_whole(path, text.encode(), mode=0o644)
