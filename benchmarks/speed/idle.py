"""Whether a timing has the machine to itself."""

from __future__ import annotations

import os

MOST = 0.5


def load() -> float:
    """Load of the machine in the last minute, before anything is timed.

    Raises:
        SystemExit: other work uses the machine, and the variable BUSY is not set.
    """
    found = os.getloadavg()[0]
    if found > MOST and not os.environ.get("BUSY"):
        raise SystemExit(
            f"the machine's load is {found:.1f}, expected at most {MOST}: other work would be "
            "timed too; wait, or set BUSY=1, and the result states the load"
        )
    return found
