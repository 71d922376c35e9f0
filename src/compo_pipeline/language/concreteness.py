"""Concreteness of words: generators of hard negatives may prefer to change what can be seen.

Source: "Concrete Jungle" (arXiv 2604.13313): negatives that change concrete words differ more in
what an image would show, and teach more. The paper rates words by psycholinguistic norms; how it
draws by the ratings is not known here: the probability is proportional to a power of the rating,
which is configurable. No ratings are shipped (docs/explanation/negatives.md).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from pydantic import NonNegativeFloat

from compo_pipeline.configuration.settings import SettingsError, settings
from compo_pipeline.language.lexicon import load_lexicon
from compo_pipeline.storage.untrusted import read_csv, shown

Option = TypeVar("Option")
# Headers of tables: ours, and that of Brysbaert et al. 2014.
_COLUMNS = (("word", "rating"), ("Word", "Conc.M"))


@settings
class ConcretenessSettings:
    """Settings of drawing words with probabilities by their concreteness."""

    table: str | None = None
    """CSV of ratings, with the columns word and rating, or Word and Conc.M as Brysbaert et al.
    publish them; null: all words are drawn alike.
    """

    power: NonNegativeFloat = 2.0
    """A word is drawn with a probability proportional to its rating to this power; a word that the
    table lacks has its least rating.
    """


@dataclass(frozen=True, slots=True)
class Concreteness:
    """Concreteness ratings of words, which weight the options of a random draw."""

    ratings: Mapping[str, float]
    power: float
    least: float

    def log_weight(self, texts: Iterable[str]) -> float:
        """Log sampling weight of an option: power times the sum of the log ratings of its texts.

        Each is as concrete as its most concrete word.
        """
        return self.power * sum(math.log(self._rating(text.lower())) for text in texts)

    def _rating(self, text: str) -> float:
        """Concreteness rating of a text: its own, else the highest rating of its words."""
        if text in self.ratings:
            return self.ratings[text]
        return max(self.ratings.get(word, self.least) for word in (text, *text.split()))


def draw(
    rng: random.Random,
    options: Sequence[Option],
    texts: Callable[[Option], Iterable[str]],
    by: Concreteness | None,
) -> Option:
    """Draw one of several options: uniformly, or by the concreteness of each option's texts."""
    if by is None:
        return rng.choice(options)
    logs = [by.log_weight(texts(option)) for option in options]
    largest = max(logs)  # relative to it no power is too large for a float
    (one,) = rng.choices(options, [math.exp(each - largest) for each in logs])
    return one


def load(chosen: ConcretenessSettings, key: str) -> Concreteness | None:
    """Load the concreteness ratings of the table that the settings name; None if no table is named.

    Args:
        chosen: the settings.
        key: their YAML key, for errors.

    Raises:
        SettingsError: the table cannot be read.
    """
    if chosen.table is None:
        return None
    try:
        ratings, least = _read_ratings(Path(chosen.table))
    except ValueError as error:
        raise SettingsError(f"{key}.table: {error}") from error
    return Concreteness(ratings, chosen.power, least)


@cache
def _read_ratings(path: Path) -> tuple[Mapping[str, float], float]:
    """Read concreteness ratings: rating by word, also of inflected forms, and the lowest rating."""
    rows = read_csv(path)
    columns = [pair for pair in _COLUMNS if rows and rows[0].keys() >= set(pair)]
    if not columns:
        raise ValueError(f"{path}: expected rows with the columns word, rating (or Word, Conc.M)")
    word, rating = columns[0]
    ratings: dict[str, float] = {}
    for number, row in enumerate(rows, start=2):
        try:
            value = float(row[rating])
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            problem = f"expected a number above 0, got {shown(row[rating])}"
            raise ValueError(f"{path}, row {number}, {rating}: {problem}")
        ratings[row[word].strip().lower()] = value
    for lemma in load_lexicon().lemmas.values():
        if lemma.name in ratings:
            for form in lemma.forms.values():
                ratings.setdefault(form, ratings[lemma.name])
    return ratings, min(ratings.values())
