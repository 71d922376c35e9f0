"""The licence of every installed package, as its own metadata states it.

python benchmarks/licences.py
"""

from __future__ import annotations

from collections import defaultdict
from email.message import Message
from importlib.metadata import distributions
from typing import cast

UNKNOWN = "not stated"
# A licence's text in place of its name is longer.
LONGEST = 80


def stated(metadata: Message) -> str:
    """The SPDX expression or, without one, the classifiers or a short licence field."""
    if expression := metadata.get("License-Expression"):
        return str(expression)
    prefix = "License :: "
    classifiers = [
        each.rpartition(" :: ")[2]
        for each in metadata.get_all("Classifier", [])
        if each.startswith(prefix) and each != f"{prefix}OSI Approved"
    ]
    if classifiers:
        return " or ".join(classifiers)
    field = str(metadata.get("License") or "").strip()
    return field if 0 < len(field) <= LONGEST and "\n" not in field else UNKNOWN


def main() -> None:
    """Print licences, each with its packages."""
    packages: dict[str, set[str]] = defaultdict(set)
    for each in distributions():
        packages[stated(cast(Message, each.metadata))].add(
            f"{each.metadata['Name']} {each.version}"
        )
    for licence, names in sorted(packages.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"{licence} ({len(names)}): {', '.join(sorted(names, key=str.lower))}")


if __name__ == "__main__":
    main()
