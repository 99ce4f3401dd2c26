"""`expunge client add`, `forget` and `correct`: what changes a client's samples."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.console import RenderableType

from expunge.cli import _command
from expunge.cli._agent import (
    agent_of,
    backbone_of,
    next_round,
    recomputing,
    store_at,
    unserved,
)
from expunge.cli._command import command
from expunge.cli._connect import carrier_to, sync_command
from expunge.cli._format import (
    backlog_facts,
    backlog_value,
    preview_value,
    rarity_in_words,
    require_complete,
    show_preview,
    show_synced,
    show_way_on,
    show_way_out,
    synced_value,
)
from expunge.cli._options import (
    FILE,
    PATH,
    RESET_HELP,
    at_option,
    backbone_option,
    client_option,
    feature_columns_option,
    id_column_option,
    wait_options,
    yes_option,
)
from expunge.cli._output import (
    Screen,
    Style,
    count,
    facts,
    line,
    next_steps,
    short_path,
    typed,
    unwrapped,
)
from expunge.cli._samples import (
    LoadedSamples,
    asking_for_backbone,
    features_of,
    is_raw,
    read_features,
    read_raw,
    source_of,
)
from expunge.cli._selection import refuse_missing, selection_of, selection_options
from expunge.client import ClientStore, Preview, Selection
from expunge.data.columns import Keys, labels_of_texts
from expunge.data.raw import Raw
from expunge.errors import (
    ExpungeError,
    InputError,
    StoreError,
    UnknownLabelError,
    UnknownSampleError,
)
from expunge.ridge.spec import Label, Spec

if TYPE_CHECKING:
    from expunge.backbones import Backbone

_no_sync = click.option(
    "--no-sync", is_flag=True, help="Leave the change pending for the next sync."
)


@command()
@click.argument("files", type=PATH, nargs=-1, required=True)
@client_option
@click.option("--label", help="The label of images and texts without one.")
@click.option("--subject", help="The subject of images and texts without one.")
@feature_columns_option
@click.option(
    "--label-column",
    "label_columns",
    multiple=True,
    metavar="NAME",
    help="The label column. Repeatable, for several outputs.",
)
@id_column_option
@click.option("--subject-column", metavar="NAME", help="The subject column. [default: subject]")
@click.option(
    "--labels", "labels_file", type=FILE, help="For .npy: a second .npy file with the labels."
)
@click.option(
    "--last-columns",
    type=int,
    default=0,
    metavar="N",
    help="For .npy: the last N columns are the labels.",
)
@click.option(
    "--label-indices",
    is_flag=True,
    help="Read integer labels as class indices, from 0.",
)
@backbone_option()
@_no_sync
@wait_options
@at_option
def add(
    *,
    files: tuple[Path, ...],
    folder: Path,
    backbone: str | None,
    no_sync: bool,
    wait: float | None,
    at: str | None,
    **given: Any,
) -> None:
    r"""Add samples from FILES and send them to the server.

    Feature files are .npz (arrays features and labels, optionally ids and subjects), .npy, .csv or
    .parquet (columns label, id and subject; all others are features). Images and texts go through
    the backbone: give files with --label, a folder whose subfolders are the labels, or a .csv with
    the columns file (or text) and label, optionally id and subject.

    A file is added whole or not at all. Samples that were added before and are still pending are
    sent, not added twice. Exits with 6 if the files hold no samples.

    Example:
      expunge client add features.npz --dir hospital-a
      expunge client add scans/ --dir hospital-a \
          --backbone 'onnx:model.onnx?size=224'

    Next:
      expunge client status --dir hospital-a
      expunge predict new.csv --dir hospital-a
    """
    keys = Keys(
        given["feature_columns"],
        given["label_columns"],
        given["id_column"],
        given["subject_column"],
        given["labels_file"],
        given["last_columns"],
        given["label_indices"],
    )
    with store_at(folder) as store:
        opened = backbone_of(store, backbone)
        batches = _batches(
            store.spec, files, opened, keys, label=given["label"], subject=given["subject"]
        )
        for note in (note for batch in batches for note in batch.notes):
            Screen.current().note(note)
        if not any(len(batch) for batch in batches):
            Screen.current().result(
                {"added": 0, "pending": False, "sync": None},
                line("These files hold no samples."),
            )
            raise click.exceptions.Exit(_command.NOTHING)
        nobodys = sum(batch.nobodys for batch in batches)
        with _new_labels(store, at, ask=not no_sync):
            added = sum(_put(store, batch, at) for batch in batches)
        if nobodys:
            verb = "has" if nobodys == 1 else "have"
            Screen.current().note(
                f"{count(nobodys, 'sample')} {verb} no subject: erasure orders cannot find them"
            )
        value: dict[str, Any] = {"added": added, "without_subject": nobodys, "pending": True}
        if store.spec.shows_only_sums:
            rarity = store.rarity()
            value["rare"] = {"columns": rarity.columns, "labels": dict(rarity.labels)}
            if rarity:
                Screen.current().note(rarity_in_words(rarity))
        parts: list[RenderableType] = [
            unwrapped(f"{count(added, 'sample')} added to {folder}.", Style.GOOD)
        ]
        _finish(store, value, parts, at=at, opened=opened, no_sync=no_sync, wait=wait)


@contextmanager
def _new_labels(store: ClientStore, at: str | None, *, ask: bool) -> Iterator[None]:
    """Distinguish a label of the federation that this client has not received from an unknown one.

    The server is asked only where it may be, and only after a label was refused.
    """
    try:
        yield
    except UnknownLabelError as problem:
        sync = f"run {sync_command(store.path, store.address, at)}"
        labels = _federation_labels(store, at) if ask else None
        if labels is None:
            problem.add_note(
                "If the operator has added it since the last sync, it is not known here yet: "
                + sync
            )
            raise
        new = [repr(label) for label in labels if label not in (store.spec.labels or ())]
        if not new:
            raise
        verb = "is" if len(new) == 1 else "are"
        raise UnknownLabelError(
            f"the spec has been amended, and {', '.join(new)} {verb} not known here yet: {sync}, "
            "then retry"
        ) from problem


def _federation_labels(store: ClientStore, at: str | None) -> tuple[Label, ...] | None:
    """The labels that the federation has now; None if the server cannot be asked."""
    from expunge.client.enrolment import federation_spec  # noqa: PLC0415 - seldom asked for

    try:
        with carrier_to(at or store.address, store.ca) as carrier:
            return federation_spec(store.server, carrier).labels or ()
    except ExpungeError:
        return None


def _batches(
    spec: Spec,
    files: tuple[Path, ...],
    opened: Backbone | None,
    keys: Keys,
    *,
    label: str | None,
    subject: str | None,
) -> list[LoadedSamples]:
    raw = [path for path in files if is_raw(path, opened)]
    features = []
    for path in (file for file in files if file not in raw):
        with asking_for_backbone(path, spec, keys, opened):
            features.append(read_features(path, spec, keys))
    if raw and opened is not None:
        features.append(
            read_raw(
                raw, spec, opened, label=label, subject=subject, label_indices=keys.label_indices
            )
        )
    return features


def _put(store: ClientStore, batch: LoadedSamples, at: str | None) -> int:
    """Add samples, except those that an interrupted command has added before."""
    try:
        return _put_whole(store, batch, at)
    except InputError as problem:
        raise type(problem)(f"{batch.origin}: {problem}") from problem


def _put_whole(store: ClientStore, batch: LoadedSamples, at: str | None) -> int:
    with Screen.current().progress("Adding samples", len(batch)) as progress:
        added = store.add(
            batch.ids,
            batch.features,
            batch.labels,
            subjects=batch.subjects,
            sources=batch.sources,
            feature_names=batch.feature_names,
            now=time.time(),
            progress=progress,
            ignore_pending=True,
        )
    if len(batch) and not added:
        Screen.current().note(
            f"{count(len(batch), 'sample')} already added and pending: "
            f"{sync_command(store.path, store.address, at)} sends them"
        )
    return added


@command()
@client_option
@selection_options
@click.option(
    "--lost",
    is_flag=True,
    help="Samples that cannot be computed again from their source; all are tried.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be forgotten; change nothing.")
@click.option("--reset", is_flag=True, help=RESET_HELP)
@yes_option
@backbone_option()
@_no_sync
@wait_options
@at_option
def forget(
    *,
    folder: Path,
    lost: bool,
    dry_run: bool,
    reset: bool,
    yes: bool,
    backbone: str | None,
    no_sync: bool,
    wait: float | None,
    at: str | None,
    **given: Any,
) -> None:
    """Forget samples: delete them here and, exactly, from the ledger and the head.

    A sample must meet all conditions that are given. The deletion is pending until the server's
    receipt arrives; the samples are then physically erased from this store. Samples that never
    reached the server are erased at once, as are all samples of a client that the operator has
    forgotten. Exits with 6 if nothing is selected. To leave the federation, use expunge client
    leave.

    A store that keeps no features computes those of deleted samples again. Where a source is gone
    for good, --reset deletes without it: all samples that stay are computed and sent again.

    Example:
      expunge client forget --subject patient-4711 --dry-run --dir hospital-a
      expunge client forget --lost --reset --dir hospital-a
      expunge client forget --subject patient-4711 --dir hospital-a
      expunge client forget --label otter --until 2026-01-01 --dir hospital-a

    Next:
      expunge client receipts --dir hospital-a    # list the signed receipts
    """
    screen = Screen.current()
    with store_at(folder) as store:
        again = recomputing(backbone_of(store, backbone)) if lost else None
        gone = store.lost(recompute=again) if lost else None
        selection = selection_of(store, given, gone)
        preview = Preview() if selection is None else _preview(store, selection)
        value = preview_value(preview) | {"dry_run": dry_run}
        if selection is None or (not preview.count and not preview.pending):
            screen.result(value, line("Nothing is selected; nothing was changed."))
            raise click.exceptions.Exit(_command.NOTHING)
        shown = show_preview(preview)
        if dry_run:
            screen.result(value, line("This would be forgotten; nothing was changed:"), *shown)
            return
        if not yes:
            for part in (line("This will be forgotten:"), *shown, line()):
                screen.show(part)
        if preview.count:
            screen.confirm(
                f"Forget {count(preview.count, 'sample')}? This cannot be undone", yes=yes
            )
        opened = backbone_of(store, backbone)
        store.forget(selection, recompute=recomputing(opened), reset=reset)
        parts: list[RenderableType] = [
            line(f"{count(preview.count, 'sample')} forgotten by {store.name}.", Style.GOOD)
        ]
        unsent_only = preview.unsent == preview.count and not preview.pending
        alone = no_sync or unsent_only or store.gone
        _finish(store, value, parts, at=at, opened=opened, no_sync=alone, wait=wait, alone_too=True)


def _preview(store: ClientStore, selection: Selection) -> Preview:
    """What would go; nothing, where conditions select nothing.

    An id that is not there is a mistake, and named.
    """
    try:
        return store.preview(selection)
    except UnknownSampleError as problem:
        refuse_missing(store, selection, problem, "Nothing was changed")
        return Preview()


@command()
@click.argument("sample", metavar="ID")
@client_option
@click.option("--label", help="The right label; for several outputs, numbers separated by commas.")
@click.option(
    "--feature",
    metavar="X,Y,...|FILE",
    help="The right feature: numbers, or an .npy file with one row.",
)
@click.option(
    "--file",
    "raw_file",
    type=FILE,
    help="The right image or text file, for the backbone.",
)
@backbone_option()
@_no_sync
@wait_options
@at_option
def correct(
    *,
    sample: str,
    folder: Path,
    label: str | None,
    feature: str | None,
    raw_file: Path | None,
    backbone: str | None,
    no_sync: bool,
    wait: float | None,
    at: str | None,
) -> None:
    """Correct the label or the feature of one sample.

    One request deletes the old value and adds the new one, so that at no moment both count, or
    neither. If the sample has this value already, no request is made and the exit code is 6, unless
    an earlier change is pending: that is sent.

    Example:
      expunge client correct scan-17 --label healthy --dir hospital-a
    """
    if label is None and feature is None and raw_file is None:
        raise click.UsageError("give what is to be corrected: --label, --feature or --file")
    if feature is not None and raw_file is not None:
        raise click.UsageError("give either --feature or --file: both set the feature")
    with store_at(folder) as store:
        opened = backbone_of(store, backbone)
        source = None
        values = None if feature is None else _numbers(feature)
        if raw_file is not None:
            if opened is None:
                raise InputError(
                    f"{raw_file} needs a backbone to become a feature: give --backbone"
                )
            raw = Raw(sample, raw_file, str(raw_file))
            values, source = features_of([raw], opened)[0], source_of(raw)
        with _new_labels(store, at, ask=not no_sync):
            changed = store.correct(
                sample,
                feature=values,
                label=None if label is None else _target(store.spec, label),
                source=source,
                recompute=recomputing(opened),
            )
        text = (
            f"{sample} corrected."
            if changed
            else f"{sample} has this value already; nothing was changed."
        )
        parts: list[RenderableType] = [line(text, Style.GOOD if changed else "")]
        value = {"corrected": sample if changed else None}
        pending = store.status()
        if not changed and not pending.adding and not pending.deleting:
            Screen.current().result(value | {"pending": False, "sync": None}, *parts)
            raise click.exceptions.Exit(_command.NOTHING)
        _finish(store, value, parts, at=at, opened=opened, no_sync=no_sync, wait=wait)


def _numbers(text: str) -> Any:
    path = Path(text)
    if path.suffix == ".npy":
        from expunge.data.formats import read_array  # noqa: PLC0415 - few corrections need it

        return np.array(read_array(path)).reshape(-1)
    try:
        return np.array([float(part) for part in text.split(",")])
    except ValueError as problem:
        raise InputError(
            "--feature must be numbers separated by commas, or an .npy file"
        ) from problem


def _target(spec: Spec, text: str) -> Any:
    if spec.is_classification:
        named = any(isinstance(label, str) for label in spec.labels or ())
        return text if named else labels_of_texts([text], spec)[0]
    return _numbers(text)


def _finish(
    store: ClientStore,
    value: dict[str, Any],
    parts: list[RenderableType],
    *,
    at: str | None,
    opened: Backbone | None,
    no_sync: bool,
    wait: float | None,
    alone_too: bool = False,
) -> None:
    """Bring what has changed to the server, unless that is not wanted; what cannot be brought now
    stays pending.

    What is `alone_too` is done even if the server knows the client no longer; anything else has
    failed then. Under secure aggregation what a round has not brought within `wait` seconds stays
    pending as well, and so does a change of too few samples; that is said. On a schedule everything
    is left to the next sync.
    """
    screen, scheduled = Screen.current(), next_round(store)
    if no_sync or scheduled:
        pending, backlog = store.status(), store.backlog(now=time.time())
        waits = pending.adding + pending.deleting
        parts.append(
            line(
                "Nothing is pending."
                if not waits
                else f"{count(waits, 'change')} pending until the next sync."
            )
        )
        sync = sync_command(store.path, store.address, at)
        parts += [facts(backlog_facts(backlog))] if backlog else []
        if waits and scheduled:
            parts.append(line(f"{scheduled[0].upper()}{scheduled[1:]}. Sync then."))
        parts += [next_steps(sync)] if waits else []
        parts += show_way_out(backlog, sync)
        screen.result(
            value | {"pending": bool(waits), "backlog": backlog_value(backlog), "sync": None},
            *parts,
        )
        if waits and not no_sync:
            raise click.exceptions.Exit(_command.NOT_YET)
        return
    try:
        with agent_of(store, at, opened, wait=wait) as agent:
            done = agent.sync()
    except ExpungeError as problem:
        problem.add_note(
            "The change is safe in the client's folder, pending: "
            f"{sync_command(store.path, store.address, at)} sends it"
        )
        raise
    if done.status == "gone" and not alone_too:
        raise StoreError(
            f"{store.name} was forgotten by the operator or has left: the server accepts nothing "
            f"more from it, and this change is only in {short_path(store.path)}. Enrol a new "
            f"client; expunge client leave --dir {typed(store.path)} erases this one"
        )
    parts += [
        *show_synced(done, store.status()),
        *show_way_on(done, sync_command(store.path, store.address, at), unserved(store, at)),
    ]
    waits = bool(done.waiting or done.backlog)
    screen.result(
        value
        | {
            "pending": waits,
            "backlog": backlog_value(done.backlog),
            "sync": synced_value(done),
        },
        *parts,
    )
    require_complete(done)
