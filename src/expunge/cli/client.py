"""`expunge client`: a client's samples, and what it says to the server."""

from __future__ import annotations

from expunge.cli._command import LazyCommand, group


@group(
    lazy={
        "add": LazyCommand(
            "expunge.cli.client_changes:add",
            "Add samples from FILES to a client's store, and send them to the server.",
        ),
        "forget": LazyCommand(
            "expunge.cli.client_changes:forget",
            "Forget samples: delete them here and, exactly, from the ledger and the head.",
        ),
        "correct": LazyCommand(
            "expunge.cli.client_changes:correct",
            "Correct the label or the feature of one sample.",
        ),
        "export": LazyCommand(
            "expunge.cli.client_export:export",
            "Export what this client holds of samples: id, subject, label, time added, state, "
            "source, feature.",
        ),
        "sync": LazyCommand(
            "expunge.cli.client_sync:sync",
            "Send what is pending, carry out erasure orders, answer audits, fetch the newest head.",
        ),
        "status": LazyCommand(
            "expunge.cli.client_status:status",
            "Show how a client stands: its samples, what is pending, its last receipt and head.",
        ),
        "list": LazyCommand(
            "expunge.cli.client_list:list_samples",
            "List the samples in a client's folder: id, subject, label, state and time; not the "
            "features.",
        ),
        "leave": LazyCommand(
            "expunge.cli.client_sync:leave",
            "Leave the federation: everything that this client ever added is deleted, here and at "
            "the server.",
        ),
        "receipts": LazyCommand(
            "expunge.cli.client_status:receipts",
            "List the receipts that this client holds, or write them to files; each is checked "
            "against the server's key.",
        ),
        "key": LazyCommand(
            "expunge.cli.client_peers:own_key",
            "Print this client's own public key, for others to pin.",
        ),
        "peers": LazyCommand(
            "expunge.cli.client_peers:peers",
            "Show whose keys this client believes in rounds of secure aggregation, and where it "
            "has each of them from.",
        ),
        "pin": LazyCommand(
            "expunge.cli.client_peers:pin",
            "Pin the keys of other clients, as you have compared them with each by a way that the "
            "server has no hand in.",
        ),
    }
)
def client() -> None:
    """A client's samples: add, forget, correct; sync with the server; see how things stand.

    A client's folder holds its samples (each sealed under a key of its own), what is pending, its
    receipts and the newest head. What is added or deleted is pending until the server's receipt is
    in hand; then what was deleted is physically gone. Name the folder by --dir or by the variable
    EXPUNGE_CLIENT.

    Example:
      export EXPUNGE_CLIENT=hospital-a
      expunge client add samples.csv
      expunge client forget --subject patient-4711
      expunge client status
    """
