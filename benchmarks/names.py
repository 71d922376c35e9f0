"""Draws functions and classes for a reader to judge: are name and first docstring line clear?

    python benchmarks/names.py [--source DIR] [--count 150] [--seed 20261123] > names.txt

One line each: its room, its name with that of its class, and the first line of its docstring.
Bodies and arguments are left out. Special methods, and functions within functions, are not drawn.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, Definition]]:
    """Functions, classes and their methods, each with its dotted name."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.name.startswith("__"):
                yield f"{owner}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node.body, f"{owner}{node.name}.")


def described(source: Path) -> list[str]:
    """A line for every definition in src/: room, name, first docstring line."""
    lines = []
    for file in sorted((source / "src").rglob("*.py")):
        room = file.relative_to(source / "src").parent.as_posix()
        for name, node in definitions(ast.parse(file.read_text("utf-8")).body):
            text = (ast.get_docstring(node) or "(no docstring)").splitlines()[0]
            lines.append(f"{room}: {name}: {text}")
    return lines


def main() -> None:
    """Print the drawn definitions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=20261123)
    options = parser.parse_args()
    lines = described(options.source)
    drawn = random.Random(options.seed).sample(lines, min(options.count, len(lines)))
    print("\n".join(sorted(drawn)))


if __name__ == "__main__":
    main()
