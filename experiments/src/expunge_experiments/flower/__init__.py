"""Compared systems on Flower: a job is described as data, done by two apps, and what came of it is
read from a file.

Importing this needs no Flower: only `apps` does, through `expunge.transport.flower`.
"""

from expunge_experiments.flower.job import Job, JobOutcome, JobRequest, SharedPool
from expunge_experiments.flower.measuring import measure

__all__ = ["Job", "JobOutcome", "JobRequest", "SharedPool", "measure"]
