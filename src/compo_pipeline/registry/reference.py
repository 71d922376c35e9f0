"""Reference of a version: embeddings of held-out captions, and training words.

Monitoring compares the requests to a served model with it.

`reference.parquet` has a row for each drawn image with one of its captions, no row of the training
split and no name of an image: the embeddings of both (`image`, `text`, of length 1, as float16),
and the caption's `tokens`, `words` and `unknown_words`, which no training caption has.
`words.parquet` has each `word` of the training captions, in lower case, and its
`count`; rarer words than the 100,000 most frequent ones are counted together, as the empty word.

n rows, D width of the joint space.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.core.records import Caption
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.tables import CARVED, Table, write_parquet
from compo_pipeline.core.untrusted import read_batches
from compo_pipeline.evaluation.contamination import TRAINING_SPLIT, normalise_text
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.registry.evidence import (
    EVIDENCE_FOLDER,
    REFERENCE_FILE,
    WORDS_FILE,
)
from compo_pipeline.registry.settings import MOST_REFERENCE_ROWS

if TYPE_CHECKING:
    from compo_pipeline.models.loading import LoadedModel

REFERENCE = pa.schema(
    [
        ("image", pa.list_(pa.float16())),
        ("text", pa.list_(pa.float16())),
        ("tokens", pa.int32()),
        ("words", pa.int32()),
        ("unknown_words", pa.int32()),
    ]
)
WORDS = pa.schema([("word", pa.string()), ("count", pa.int64())])
_MOST_WORDS = 100_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Reference:
    """Reference sample of a version (embeddings and lengths of held-out captions) and word counts.

    Attributes:
        images: embeddings [n, D], of length 1.
        texts: embeddings [n, D], of length 1.
        tokens: numbers of tokens of each caption [n].
        words: numbers of words of each caption [n].
        unknown_words: words of each caption that no training caption has [n].
        counts: number of each word in the training captions; rare ones together as the empty word.
    """

    images: NDArray[np.float32]
    texts: NDArray[np.float32]
    tokens: NDArray[np.int32]
    words: NDArray[np.int32]
    unknown_words: NDArray[np.int32]
    counts: Mapping[str, int]


def write_reference(
    export: Path,
    loaded: LoadedModel,
    captions: Iterable[Caption],
    root: Path,
    rows: int,
    settings: EvaluationSettings,
) -> None:
    """Write the reference sample and the word counts of the captions into an exported folder.

    Args:
        export: the folder.
        loaded: model of the version.
        captions: the valid ones of all splits.
        root: folder of their images.
        rows: largest number of rows of the sample.
        settings: batches, precision.
    """
    table = Table.of(captions, Caption)
    folder = export / EVIDENCE_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    words = _word_counts(table)
    known = frozenset(words["word"].to_pylist())
    sample = _reference_table(loaded, _draw_captions(table, rows), known, root, settings)
    write_parquet(folder / REFERENCE_FILE, [sample], REFERENCE)
    write_parquet(folder / WORDS_FILE, [words], WORDS)


def _draw_captions(table: Table[Caption], rows: int) -> list[Caption]:
    """Draw captions from the splits that are not trained on, at most one for each image."""
    splits = set(table.column("split").unique().to_pylist()) - {TRAINING_SPLIT, CARVED}
    held_out = table.having("split", splits)
    first: dict[str, int] = {}
    for place, image in enumerate(held_out.column("image").to_pylist()):
        first.setdefault(image, place)
    # The same images at each registration and rescoring.
    drawn = sorted(first, key=lambda image: digest("reference", image))
    found = (held_out[first[image]] for image in drawn)
    return list(islice((row for row in found if row.sentences), rows))


def _reference_table(
    loaded: LoadedModel,
    captions: list[Caption],
    known: Collection[str],
    root: Path,
    settings: EvaluationSettings,
) -> pa.Table:
    """Arrow table with embeddings and lengths of held-out captions."""
    if not captions:
        return REFERENCE.empty_table()
    items = tuple(
        Item(f"{place}", row.image, row.sentences[:1]) for place, row in enumerate(captions)
    )
    task = Subtask("reference", "held_out", ("image_to_text",), root, items)
    embedded = Embedder([task], settings)(loaded, "reference sample")
    problems = embedded.problems(task)
    readable = [item for item in items if item.item not in problems]
    if len(readable) < len(items):
        log.warning(
            "%d of %d images of the reference sample cannot be read.",
            len(items) - len(readable),
            len(items),
        )
    sentences = [item.positives[0] for item in readable]
    images = embedded.images.rows_of(task.paths(item)[0] for item in readable)  # [n, D]
    texts = embedded.texts.rows_of(sentences)
    tokens = embedded.tokens.ids[[embedded.tokens.index[text] for text in sentences]].numpy()
    return pa.table(
        {
            "image": list(images.astype(np.float16)),
            "text": list(texts.astype(np.float16)),
            "tokens": lengths_in_tokens(tokens, int(loaded.tokenize([""])[0, -1])),
            "words": [length_in_words(text) for text in sentences],
            "unknown_words": [unknown_words(text, known) for text in sentences],
        },
        schema=REFERENCE,
    )


def lengths_in_tokens(ids: NDArray[np.int64], padding: int) -> NDArray[np.int32]:
    """Number of tokens of each text before the padding [n], from token ids [n, T]."""
    filled = ids != padding
    last = ids.shape[1] - filled[:, ::-1].argmax(axis=1)
    return np.where(filled.any(axis=1), last, 0).astype(np.int32)


def length_in_words(text: str) -> int:
    """Number of words of a text, split at white space."""
    return len(text.split())


def unknown_words(text: str, known: Collection[str]) -> int:
    """Number of a text's words that are not in a set of known words in lower case."""
    return sum(word not in known for word in normalise_text(text).split())


