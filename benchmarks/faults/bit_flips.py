"""What becomes of single flipped bits in the files that later runs read, and what checksums cost.

    python benchmarks/faults/bit_flips.py [flips of tables]

Random bits are flipped, one at a time, in a table of every row type, a training state, stored
features and a key-value store. Each file is then read: it is refused, gives the same content, or
gives other content without an error. Any other error ends this program. The cost is the time to
write and to read 100,000 scores, relative to plain parquet, in turns. Results go to
results/bit_flips.md.
"""

from __future__ import annotations

import itertools
import logging
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file

from compo_pipeline.core import records
from compo_pipeline.core.files import DamagedFileError
from compo_pipeline.core.records import Score, to_table
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.stores import KeyValueStore, TensorStore
from compo_pipeline.core.table_files import write_rows
from compo_pipeline.core.tables import Table
from compo_pipeline.training import checkpoint

FLIPS, OTHERS = 2800, 100  # of all tables together, and of each other file
ROWS, ROUNDS = 100_000, 5
TABLES = (
    *(records.Caption, records.Fact, records.Rejected, records.Parse),
    *(records.Counterfactual, records.View, records.Score),
)
RESULTS = Path(__file__).parents[1] / "results" / "bit_flips.md"

Read = Callable[[], Any]


def value(hint: Any, number: int) -> Any:
    """A value of a field's annotation."""
    kinds = get_args(hint)
    if Ellipsis in kinds:
        return tuple(value(kinds[0], number + place) for place in range(number % 3))
    if kinds:  # or None
        return value(kinds[0], number)
    return f"a red cube left of {number} blue spheres" if hint is str else hint(number)


def rows(row_type: type, count: int) -> Iterator[Any]:
    """Rows of a type."""
    hints = get_type_hints(row_type)
    for number in range(count):
        yield row_type(*(value(hints[field.name], number) for field in fields(row_type)))


def _read_rows(file: Path, row_type: type) -> list[Any]:
    return list(Table.open(file, row_type))


def outcomes(file: Path, read: Read, flips: int, random_: random.Random) -> Counter[str]:
    """How often a file with one flipped bit is refused, or gives the same or other content."""
    whole, expected = file.read_bytes(), read()
    found: Counter[str] = Counter()
    for bit in random_.sample(range(8 * len(whole)), flips):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        file.write_bytes(content)
        try:
            found["same" if read() == expected else "other"] += 1
        except (DamagedFileError, SettingsError):
            found["refused"] += 1
    file.write_bytes(whole)
    return found


def cases(folder: Path, flips: int) -> Iterator[tuple[str, Path, Read, int]]:
    """Name, file, reader and number of flips of each kind of file."""
    for row_type in TABLES:
        file = folder / f"{row_type.__name__}.parquet"
        write_rows(file, rows(row_type, 200), row_type)
        count = -(-flips // len(TABLES))
        yield f"table {row_type.__name__}", file, partial(_read_rows, file, row_type), count
    network = torch.nn.Linear(32, 32)
    adamw = torch.optim.AdamW(network.parameters())
    network(torch.randn(4, 32)).sum().backward()
    adamw.step()
    state = folder / "state.safetensors"
    checkpoint.save(state, {"model": network}, adamw, {"step": 1}, step=1)

    def read_state() -> Any:
        if checkpoint.read_progress(state) is None:
            raise SettingsError("deleted")
        return {name: tensor.tolist() for name, tensor in load_file(state).items()}

    yield "training state", state, read_state, OTHERS
    store = TensorStore(folder / "tower")
    store.add(map(str, range(50)), {"values": torch.randn(50, 16)})
    store.save()

    def read_rows() -> Any:
        found = TensorStore(folder / "tower")
        if not found.rows:
            raise SettingsError("deleted")
        return found.rows, found.tensors()["values"].tolist()

    yield "stored features", next(folder.glob("*/*.safetensors")), read_rows, OTHERS
    values = KeyValueStore(folder / "store.sqlite", str)
    entries = {str(number): f"a red cube and {number} blue spheres" for number in range(300)}
    values.put(entries)

    def read_entries() -> Any:
        found = values.get(entries)
        if found.items() < entries.items():
            raise SettingsError("some are absent")
        return found

    yield "key-value store", folder / "store.sqlite", read_entries, OTHERS


def costs(folder: Path) -> Iterator[tuple[str, float, float]]:
    """Seconds to write and to read a table: plainly, and with a checksum."""
    table = list(rows(Score, ROWS))
    file = folder / "scores.parquet"
    ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "plain": (
            lambda: pq.write_table(to_table(table, Score), file),
            lambda: list(Table(Score, pq.read_table(file))),
        ),
        "checksum": (lambda: write_rows(file, table, Score), lambda: _read_rows(file, Score)),
    }
    seconds: dict[tuple[str, int], list[float]] = {}
    for _, (name, (write, read)) in itertools.product(range(ROUNDS), ways.items()):
        for place, action in enumerate((write, read)):
            start = time.process_time()
            action()
            seconds.setdefault((name, place), []).append(time.process_time() - start)
    for name in ways:
        yield name, statistics.median(seconds[name, 0]), statistics.median(seconds[name, 1])


def main() -> None:
    """Flip, measure, and write the tables."""
    logging.disable()
    flips = int(sys.argv[1]) if len(sys.argv) > 1 else FLIPS
    lines = ["| file | flips | refused or made again | same content | other content |"]
    lines.append("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        random_, total = random.Random(0), Counter[str]()
        for what, file, read, count in cases(Path(name), flips):
            found = outcomes(file, read, count, random_)
            total += found
            shown = " | ".join(str(found[each]) for each in ("refused", "same", "other"))
            lines.append(f"| {what} | {count} | {shown} |")
        shown = " | ".join(str(total[each]) for each in ("refused", "same", "other"))
        lines.append(f"| all | {total.total()} | {shown} |")
        (_, *plain), (_, *checked) = costs(Path(name))
    ratios = [ours / theirs for ours, theirs in zip(checked, plain, strict=True)]
    lines += [
        "",
        f"{ROWS:,} scores: writing takes {ratios[0]:.2f} times as long with a checksum as",
    ]
    lines += [f"without ({checked[0]:.2f} s), reading {ratios[1]:.2f} times ({checked[1]:.2f} s)."]
    RESULTS.write_text("\n".join(["# Flipped bits", "", *lines, ""]), encoding="utf-8")
    print(RESULTS.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
