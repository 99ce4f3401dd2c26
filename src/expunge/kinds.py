"""Kinds, roles, statuses and phases: what the fields of messages, entries and stores may say.

What several packages say is listed here and nowhere else; kinds of one format alone stand beside
its table (log entries, payloads, messages of a round). The type checker knows every value, so that
a misspelled one is found before it runs. Values are those on the wire: another is another version.
"""

from __future__ import annotations

from typing import Literal, get_args

# What a spec allows clients to send: messages whose sums the server sees, or masked ones.
OpenKind = Literal["factor", "gram", "group", "rows"]
MessageKind = Literal[OpenKind, "masked"]
RequestKind = Literal[OpenKind, "none"]  # what a request holds
ChangeKind = Literal[RequestKind, "net"]  # what changes the ledger; "net": the sum of a round

Role = Literal["client", "officer", "operator"]
# "barred": its statistics were false, by the arbiter's verdict; it takes part in no round.
ClientStatus = Literal["active", "must-rejoin", "barred", "gone"]
# Of a client, as the log tells it to others; "going": to be forgotten by a rebuild to come.
PeerState = Literal["active", "away", "barred", "going", "gone"]
BundledState = Literal["open", "overdue", "complete"]  # of an order, as evidence has it
OrderState = Literal[BundledState, "closed", "lost"]  # and as the server lists it
AuditResult = Literal["equal", "different"]
AuditState = Literal[AuditResult, "under way", "abandoned"]  # abandoned by a restored server
# What a salted digest of the ledger is of: all of its sums; or the sums at an earlier place of the
# log, and which samples are live now.
Bound = Literal["sums", "samples"]
# Of a round of secure aggregation: what it is for; where it is at the server, and what it is to a
# client that asks; and where a participant is, by what it said last.
Purpose = Literal["change", "audit", "rebuild"]
Phase = Literal["joining", "sharing", "masking", "agreeing", "revealing", "done"]
AnsweredPhase = Literal[Phase, "aborted", "closed"]
Stage = Literal["joined", "shared", "masked", "agreed", "revealed"]
# Why the sum of a round was not applied: it is that of no samples, it would leave no head, or the
# shares that a client dealt do not open its mask.
VoidReason = Literal["impossible", "headless", "irrecoverable"]
SampleState = Literal["adding", "live", "withdrawn", "deleting"]  # in client/states.py

MESSAGES: tuple[MessageKind, ...] = get_args(MessageKind)
ROLES: tuple[Role, ...] = get_args(Role)
CLIENT_STATUSES: tuple[ClientStatus, ...] = get_args(ClientStatus)
PEER_STATES: tuple[PeerState, ...] = get_args(PeerState)
REQUEST_KINDS: tuple[RequestKind, ...] = get_args(RequestKind)
BUNDLED_STATES: tuple[BundledState, ...] = get_args(BundledState)
ORDER_STATES: tuple[OrderState, ...] = get_args(OrderState)
BOUND: tuple[Bound, ...] = get_args(Bound)
AUDIT_RESULTS: tuple[AuditResult, ...] = get_args(AuditResult)
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
PHASES: tuple[Phase, ...] = get_args(Phase)
ANSWERED_PHASES: tuple[AnsweredPhase, ...] = get_args(AnsweredPhase)
STAGES: tuple[Stage, ...] = get_args(Stage)
VOID_REASONS: tuple[VoidReason, ...] = get_args(VoidReason)
