"""Training of compo_en, the shipped spaCy pipeline: treebank, augmentation, spaCy's training loop.

Captions come in any case, and hold words that a treebank of mails and reviews never saw. So some
sentences are lower-cased, and in some of them words are replaced by words of the caption lexicon
with the same tag: the trees stay, the networks learn the vocabulary.
"""

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, TypeAlias

import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example, converters
from spacy.training.augment import make_lowercase_variant
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as train_loop
from spacy.util import load_config, registry
from spacy.vocab import Vocab

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.language import rules
from compo_pipeline.language.lexicon import Entry, load_lexicon

Augmenter: TypeAlias = Callable[[Language, Example], Iterator[Example]]

SPLITS = ("train", "dev", "test")
# Subtypes that matter for captions; others only thin out the training data.
SUBTYPES = frozenset(
    ["nmod:poss", "nsubj:pass", "aux:pass", "compound:prt", "acl:relcl", "det:predet", "cc:preconj"]
)
_ATTRIBUTES = ("ORTH", "SPACY", "TAG", "POS", "HEAD", "DEP", "SENT_START")
NAME = "compo.captions.v1"
# Open classes; under fewer words than this a tag's treebank words are the better teachers.
_REPLACED_UPOS = frozenset({"NOUN", "ADJ", "VERB"})
_LEAST_WORDS = 30
VERSION = "1.0.0"
META: Mapping[str, str] = {
    "name": "compo_en",
    "version": VERSION,
    "description": "Tagger and dependency parser for image captions, in any case.",
    "license": "CC BY-SA 4.0",
    "author": "the compo-pipeline authors",
    "spacy_version": ">=3.8.7,<4.0.0",
}
SOURCES = [
    {
        "name": "Universal Dependencies English Web Treebank (UD_English-EWT)",
        "url": "https://github.com/UniversalDependencies/UD_English-EWT",
        "license": "CC BY-SA 4.0",
    }
]


def treebank_files(root: str | Path) -> dict[str, Path]:
    """Paths of each split's CoNLL-U file in a treebank's folder, `*-ud-<split>.conllu`.

    Raises:
        SettingsError: the folder is not there, or it lacks a split or has several files of one.
    """
    found = {}
    for split in SPLITS:
        matches = sorted(Path(root).glob(f"*-ud-{split}.conllu"))
        if len(matches) != 1:
            raise SettingsError(
                "language_model.treebank: expected a folder with *-ud-{train,dev,test}.conllu "
                f"(a Universal Dependencies release, e.g. UD_English-EWT); {root} "
                + (f"holds {len(matches)} for '{split}'" if Path(root).is_dir() else "is no folder")
            )
        found[split] = matches[0]
    return found


def read_treebank(path: Path) -> DocBin:
    """Read a CoNLL-U file as one doc per sentence, tokenised as spaCy does and normalised.

    Contractions stay two words ("do", "n't"): that is how spaCy's tokenizer splits them.
    """
    vocab = spacy.blank("en").vocab
    docs = DocBin(attrs=_ATTRIBUTES)
    convert: Any = converters.conllu_to_docs  # type: ignore[attr-defined]
    text = path.read_text(encoding="utf-8")
    for doc in convert(text, n_sents=1, merge_subtokens=False, no_print=True):
        labels = [token.dep_ for token in doc]
        deps = [label if label in SUBTYPES else label.split(":")[0] for label in labels]
        docs.add(_copy_for_training(doc, [token.text for token in doc], deps, vocab))
    return docs


def with_words(doc: Doc, words: Sequence[str]) -> Doc:
    """Copy of an annotated doc with its words replaced one by one."""
    return _copy_for_training(doc, words, [token.dep_ for token in doc], doc.vocab)


