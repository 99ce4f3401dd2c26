"""`python -m expunge`: the command line."""

from __future__ import annotations

from expunge.cli.main import main

if __name__ == "__main__":
    main(prog_name="expunge")
