"""Trees of aggregators: the root's ledger is that of retraining on all leaves, and evidence reaches
down to each of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest

from expunge import Aggregation, Spec, aggregator
from expunge.aggregator import Aggregator, Forwarder
from expunge.client import Agent, Selection
from expunge.client.scrub import scrub_client
from expunge.crypto import SigningKey, canonical
from expunge.errors import (
    CarrierError,
    EvidenceError,
    FormatError,
    ProtocolError,
    RefusedError,
    SpecError,
    StoreError,
)
from expunge.evidence import verify
from expunge.evidence.log import read_entry
from expunge.federation import Federation
from expunge.server.backup import restore
from expunge.server.scrub import scrub_server
from expunge.server.service import Service
from support.aggregators import SPEC, Tree


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    planted = Tree.planted(tmp_path)
    yield planted
    planted.close()


def fill(tree: Tree) -> None:
    for group, client in tree.held:
        tree.add(group, client)
    tree.sync()


def entries(tree: Tree, kind: str) -> list[dict[str, object]]:
    carrier = tree.root.carrier
    found = carrier.entries(0, carrier.state.log.size)
    return [entry for entry in map(read_entry, found) if entry["kind"] == kind]


def test_the_root_is_retrained_on_all_leaves(tree: Tree) -> None:
    fill(tree)
    tree.check()
    ids = tree.add("region-0", "client-1", 2)
    tree.sync()
    tree.check()
    tree.forget("region-0", "client-1", ids[:1])
    tree.sync()
    tree.check()
    last = entries(tree, "changed")[-1]
    assert (last["client"], last["message"], last["added"], last["deleted"]) == (
        "region-0",
        "group",
        0,
        1,
    )


def test_a_reset_within_a_group_reaches_the_root(tree: Tree) -> None:
    fill(tree)
    ids = tree.add("region-0", "client-0", 2)
    tree.sync()
    group = tree.groups["region-0"].group
    store = group.client("client-0").store
    store.forget(Selection(ids=tuple(ids[:1])), reset=True)
    del tree.held["region-0", "client-0"][ids[0]]
    (receipt,) = Agent(store, group.carrier).sync().receipts
    assert receipt.logged.entry["reset"]
    tree.sync()
    tree.check()
    tree.forget("region-0", "client-0", ids[1:])
    tree.sync()
    tree.check()


def test_nothing_new_is_not_forwarded(tree: Tree) -> None:
    fill(tree)
    size = tree.root.carrier.state.log.size
    tree.sync()
    assert tree.root.carrier.state.log.size == size


def test_several_requests_of_a_group_are_one_above(tree: Tree) -> None:
    fill(tree)
    before = len(entries(tree, "changed"))
    for _ in range(3):
        tree.add("region-1", "client-0", 1)
        tree.groups["region-1"].group.sync()
    tree.groups["region-1"].sync()
    tree.check()
    assert len(entries(tree, "changed")) == before + 1


def test_groups_of_groups(tmp_path: Path) -> None:
    tree = Tree.planted(tmp_path, groups=0)
    try:
        middle = Aggregator.found(
            tmp_path / "country",
            tree.root.token("country"),
            tree.root.carrier,
            messages=("gram", "group", "rows"),
        )
        tree.groups["town"] = Aggregator.found(
            tmp_path / "town", middle.group.token("town"), middle.group.carrier
        )
        tree.groups["town"].group.client("client-0")
        tree.held["town", "client-0"] = {}
        tree.groups["country"] = middle
        tree.add("town", "client-0", 4)
        tree.sync()
        tree.check()
    finally:
        tree.close()


@pytest.mark.parametrize(
    "rules",
    [Aggregation(fewest=3), Aggregation(fewest=3, every=3600, window=300)],
    ids=["when there are changes", "on a schedule"],
)
def test_secure_aggregation_within_each_group(tmp_path: Path, rules: Aggregation) -> None:
    tree = Tree.planted(tmp_path, clients=3, messages=("masked",), aggregation=rules)
    try:
        fill(tree)
        tree.check()
        order = tree.root.order("ann")
        tree.sync()
        tree.sync()
        shown = tree.root.office.ask("show-order", {"order": order})
        assert shown["state"] == "complete"
        assert {one["found"] for one in shown["answers"]} == {-1}
    finally:
        tree.close()


def test_a_passage_is_checked_with_the_key_of_the_root_alone(tree: Tree) -> None:
    fill(tree)
    group, key = tree.groups["region-0"], tree.root.carrier.state.folder.key.public
    data = group.passage("client-1", 1)
    finding = verify(data, key)
    assert finding.kind == "passage"
    assert dict(finding.facts)["Aggregator"] == "region-0"
    content = canonical.decode(data.strip())
    for name, value in (("client", "client-0"), ("sequence", 2)):
        other = {"passage": content["passage"] | {name: value}}
        with pytest.raises(EvidenceError):
            verify(canonical.encode(other), key)
    for place in range(0, len(data) - 1, 97):
        altered = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises((EvidenceError, FormatError)):
            verify(altered, key)
    with pytest.raises(EvidenceError):
        verify(data, group.group.carrier.state.folder.key.public)


def test_what_is_not_forwarded_has_no_passage(tree: Tree) -> None:
    fill(tree)
    tree.add("region-0", "client-0", 1)
    group = tree.groups["region-0"]
    group.group.sync()
    with pytest.raises(StoreError, match="not been forwarded yet"):
        group.passage("client-0", 2)
    with pytest.raises(StoreError, match="no request 9 of client-0"):
        group.passage("client-0", 9)
    group.sync()
    group.passage("client-0", 2)


def test_orders_go_down_and_answers_come_up(tree: Tree) -> None:
    fill(tree)
    ids = tree.add("region-1", "client-0", 2, subject="ann")
    tree.sync()
    order = tree.root.order("ann")
    for group in tree.groups.values():
        group.sync()  # learns of it
    assert tree.root.office.ask("show-order", {"order": order})["state"] == "open"
    for one in ids:
        del tree.held["region-1", "client-0"][one]
    tree.sync()  # the clients carry it out, the aggregators answer
    tree.check()
    shown = tree.root.office.ask("show-order", {"order": order})
    assert shown["state"] == "complete"
    assert {one["client"]: one["found"] for one in shown["answers"]} == {
        "region-0": 0,
        "region-1": 2,
    }
    verify(tree.root.bundle(order), tree.root.carrier.state.folder.key.public)


def test_nobody_answers_for_a_group_without_asking_it(tree: Tree) -> None:
    """A plain agent would find nobody in the store of an aggregator, which has no samples."""
    fill(tree)
    tree.add("region-0", "client-0", 1, subject="ann")
    tree.sync()
    order = tree.root.order("ann")
    upstream = tree.groups["region-0"].upstream
    with pytest.raises(ProtocolError, match=r"expunge aggregator sync .*region-0"):
        Agent(upstream, tree.root.carrier).sync()
    assert tree.root.office.ask("show-order", {"order": order})["answers"] == []


def test_an_answer_may_come_after_the_deletion_was_forwarded(tree: Tree) -> None:
    fill(tree)
    ids = tree.add("region-0", "client-0", 2, subject="ann")
    tree.sync()
    order = tree.root.order("ann")
    group = tree.groups["region-0"]
    group.sync()
    group.group.client("client-0").sync()  # deletes; client-1 has not answered yet
    for one in ids:
        del tree.held["region-0", "client-0"][one]
    group.sync()
    assert tree.root.office.ask("show-order", {"order": order})["state"] == "open"
    tree.sync()
    tree.check()
    shown = tree.root.office.ask("show-order", {"order": order})
    assert {one["client"]: one["found"] for one in shown["answers"]}["region-0"] == 2
    verify(tree.root.bundle(order), tree.root.carrier.state.folder.key.public)


def test_audits_compare_what_was_forwarded(tree: Tree) -> None:
    fill(tree)
    audit = tree.root.office.do("audit", {})["audit"]
    tree.sync()
    tree.root.carrier.upkeep.finish_audits()
    assert tree.root.office.ask("show-audit", {"audit": audit})["result"] == "equal"


def test_amendments_go_down(tree: Tree) -> None:
    fill(tree)
    tree.root.office.do("amend", {"gamma": (2.0).hex(), "labels": ["no", "yes", "perhaps"]})
    tree.sync()
    for group in tree.groups.values():
        assert group.group.carrier.state.spec.gamma == 2.0
    tree.add("region-0", "client-0", 1)
    tree.sync()
    tree.sync()
    tree.check()


def forward_until(heard: Event, forwarder: Forwarder) -> None:
    forwarder.start()
    try:
        assert heard.wait(10.0)
    finally:
        forwarder.stop()


def about_to_forward(tree: Tree) -> tuple[Aggregator, Service]:
    """A group that has changed, and its way to the server above."""
    fill(tree)
    tree.add("region-0", "client-0", 2)
    group = tree.groups["region-0"]
    group.group.sync()
    return group, tree.root.carrier


def test_a_forward_is_made_once_whatever_is_lost(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.reopen("region-0", sleep=lambda _: None)
    group, carrier = about_to_forward(tree)
    real = carrier.request

    def lost(data: bytes) -> bytes:
        real(data)
        raise CarrierError("the answer was lost")

    monkeypatch.setattr(carrier, "request", lost)
    with pytest.raises(CarrierError):
        group.sync()
    tree.add("region-0", "client-1", 1)  # the group goes on meanwhile
    group.group.sync()
    monkeypatch.setattr(carrier, "request", real)
    tree.reopen("region-0")
    tree.sync()
    tree.check()


def test_a_number_that_was_abandoned_does_not_count_as_forwarded(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, carrier = about_to_forward(tree)
    real = carrier.request
    refusals = [RefusedError("impossible", "a test")]

    def refused(data: bytes) -> bytes:
        if refusals:
            raise refusals.pop()
        return real(data)

    monkeypatch.setattr(carrier, "request", refused)
    with pytest.raises(RefusedError):
        group.sync()
    tree.root.office.do("audit", {})
    tree.sync()  # an answer to an audit uses the number, or the forward does
    tree.sync()
    tree.check()


def test_a_root_that_lost_its_ledger_gets_everything_again(tree: Tree) -> None:
    fill(tree)
    state = tree.root.carrier.state
    with state.changing():  # as a server is that was restored from a backup
        for name in state.clients("active"):
            state.storage.actors.put(replace(state.actor(name), status="must-rejoin"))
        for table in ("ledger", "subledgers", "journal"):
            state.storage.database.run(f"DELETE FROM {table}")  # noqa: S608 - our own names
    state.recover()
    tree.sync()
    tree.check()
    tree.add("region-1", "client-1", 1)
    tree.sync()
    tree.check()


def test_changes_that_cancel_out_have_their_passages(tree: Tree) -> None:
    fill(tree)
    ids = tree.add("region-0", "client-0", 1)
    group = tree.groups["region-0"]
    group.group.sync()
    tree.forget("region-0", "client-0", ids)
    tree.sync()
    for sequence in (2, 3):
        verify(group.passage("client-0", sequence), tree.root.office.server)
    size = tree.root.carrier.state.log.size
    tree.sync()
    assert tree.root.carrier.state.log.size == size
    tree.check()


def test_an_answer_that_changes_nothing_waits_for_the_next_change(tree: Tree) -> None:
    fill(tree)
    group = tree.groups["region-0"]
    group.group.audit()
    group.sync()
    with pytest.raises(StoreError, match=r"request 2 .* nothing: its passage comes with the next"):
        group.passage("client-0", 2)
    tree.add("region-0", "client-1", 1)
    tree.sync()
    verify(group.passage("client-0", 2), tree.root.office.server)


def test_an_order_that_the_group_has_closed_is_answered(tree: Tree) -> None:
    fill(tree)
    order = tree.root.order("ann")
    for group in tree.groups.values():
        group.sync()
        group.group.sync()
        (own,) = group.group.office.ask("orders", {})
        group.group.office.do("close-order", {"order": own["order"]})
    tree.sync()
    assert tree.root.office.ask("show-order", {"order": order})["state"] == "complete"


def restored(tree: Tree, path: Path, name: str) -> Path:
    """What a lost server is restored from: its newest backup, made now."""
    office = tree.root.office if name == "root" else tree.groups[name].group.office
    office.do("backup", {"name": "newest"})
    shutil.copytree(tree.folder / name / "server", path)
    return path


def lose(tree: Tree, name: str, saved: Path, *, with_vault: bool = True) -> None:
    """The server's folder is lost; there is what was restored from the backup."""
    (tree.root if name == "root" else tree.groups[name]).close()
    server = tree.folder / name / "server"
    shutil.rmtree(server)
    key = SigningKey.from_pem((saved / "server.key").read_bytes())
    restore(
        server,
        saved / "backups" / "newest",
        key,
        vault=saved / "server.vault" if with_vault else None,
    )
    if name == "root":
        tree.root = Federation.open(tree.folder / name)
        for group in tree.groups:
            tree.reopen(group)
    else:
        tree.open(name)


