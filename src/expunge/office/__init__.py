"""The office: how an operator or a privacy officer speaks to the server, each command exactly once."""

from expunge.office.office import Office

__all__ = ["Office"]
