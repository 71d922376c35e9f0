"""Run the project without Kedro's own command: `compo-pipeline run --pipeline=...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a Kedro command line (`run`, `registry list`, ...) on the project."""
    from kedro.framework.cli.cli import main as kedro

    sys.argv[1:] = list(sys.argv[1:] if arguments is None else arguments)
    kedro()


if __name__ == "__main__":
    main()
