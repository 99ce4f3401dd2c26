"""The config of experiments: TOML, one table for each experiment, laid over the settings of its
full or quick variant.

Law: what `written` writes, `read` and `settings_of` turn into the same settings again. Everything
in a config is checked before anything is run: an unknown table or key is refused with the nearest
one there is, and an impossible value with what would do.
"""

from __future__ import annotations

import difflib
import inspect
import io
import math
import tokenize
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal, Union

from expunge.errors import InputError
from expunge_experiments.runs.base import Experiment

Tables = Mapping[str, Mapping[str, Any]]


def read(path: Path) -> dict[str, Any]:
    """The tables of a config file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as problem:
        raise InputError(
            f"there is no config {path}; expunge experiment NAME --show-config prints one to "
            "begin with"
        ) from problem
    except IsADirectoryError as problem:
        raise InputError(
            f"{path} is a folder, and a config is a file; name the file in it"
        ) from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InputError(
            f"{path} is no TOML: {problem}. expunge experiment NAME --show-config prints one that "
            "is"
        ) from problem


def check_tables(tables: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse tables of experiments that there are not, and anything outside tables."""
    for name, table in tables.items():
        if not isinstance(table, dict):
            below = name if name in names else "NAME"
            raise InputError(
                f"{name} = {table!r:.60} stands outside any table; settings of an experiment "
                f"stand below [{below}]"
            )
        require_known("experiment", name, names)


def settings_of(experiment: Experiment[Any], table: Mapping[str, Any], *, quick: bool) -> Any:
    """The settings of an experiment's full or quick variant, with those of the table instead where
    it has some.
    """
    base = experiment.quick if quick else experiment.full
    hints = typing.get_type_hints(type(base))
    names = [field.name for field in fields(base)]
    changed = {}
    for name, value in table.items():
        require_known("setting", name, names, of=experiment.name)
        changed[name] = _taken(f"{experiment.name}.{name}", hints[name], value, getattr(base, name))
    try:
        return replace(base, **changed)
    except InputError as problem:
        raise InputError(f"[{experiment.name}] {problem}") from problem


def on_datasets(experiment: Experiment[Any], names: Sequence[str]) -> dict[str, Any]:
    """The table that runs an experiment on these datasets."""
    settings = {field.name for field in fields(experiment.full)}
    if "datasets" in settings:
        return {"datasets": list(names)}
    if "dataset" not in settings:
        raise InputError(
            f"{experiment.name} runs on data that it makes itself: it takes no dataset"
        )
    if len(names) > 1:
        raise InputError(
            f"{experiment.name} runs on one dataset at a time, and {len(names)} were named: "
            f"{', '.join(names)}"
        )
    return {"dataset": names[0]}


def require_known(what: str, name: str, choices: Iterable[str], *, of: str = "") -> None:
    """Refuse a name that is not known, with the nearest one that is, and all of them."""
    names = list(choices)
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    raise InputError(
        f"there is no {what} {name!r}{f' of {of}' if of else ''}.{guess} There are: "
        f"{', '.join(names)}"
    )


def as_dict(settings: Any) -> dict[str, Any]:
    """Settings as values of JSON, for results and keys."""
    return {name: _plain(value) for name, value in asdict(settings).items()}


def written(experiment: Experiment[Any], settings: Any) -> str:
    """The whole table of an experiment as TOML, with what each setting means."""
    meanings = _meanings(type(settings))
    lines = [f"# {experiment.title}", f"[{experiment.name}]"]
    for field in fields(settings):
        value = getattr(settings, field.name)
        meaning = field.metadata.get("help", "") or meanings.get(field.name, "")
        comment = f"  # {meaning}" if meaning else ""
        lines.append(
            f"# {field.name} is not set{comment}"
            if value is None
            else f"{field.name} = {_toml(value)}{comment}"
        )
    return "\n".join([*lines, *_chosen(experiment, settings)]) + "\n"


def _chosen(experiment: Experiment[Any], settings: Any) -> list[str]:
    """Settings of systems, which are in the cells' keys and not in the config, as comments."""
    keys = [
        cell.key
        for cell in experiment.cells(settings)
        if isinstance(cell.key.get("settings"), Mapping)
    ]
    lines = [
        f"#   {' '.join(str(key[name]) for name in ('dataset', 'system') if name in key)}: "
        + ", ".join(
            f"{name} = {_toml(value)}"
            for name, value in key["settings"].items()
            if value is not None
        )
        for key in keys
    ]
    return (
        ["# systems, with settings that expunge experiment sweep chose:", *dict.fromkeys(lines)]
        if lines
        else []
    )


# -- values ----------------------------------------------------------------------------------------


def _taken(name: str, hint: Any, value: Any, usual: Any) -> Any:
    """A value of TOML as the setting's type has it, or a refusal that says what would do."""
    converted = _converted(hint, value)
    if converted is _NO:
        example = f", such as {_toml(usual)}" if usual is not None else ""
        raise InputError(f"{name} = {value!r:.80} must be {_named(hint)}{example}")
    return converted


_NO = object()


def _converted(hint: Any, value: Any) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        options = (_converted(kind, value) for kind in inner if kind is not type(None))
        return next((option for option in options if option is not _NO), _NO)
    if origin is Literal:
        return value if value in inner else _NO
    if origin is tuple:
        return _converted_list(inner, value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint not in (bool, int, float, str):
        raise InputError(
            f"a setting of type {hint} cannot stand in a config: use numbers, words, booleans and "
            "tuples of these"
        )
    return value if type(value) is hint and not (hint is float and math.isnan(value)) else _NO


def _converted_list(inner: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, list):
        return _NO
    kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
    if len(kinds) != len(value):
        return _NO
    items = tuple(_converted(kind, item) for kind, item in zip(kinds, value, strict=True))
    return _NO if any(item is _NO for item in items) else items


def _named(hint: Any) -> str:
    """A type in words."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_named(kind) for kind in inner if kind is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in inner)
    if origin is tuple:
        many = inner[-1] is Ellipsis
        return (
            f"a list of which each is {_named(inner[0])}"
            if many
            else f"a list of {len(inner)}: {', '.join(map(_named, inner))}"
        )
    return {
        bool: "true or false",
        int: "a whole number",
        float: "a number (not nan)",
        str: "a word in quotes",
    }[hint]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return (
            '"'
            + "".join(
                character if character.isprintable() else f"\\U{ord(character):08x}"
                for character in escaped
            )
            + '"'
        )
    return repr(value)


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def _meanings(kind: type) -> dict[str, str]:
    """The comment after each field in the source of its class, which means the same in a config."""
    try:
        source = inspect.cleandoc("\n" + inspect.getsource(kind))
    except (OSError, TypeError):
        return {}
    names = {field.name for field in fields(kind)}
    meanings: dict[str, str] = {}
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            name = lines[token.start[0] - 1].split(":")[0].strip()
            text = token.string.lstrip("# ").strip()
            if name in names and not text.startswith("noqa"):
                meanings[name] = text
    return meanings
