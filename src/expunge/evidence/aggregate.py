"""What the receipt of a round of secure aggregation shows, in words."""

from __future__ import annotations

from expunge.evidence import account
from expunge.evidence.certificate import MASKED_CLIENTS
from expunge.evidence.finding import STANDS, Finding
from expunge.evidence.receipt import Receipt
from expunge.evidence.wording import listed, moment, number, samples

_ONLY_SUMS = (
    "The server learnt the sums over these clients and nothing of any single one, if it and those that collude with it follow "
    "the protocol and are no more than the spec's rules allow."
)
_WHOSE = (
    "How many samples this client itself added or deleted: nobody but the client can tell. Its own store says which of its "
    "samples took part in this request."
)


def round_finding(receipt: Receipt, now: str | None) -> Finding:
    """What a receipt of a round shows, what that rests on, and what it does not show."""
    entry, index = receipt.logged.entry, receipt.logged.index
    clients = [member["client"] for member in entry["clients"]]
    facts = [
        ("Client", receipt.client),
        ("Request", str(receipt.sequence)),
        ("Took effect", moment(entry["time"])),
        ("Secure aggregation over", number(len(clients), "client")),
        ("Clients included", listed(clients)),
        ("Added by all of them", samples(entry["added"])),
        ("Deleted by all of them", samples(entry["deleted"])),
        *account.effects(receipt),
    ]
    proved = [
        (
            f"The server confirmed that request {receipt.sequence} of {receipt.client} took effect on {moment(entry['time'])}, "
            f"in a round of secure aggregation with {number(len(clients) - 1, 'other client')}: together "
            f"{samples(entry['added'])} added, {samples(entry['deleted'])} deleted."
        ),
        f"This is entry {index} of the federation's audit log. {STANDS}",
        account.promise_of("The sum of the round", entry["erased_by"], now),
    ]
    return Finding(
        "receipt",
        f"Receipt for request {receipt.sequence} of {receipt.client}, in a round of {number(len(clients), 'client')}",
        facts,
        proved,
        [account.SERVER_KEY, account.CRYPTOGRAPHY, MASKED_CLIENTS, account.SOFTWARE, account.ONE_LOG, _ONLY_SUMS],
        [*account.not_proved_by_receipt(), _WHOSE],
    )
