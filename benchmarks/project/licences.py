"""The licence of every installed package, as its own metadata states it.

python benchmarks/project/licences.py
"""

from __future__ import annotations

from collections import defaultdict
from email.message import Message
from importlib.metadata import distributions
from typing import cast

from compo_pipeline.registry.materials import stated_licence

UNKNOWN = "not stated"


def main() -> None:
    """Print licences, each with its packages."""
    packages: dict[str, set[str]] = defaultdict(set)
    for each in distributions():
        packages[stated_licence(cast(Message, each.metadata)) or UNKNOWN].add(
            f"{each.metadata['Name']} {each.version}"
        )
    for licence, names in sorted(packages.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"{licence} ({len(names)}): {', '.join(sorted(names, key=str.lower))}")


if __name__ == "__main__":
    main()
