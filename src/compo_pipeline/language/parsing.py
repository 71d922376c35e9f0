"""The spaCy pipeline of a run, and parses of sentences: in batches, equal ones parsed once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.core.records import Caption, Parse
from compo_pipeline.core.settings import SettingsError, leaves
from compo_pipeline.language.lexicon import RESOURCES
from compo_pipeline.language.noun_phrases import noun_phrases

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

SHIPPED = "compo_en"
_KEY = "language.model"
# Components by their factory: they cost time and their results are not used. Each text is
# given as one sentence, so sentence splitters have nothing to do either.
_UNUSED = frozenset(
    """ner beam_ner entity_ruler entity_linker span_ruler spancat textcat textcat_multilabel
    lemmatizer trainable_lemmatizer senter sentencizer""".split()
)
# spaCy's own components.
_FACTORIES = _UNUSED.union(
    """attribute_ruler doc_cleaner future_entity_ruler merge_entities merge_noun_chunks
    merge_subtokens morphologizer parser beam_parser span_finder spancat_singlelabel tagger
    tok2vec token_splitter""".split()
)
_PROBE = "A small dog sits on the green sofa."
# Sentences taken from the stream at a time, and results remembered: both bound the memory.
_CHUNK = 10_000
_REMEMBERED = 100_000


def load(model: str) -> Language:
    """Load a spaCy pipeline, with the components disabled that the project does not need.

    Args:
        model: `compo_en` for the pipeline shipped with the package, else the name of an installed
            spaCy package or the path of a pipeline's folder.

    Raises:
        SettingsError: it is not installed, cannot be loaded, or does not tag and parse.
    """
    import spacy
    from thinc.api import use_ops

    try:
        # NumPy's products of matrices: three times as fast as those of thinc's own BLIS.
        with use_ops("numpy", use_blis=False):
            if model == SHIPPED:
                with as_file(RESOURCES / SHIPPED) as folder:
                    nlp = spacy.load(folder)
            elif (folder := Path(model)).is_dir():
                refuse_foreign_code(folder)
                nlp = spacy.load(folder)
            else:
                nlp = spacy.load(model)
    except (OSError, ValueError, ImportError) as error:
        raise SettingsError(
            f"{_KEY}: cannot load {model!r} ({' '.join(str(error).split())}). Give '{SHIPPED}' "
            "(shipped), the name of an installed spaCy package (pip install ...), or the folder of "
            "a spaCy pipeline"
        ) from error
    unused = [name for name in nlp.pipe_names if nlp.get_pipe_meta(name).factory in _UNUSED]
    nlp.disable_pipes(*unused)
    _check_annotation(nlp, model)
    return nlp


def refuse_foreign_code(folder: Path) -> None:
    """Raise an error if a pipeline's folder names components or functions that are not spaCy's own.

    Its configuration calls registered functions of any installed package, some of which run code
    of a folder or load other pipelines.

    Raises:
        ValueError: names the file and the entry.
        OSError: the folder has no config.cfg.
    """
    from spacy.util import load_config

    path = folder / "config.cfg"
    config = load_config(path, interpolate=True)
    for name, component in config.get("components", {}).items():
        factory = component.get("factory") if isinstance(component, dict) else component
        if factory not in _FACTORIES:
            raise ValueError(f"{path}: components.{name}: factory {factory!r} is not spaCy's own")
    for part in ("nlp", "components"):
        for key, value in leaves(config.get(part, {}), f"{part}."):
            _, registry, name = key.rpartition("@")
            if registry and (name == "callbacks" or not str(value).startswith("spacy.")):
                raise ValueError(f"{path}: {key}: {value!r} is not allowed in a folder")


def name_and_version(nlp: Language) -> str:
    """Name and version of a spaCy pipeline as `name==version`, for provenance."""
    name = nlp.meta["name"]
    prefix = f"{nlp.lang}_"
    full = name if name.startswith(prefix) or name == SHIPPED else prefix + name
    return f"{full}=={nlp.meta['version']}"


def _check_annotation(nlp: Language, model: str) -> None:
    """Raise an error unless a spaCy pipeline gives parts of speech, fine tags and dependencies."""
    doc = nlp(_PROBE)
    wanted = {"POS": "parts of speech", "TAG": "fine tags", "DEP": "dependencies"}
    missing = [what for attribute, what in wanted.items() if not doc.has_annotation(attribute)]
    if missing:
        raise SettingsError(
            f"{_KEY}: {model!r} gives no {', no '.join(missing)} (its components: "
            f"{', '.join(nlp.pipe_names) or 'none'}). Choose a pipeline with a tagger, UPOS and a "
            f"parser, such as '{SHIPPED}' or en_core_web_sm"
        )


def parse(
    nlp: Language, items: Iterable[tuple[str, int, str]], batch_size: int = 256
) -> Iterator[Parse]:
    """Parse sentences in their order with a spaCy pipeline.

    Equal sentences are parsed once.

    Args:
        nlp: a pipeline of `load`.
        items: sample_id, index of the sentence among the sample's, and its text in original case.
            The text always counts as one sentence.
        batch_size: texts that go through the pipeline's networks together.
    """
    known: dict[str, tuple[Any, ...]] = {}
    stream = iter(items)
    while chunk := list(islice(stream, _CHUNK)):
        if len(known) > _REMEMBERED:
            known.clear()
        new = list(dict.fromkeys(text for _, _, text in chunk if text not in known))
        docs = nlp.pipe((one_sentence(nlp.make_doc(text)) for text in new), batch_size=batch_size)
        with nlp.memory_zone():  # without it, each new word stays in the vocabulary
            for text, doc in zip(new, docs, strict=True):
                known[text] = _parse_fields(doc)
        for sample_id, sentence, text in chunk:
            yield Parse(sample_id, sentence, text, *known[text])


@cache
def load_once(model: str) -> Language:
    """The spaCy pipeline of a given name, loaded once per process."""
    return load(model)


@dataclass(frozen=True)
class CaptionParser:
    """Callable that parses the sentences of a range of caption rows, also in worker processes."""

    captions: Sequence[Caption]
    model: str
    """Model name that `load` accepts."""

    sentences: int | None
    """How many of each row, from the first on; None for all."""

    def __call__(self, part: range) -> Iterator[Parse]:
        """The parses of these rows."""
        sentences = (
            (row.sample_id, place, sentence)
            for row in self.captions[part.start : part.stop]
            for place, sentence in enumerate(row.sentences[: self.sentences])
        )
        return parse_by(self.model, sentences)


def parse_by(model: str, items: Iterable[tuple[str, int, str]]) -> Iterator[Parse]:
    """Parse sentences with the spaCy pipeline of a given name."""
    return parse(load_once(model), items)


def parses_of(model: str, texts: Iterable[str]) -> dict[str, Parse]:
    """Mapping from each distinct text to its parse, by the spaCy pipeline of a given name."""
    return {row.text: row for row in parse_by(model, (("", 0, text) for text in texts))}


def one_sentence(doc: Doc) -> Doc:
    """Mark a spaCy doc as a single sentence, so that no component splits it.

    Returns the doc.
    """
    for token in doc:
        token.is_sent_start = token.i == 0
    return doc


def _parse_fields(doc: Doc) -> tuple[Any, ...]:
    """Fields `words` to `noun_phrases` of a `Parse`, read from an annotated spaCy doc.

    Whitespace that the tokenizer keeps as a token is SPACE, whatever the tagger guessed.
    """
    return (
        tuple(token.text for token in doc),
        tuple(token.idx for token in doc),
        tuple("SPACE" if token.is_space else token.pos_ for token in doc),
        tuple("_SP" if token.is_space else token.tag_ for token in doc),
        tuple(place for span in noun_phrases(doc) for place in span),
    )
