"""Universal Dependencies treebanks as training data for spaCy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.configuration import SettingsError

if TYPE_CHECKING:
    from spacy.tokens import Doc, DocBin
    from spacy.vocab import Vocab

SPLITS = ("train", "dev", "test")

# Subtypes that tell a reader of captions something; others only thin out the training data.
KEPT_SUBTYPES = frozenset(
    {
        "nmod:poss",
        "nsubj:pass",
        "aux:pass",
        "compound:prt",
        "acl:relcl",
        "det:predet",
        "cc:preconj",
    }
)
_ATTRIBUTES = ("ORTH", "SPACY", "TAG", "POS", "HEAD", "DEP", "SENT_START")


def files(root: str | Path) -> dict[str, Path]:
    """The CoNLL-U file of each split in a treebank's folder, `*-ud-<split>.conllu`.

    Raises:
        SettingsError: the folder is not there, or it lacks a split or has several files of one.
    """
    found = {}
    for split in SPLITS:
        matches = sorted(Path(root).glob(f"*-ud-{split}.conllu"))
        if len(matches) != 1:
            raise SettingsError(
                "language.treebank.root: expected a folder with *-ud-{train,dev,test}.conllu "
                f"(a Universal Dependencies release, e.g. UD_English-EWT); {root} "
                + (f"holds {len(matches)} for '{split}'" if Path(root).is_dir() else "is no folder")
            )
        found[split] = matches[0]
    return found


def read(path: Path) -> DocBin:
    """A CoNLL-U file as one doc per sentence, tokenised as spaCy does and normalised.

    Contractions stay two words ("do", "n't"): that is how spaCy's tokenizer splits them.
    """
    import spacy
    from spacy.tokens import DocBin
    from spacy.training import converters

    vocab = spacy.blank("en").vocab
    docs = DocBin(attrs=_ATTRIBUTES)
    convert: Any = converters.conllu_to_docs  # type: ignore[attr-defined]
    text = path.read_text(encoding="utf-8")
    for doc in convert(text, n_sents=1, merge_subtokens=False, no_print=True):
        docs.add(_normalised(doc, vocab))
    return docs


def with_words(doc: Doc, words: Sequence[str]) -> Doc:
    """A copy of an annotated doc with other words, as many as it has."""
    return _copy(doc, words, [token.dep_ for token in doc], doc.vocab)


def _normalised(doc: Doc, vocab: Vocab) -> Doc:
    labels = [token.dep_ for token in doc]
    deps = [label if label in KEPT_SUBTYPES else label.split(":")[0] for label in labels]
    return _copy(doc, [token.text for token in doc], deps, vocab)


def _copy(doc: Doc, words: Sequence[str], deps: list[str], vocab: Vocab) -> Doc:
    """The annotation that we train on, and no other: morphological features are left behind."""
    from spacy.tokens import Doc

    return Doc(
        vocab,
        words=list(words),
        spaces=[bool(token.whitespace_) for token in doc],
        tags=[token.tag_ for token in doc],
        pos=[token.pos_ for token in doc],
        heads=[token.head.i for token in doc],
        deps=deps,
    )
