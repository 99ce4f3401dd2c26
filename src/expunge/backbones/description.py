"""The one-line description of a backbone: `KIND:LOCATION?option=value&option=value`.

Law: `parsed(written(kind, location, options, {})) == (kind, location, options)`. In the location,
`%` and `?` are written as `%25` and `%3F`; in options, also `&`, `=` and `+` are written with `%`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, quote, unquote

from expunge.errors import BackboneError

_PLAIN = "/:,;@ "  # needs no escape within an option, and is easier to read without


def written(
    kind: str, location: str, options: Mapping[str, str], defaults: Mapping[str, str]
) -> str:
    """The description, without the options that have their default values."""
    given = [(name, value) for name, value in options.items() if defaults.get(name) != value]
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe=_PLAIN)}" for name, value in given)
    place = location.replace("%", "%25").replace("?", "%3F")
    return f"{kind}:{place}?{query}" if query else f"{kind}:{place}"


def parsed(text: str) -> tuple[str, str, dict[str, str]]:
    """Kind, location and options."""
    kind, colon, rest = text.partition(":")
    place, _, query = rest.partition("?")
    if not colon or not kind or not place:
        raise BackboneError(
            f"{text!r} describes no backbone: write KIND:LOCATION?option=value, such as "
            "hf:folder?pooling=cls"
        )
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), errors="strict"
        )
        location = unquote(place, errors="strict")
    except ValueError as problem:
        raise BackboneError(
            f"the options of {text!r} cannot be read ({problem}): write option=value&option=value"
        ) from problem
    options = dict(pairs)
    if len(options) != len(pairs):
        raise BackboneError(f"{text!r} gives an option twice; give each once")
    return kind, location, options


def joined(names: Sequence[str]) -> str:
    """Names of files as one option, with `;` between them.

    Law: `listed(joined(names)) == tuple(names)`.
    """
    return ";".join(name.replace("%", "%25").replace(";", "%3B") for name in names)


def listed(value: str | None) -> tuple[str, ...]:
    """The inverse of `joined`; none if the option is not given."""
    return tuple(unquote(name) for name in value.split(";")) if value else ()


class Options:
    """The options of one description, taken one by one; `finish` refuses those that nobody took."""

    def __init__(self, text: str, options: Mapping[str, str]) -> None:
        self._text = text
        self._left = dict(options)
        self._known: list[str] = []

    def text(self, name: str, default: str | None = None) -> str | None:
        """An option as it is written."""
        self._known.append(name)
        return self._left.pop(name, default)

    def needed(self, name: str) -> str:
        """An option that has no default."""
        value = self.text(name)
        if value is None:
            raise BackboneError(f"{self._text!r} lacks the option {name}: add {name}=...")
        return value

    def integer(self, name: str, default: int | None = None) -> int | None:
        """An option that is an integer."""
        value = self.text(name)
        try:
            return default if value is None else int(value)
        except ValueError as problem:
            raise BackboneError(f"{self._text!r}: {name}={value} must be an integer") from problem

    def numbers(self, name: str) -> tuple[float, ...] | None:
        """An option that is a list of numbers with commas between them."""
        value = self.text(name)
        try:
            return None if value is None else tuple(float(part) for part in value.split(","))
        except ValueError as problem:
            raise BackboneError(
                f"{self._text!r}: {name}={value} must be numbers with commas between them"
            ) from problem

    def yes(self, name: str) -> bool:
        """An option that is yes or no; no if it is not given."""
        value = self.text(name, "no")
        if value not in ("yes", "no"):
            raise BackboneError(f"{self._text!r}: {name}={value} must be yes or no")
        return value == "yes"

    def finish(self) -> None:
        """Raise BackboneError for options that are not known, rather than to compute something else
        than was meant.
        """
        if self._left:
            raise BackboneError(
                f"{self._text!r} has unknown options {', '.join(sorted(self._left))}; known are "
                f"{', '.join(sorted(self._known))}"
            )
