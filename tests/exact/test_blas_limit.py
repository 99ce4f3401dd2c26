from __future__ import annotations

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


def test_the_limit_outlives_what_is_limited_for_a_while() -> None:
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "{1}"
