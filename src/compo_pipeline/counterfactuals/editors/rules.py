"""The offline writer: this project's generators of negatives, and its paraphrases for positives."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, Literal

from compo_pipeline import seeding
from compo_pipeline.counterfactuals.contract import (
    EditedCaption,
    EditFailure,
    EditRequest,
    short_fingerprint,
)
from compo_pipeline.counterfactuals.editors.checks import CheckSettings, refusal
from compo_pipeline.language.editing import Generated, Generator
from compo_pipeline.language.lexicon import RESOURCES
from compo_pipeline.language.paraphrases import paraphrase
from compo_pipeline.language.reordering import swap_phrases
from compo_pipeline.language.replacements import replacer
from compo_pipeline.language.swaps import swap_within
from compo_pipeline.storage import files_fingerprint

Rule = Literal["replace", "negclip", "swap"]
_NOTHING = "no rule finds anything to change"


@dataclass(frozen=True)
class RulesSettings:
    """How negatives are made by rule; positives are `paraphrase`'s.

    Attributes:
        negatives: the rules to try: `replace` gives a thing, attribute or relation for another,
            `negclip` exchanges two phrases of a kind, `swap` two words of a kind.
        order: `given`: the next rule is tried only where the one before found nothing; `drawn`:
            each caption draws the order of the rules. Of negatives that were read one by one, all
            that were broken came from swaps, careful as they are.
        careful: swaps leave out what makes broken English, or says the same; they find less.
        replacements: where `replace` finds its words: the shipped lexicon, or WordNet through nltk.
        attempts: draws of each rule, until one passes the checks.
        checks: what a text is held to.
    """

    negatives: tuple[Rule, ...] = ("replace", "negclip", "swap")
    order: Literal["given", "drawn"] = "given"
    careful: bool = True
    replacements: Literal["lexicon", "wordnet"] = "lexicon"
    attempts: int = 5
    checks: CheckSettings = field(default_factory=CheckSettings)

    def __post_init__(self) -> None:
        """Rules to try, each of them once."""
        if not self.negatives or len(set(self.negatives)) < len(self.negatives):
            raise ValueError(
                "negatives: expected each of replace, negclip, swap at most once and one at least, "
                f"got {list(self.negatives)}"
            )
        if self.attempts < 1:
            raise ValueError(f"attempts: expected 1 at least, got {self.attempts}")


class RuleEditor:
    """Equal seeds and equal parses give equal texts, whatever else is asked."""

    name: ClassVar[str] = "rules"

    def __init__(self, settings: RulesSettings, *, key: str, seed: int) -> None:
        self._settings, self._key, self._seed = settings, key, seed

    @cached_property
    def settings_fingerprint(self) -> str:
        """Of settings, seed, lexicon and code: a changed rule gives new texts."""
        lexicon = (RESOURCES / "lexicon.tsv").read_text(encoding="utf-8")
        package = Path(__file__).parents[2]
        folders = (package / "language", package / "counterfactuals" / "editors")
        files = sorted(file for folder in folders for file in folder.glob("*.py"))
        code = files_fingerprint((file.name, file) for file in files)
        return short_fingerprint(self.name, self._settings, self._seed, lexicon, code)

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | EditFailure]:
        """The first text that passes the checks, of the rules in their order.

        Raises:
            SettingsError: WordNet is wanted and not there.
        """
        rules = self._rules
        for request in requests:
            parts = (request.sample_id, request.sentence, request.role)
            yield self._answer(request, rules, seeding.rng(self._seed, self.name, *parts))

    @cached_property
    def _rules(self) -> Mapping[Rule, Generator]:
        careful = self._settings.careful
        made: dict[Rule, Generator] = {
            "negclip": partial(swap_phrases, careful=careful),
            "swap": partial(swap_within, careful=careful),
        }
        if "replace" in self._settings.negatives:
            key = f"{self._key}.replacements"
            made["replace"] = replacer(self._settings.replacements, key=key)
        return made

    def _answer(
        self, request: EditRequest, rules: Mapping[Rule, Generator], rng: random.Random
    ) -> EditedCaption | EditFailure:
        reason = _NOTHING
        for made in self._drafts(request, rules, rng):
            refused = refusal(request, made.text, self._settings.checks)
            if not refused:
                words = " > ".join(made.words)
                return EditedCaption(
                    request, made.text, f"{made.generator}, {made.category}: {words}"
                )
            reason = f"the last draft was refused: {refused} ({made.text!r})"
        return EditFailure(request, reason)

    def _drafts(
        self, request: EditRequest, rules: Mapping[Rule, Generator], rng: random.Random
    ) -> Iterator[Generated]:
        generators: list[Generator] = [paraphrase]
        if request.role == "negative":
            names = list(self._settings.negatives)
            if self._settings.order == "drawn":
                rng.shuffle(names)
            generators = [rules[name] for name in names]
        for generator in generators:
            for _ in range(self._settings.attempts):
                made = generator(request.parse, rng)
                if made is None:
                    break
                yield made
