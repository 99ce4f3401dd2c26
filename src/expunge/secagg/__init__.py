"""Exact secure aggregation: the server learns the sum over a round's clients, to the last bit, and
no client's own part of it, even if it lies.

SecAgg+ (Bell et al., CCS 2020, after Bonawitz et al., CCS 2017) over Z/2^128, with a consistency
round, for a server that tells clients whatever it likes, colludes with some of them, and clients
that drop out at any phase. A client's vector travels under masks that it shares with its
neighbours, which cancel in the sum, and under a mask of its own, which the neighbours help to take
off once it is certain who is in the sum: when most of the roster have signed one list. There is no
rounding and no noise: the sum's digest is that of the plain sum.

    client                                  server
    Participant.join  -- join -->           Collector.take, .advance
    .on_roster        <- roster --          all joins; each client checks their keys by its pins
                      -- shares -->         sealed shares of its two secrets for each neighbour
    .on_deliveries    <- deliveries --      its neighbours' shares
                      -- masked -->         the vector under all masks
    .on_survivors     <- survivors --       whose vectors arrived
                      -- agreed -->         its signature on that list
    .on_agreements    <- agreements --      the signatures of a quorum
                      -- reveal -->         for each neighbour one of the two shares
                                            Collector.sum, .included

What it does not cover: what the sum itself shows, and false vectors. plan.py has the inequalities
behind degree, threshold and quorum, and what is not proved for rounds of more than 128 clients.
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
