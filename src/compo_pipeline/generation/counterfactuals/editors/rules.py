"""Caption editor by rules: negatives by this project's generators, positives by paraphrases."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import ClassVar

from compo_pipeline.core import seeding
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.generation.counterfactuals.contract import EditedCaption, EditRequest, Opening
from compo_pipeline.generation.counterfactuals.editors.checks import reason_to_reject
from compo_pipeline.generation.counterfactuals.settings import Rule, RulesSettings
from compo_pipeline.language.editing import Generated, Generator
from compo_pipeline.language.lexicon import RESOURCES
from compo_pipeline.language.paraphrases import paraphrase
from compo_pipeline.language.reordering import swap_phrases
from compo_pipeline.language.replacements import replacer
from compo_pipeline.language.swaps import swap_within
from compo_pipeline.language.units import change_relation

RULES = 1
"""Version of the rules: raised where equal captions and settings give other texts than before."""

_ATTEMPTS = 5  # draws of each rule, until one passes the checks
_NOTHING = "no rule finds anything to change"


class RuleEditor:
    """Caption editor by rules.

    Equal seeds and parses give equal texts, in any batch.
    """

    name: ClassVar[str] = "rules"
    concurrent: ClassVar[bool] = True

    def __init__(self, settings: RulesSettings, key: str, opening: Opening) -> None:
        self._settings, self._key, self._seed = settings, key, opening.seed
        lexicon = (RESOURCES / "lexicon.tsv").read_text(encoding="utf-8")
        self.settings_fingerprint = hash_of(self.name, settings, opening.seed, lexicon, RULES)

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | str]:
        """Yield, for each caption, the first text by the rules that passes the checks.

        Raises:
            SettingsError: WordNet is chosen but not installed.
        """
        rules = self._generators
        for request in requests:
            parts = (request.sample_id, request.sentence, request.role)
            yield self._edit_one(request, rules, seeding.rng(self._seed, self.name, *parts))

    @cached_property
    def _generators(self) -> Mapping[Rule, Generator]:
        """Generator function of each configured rule for negatives, by rule name."""
        careful = self._settings.careful
        generators: dict[Rule, Generator] = {
            "negclip": partial(swap_phrases, careful=careful),
            "swap": partial(swap_within, careful=careful),
        }
        if {"relation", "replace"} & set(self._settings.negatives):
            found = replacer(self._settings.replacements, key=f"{self._key}.replacements")
            generators["replace"] = found
            generators["relation"] = partial(change_relation, replacer=found)
        return generators

    def _edit_one(
        self, request: EditRequest, rules: Mapping[Rule, Generator], rng: random.Random
    ) -> EditedCaption | str:
        """First draft of an edit that passes the checks, or why none does."""
        reason = _NOTHING
        for draft in self._drafts(request, rules, rng):
            refused = reason_to_reject(request, draft.text)
            if not refused:
                words = " > ".join(draft.words)
                return EditedCaption(draft.text, f"{draft.generator}, {draft.category}: {words}")
            reason = f"the last draft was refused: {refused} ({draft.text!r})"
        return reason

    def _drafts(
        self, request: EditRequest, rules: Mapping[Rule, Generator], rng: random.Random
    ) -> Iterator[Generated]:
        """Unchecked edits by the rules for the request's role, at most `attempts` per rule."""
        generators: list[Generator] = [paraphrase]
        if request.role == "negative":
            names = list(self._settings.negatives)
            if self._settings.order == "drawn":
                rng.shuffle(names)
            generators = [rules[name] for name in names]
        for generator in generators:
            for _ in range(_ATTEMPTS):
                draft = generator(request.parse, rng)
                if draft is None:
                    break
                yield draft
