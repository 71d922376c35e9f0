"""The spaCy pipeline of a run: the shipped one, or any other that tags and parses."""

from __future__ import annotations

from importlib.resources import as_file
from pathlib import Path
from typing import TYPE_CHECKING

from compo_pipeline.configuration import SettingsError
from compo_pipeline.language.lexicon import RESOURCES

if TYPE_CHECKING:
    from spacy.language import Language

SHIPPED = "compo_en"
_KEY = "language.model"
# Components by their factory: they cost time and nobody reads what they find. Each text is
# given as one sentence, so sentence splitters have nothing to do either.
_UNUSED = frozenset(
    {"ner", "beam_ner", "entity_ruler", "entity_linker", "span_ruler", "spancat", "textcat"}
    | {"textcat_multilabel", "lemmatizer", "trainable_lemmatizer", "senter", "sentencizer"}
)
_PROBE = "A small dog sits on the green sofa."


def load(model: str) -> Language:
    """Load a pipeline, without the components that the project does not need.

    Args:
        model: `compo_en` for the pipeline shipped with the package, else the name of an installed
            spaCy package or the path of a pipeline's folder.

    Raises:
        SettingsError: it is not installed, cannot be loaded, or does not tag and parse.
    """
    import spacy

    try:
        if model == SHIPPED:
            with as_file(RESOURCES / SHIPPED) as folder:
                nlp = spacy.load(folder)
        else:
            nlp = spacy.load(Path(model) if Path(model).is_dir() else model)
    except (OSError, ValueError, ImportError) as error:
        raise SettingsError(
            f"{_KEY}: cannot load {model!r} ({error}). Give '{SHIPPED}' (shipped), the name of an "
            "installed spaCy package (pip install ...), or the folder of a spaCy pipeline"
        ) from error
    unused = [name for name in nlp.pipe_names if nlp.get_pipe_meta(name).factory in _UNUSED]
    nlp.disable_pipes(*unused)
    _check(nlp, model)
    return nlp


def identity(nlp: Language) -> str:
    """Name and version of a pipeline, `name==version`, for provenance."""
    name = nlp.meta["name"]
    prefix = f"{nlp.lang}_"
    full = name if name.startswith(prefix) or name == SHIPPED else prefix + name
    return f"{full}=={nlp.meta['version']}"


def _check(nlp: Language, model: str) -> None:
    """Try it: what counts is the annotation, not which component makes it."""
    doc = nlp(_PROBE)
    wanted = {"POS": "parts of speech", "TAG": "fine tags", "DEP": "dependencies"}
    missing = [what for attribute, what in wanted.items() if not doc.has_annotation(attribute)]
    if missing:
        raise SettingsError(
            f"{_KEY}: {model!r} gives no {', no '.join(missing)} (its components: "
            f"{', '.join(nlp.pipe_names) or 'none'}). Choose a pipeline with a tagger, UPOS and a "
            f"parser, such as '{SHIPPED}' or en_core_web_sm"
        )
