"""Which samples are meant, from what was typed: the options that forget and export share."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import click

from expunge.cli._options import FILE, TIMES, Function, seconds, subject_option
from expunge.cli._output import Screen, count
from expunge.client import ClientStore, Selection
from expunge.errors import UnknownSampleError
from expunge.ridge.spec import Label, Spec

_OPTIONS = (
    click.option("--id", "ids", multiple=True, help="A sample by its id. Repeatable."),
    click.option("--ids-from", type=FILE, help="A file of sample ids, one per line."),
    subject_option("All samples about this person"),
    click.option("--label", help="All samples with this label."),
    click.option("--since", metavar="TIME", help=f"Added at this time or later: {TIMES}."),
    click.option("--until", metavar="TIME", help="Added before this time."),
    click.option("--all", "everything", is_flag=True, help="All samples."),
    click.option(
        "--ignore-missing",
        is_flag=True,
        help="Skip ids that are not in the store, such as those already deleted.",
    ),
)


def selection_options(function: Function) -> Function:
    """The conditions; a sample must meet all that are given."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def selection_of(
    store: ClientStore, given: dict[str, Any], among: Collection[str] | None = None
) -> Selection | None:
    """What is meant; None if only samples are named that are not there, which may be so.

    `among` are the ids of the only samples that can be meant, if not all can.
    """
    ids, spec = list(given["ids"]), store.spec
    if given["ids_from"] is not None:
        ids += [row for row in given["ids_from"].read_text(encoding="utf-8").splitlines() if row]
    missing = set(store.missing(ids)) if given["ignore_missing"] else set()
    if missing:
        Screen.current().note(f"{count(len(missing), 'id')} not in the store, skipped")
        ids = [sample for sample in ids if sample not in missing]
        if not ids:
            return None
    if among is not None:
        ids = [sample for sample in ids if sample in among] if ids else list(among)
        if not ids:
            return None
    label = given["label"]
    return Selection(
        ids=ids or None,
        subject=given["subject"],
        label=None if label is None else as_label(spec, label),
        since=seconds(given["since"], "--since"),
        until=seconds(given["until"], "--until"),
        everything=given["everything"],
    )


def refuse_missing(
    store: ClientStore, selection: Selection, problem: UnknownSampleError, outcome: str
) -> None:
    """Raise the error with a remedy if an id is not there; conditions may select nothing."""
    if selection.ids is not None and store.missing(list(selection.ids)):
        problem.add_note(f"{outcome}; --ignore-missing skips them")
        raise problem


def as_label(spec: Spec, text: str) -> Label:
    """A label as the spec has it: a name, or a class index where the labels are integers."""
    labels = spec.labels or ()
    return int(text) if text not in labels and text.isdigit() and int(text) in labels else text