def sync_group(group: Aggregator) -> None:
    for name in ("client-0", "client-1"):
        group.group.client(name).agent.sync(accept_restored=True)


@pytest.mark.parametrize("with_vault", [True, False])
def test_a_group_that_was_restored_goes_on_with_orders_and_passages(
    tree: Tree, tmp_path: Path, with_vault: bool
) -> None:
    """The order of before the backup is lost with the vault, the one of after it anyway."""
    fill(tree)
    earlier = tree.root.order("ben")
    tree.groups["region-0"].sync()
    saved = restored(tree, tmp_path / "saved", "region-0")
    for _ in range(2):
        tree.add("region-0", "client-0", 1)
        tree.sync()
    order = tree.root.order("ann")
    tree.groups["region-0"].sync()  # files it in the group
    lose(tree, "region-0", saved, with_vault=with_vault)
    group = tree.groups["region-0"]
    for _ in range(3):
        sync_group(group)
        tree.groups["region-1"].group.sync()
        for each in tree.groups.values():
            each.sync()
    tree.check()
    for filed in (earlier, order):
        assert tree.root.office.ask("show-order", {"order": filed})["state"] == "complete"
    verify(group.passage("client-1", group.sequences("client-1")[-1]), tree.root.office.server)


def test_a_restored_group_forwards_its_new_log_though_its_ledger_is_the_same(
    tree: Tree, tmp_path: Path
) -> None:
    fill(tree)
    saved = restored(tree, tmp_path / "saved", "region-0")
    tree.groups["region-0"].group.office.do("fold", {})
    tree.add("region-0", "client-0", 1)
    tree.sync()
    lose(tree, "region-0", saved)
    group = tree.groups["region-0"]
    sync_group(group)  # it gets everything again
    for _ in range(2):
        group.sync()
    verify(group.passage("client-0", group.sequences("client-0")[-1]), tree.root.office.server)
    tree.check()


