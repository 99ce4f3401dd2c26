"""Exact secure aggregation: a server that follows the protocol learns the sum over a round's
clients, to the last bit, and no client's own part of it.

SecAgg+ (Bell et al., CCS 2020, after Bonawitz et al., CCS 2017) over Z/2^128, for a server that
follows the protocol but is curious, and clients that drop out at any phase. A client's vector
travels under masks that it shares with its neighbours, which cancel in the sum, and under a mask of
its own, which the neighbours help to take off once it is certain who is in the sum. There is no
rounding and no noise: the sum's digest is that of the plain sum.

    client                                  server
    Participant.join  -- join -->           Collector.take, .advance
    .on_roster        <- roster --          all joins; each client checks their keys by its pins
                      -- shares -->         sealed shares of its two secrets for each neighbour
    .on_deliveries    <- deliveries --      its neighbours' shares
                      -- masked -->         the vector under all masks
    .on_survivors     <- survivors --       whose vectors arrived
                      -- reveal -->         for each neighbour one of the two shares
                                            Collector.sum, .included

What it does not cover: a server that lies. If it told some neighbours of a client that the client
survived and others that it did not, and had the threshold of holders on both sides (possible when
twice the threshold is not more than the number of holders and colluders), it could open that
client's vector. Each list is in a signed answer, so two of them prove the lie, and no client
answers a second one. Nor does it cover what the sum itself shows.
"""

from expunge.secagg.collector import Aborted, Collector
from expunge.secagg.masks import Contribution, MaskedVector, length
from expunge.secagg.messages import MessagePreamble, read_preamble
from expunge.secagg.participant import Participant
from expunge.secagg.plan import Opening, Plan, plan

__all__ = [
    "Aborted",
    "Collector",
    "Contribution",
    "MaskedVector",
    "MessagePreamble",
    "Opening",
    "Participant",
    "Plan",
    "length",
    "plan",
    "read_preamble",
]
