"""Treebank sentences made more like captions while a pipeline trains.

Captions come in any case, and hold words that a treebank of mails and reviews never saw. So some
sentences are lower-cased, and in some of them words give way to words of the caption lexicon with
the same tag: the trees stay, the networks learn the vocabulary.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from compo_pipeline.artefacts.treebank import with_words
from compo_pipeline.language.lexicon import Entry, load_lexicon

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc
    from spacy.training import Example

    Augmenter = Callable[[Language, Example], Iterator[Example]]

NAME = "compo.captions.v1"
# Open classes; under fewer words than this a tag's treebank words are the better teachers.
_REPLACED_UPOS = frozenset({"NOUN", "ADJ", "VERB"})
_LEAST_WORDS = 30


def register() -> None:
    """Make the augmenter known to spaCy under the name that training.cfg gives."""
    from spacy.util import registry

    registry.augmenters.register(NAME, func=create)


def create(seed: int, lower_case: float, caption_words: float, replaced: float) -> Augmenter:
    """An augmenter of training examples.

    Args:
        seed: of every draw.
        lower_case: share of sentences in lower case.
        caption_words: share of sentences that get words of the lexicon.
        replaced: share of words replaced in such a sentence.
    """
    from spacy.training.augment import make_lowercase_variant

    rng = random.Random(seed)
    words = replacements(load_lexicon().entries)

    def augment(nlp: Language, example: Example) -> Iterator[Example]:
        if rng.random() < caption_words:
            example = _example(nlp, reworded(example.reference, words, replaced, rng))
        if rng.random() < lower_case:
            example = make_lowercase_variant(nlp, example)
        yield example

    return augment


def replacements(entries: Iterable[Entry]) -> dict[tuple[str, str], list[str]]:
    """The certain words of each open class and tag, in alphabetical order."""
    words: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in entries:
        if entry.certain and entry.upos in _REPLACED_UPOS:
            words[entry.upos, entry.tag].append(entry.word)
    return {key: sorted(group) for key, group in words.items() if len(group) >= _LEAST_WORDS}


def reworded(
    doc: Doc, words: dict[tuple[str, str], list[str]], replaced: float, rng: random.Random
) -> Doc:
    """An annotated doc with some of its words replaced; initial capitals stay."""
    new = []
    for token in doc:
        choices = words.get((token.pos_, token.tag_))
        word = token.text
        if choices and rng.random() < replaced:
            word = rng.choice(choices)
            word = word.capitalize() if token.text[0].isupper() else word
        new.append(word)
    return with_words(doc, new)


def _example(nlp: Language, reference: Doc) -> Example:
    from spacy.training import Example

    return Example(nlp.make_doc(reference.text), reference)