def _copy_for_training(doc: Doc, words: Sequence[str], deps: list[str], vocab: Vocab) -> Doc:
    """Copy of a spaCy Doc with other words and dependency labels, and the same tags and heads.

    Morphological features are left behind.
    """
    return Doc(
        vocab,
        words=list(words),
        spaces=[bool(token.whitespace_) for token in doc],
        tags=[token.tag_ for token in doc],
        pos=[token.pos_ for token in doc],
        heads=[token.head.i for token in doc],
        deps=deps,
    )


def register_augmenter() -> None:
    """Register the augmenter in spaCy under the name that training.cfg gives."""
    registry.augmenters.register(NAME, func=create_augmenter)


def create_augmenter(
    seed: int, lower_case: float, caption_words: float, replaced: float
) -> Augmenter:
    """Create a spaCy augmenter that puts in lexicon words, and lower-cases some sentences.

    Args:
        seed: seed of every draw.
        lower_case: share of sentences in lower case.
        caption_words: share of sentences that get words of the lexicon.
        replaced: share of words replaced in such a sentence.
    """
    rng = random.Random(seed)
    words = replacements(load_lexicon().entries)

    def augment(nlp: Language, example: Example) -> Iterator[Example]:
        if rng.random() < caption_words:
            reference = replace_words(example.reference, words, replaced, rng)
            example = Example(nlp.make_doc(reference.text), reference)
        if rng.random() < lower_case:
            example = make_lowercase_variant(nlp, example)
        yield example

    return augment


def replacements(entries: Iterable[Entry]) -> dict[tuple[str, str], list[str]]:
    """Unambiguous lexicon words by open class and fine tag, in alphabetical order."""
    words: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in entries:
        if entry.certain and entry.upos in _REPLACED_UPOS:
            words[entry.upos, entry.tag].append(entry.word)
    return {key: sorted(group) for key, group in words.items() if len(group) >= _LEAST_WORDS}


def replace_words(
    doc: Doc, words: dict[tuple[str, str], list[str]], replaced: float, rng: random.Random
) -> Doc:
    """Copy of an annotated doc with some words replaced at random.

    Initial capitals stay.
    """
    new = []
    for token in doc:
        choices = words.get((token.pos_, token.tag_))
        word = token.text
        if choices and rng.random() < replaced:
            word = rng.choice(choices)
            word = word.capitalize() if token.text[0].isupper() else word
        new.append(word)
    return with_words(doc, new)


def prepare(root: str, folder: Path) -> None:
    """Write the splits of a UD treebank in spaCy's format, as `<split>.spacy`."""
    sources = treebank_files(root)
    folder.mkdir(parents=True, exist_ok=True)
    for split, source in sources.items():
        read_treebank(source).to_disk(folder / f"{split}.spacy")


def train(corpus: Path, output: Path) -> None:
    """Train the spaCy networks.

    Losses and scores are printed to the terminal.

    Args:
        corpus: folder with train.spacy and dev.spacy.
        output: folder for model-best and model-last. Its content is replaced.
    """
    overrides: dict[str, Any] = {
        "paths.train": str(corpus / "train.spacy"),
        "paths.dev": str(corpus / "dev.spacy"),
    }
    register_augmenter()
    with as_file(files(__package__) / "training.cfg") as path:
        config = load_config(path, overrides=overrides)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    train_loop(init_nlp(config), output)


def assemble(trained: Path, folder: Path) -> None:
    """Assemble the shipped spaCy pipeline: sentence splitter, trained networks, lexicon rules.

    Args:
        trained: the output folder of `train`.
        folder: folder for the pipeline. Its content is replaced.
    """
    nlp = spacy.load(trained / "model-best")
    nlp.add_pipe("sentencizer", first=True)
    rules.add_rules(nlp, load_lexicon().entries)
    nlp.meta.update(META, sources=SOURCES, performance={})
    # Paths of this machine are not shipped.
    nlp.config["paths"].update(train=None, dev=None)
    shutil.rmtree(folder, ignore_errors=True)
    nlp.to_disk(folder)