def test_a_scrub_finds_nothing_where_nothing_is_damaged(tree: Tree) -> None:
    fill(tree)
    folders = [tree.folder / name for name in ("root", *tree.groups)]
    for group in tree.groups.values():
        group.close()
    tree.root.close()
    assert [scrub_server(folder / "server").findings for folder in folders] == [[]] * 3
    uppers = [scrub_client(folder / "upstream").findings for folder in folders[1:]]
    assert uppers == [[]] * 2
    tree.root = Federation.open(tree.folder / "root")
    for name in tree.groups:
        tree.open(name)


def test_a_root_that_was_restored_is_accepted(tree: Tree, tmp_path: Path) -> None:
    fill(tree)
    order = tree.root.order("nobody")
    saved = restored(tree, tmp_path / "saved", "root")
    tree.add("region-0", "client-0", 1)
    for _ in range(2):
        tree.sync()
    assert tree.root.office.ask("show-order", {"order": order})["state"] == "complete"
    lose(tree, "root", saved)
    assert tree.root.office.ask("show-order", {"order": order})["state"] == "open"
    group = tree.groups["region-0"]
    with pytest.raises(EvidenceError, match="accept_restored=True"):
        group.sync()
    for _ in range(2):
        for each in tree.groups.values():
            each.sync(accept_restored=True)
    tree.check()
    assert tree.root.office.ask("show-order", {"order": order})["state"] == "complete"
    verify(group.passage("client-0", 2), tree.root.office.server)


