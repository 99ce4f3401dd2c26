"""`expunge client`: a client's samples, and what it says to the server."""

from __future__ import annotations

from expunge.cli._command import LazyCommand, group


@group(
    lazy={
        "add": LazyCommand(
            "expunge.cli.client_changes:add",
            "Add samples from FILES and send them to the server.",
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
            "Export samples with everything this client holds about them.",
        ),
        "sync": LazyCommand(
            "expunge.cli.client_sync:sync",
            "Send pending changes, carry out erasure orders, answer audits, fetch the newest head.",
        ),
        "status": LazyCommand(
            "expunge.cli.client_status:status",
            "Show status: samples, pending changes, last receipt, head.",
        ),
        "list": LazyCommand(
            "expunge.cli.client_list:list_samples",
            "List samples: id, subject, label, state and time, not features.",
        ),
        "scrub": LazyCommand(
            "expunge.cli.scrub:scrub_store",
            "Read everything in this client's store, and say what is damaged.",
        ),
        "backup": LazyCommand(
            "expunge.cli.client_backup:backup",
            "Back up this client's store into the new folder TARGET.",
        ),
        "restore": LazyCommand(
            "expunge.cli.client_backup:restore",
            "Restore a client's store from a backup into the new folder DIRECTORY.",
        ),
        "leave": LazyCommand(
            "expunge.cli.client_sync:leave",
            "Leave the federation: delete everything this client added, here and at the server.",
        ),
        "receipts": LazyCommand(
            "expunge.cli.client_status:receipts",
            "List this client's receipts, or write them to files.",
        ),
        "key": LazyCommand(
            "expunge.cli.client_peers:own_key",
            "Print this client's own public key, for other clients to pin.",
        ),
        "peers": LazyCommand(
            "expunge.cli.client_peers:peers",
            "Show the keys that this client accepts from other clients.",
        ),
        "pin": LazyCommand(
            "expunge.cli.client_peers:pin",
            "Pin other clients' keys, after comparing them out of band.",
        ),
    }
)
def client() -> None:
    """Client commands: add, forget and correct samples, sync with the server, show status.

    A client's folder holds its samples (each sealed under its own key), pending changes, receipts
    and the newest head. A change is pending until the server's receipt arrives; deleted samples are
    then physically erased. Name the folder with --dir or the variable EXPUNGE_CLIENT.

    Example:
      export EXPUNGE_CLIENT=hospital-a
      expunge client add samples.csv
      expunge client forget --subject patient-4711
      expunge client status
    """
