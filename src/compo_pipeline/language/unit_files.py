"""Files of units and foils as CS-CLIP's authors write them with a language model.

A folder of JSON files, each a list of records `{original_caption, entities: [text],
negative_entities: {entity: [foil]}, relations: [{subject, relation_type, object, negatives}],
swap_negatives: [text]}`; a foil or swap is a text or `{negative}`, a relation's negative is
`{change_type}` with another `relation_type` (change_type `antonym`, `negation`, `relation_change`
or `relation_opposite`), or with `subject` and `object`, which are exchanged where it gives none
(`swap` or `subject_object_swap`). Other change types are not used, as in the authors'
utils/sampler.py.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.language.editing import bare
from compo_pipeline.language.units import Category
from compo_pipeline.storage.untrusted import files_below, read_json, text_problem

log = logging.getLogger(__name__)

_SWAPS = frozenset({"swap", "subject_object_swap"})
_CHANGES = frozenset({"antonym", "negation", "relation_change", "relation_opposite"})
_PARTS = ("subject", "relation_type", "object")


@dataclass(frozen=True, slots=True)
class WrittenUnit:
    """An entity or relation of a caption and its foils in groups, as read from a JSON file.

    Foils are drawn by group, then within it.

    Each negative of a relation in the file is a group of its own; the foils of its subject and
    those of its object are one group each (utils/sampler.py, `_sample_structured_relation_pair`).
    """

    category: Category
    text: str
    foils: tuple[tuple[str, ...], ...]

    def foil(self, rng: random.Random) -> str:
        """Draw one foil (a false replacement) of this unit: a group, then one foil of it."""
        return rng.choice(rng.choice(self.foils))


@dataclass(frozen=True, slots=True)
class WrittenUnits:
    """A caption's entities and relations with foils, and its swap negatives, from a JSON file."""

    units: tuple[WrittenUnit, ...]
    swaps: tuple[str, ...]

    def negative(self, caption: str, rng: random.Random) -> tuple[str, str] | None:
        """Draw a hard negative of the whole caption; returns it with its kind, `swap` or `entity`.

        A swap of the file, else the caption with one of its entities replaced by a foil
        (utils/sampler.py, `OriginalCaptionNegativeSampler`, with its published probabilities of 1).

        Returns:
            None where the file has no swap, and no foil of an entity that the caption names.
        """
        if self.swaps:
            return rng.choice(self.swaps), "swap"
        entities = [unit for unit in self.units if unit.category == "entity"]
        for unit in rng.sample(entities, len(entities)):
            replaced = caption.replace(unit.text, unit.foil(rng), 1)
            if replaced != caption:
                return replaced, "entity"
        return None


def files(folder: Path, key: str) -> list[Path]:
    """Paths of all JSON files below a folder of captions' entities and relations with foils.

    Args:
        folder: searched for *.json.
        key: the YAML key of the folder, for errors.

    Raises:
        SettingsError: there is none.
    """
    found = files_below(folder, "*.json") if folder.is_dir() else []
    if not found:
        raise SettingsError(f"{key}: no *.json in the folder {folder}")
    return found


def read(folder: Path, key: str) -> dict[str, WrittenUnits]:
    """Read JSON files of captions' entities and relations with foils: `WrittenUnits` by caption.

    Records that cannot be read are counted and the first is named in the log.

    Args:
        folder: searched for *.json.
        key: the YAML key of the folder, for errors.

    Raises:
        SettingsError: there is no file, one is no JSON, or no record can be read.
    """
    paths = files(folder, key)
    found: dict[str, WrittenUnits] = {}
    refused: list[str] = []
    for file in paths:
        try:
            records = read_json(file)
        except ValueError as error:
            raise SettingsError(f"{key}: {error}") from error
        for place, record in enumerate(records if isinstance(records, list) else [records]):
            try:
                found[bare(_text_field(record.get("original_caption") or record["caption"]))] = (
                    WrittenUnits(
                        tuple(_read_units(record)), _foil_texts(record.get("swap_negatives"))
                    )
                )
            except (AttributeError, KeyError, TypeError) as error:
                refused.append(f"{file}, record {place}: {error!r}")
    if not found:
        raise SettingsError(f"{key}: no record of units can be read ({refused[:1] or paths[:1]})")
    if refused:
        log.warning("%d records of units cannot be read, the first: %s", len(refused), refused[0])
    return found


def _read_units(record: Mapping[str, Any]) -> Iterator[WrittenUnit]:
    """Entities and relations with foils of one caption, from its JSON record."""
    others = {
        _text_field(entity): _foil_texts(foils)
        for entity, foils in (record.get("negative_entities") or {}).items()
    }
    for entity in map(_text_field, record.get("entities") or ()):
        if others.get(entity):
            yield WrittenUnit("entity", entity, (others[entity],))
    for relation in record.get("relations") or ():
        subject, name, other = (_text_field(relation.get(part)) for part in _PARTS)
        text = _relation_text(subject, name, other)
        groups = _relation_foils(relation, subject, name, other, others)
        differing = (tuple(foil for foil in group if foil != text) for group in groups)
        foils = tuple(group for group in differing if group)
        if subject and name and other and foils:
            yield WrittenUnit("relation", text, foils)


def _relation_foils(
    relation: Mapping[str, Any],
    subject: str,
    name: str,
    other: str,
    others: Mapping[str, tuple[str, ...]],
) -> Iterator[tuple[str, ...]]:
    """Foils of a relation in groups: one per negative, one for its subject, one for its object."""
    for negative in relation.get("negatives") or ():
        change = str(negative.get("change_type")).strip().lower()
        if change in _SWAPS:
            first, last = _text_field(negative.get("subject")), _text_field(negative.get("object"))
            yield (_relation_text(first or other, name, last or subject),)
        elif change in _CHANGES and (new := _text_field(negative.get("relation_type"))):
            yield (_relation_text(subject, new, other),)
    yield tuple(_relation_text(foil, name, other) for foil in others.get(subject, ()))
    yield tuple(_relation_text(subject, name, foil) for foil in others.get(other, ()))


def _relation_text(subject: str, name: str, other: str) -> str:
    """Text of a relation: subject, relation and object, joined by spaces."""
    return f"{subject} {name.replace('_', ' ')} {other}"


def _foil_texts(values: Iterable[Any] | None) -> tuple[str, ...]:
    """Non-empty foils in a list of a JSON record, whose items are texts or `{negative: text}`."""
    texts = (_text_field(one["negative"] if isinstance(one, dict) else one) for one in values or ())
    return tuple(text for text in texts if text)


def _text_field(value: Any) -> str:
    """Stripped text of a field of a JSON record; empty for a missing one."""
    if problem := text_problem(value or ""):
        raise TypeError(problem)
    return (value or "").strip()
