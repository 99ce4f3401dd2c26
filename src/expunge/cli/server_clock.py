"""`expunge server correct-clock`: after the server's clock was ahead."""

from __future__ import annotations

import time
from pathlib import Path

from expunge.cli._command import command
from expunge.cli._connect import office_at
from expunge.cli._options import office_options, yes_option
from expunge.cli._output import Screen, count, facts, line, title
from expunge.wire.schema import time_text


@command("correct-clock")
@yes_option
@office_options
def correct_clock(yes: bool, office: Path | None, at: str | None) -> None:
    """Let the server go on from the right time after its clock was ahead.

    Times in the audit log never go back by themselves: what was stamped with a time to come makes
    all that follows stand still. Set the clock of the server's machine right first; the one of this
    machine must agree with it. The log then says from which entry on, and by how much, times were
    ahead, and stamps follow the clock again. Deadlines of orders, and tokens, that were given
    meanwhile are brought nearer by as much. Nothing in the log is changed, and evidence of before
    stays valid.

    Example:
      expunge server correct-clock --office federation/operator
    """
    screen = Screen.current()
    screen.confirm("Is the clock of the server's machine right now?", yes=yes)
    with office_at(office, at) as connection:
        done = connection.office.do("correct-clock", {"time": time_text(time.time())})
    screen.result(
        done,
        title("Stamps follow the server's clock again"),
        facts(
            [
                ("Ahead since", f"entry {done['first']} of the log"),
                ("By", count(done["ahead"], "second")),
            ]
        ),
        line("The log says so: whoever reads it knows how to read the times in between."),
    )


def clock_problem(clock: dict[str, int], tolerance: int) -> str:
    """What is wrong with a server's clock by its status, and what to do; empty if nothing is."""
    if clock["jumped_ahead"] > tolerance:
        return f"jumped ahead by {count(clock['jumped_ahead'], 'second')}: set it right"
    if clock["ahead_of_clients"] > tolerance:
        return f"{count(clock['ahead_of_clients'], 'second')} ahead of most clients: set it right"
    if clock["stamps_ahead"] > tolerance:
        return (
            f"the log is stamped {count(clock['stamps_ahead'], 'second')} ahead of it: if it is "
            "right, expunge server correct-clock"
        )
    return ""
