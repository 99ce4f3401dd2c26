from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import scipy.linalg
from threadpoolctl import threadpool_info
from expunge.exact import threads
threads.limit_blas_threads(1)
with threads.one_blas_thread():
    pass
print({one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"})
"""


LATER = """
from threadpoolctl import threadpool_info
from expunge.exact import blas, threads
threads.limit_blas_threads(1)
blas.require_exact()
libraries = [one for one in threadpool_info() if one["user_api"] == "blas"]
assert any("scipy" in one["filepath"] for one in libraries), libraries
print({one["num_threads"] for one in libraries})
"""


def test_the_limit_holds_for_a_library_that_nothing_has_used_yet() -> None:
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", LATER],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "{1}"


def test_the_limit_outlives_what_is_limited_for_a_while() -> None:
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "{1}"
