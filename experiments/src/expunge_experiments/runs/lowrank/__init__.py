"""The experiment `lowrank`: low-rank and sketched messages."""
