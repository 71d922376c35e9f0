"""The licence of every installed package, as its own metadata states it.

python benchmarks/project/licences.py
"""

from __future__ import annotations

from collections import defaultdict
from email.message import Message
from importlib.metadata import distributions
from typing import cast

UNKNOWN = "not stated"
# A licence's whole text stands in some packages' field for its name.
_LONGEST = 80


def main() -> None:
    """Print licences, each with its packages."""
    packages: dict[str, set[str]] = defaultdict(set)
    for each in distributions():
        packages[stated_licence(cast(Message, each.metadata)) or UNKNOWN].add(
            f"{each.metadata['Name']} {each.version}"
        )
    for licence, names in sorted(packages.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"{licence} ({len(names)}): {', '.join(sorted(names, key=str.lower))}")


def stated_licence(metadata: Message) -> str | None:
    """Licence that a package's metadata state; None where they state none.

    It is the SPDX expression, else the classifiers, else a short field.
    """
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
    return field if 0 < len(field) <= _LONGEST and "\n" not in field else None


if __name__ == "__main__":
    main()
