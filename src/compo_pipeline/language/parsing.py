"""Sentences to rows of `parses`: batched, in constant memory, equal sentences parsed once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from compo_pipeline.language.noun_phrases import noun_phrases
from compo_pipeline.records import Parse

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

# Sentences taken from the stream at a time, and results remembered: both bound the memory.
_CHUNK = 10_000
_REMEMBERED = 100_000


class _Annotation(NamedTuple):
    """The fields of a `Parse` that depend on its text alone."""

    words: tuple[str, ...]
    offsets: tuple[int, ...]
    upos: tuple[str, ...]
    tags: tuple[str, ...]
    noun_phrases: tuple[int, ...]


def parse(
    nlp: Language, items: Iterable[tuple[str, int, str]], batch_size: int = 256
) -> Iterator[Parse]:
    """Parse sentences in their order.

    Args:
        nlp: a pipeline of `loading.load`.
        items: sample_id, index of the sentence among the sample's, and its text in original
            case. The text is one sentence, whatever a sentence splitter would make of it.
        batch_size: texts that go through the pipeline's networks together.
    """
    stream = iter(items)
    known: dict[str, _Annotation] = {}
    while chunk := list(islice(stream, _CHUNK)):
        if len(known) > _REMEMBERED:
            known.clear()
        new = list(dict.fromkeys(text for _, _, text in chunk if text not in known))
        docs = nlp.pipe((one_sentence(nlp.make_doc(text)) for text in new), batch_size=batch_size)
        for text, doc in zip(new, docs, strict=True):
            known[text] = _annotation(doc)
        for sample_id, sentence, text in chunk:
            yield Parse(sample_id, sentence, text, *known[text])


def one_sentence(doc: Doc) -> Doc:
    """Mark a doc as a single sentence, which parsers and sentence splitters then respect."""
    for token in doc:
        token.is_sent_start = token.i == 0
    return doc


def _annotation(doc: Doc) -> _Annotation:
    """Whitespace that the tokenizer keeps as a token is SPACE, whatever the tagger guessed."""
    return _Annotation(
        words=tuple(token.text for token in doc),
        offsets=tuple(token.idx for token in doc),
        upos=tuple("SPACE" if token.is_space else token.pos_ for token in doc),
        tags=tuple("_SP" if token.is_space else token.tag_ for token in doc),
        noun_phrases=tuple(place for span in noun_phrases(doc) for place in span),
    )