def read_words(export: Path) -> frozenset[str] | None:
    """The set of words of the training captions in an exported folder, or None if it is not stored.

    Raises:
        ValueError: the table cannot be read; names the file.
    """
    file = export / EVIDENCE_FOLDER / WORDS_FILE
    if not file.is_file():
        return None
    batches = read_batches(file, WORDS, (), _MOST_WORDS + 1)
    return frozenset(word for batch in batches for word in batch["word"].to_pylist())


def _word_counts(table: Table[Caption]) -> pa.Table:
    """Arrow table of the words of the training captions and their counts, most frequent first."""
    counts: Counter[str] = Counter()
    for batch in table.having("split", [TRAINING_SPLIT]).batches("sentences"):
        for sentence in chain.from_iterable(batch.column(0).to_pylist()):
            counts.update(normalise_text(sentence).split())
    frequent = counts.most_common(_MOST_WORDS)
    further = counts.total() - sum(count for _, count in frequent)
    frequent += [("", further)] if further else []
    words = [word for word, _ in frequent]
    return pa.table({"word": words, "count": [count for _, count in frequent]}, schema=WORDS)


def reference_rows(export: Path) -> int:
    """Number of rows of the reference sample in an exported folder."""
    return int(pq.read_metadata(export / EVIDENCE_FOLDER / REFERENCE_FILE).num_rows)


def read_reference(export: Path) -> Reference:
    """Read the reference sample and the word counts of an exported folder.

    Raises:
        ValueError: a table cannot be read; names the file.
    """
    folder = export / EVIDENCE_FOLDER
    file = folder / REFERENCE_FILE
    batches = read_batches(file, REFERENCE, (), MOST_REFERENCE_ROWS)
    sample = pa.Table.from_batches(batches, REFERENCE)
    counts: dict[str, int] = {}
    for batch in read_batches(folder / WORDS_FILE, WORDS, (), _MOST_WORDS + 1):
        counts.update(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return Reference(
        images=_vectors(sample["image"]),
        texts=_vectors(sample["text"]),
        tokens=sample["tokens"].to_numpy(),
        words=sample["words"].to_numpy(),
        unknown_words=sample["unknown_words"].to_numpy(),
        counts=counts,
    )


def _vectors(column: pa.ChunkedArray) -> NDArray[np.float32]:
    """Embeddings [n, D] from an Arrow column of lists of equal length."""
    values = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.float32).reshape(len(column), -1 if len(column) else 0)
