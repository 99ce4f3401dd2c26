"""A whole federation in one folder and one process: for programs, experiments and the command
line.
"""

from expunge.federation.embedded import Client, Federation

__all__ = ["Client", "Federation"]
