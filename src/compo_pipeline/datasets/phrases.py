"""Captions with noun phrases of C2LIP's pickle, converted to a table once.

The pickle is read by `storage/unpickle.py` in a process of its own, with limits; this process gets
lines of JSON.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Timer
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from compo_pipeline.datasets.readers.record import SourceError
from compo_pipeline.storage import unpickle
from compo_pipeline.storage.files import atomic_file
from compo_pipeline.storage.tables import grouped
from compo_pipeline.storage.untrusted import parse_json, shown, text_problem

_COLUMNS = pa.schema(
    {
        "key": pa.string(),
        "image": pa.string(),
        "caption": pa.string(),
        "phrases": pa.list_(pa.string()),
    }
)
# Bytes of a line: JSON needs at most twelve for a character, and there are MOST + 3 texts.
_LONGEST_LINE = 12 * unpickle.LONGEST * (unpickle.MOST + 3)
_AT_ONCE = 2_000  # samples in memory
_LAST_WORDS = 2_000  # bytes of a message


class Limits(NamedTuple):
    """Limits of memory and time for the process that reads the pickle."""

    gigabytes: float = 2.0
    seconds: int = 600


class Imported(NamedTuple):
    """Numbers of imported and of unreadable samples, with the keys of some unreadable ones."""

    rows: int
    unreadable: int
    examples: tuple[str, ...]


def import_phrases(source: Path, target: Path, caption: str, limits: Limits) -> Imported:
    """Convert the captions and noun phrases of C2LIP's pickle to a Parquet table.

    Args:
        source: the pickle, as C2LIP's data_processing/extract_nounphrases.py writes it.
        target: the table, with the columns key, image, caption and phrases.
        caption: name of the caption among those of a sample.
        limits: of the process that opens it.

    Raises:
        SourceError: it holds something else than plain values, is damaged, or needs more than the
            limits allow; or no sample of it can be read.
    """
    rows, unreadable, examples = 0, 0, list[str]()
    with atomic_file(target) as temporary, pq.ParquetWriter(temporary, _COLUMNS) as writer:
        for group in grouped(_unpickled_samples(source, caption, limits), _AT_ONCE):
            good = [one for one in group if "image" in one and not _is_unstorable(one)]
            writer.write_table(pa.Table.from_pylist(good, _COLUMNS))
            rows += len(good)
            unreadable += len(group) - len(good)
            examples += [shown(one["key"]) for one in group if one not in good][:3]
        if not rows:
            raise SourceError(
                f"{source}: none of {unreadable} samples has texts as image_path, "
                f"captions.{caption} and nounphrases"
            )
    return Imported(rows, unreadable, tuple(examples[:3]))


def _is_unstorable(sample: dict[str, object]) -> bool:
    """Whether one of a sample's texts cannot be stored in a table."""
    texts = [sample["key"], sample["image"], sample["caption"], *sample["phrases"]]  # type: ignore[misc]
    return any(text_problem(text) for text in texts)


def _unpickled_samples(source: Path, caption: str, limits: Limits) -> Iterator[dict[str, object]]:
    """Yield the samples of the pickle, read by a separate process with limits.

    Raises:
        SourceError: it ended early.
    """
    arguments = (str(source), caption, str(int(limits.gigabytes * 2**30)), str(limits.seconds))
    command = [sys.executable, "-I", "-S", unpickle.__file__, *arguments]
    late = Event()
    # Its message is a line, for which a pipe has room; it may write no files.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None

        def stop() -> None:
            late.set()
            process.kill()

        timer = Timer(limits.seconds, stop)
        timer.start()
        try:
            while line := process.stdout.readline(_LONGEST_LINE):
                yield parse_json(line)
            status = process.wait()
        finally:
            timer.cancel()
            process.kill()
        if status:
            words = process.stderr.read(_LAST_WORDS).decode(errors="replace")
            reason = _end_reason(status, words, limits, late=late.is_set())
            raise SourceError(f"{source}: {reason}")


def _end_reason(status: int, words: str, limits: Limits, *, late: bool) -> str:
    """Reason why the process that reads the pickle ended early."""
    if late or -status == signal.SIGXCPU:
        return f"reading it takes more than {limits.seconds} seconds (--seconds)"
    if status < 0:
        return f"reading it ended by {signal.Signals(-status).name}: it is damaged, or made to harm"
    said = (words.splitlines() or ["no message"])[-1]
    hint = f" ({limits.gigabytes:g} GB, --memory-gb)" if "memory" in said else ""
    return f"it cannot be read as a pickle of plain values: {said}{hint}"
