"""How well a pipeline tags and parses: on a treebank, and on hand-tagged captions.

All figures are on gold tokens, each text given as the one sentence it is: that is how the
project uses a pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable

from spacy.language import Language
from spacy.tokens import Doc

from compo_pipeline.language.noun_phrases import noun_phrases
from compo_pipeline.language.parsing import one_sentence
from compo_scenes.language_model.compo_en import with_words

_NO_SPACE_BEFORE = re.compile(r"[.,:?!-]|'s|n't")


@dataclass(frozen=True)
class GoldCaption:
    """A hand-tagged caption: words, tags, and noun phrases, some of them optional.

    `phrases` must be found, `optional` ones may be.
    """

    words: tuple[str, ...]
    upos: tuple[frozenset[str], ...]
    phrases: frozenset[tuple[int, int]]
    optional: frozenset[tuple[int, int]]


def read_gold(path: Traversable) -> list[GoldCaption]:
    """Read hand-tagged captions from a file of word/UPOS tokens.

    Its first lines say how it is written.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    return [_parse_gold(line) for line in lines if line and not line.startswith("#")]


def _parse_gold(line: str) -> GoldCaption:
    """Parse one line of word/UPOS tokens into a hand-tagged caption."""
    tokens = line.split()
    bare = [token.strip("[]{}").rsplit("/", 1) for token in tokens]
    spans: dict[str, set[tuple[int, int]]] = {"[": set(), "{": set()}
    opened = 0
    for place, token in enumerate(tokens):
        if token[0] in spans:
            opened = place
        if token[-1] in "]}":
            spans["[" if token[-1] == "]" else "{"].add((opened, place + 1))
    return GoldCaption(
        words=tuple(word for word, _ in bare),
        upos=tuple(frozenset(tags.split("|")) for _, tags in bare),
        phrases=frozenset(spans["["]),
        optional=frozenset(spans["{"]),
    )


def caption_accuracy(
    nlp: Language, gold: Sequence[GoldCaption], lower: bool = False
) -> dict[str, float]:
    """Accuracy on hand-tagged captions: share of right UPOS, precision, recall, F1 of phrases.

    The phrases are base noun phrases.
    """
    docs = nlp.pipe(one_sentence(_untagged_doc(nlp, caption, lower)) for caption in gold)
    right = found = predicted = 0
    for caption, doc in zip(gold, docs, strict=True):
        right += sum(token.pos_ in tags for token, tags in zip(doc, caption.upos, strict=True))
        phrases = set(noun_phrases(doc)) - caption.optional
        predicted += len(phrases)
        found += len(phrases & caption.phrases)
    expected = sum(len(caption.phrases) for caption in gold)
    return {
        "upos": right / sum(len(caption.words) for caption in gold),
        "noun_phrase_precision": found / predicted,
        "noun_phrase_recall": found / expected,
        "noun_phrase_f1": 2 * found / (predicted + expected),
    }


def treebank_accuracy(nlp: Language, gold: Iterable[Doc]) -> dict[str, float]:
    """Accuracy on a treebank: UPOS and XPOS of all tokens, UAS and LAS without punctuation."""
    counts = dict.fromkeys(("upos", "xpos", "uas", "las"), 0)
    tokens = words = 0
    for expected in gold:
        doc = _annotate(nlp, expected)
        for token, answer in zip(doc, expected, strict=True):
            tokens += 1
            counts["upos"] += token.pos_ == answer.pos_
            counts["xpos"] += token.tag_ == answer.tag_
            if answer.dep_ != "punct":
                words += 1
                attached = token.head.i == answer.head.i
                counts["uas"] += attached
                counts["las"] += attached and token.dep_ == answer.dep_
    totals = {"upos": tokens, "xpos": tokens, "uas": words, "las": words}
    return {name: count / totals[name] for name, count in counts.items()}


def report(
    nlp: Language, treebank: Sequence[Doc], captions: Sequence[GoldCaption]
) -> dict[str, dict[str, float]]:
    """Accuracies on treebank and captions, in original and lower case, rounded to four places."""
    figures = {
        "treebank": treebank_accuracy(nlp, treebank),
        "treebank_lower_cased": treebank_accuracy(
            nlp, (with_words(doc, [token.lower_ for token in doc]) for doc in treebank)
        ),
        "captions": caption_accuracy(nlp, captions),
        "captions_lower_cased": caption_accuracy(nlp, captions, lower=True),
    }
    return {
        part: {name: round(value, 4) for name, value in values.items()}
        for part, values in figures.items()
    }


def _untagged_doc(nlp: Language, caption: GoldCaption, lower: bool) -> Doc:
    """Untagged spaCy doc of a hand-tagged caption, with spaces between its words."""
    words = [word.lower() for word in caption.words] if lower else list(caption.words)
    following = [*words[1:], "."]
    spaces = [
        word != "-" and not _NO_SPACE_BEFORE.fullmatch(after)
        for word, after in zip(words, following, strict=True)
    ]
    return Doc(nlp.vocab, words=words, spaces=spaces)


def _annotate(nlp: Language, expected: Doc) -> Doc:
    """Annotate the words of a gold doc again with a spaCy pipeline."""
    words = [token.text for token in expected]
    spaces = [bool(token.whitespace_) for token in expected]
    return nlp(one_sentence(Doc(nlp.vocab, words=words, spaces=spaces)))
