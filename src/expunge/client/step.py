"""Whether a client's store and the server are in step, by what each says of the other's requests."""

from __future__ import annotations

from expunge.client.answer import Answer
from expunge.client.store import ClientStore
from expunge.errors import EvidenceError, StoreError


def require_in_step(store: ClientStore, answer: Answer) -> None:
    """A store that is an old copy must not go on: it would delete what is gone, and not know of what it has added."""
    if answer.status == "must-rejoin":
        if store.gone:  # restored to a time before it forgot this client, or before the client left
            store.remember({"gone": "", "left": ""})
        return
    if store.gone:
        raise EvidenceError(f"the server said that it knows {store.name} no longer, and now says that it does")
    outstanding = store.composed()
    known = store.sequence if outstanding is None else outstanding.sequence
    rejoining = outstanding is not None and outstanding.reset
    if answer.sequence > known or (store.recall("rejoin") == "1" and not rejoining):
        raise StoreError(
            f"the server has receipted {answer.sequence} requests of {store.name}, this store knows of {known}: it is an old "
            "copy, whose samples can be read, but which cannot go on. Put the newest copy back. If there is none: have the "
            f"operator forget this client (expunge server forget-client {store.name}), enrol a new one under another name, "
            "add the samples there again from where they came, and erase this copy (expunge client leave)"
        )
    if answer.sequence < store.sequence:
        raise EvidenceError(
            f"the server has forgotten requests that it receipted: it knows of {answer.sequence}, this client has receipts "
            f"up to {store.sequence}. Show the receipts to the operator"
        )
