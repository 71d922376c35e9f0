"""Captions a second of the text generators after parsing, and their memory over a million captions.

    python benchmarks/generators.py captions_train2017.json [captions_val2017.json ...]

Captions come from COCO annotation files. Every generator rewrites every caption once a round; times
are of the processor, on one core, and the generators take turns. For the memory a stream of a
million captions, no two alike, goes through all generators in one process.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace as changed
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from compo_pipeline.language import parsing
from compo_pipeline.language.paraphrases import paraphrase
from compo_pipeline.language.reordering import shuffle_bigrams, swap_phrases
from compo_pipeline.language.replacements import replacer
from compo_pipeline.language.swaps import swap_across, swap_within
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.records import Parse

ROUNDS = 5
STREAM = 1_000_000
LOOKS = (1_000, 10_000, 100_000, 250_000, 500_000, 750_000, STREAM)
RESULTS = Path(__file__).parent / "results" / "generators.json"

# What one caption asks of a generator; the second caption is a partner for swaps across two.
Work = Callable[[Parse, Parse, random.Random], object]


def alone(generator: Callable[[Parse, random.Random], object]) -> Work:
    """A generator of one caption, without a partner."""
    return lambda parse, _, chance: generator(parse, chance)


GENERATORS: dict[str, Work] = {
    "swap across": swap_across,
    "swap within": alone(swap_within),
    "negclip": alone(swap_phrases),
    "bigram": alone(shuffle_bigrams),
    "replace": alone(replacer()),
    "paraphrase": alone(paraphrase),
}
# Used in place of the rules above, so no part of the total.
CAREFUL: dict[str, Work] = {
    "swap across, careful": partial(swap_across, careful=True),
    "swap within, careful": alone(partial(swap_within, careful=True)),
    "negclip, careful": alone(partial(swap_phrases, careful=True)),
}


def of_coco(files: Sequence[Path]) -> list[Parse]:
    """Parses of the captions of COCO annotation files, each text once."""
    texts = dict.fromkeys(
        " ".join(row["caption"].split())
        for file in files
        for row in json.loads(file.read_text(encoding="utf-8"))["annotations"]
    )
    items = ((str(number), 0, text) for number, text in enumerate(texts))
    return list(parsing.parse(parsing.load(parsing.SHIPPED), items))


def seconds(work: Work, parses: Sequence[Parse], epoch: int) -> float:
    """Processor seconds a caption, the seeding of its draw included."""
    partners = [*parses[1:], parses[0]]
    started = time.process_time()
    for parse, partner in zip(parses, partners, strict=True):
        work(parse, partner, rng(0, epoch, parse.sample_id))
    return (time.process_time() - started) / len(parses)


def variants(parses: Sequence[Parse]) -> Iterator[Parse]:
    """Captions without end, no two alike: each ends in a place that no other one names."""
    for number in itertools.count():
        parse = parses[number % len(parses)]
        words = ("in", f"Town{number}")
        offsets = (len(parse.text) + 1, len(parse.text) + 4)
        yield changed(
            parse,
            sample_id=str(number),
            text=" ".join((parse.text, *words)),
            words=(*parse.words, *words),
            offsets=(*parse.offsets, *offsets),
            upos=(*parse.upos, "ADP", "PROPN"),
            tags=(*parse.tags, "IN", "NNP"),
        )


def resident() -> float:
    """Memory of this process now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def memory(parses: Sequence[Parse]) -> dict[int, float]:
    """MB in use after so many captions of a stream."""
    seen: dict[int, float] = {}
    stream = variants(parses)
    partner = next(stream)
    for number, parse in enumerate(itertools.islice(stream, STREAM), 1):
        for work in GENERATORS.values():
            work(parse, partner, rng(0, 0, parse.sample_id))
        partner = parse
        if number in LOOKS:
            seen[number] = round(resident(), 1)
    return seen


def main() -> None:
    """Measure, print, and write the results."""
    parses = of_coco([Path(name) for name in sys.argv[1:]])
    works = GENERATORS | CAREFUL
    for work in works.values():
        seconds(work, parses, 0)  # whatever loads on first use
    rounds = {
        name: [seconds(work, parses, epoch) for epoch in range(1, ROUNDS + 1)]
        for name, work in works.items()
    }
    together = [sum(rounds[name][turn] for name in GENERATORS) for turn in range(ROUNDS)]
    table = Table(title=f"{len(parses)} captions, {ROUNDS} rounds, one core")
    for column in ("generator", "captions a second", "share of the time"):
        table.add_column(column)
    speeds = {}
    for name, times in (rounds | {"all but the careful ones": together}).items():
        speeds[name] = round(1 / median(times))
        share = median(a / b for a, b in zip(times, together, strict=True))
        table.add_row(name, f"{speeds[name]:,}", f"{share:.0%}")
    console = Console()
    console.print(table)
    used = memory(parses)
    console.print({f"{count:,} captions": f"{size} MB" for count, size in used.items()})
    told = {
        "captions": len(parses),
        "rounds": ROUNDS,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "captions_a_second": speeds,
        "memory_mb": used,
    }
    RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
