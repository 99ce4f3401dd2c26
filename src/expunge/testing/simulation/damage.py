"""Damage to the files of a party that was stopped or killed: a bit that flips, a lost log.

Law: damage is told by an error of ours, or does no harm; one bit in a vault does no harm at all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from expunge.errors import ExpungeError, StoreDamagedError
from expunge.testing.simulation.federation import SimulatedFederation
from expunge.testing.simulation.parties import Party
from expunge.testing.simulation.scenario import DamageKind
from expunge.testing.simulation.world import LawBrokenError

_VAULTS = (".vault",)
_LOGS = ("-wal",)
_EMPTY = ("lock", "client.reserve", "server.reserve")  # they have nothing in them
_STOPPED = 0.5  # how often everybody stops in good order before
_SCRUBBED = 0.5  # how often it is scrubbed before it starts again
_WRITTEN = 0.8  # how often a bit flips where there is something


def damage(federation: SimulatedFederation, kind: DamageKind) -> Party:
    """Stop or kill a party, and damage one of its files; who it was."""
    chance = federation.world.chance
    if kind != "lost log" and chance.random() < _STOPPED:
        for party in federation.parties:  # so that databases are whole without their logs
            party.machine.mend()
            if party.is_up:
                party.attempt("stop", party.stop)
    candidates = [
        (party, name)
        for party in federation.parties
        for name, file in party.disk.root.files()
        if _is_of(kind, PurePath(name)) and (party.path / name).stat().st_size
    ]
    victim = chance.choice(sorted({party.name for party, _ in candidates} or {"server"}))
    (party,) = (party for party in federation.parties if party.name == victim)
    party.crash(power=False)
    names = [name for owner, name in candidates if owner is party]
    for other in federation.parties:
        other.problem = None
    if names:
        sizes = [(party.path / name).stat().st_size for name in names]
        ((name, size),) = chance.choices(list(zip(names, sizes, strict=True)), sizes)
        if kind == "lost log":
            left = chance.choice((0, chance.randrange(size)))
            party.disk.truncate(name, left)
            what = f"{name} has {left} of {size} bytes left"
        else:
            content = (party.path / name).read_bytes()
            written = [place for place, byte in enumerate(content) if byte]
            place = chance.choice(written) if chance.random() < _WRITTEN else chance.randrange(size)
            bit = 8 * place + chance.randrange(8)
            party.disk.flip(name, bit)
            what = f"bit {bit} of {name} has flipped"
        federation.world.tell(party.name, what)
        federation.world.count(f"damage: {kind}")
    return party


def _is_of(kind: DamageKind, path: PurePath) -> bool:
    if kind == "lost log":
        return path.name.endswith(_LOGS)
    is_vault = path.suffix in _VAULTS
    return is_vault if kind == "flipped bit in a vault" else not (is_vault or path.name in _EMPTY)


def tolerate(
    federation: SimulatedFederation, kind: DamageKind, victim: Party, check: Callable[[], None]
) -> None:
    """Check that the laws hold, unless the damage is told before it does harm: by a scrub that
    repairs what it can, which comes first or not, or by what fails. Entries of the log do harm to
    nobody who reads them; of a damaged one, a scrub in the end may tell.
    """
    try:
        if federation.world.chance.random() < _SCRUBBED:
            _scrub(victim, repair=True)
        check()
    except (LawBrokenError, ExpungeError) as problem:
        told = [party.problem for party in federation.parties if party.problem is not None]
        told += [problem] if isinstance(problem, ExpungeError) else []
        is_error = isinstance(problem, LawBrokenError) and problem.law == "errors"
        if is_error or kind == "flipped bit in a vault":
            raise
        if not told and isinstance(problem, LawBrokenError) and problem.law == "the log grows":
            told = _found_later(victim)
        if not told:
            raise
        federation.world.tell("damage", f"told: {told[0]}")
        federation.world.count("damage: told")
    else:
        if kind == "flipped bit in a vault":
            _require_unnoticed(federation)
        federation.world.count("damage: harmless")


def _require_unnoticed(federation: SimulatedFederation) -> None:
    for party in federation.parties:
        if party.problem is not None:
            raise LawBrokenError("a bit costs no key", f"{party.name}: {party.problem}")


def _found_later(victim: Party) -> list[ExpungeError]:
    victim.crash(power=False)
    try:
        _scrub(victim, repair=False)
    except ExpungeError as problem:
        return [problem]
    return []


def _scrub(victim: Party, *, repair: bool) -> None:
    """StoreDamagedError if any damage is left."""
    found = victim.scrub(repair=repair)
    victim.world.count("damage: scrubbed")
    if found:
        raise StoreDamagedError(f"the scrub of {victim.name} has found {found[0]}")
