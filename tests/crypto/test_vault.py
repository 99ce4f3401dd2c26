"""Laws of the vault: what is sealed opens while its key is there, and never after."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.crypto import vault as module
from expunge.crypto.vault import KEY_BYTES, SECTOR, SLOT_BYTES, Vault
from expunge.errors import ShreddedError, StoreError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.vault"


def test_what_is_sealed_opens_and_differs_each_time(path: Path) -> None:
    with Vault.create(path) as vault:
        (slot,) = vault.new()
        first, second = vault.seal(slot, b"secret", b"here"), vault.seal(slot, b"secret", b"here")
        assert first != second
        assert b"secret" not in first
        assert (
            vault.unseal(slot, first, b"here") == vault.unseal(slot, second, b"here") == b"secret"
        )


def test_keys_survive_reopening(path: Path) -> None:
    with Vault.create(path) as vault:
        slots = vault.new(300)
        sealed = [vault.seal(slot, str(slot).encode(), b"") for slot in slots]
        tag = vault.mac(slots[7], b"name")
    with Vault.open(path) as vault:
        assert vault.live() == set(slots) == set(range(300))
        assert [
            vault.unseal(slot, data, b"") for slot, data in zip(slots, sealed, strict=True)
        ] == [str(slot).encode() for slot in slots]
        assert vault.mac(slots[7], b"name") == tag != vault.mac(slots[8], b"name")


def test_the_file_is_for_its_owner_only(path: Path) -> None:
    Vault.create(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_existing_file_is_not_overwritten(path: Path) -> None:
    path.write_bytes(b"precious")
    with pytest.raises(StoreError, match="exists already"):
        Vault.create(path)
    assert path.read_bytes() == b"precious"


def test_a_failed_creation_leaves_no_mirror_behind(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"precious")
    with pytest.raises(StoreError, match="exists already"):
        Vault.create(path, [tmp_path / "mirror"])
    assert sorted(tmp_path.iterdir()) == [path]


def test_the_lowest_empty_slots_are_reused(path: Path) -> None:
    with Vault.create(path) as vault:
        assert vault.new(5) == [0, 1, 2, 3, 4]
        vault.shred([3, 1])
        assert vault.new(3) == [1, 3, 5]
        assert vault.new(0) == vault.new(-1) == []
        assert vault.new(200) == list(range(6, 206))
        assert vault.live() == set(range(206))


def test_a_shredded_key_is_nowhere_in_the_file(path: Path) -> None:
    with Vault.create(path) as vault:
        vault.new(3)
        key = path.read_bytes()[SECTOR + SLOT_BYTES : SECTOR + SLOT_BYTES + KEY_BYTES]
        sealed = vault.seal(1, b"secret", b"")
        vault.shred([1])
        assert key not in path.read_bytes()
        with pytest.raises(ShreddedError, match="slot 1 is empty"):
            vault.unseal(1, sealed, b"")
        vault.shred([1, 77])
        assert vault.live() == {0, 2}


def test_a_later_key_in_the_slot_does_not_open_what_an_earlier_one_sealed(path: Path) -> None:
    with Vault.create(path) as vault:
        (slot,) = vault.new()
        sealed = vault.seal(slot, b"secret", b"")
        vault.shred([slot])
        assert vault.new() == [slot]
        with pytest.raises(ShreddedError, match="another key"):
            vault.unseal(slot, sealed, b"")


@given(position=st.integers(0, 40), flip=st.integers(1, 255))
@settings(max_examples=60, deadline=None)
def test_any_altered_byte_is_refused(position: int, flip: int) -> None:
    with tempfile.TemporaryDirectory() as folder, Vault.create(Path(folder) / "v") as vault:
        (slot,) = vault.new()
        sealed = bytearray(vault.seal(slot, b"text", b"context"))
        assert len(sealed) == 41
        sealed[position] ^= flip
        with pytest.raises(StoreError):
            vault.unseal(slot, bytes(sealed), b"context")


def test_altered_text_is_not_called_shredded(path: Path) -> None:
    with Vault.create(path) as vault:
        first, second = vault.new(2)
        sealed = vault.seal(first, b"text", b"context")
        for wrong in (
            sealed[:-1] + bytes([sealed[-1] ^ 1]),
            sealed[:20],
            b"\x02" + sealed[1:],
            b"",
        ):
            with pytest.raises(StoreError) as caught:
                vault.unseal(first, wrong, b"context")
            assert not isinstance(caught.value, ShreddedError)
        with pytest.raises(StoreError, match="altered"):
            vault.unseal(first, sealed, b"another context")
        with pytest.raises(ShreddedError):
            vault.unseal(second, sealed, b"context")


def test_keep_only_shreds_the_rest(path: Path) -> None:
    with Vault.create(path) as vault:
        vault.new(6)
        assert vault.keep_only({1, 4, 99}) == 4
        assert vault.live() == {1, 4}
        assert vault.keep_only([1, 4]) == 0
    with Vault.open(path) as vault:
        assert vault.live() == {1, 4}


@pytest.mark.parametrize("size", [0, 10, 47, 60, SECTOR, SECTOR + 50, 9 * SECTOR - 1])
def test_a_truncated_vault_is_refused(path: Path, size: int) -> None:
    with Vault.create(path) as vault:
        vault.new(100)
    os.truncate(path, size)
    with pytest.raises(StoreError, match="truncated"):
        Vault.open(path)


def test_other_files_and_other_versions_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be opened.*copy the mirror"):
        Vault.open(path)
    Vault.create(path).close()
    content = path.read_bytes()
    path.write_bytes(content[:14] + b"\x05" + content[15:])
    with pytest.raises(StoreError, match="version 5"):
        Vault.open(path)
    path.write_bytes(b"x" * 200)
    with pytest.raises(StoreError, match="are not a vault"):
        Vault.open(path)


def test_a_closed_vault_says_so(path: Path) -> None:
    vault = Vault.create(path)
    (slot,) = vault.new()
    vault.close()
    vault.close()
    for use in (vault.new, lambda: vault.seal(slot, b"", b""), lambda: vault.shred([slot])):
        with pytest.raises(StoreError, match="closed"):
            use()


def test_a_growth_that_was_interrupted_is_harmless(path: Path) -> None:
    with Vault.create(path) as vault:
        vault.new(2)
        sealed = vault.seal(1, b"text", b"")
    with path.open("ab") as file:
        file.write(b"\x07" * 45)
    with Vault.open(path) as vault:
        assert vault.live() == {0, 1}
        assert len(vault.new(500)) == 500
        assert vault.unseal(1, sealed, b"") == b"text"
    with Vault.open(path) as vault:
        assert vault.live() == set(range(502))


class TestMirrors:
    def test_every_change_is_in_every_mirror(self, path: Path, tmp_path: Path) -> None:
        mirrors = [tmp_path / "m1", tmp_path / "m2"]
        with Vault.create(path, mirrors) as vault:
            vault.new(200)
            vault.shred(range(0, 200, 3))
        assert path.read_bytes() == mirrors[0].read_bytes() == mirrors[1].read_bytes()

    def test_a_lost_vault_is_restored_from_its_mirror_and_stays_shredded(
        self, path: Path, tmp_path: Path
    ) -> None:
        mirror = tmp_path / "m"
        with Vault.create(path, [mirror]) as vault:
            kept, gone = vault.new(2)
            sealed = {slot: vault.seal(slot, b"text", b"") for slot in (kept, gone)}
            vault.shred([gone])
        shutil.copy(mirror, path)
        with Vault.open(path, [mirror]) as vault:
            assert vault.unseal(kept, sealed[kept], b"") == b"text"
            with pytest.raises(ShreddedError):
                vault.unseal(gone, sealed[gone], b"")

    @pytest.mark.parametrize("old", ["vault", "mirror"])
    def test_an_old_copy_brings_nothing_back(self, path: Path, tmp_path: Path, old: str) -> None:
        mirror, copy = tmp_path / "m", tmp_path / "copy"
        with Vault.create(path, [mirror]) as vault:
            vault.new(3)
            shutil.copy(path, copy)
            vault.shred([0])
            added = vault.new(150)
            sealed = vault.seal(added[-1], b"text", b"")
        old_key = copy.read_bytes()[SECTOR : SECTOR + KEY_BYTES]
        shutil.copy(copy, path if old == "vault" else mirror)
        with Vault.open(path, [mirror]) as vault:
            assert vault.unseal(added[-1], sealed, b"") == b"text"
        assert path.read_bytes() == mirror.read_bytes()
        assert old_key not in path.read_bytes()

    def test_on_a_tie_the_vault_itself_is_taken(self, path: Path, tmp_path: Path) -> None:
        mirror = tmp_path / "m"
        with Vault.create(path, [mirror]) as vault:
            vault.new(3)
        with mirror.open(
            "r+b"
        ) as file:  # a key that was written to the mirror only, and that nothing refers to
            file.seek(SECTOR + 7 * SLOT_BYTES)
            file.write(b"k" * KEY_BYTES)
        with Vault.open(path, [mirror]) as vault:
            assert vault.live() == {0, 1, 2}
        assert path.read_bytes() == mirror.read_bytes()
        assert b"kkkk" not in mirror.read_bytes()

    def test_a_newer_mirror_with_fewer_slots_leaves_no_key_behind(
        self, path: Path, tmp_path: Path
    ) -> None:
        mirror = tmp_path / "m"
        with Vault.create(path, [mirror]) as vault:
            vault.new(3)
        with Vault.open(path) as vault:
            vault.new(500)
        with Vault.open(mirror) as vault:
            for slot in range(3):
                vault.shred([slot])
        with Vault.open(path, [mirror]) as vault:
            assert vault.live() == set()
        assert path.read_bytes() == mirror.read_bytes()
        assert not any(path.read_bytes()[SECTOR:])

    def test_a_mirror_of_another_vault_is_refused(self, path: Path, tmp_path: Path) -> None:
        Vault.create(path).close()
        Vault.create(tmp_path / "other").close()
        before = (tmp_path / "other").read_bytes()
        with pytest.raises(StoreError, match="not all of this vault"):
            Vault.open(path, [tmp_path / "other"])
        assert (tmp_path / "other").read_bytes() == before

    def test_a_missing_mirror_is_a_warning_and_can_come_back(
        self, path: Path, tmp_path: Path
    ) -> None:
        mirror, away = tmp_path / "m", tmp_path / "away"
        with Vault.create(path, [mirror]) as vault:
            vault.new(3)
        mirror.rename(away)
        with Vault.open(path, [mirror]) as vault:
            (warning,) = vault.warnings
            assert f"the mirror {mirror} of {path} is left out (No such file" in warning
            vault.shred([1])
        assert not mirror.exists()
        away.rename(mirror)
        with Vault.open(path, [mirror]) as vault:
            assert vault.warnings == []
            assert vault.live() == {0, 2}
        assert path.read_bytes() == mirror.read_bytes()

    def test_a_mirror_that_cannot_be_read_is_left_as_it_is(
        self, path: Path, tmp_path: Path
    ) -> None:
        mirror = tmp_path / "m"
        with Vault.create(path) as vault:
            vault.new(3)
        mirror.write_bytes(b"precious" * 100)
        with Vault.open(path, [mirror]) as vault:
            assert "are not a vault" in vault.warnings[0]
            vault.new(3)
        assert mirror.read_bytes() == b"precious" * 100

    def test_a_mirror_can_be_added(self, path: Path, tmp_path: Path) -> None:
        mirror = tmp_path / "m"
        with Vault.create(path) as vault:
            vault.new(3)
            vault.shred([1])
            vault.add_mirror(mirror)
            vault.new(200)
        assert path.read_bytes() == mirror.read_bytes()

    @pytest.mark.parametrize("act", ["new", "shred"])
    def test_a_mirror_that_fails_is_an_error_before_the_vault_changes(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
    ) -> None:
        mirror = tmp_path / "m"
        vault = Vault.create(path, [mirror])
        vault.new(2)
        sealed = vault.seal(0, b"text", b"")
        before = path.read_bytes()

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(module.os, "pwrite", full)
            with pytest.raises(StoreError, match=r"m cannot be written: No space"):
                vault.new(500) if act == "new" else vault.shred([0])
        assert path.read_bytes() == before
        assert vault.live() == {0, 1}
        assert vault.unseal(0, sealed, b"") == b"text"
        assert vault.new(2) == [2, 3]
        vault.close()
        assert path.read_bytes() == mirror.read_bytes()


@pytest.mark.parametrize("survive", range(12))
@pytest.mark.parametrize("act", ["new", "shred"])
def test_a_crash_at_any_write_harms_no_key_that_is_referred_to(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str, survive: int
) -> None:
    """The process stops before its n-th write, the one before that was torn; both files are then
    opened again.
    """
    mirror = tmp_path / "m"
    vault = Vault.create(path, [mirror])
    vault.new(128)
    vault.shred([3, 5])
    kept = {slot: vault.seal(slot, b"text", b"") for slot in vault.live() - {7, 8}}
    doomed = {slot: vault.seal(slot, b"text", b"") for slot in (7, 8)}
    left = [survive]
    real = os.pwrite

    class CrashError(BaseException):
        pass

    def crashing(descriptor: int, data: bytes, offset: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            real(descriptor, bytes(data)[: len(data) // 2], offset) if offset else None
            raise CrashError
        return real(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "pwrite", crashing)
        try:
            vault.new(140) if act == "new" else vault.shred(doomed)
        except CrashError:
            pass
        else:
            assert survive >= 4
    with Vault.open(path, [mirror]) as again:
        again.keep_only(kept)
        assert again.live() == set(kept)
        assert all(again.unseal(slot, sealed, b"") == b"text" for slot, sealed in kept.items())
        assert again.new(4)[:2] == [3, 5]
        for slot, sealed in doomed.items():
            with pytest.raises(ShreddedError):
                again.unseal(slot, sealed, b"")
    assert path.read_bytes() == mirror.read_bytes()


def test_threads_get_slots_of_their_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "fsync", lambda _: None)
    with Vault.create(path) as vault:
        got: list[list[int]] = [[] for _ in range(8)]

        def work(mine: list[int]) -> None:
            for round_ in range(25):
                mine += vault.new(3)
                if round_ % 4 == 0:
                    vault.shred([mine.pop()])

        threads = [threading.Thread(target=work, args=(mine,)) for mine in got]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        everything = [slot for mine in got for slot in mine]
        assert len(everything) == len(set(everything)) == 8 * (75 - 7)
        assert vault.live() == set(everything)
