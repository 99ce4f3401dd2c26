"""Damage to the files of a vault: one flipped bit costs no key, with or without a mirror, and no
good copy is ever overwritten by a bad one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.crypto.vault import KEY_BYTES, SECTOR, SLOT_BYTES, SLOTS, ReadOnlyVault, Vault
from expunge.errors import ShreddedError, StoreError
from expunge.frame import pack
from support.federation import scratch

HEADER = 14 + 1 + 16 + 8 + 8 + 4
Sealed = dict[int, bytes]


def filled(path: Path, mirrors: list[Path], count: int = 20) -> Sealed:
    """A vault with so many keys, of which two are destroyed, and what the others have sealed."""
    with Vault.create(path, mirrors) as vault:
        slots = vault.new(count)
        vault.shred([3, 17])
        return {slot: vault.seal(slot, b"text", b"") for slot in slots if slot not in (3, 17)}


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def fill(path: Path, start: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[start : start + len(data)] = data
    path.write_bytes(content)


def place(slot: int) -> int:
    return SECTOR * (1 + slot // SLOTS) + SLOT_BYTES * (slot % SLOTS)


def all_open(vault: Vault, sealed: Sealed) -> bool:
    return all(vault.unseal(slot, data, b"") == b"text" for slot, data in sealed.items())


def opened(path: Path, mirrors: list[Path], sealed: Sealed) -> list[str]:
    """Nothing is lost, and nothing has come back; what was warned of."""
    with Vault.open(path, mirrors) as vault:
        vault.keep_only(sealed)
        assert all_open(vault, sealed)
        assert vault.live() == set(sealed)
        warnings = list(vault.warnings)
    for mirror in mirrors:
        assert mirror.read_bytes() == path.read_bytes()
    with Vault.open(path, mirrors) as vault:
        assert all_open(vault, sealed)
        assert vault.warnings == []
    return warnings


# -- one bit ---------------------------------------------------------------------------------------

BITS = [*range(8 * HEADER), *(8 * place(slot) + bit for slot in (0, 3, 15) for bit in range(288))]


@pytest.mark.parametrize("damaged", ["alone", "vault", "mirror"])
def test_no_flipped_bit_costs_a_key(tmp_path: Path, damaged: str) -> None:
    """Every bit of the header, of two keys and of an empty slot, one after another."""
    path, mirrors = tmp_path / "v", [] if damaged == "alone" else [tmp_path / "m"]
    sealed = filled(path, mirrors)
    good = path.read_bytes()
    for bit in BITS:
        for file in (path, *mirrors):
            file.write_bytes(good)
        flip(mirrors[0] if damaged == "mirror" else path, bit)
        said = " ".join(opened(path, mirrors, sealed))
        is_empty = place(3) <= bit // 8 < place(4)
        assert ("was damaged" in said) == (not is_empty or bool(mirrors))


def test_who_only_reads_puts_nothing_right(tmp_path: Path) -> None:
    path = tmp_path / "v"
    sealed = filled(path, [])
    flip(path, 8 * place(4) + 9)
    flip(path, 8 * 40)
    before = path.read_bytes()
    with ReadOnlyVault(path) as vault:
        assert all_open(vault, sealed)
    assert path.read_bytes() == before


@given(st.sets(st.integers(0, 8 * 36 - 1), min_size=2, max_size=3))
def test_a_key_is_not_guessed(bits: set[int]) -> None:
    """Where more bits have flipped, it is damaged, and not another key."""
    folder = scratch()
    path = folder / "v"
    sealed = filled(path, [])
    for bit in bits:
        flip(path, 8 * place(5) + bit)
    with Vault.open(path) as vault:
        with pytest.raises(StoreError, match=r"slot 5 of the vault .* is damaged") as caught:
            vault.unseal(5, sealed[5], b"")
        assert not isinstance(caught.value, ShreddedError)
        with pytest.raises(StoreError, match="is damaged"):
            vault.seal(5, b"more", b"")
        del sealed[5]
        assert all_open(vault, sealed)
    shutil.rmtree(folder)


# -- more than one bit, and a mirror ---------------------------------------------------------------


def garbled(path: Path) -> None:
    fill(path, place(5), b"\xa5" * SLOT_BYTES)


def zero_key(path: Path) -> None:
    fill(path, place(5), bytes(KEY_BYTES))


def zero_slot(path: Path) -> None:
    fill(path, place(5), bytes(SLOT_BYTES))


def zero_sector(path: Path) -> None:
    fill(path, SECTOR, bytes(SECTOR))


@pytest.mark.parametrize("which", ["vault", "mirror"])
@pytest.mark.parametrize("damage", [garbled, zero_key, zero_slot, zero_sector])
def test_a_slot_is_taken_from_the_file_in_which_it_is_whole(
    tmp_path: Path, damage: Callable[[Path], None], which: str
) -> None:
    path, mirror = tmp_path / "v", tmp_path / "m"
    sealed = filled(path, [mirror])
    damage(path if which == "vault" else mirror)
    opened(path, [mirror], sealed)


@pytest.mark.parametrize("damage", [garbled, zero_sector])
def test_each_file_may_be_damaged_elsewhere(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path, mirror = tmp_path / "v", tmp_path / "m"
    sealed = filled(path, [mirror])
    damage(path)
    fill(mirror, place(16), b"\x5a" * SLOT_BYTES)
    opened(path, [mirror], sealed)


def test_an_older_mirror_has_a_say_where_the_vault_is_damaged(tmp_path: Path) -> None:
    """What was sealed decides: the key of before, if the slot was not used anew since."""
    path, mirror = tmp_path / "v", tmp_path / "m"
    sealed = filled(path, [mirror])
    with Vault.open(path) as vault:  # without the mirror
        vault.shred([7, 9])
        del sealed[7], sealed[9]
        assert vault.new() == [3]
        assert vault.new() == [7]
        sealed |= {slot: vault.seal(slot, b"text", b"") for slot in (3, 7)}
    garbled(path)
    fill(path, place(7), b"\xa5" * SLOT_BYTES)
    with Vault.open(path, [mirror]) as vault:
        assert vault.unseal(5, sealed[5], b"") == b"text"
        assert "slot 5" in vault.warnings[-1]
        with pytest.raises(StoreError, match="slot 7"):  # the mirror has the key of before
            vault.unseal(7, sealed[7], b"")
        with pytest.raises(ShreddedError):
            vault.unseal(9, b"\x01" + bytes(60), b"")
        vault.shred([7])
        del sealed[7]
    opened(path, [mirror], sealed)


def test_two_whole_keys_in_one_slot_are_decided_by_what_was_sealed(tmp_path: Path) -> None:
    path, mirror, other = tmp_path / "v", tmp_path / "m", tmp_path / "other"
    sealed = filled(path, [mirror])
    filled(other, [])
    strange = other.read_bytes()[place(5) : place(5) + SLOT_BYTES]
    fill(path, place(5), strange)
    for _ in range(2):  # nothing is written before it is decided
        with (
            Vault.open(path, [mirror]) as vault,
            pytest.raises(StoreError, match="is damaged"),
        ):
            vault.seal(5, b"text", b"")
        assert strange in path.read_bytes()
        assert strange not in mirror.read_bytes()
    opened(path, [mirror], sealed)
    assert strange not in path.read_bytes()


# -- version 1 -------------------------------------------------------------------------------------


def as_first_version(path: Path) -> bytes:
    """The same vault as it was written before there were checksums."""
    content = path.read_bytes()
    slots = int.from_bytes(content[31:39], "little")
    keys = b"".join(content[place(slot) : place(slot) + KEY_BYTES] for slot in range(slots))
    old = content[:14] + b"\x01" + content[15:47]
    path.write_bytes(old.ljust(64, b"\0") + keys)
    return keys


def test_a_vault_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    path, mirror = tmp_path / "v", tmp_path / "m"
    sealed = filled(path, [mirror], 300)
    new = path.read_bytes()
    for file in (path, mirror):
        as_first_version(file)
    with ReadOnlyVault(path) as vault:
        assert all_open(vault, sealed)
    with path.open("rb") as old:
        opened(path, [mirror], sealed)
        assert not any(old.read())  # what lay there before
    assert path.read_bytes() == new
    assert sorted(tmp_path.iterdir()) == [mirror, path]


def test_of_the_first_version_too_no_bad_copy_is_taken(tmp_path: Path) -> None:
    path, mirror = tmp_path / "v", tmp_path / "m"
    sealed = filled(path, [mirror])
    for file in (path, mirror):
        as_first_version(file)
    flip(path, 8 * (64 + 5 * KEY_BYTES) + 1)  # a bit of a key
    fill(path, 64 + 6 * KEY_BYTES, bytes(KEY_BYTES))
    opened(path, [mirror], sealed)


def test_keys_beyond_what_the_first_header_says_are_not_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "v"
    filled(path, [])
    as_first_version(path)
    fill(path, 31, pack("Q", 0))
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"says that it has 0 slots.*keys beyond"):
        Vault.open(path)
    assert path.read_bytes() == before


def test_a_header_that_is_damaged_beyond_repair_is_refused(tmp_path: Path) -> None:
    path, mirror = tmp_path / "v", tmp_path / "m"
    sealed = filled(path, [mirror])
    for bit in (250, 260, 270):
        flip(path, bit)
    before = mirror.read_bytes()
    with pytest.raises(StoreError, match="its header is damaged; if there is a mirror"):
        Vault.open(path, [mirror])
    assert mirror.read_bytes() == before
    shutil.copy(mirror, path)
    opened(path, [mirror], sealed)