def test_only_where_the_spec_allows_it(tmp_path: Path) -> None:
    root = Federation.found(tmp_path / "root", Spec(dim=4, labels=("no", "yes")))
    try:
        token = root.token("region")
        with pytest.raises(SpecError, match="group"):
            Aggregator.found(tmp_path / "region", token, root.carrier)
        assert [file.name for file in tmp_path.iterdir()] == ["root"]
    finally:
        root.close()


def test_a_federation_of_its_own_is_no_group(tree: Tree, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="federation of its own"):
        Aggregator(tmp_path / "root", tree.root.carrier)


def test_an_interrupted_founding_is_finished(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tree.root.token("region-9")

    def power_cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for step in ("found_federation", "Federation", "Office"):
        with monkeypatch.context() as patch:
            patch.setattr(aggregator, step, power_cut)
            if step == "Office":
                patch.setattr(aggregator, step, SimpleNamespace(enrol=power_cut))
            with pytest.raises(KeyboardInterrupt):
                Aggregator.found(tmp_path / "region-9", token, tree.root.carrier)
    Aggregator.found(tmp_path / "region-9", token, tree.root.carrier).close()
    assert not (tmp_path / "region-9.upstream").exists()


def test_bad_choices_are_refused_before_the_token_is_used(tree: Tree, tmp_path: Path) -> None:
    token = tree.root.token("region-9")
    with pytest.raises(SpecError, match="stand alone"):
        Aggregator.found(
            tmp_path / "region-9", token, tree.root.carrier, messages=("masked", "rows")
        )
    with pytest.raises(StoreError, match="not empty"):
        Aggregator.found(tmp_path / "root", token, tree.root.carrier)
    Aggregator.found(tmp_path / "region-9", token, tree.root.carrier).close()


def test_a_forwarder_keeps_in_step(tree: Tree) -> None:
    told: list[tuple[str, BaseException | None]] = []
    heard = Event()

    def report(what: str, problem: BaseException | None) -> None:
        told.append((what, problem))
        heard.set()

    fill(tree)
    tree.add("region-0", "client-0", 1)
    tree.groups["region-0"].group.sync()
    forward_until(heard, Forwarder(tree.groups["region-0"], 0.05, report))
    assert [problem for _, problem in told] == [None] * len(told)
    tree.check()


def test_a_forwarder_outlives_a_server_that_does_not_answer(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[BaseException | None] = []
    heard = Event()

    def report(_: str, problem: BaseException | None) -> None:
        told.append(problem)
        if problem is None:
            heard.set()

    def silent(_: bytes) -> bytes:
        if len(told) > 1:
            monkeypatch.undo()
        raise CarrierError("no answer")

    tree.add("region-0", "client-0", 1)
    group = tree.reopen("region-0", sleep=lambda _: None)
    group.group.sync()
    monkeypatch.setattr(tree.root.carrier, "sync", silent)
    forward_until(heard, Forwarder(group, 0.01, report))
    assert isinstance(told[0], CarrierError)
    tree.check()


def test_small_changes_wait_within_groups(tmp_path: Path) -> None:
    """The spec of the root holds in its groups, so that what is forwarded is of no fewer samples;
    a group that would show single samples is refused, and founded by the next attempt.
    """
    spec = replace(SPEC, messages=("group",), fewest_samples=3)
    with Federation.found(tmp_path / "root", spec) as root:
        token = root.token("north")
        with pytest.raises(SpecError, match="leave them out of messages"):
            Aggregator.found(tmp_path / "north", token, root.carrier)
        north = Aggregator.found(tmp_path / "north", token, root.carrier, messages=("gram",))
        clinic = north.group.client("clinic")
        assert clinic.add(["a", "b"], np.eye(4)[:2], ["no", "yes"]) == []
        assert north.sync().receipts == ()
        assert len(clinic.add(["c"], np.eye(4)[2:3], ["yes"])) == 1
        (receipt,) = north.sync().receipts
        assert receipt.samples_in_sum == 3
        clinic.store.forget(Selection(ids=["a"]))
        assert clinic.sync().backlog is not None
        assert len(clinic.sync(at_once=True).receipts) == 1
        north.close()
