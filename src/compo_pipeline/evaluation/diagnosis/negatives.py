"""Count a training's hard negatives by kind of change, under its own and under other rules.

A rule is measured on a sample of the training captions: it makes their negatives, and these are
counted by what they have changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple, get_args, get_type_hints

from compo_pipeline.core.records import Caption, Parse, View
from compo_pipeline.generation.counterfactuals.contract import EditedCaption, EditRequest, Opening
from compo_pipeline.generation.counterfactuals.settings import (
    CAPTION_EDITORS,
    KEY,
    CounterfactualSettings,
    open_editor,
)
from compo_pipeline.language.changes import Change, change
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.registry import METHODS, build, method_type
from compo_pipeline.methods.views import PAIR

Parser = Callable[[Iterable[str]], Mapping[str, Parse]]
"""Distinct texts to their parses."""


class RememberedParses:
    """A parser with a cache, so that no text is parsed twice.

    Methods share most of their rules.
    """

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._known: dict[str, Parse] = {}

    def __call__(self, texts: Iterable[str]) -> Mapping[str, Parse]:
        """The parses of the texts, and of all before them."""
        new = dict.fromkeys(text for text in texts if text not in self._known)
        self._known.update(self._parser(new))
        return self._known


class Negatives(NamedTuple):
    """A caption with its hard negatives, and whether training shows images of them.

    Of an image of a negative, the negative is the right text. Without images a model can learn to
    tell negatives by their text alone.
    """

    caption: str
    texts: Sequence[str]
    shown: bool = False

    @classmethod
    def from_view(cls, view: View) -> Negatives:
        """Caption and negatives of a view, or those of the first image of a pair."""
        own = view.negatives
        if view.kind == PAIR:
            own = own[: len(own) // 2]
        texts = [text for text in own if text is not None]
        shown = bool(view.counterfactuals and view.counterfactuals[0])
        return cls(view.positives[0], texts, shown)


@dataclass(frozen=True, slots=True)
class AskedChanges:
    """Counts of captions by the kind of change in their hard negatives, in one training pass.

    Attributes:
        captions: number of captions.
        negatives: number of their hard negatives.
        asked: number of captions by kind whose negative makes this change. A negative that changes
            something else, or more than one thing, has no kind.
        shown: number of captions by kind whose negative also has an image.
    """

    captions: int
    negatives: int
    asked: Mapping[Change, int]
    shown: Mapping[Change, int]

    def share(self, kind: Change) -> float:
        """Share of the captions that have a hard negative of a kind of change."""
        return self.asked.get(kind, 0) / self.captions

    def shown_share(self, kind: Change) -> float:
        """Share of the captions with a hard negative of a kind of change and an image of it."""
        return self.shown.get(kind, 0) / self.captions


def asked_changes(rows: Sequence[Negatives], parser: Parser) -> AskedChanges:
    """Count captions by the kind of change that their hard negatives make.

    Args:
        rows: rows with every caption, at least one.
        parser: parser of the texts.
    """
    parses = parser(dict.fromkeys(text for row in rows for text in (row.caption, *row.texts)))
    asked: Counter[Change] = Counter()
    shown: Counter[Change] = Counter()
    for row in rows:
        kinds = {change(parses[row.caption], parses[text]) for text in row.texts}
        found = [kind for kind in kinds if kind is not None]
        asked.update(found)
        if row.shown:
            shown.update(found)
    return AskedChanges(len(rows), sum(len(row.texts) for row in rows), asked, shown)


@dataclass(frozen=True, slots=True)
class RuleSetting:
    """A setting that lists the rules by which a method's hard negatives are made."""

    method: str
    """Method whose negatives the rules make."""
    key: str
    """Dotted YAML key."""
    current: tuple[str, ...]
    """Configured value of the key."""
    allowed: tuple[str, ...]
    """Rules that the key may list."""
    asked: Callable[[tuple[str, ...]], AskedChanges]
    """Changes that training would ask for with these rules."""


class Sample(NamedTuple):
    """Training captions with their parses, on which rules of negatives are measured."""

    captions: Sequence[Caption]
    context: ViewContext
    """Parses of the captions."""
    parser: Parser
    """Parser of the captions."""


def rule_settings(
    views: Mapping[str, Mapping[str, Any]],
    counterfactuals: CounterfactualSettings,
    opening: Opening,
    sample: Sample,
) -> Iterator[RuleSetting]:
    """Yield the settings of all methods that list rules of hard negatives.

    Args:
        views: settings of the views, by method; others have their defaults.
        counterfactuals: settings of the caption editor.
        opening: inputs with which rules are opened, with the captions of the sample.
        sample: the captions.
    """
    editor = CAPTION_EDITORS[counterfactuals.caption_editor]
    # The methods that train on edited captions share the editor.
    edited = cache(partial(_editor_changes, counterfactuals, opening, sample))
    for name, entry in METHODS.items():
        kind = method_type(name)
        if entry.counterfactuals and editor.negatives_setting:
            key = f"{KEY}.{counterfactuals.caption_editor}"
            own = getattr(counterfactuals, counterfactuals.caption_editor)
            yield _rule_setting(name, key, own, editor.negatives_setting, edited)
        elif kind.negatives_setting:
            own = views.get(name, {})
            yield _rule_setting(
                name,
                f"{name}.views",
                build(name, own).view_settings,
                kind.negatives_setting,
                partial(_method_changes, name, own, sample),
            )


def _rule_setting(
    method: str,
    place: str,
    settings: Any,
    name: str,
    asked: Callable[[str, tuple[str, ...]], AskedChanges],
) -> RuleSetting:
    """The RuleSetting for a list of rules in the settings of a method or a caption editor."""
    (rules, _) = get_args(get_type_hints(type(settings))[name])
    current = getattr(settings, name)
    return RuleSetting(method, f"{place}.{name}", current, get_args(rules), partial(asked, name))


def _method_changes(
    method: str, views: Mapping[str, Any], sample: Sample, setting: str, rules: tuple[str, ...]
) -> AskedChanges:
    """Count the kinds of change in the negatives that a method makes with these rules."""
    built = build(method, {**views, setting: list(rules)})
    drawn = {view.sample_id: view for view in built.views(sample.captions, sample.context)}
    rows = [
        Negatives.from_view(drawn[row.sample_id])
        if row.sample_id in drawn
        else Negatives(row.sentences[0], ())
        for row in sample.captions
    ]
    return asked_changes(rows, sample.parser)


def _editor_changes(
    settings: CounterfactualSettings,
    opening: Opening,
    sample: Sample,
    setting: str,
    rules: tuple[str, ...],
) -> AskedChanges:
    """Count the kinds of change in the captions that an editor makes with these rules."""
    name = settings.caption_editor
    changed: dict[str, Any] = {name: replace(getattr(settings, name), **{setting: rules})}
    editor = open_editor(replace(settings, **changed), opening)
    requests = [
        EditRequest(
            row.sample_id, 0, "negative", row.sentences[0], sample.context.parses[row.sample_id]
        )
        for row in sample.captions
    ]
    shown = settings.image_generator is not None
    edits = ((edit,) if isinstance(edit, EditedCaption) else () for edit in editor.edit(requests))
    rows = [
        Negatives(request.caption, [edit.text for edit in made], shown)
        for request, made in zip(requests, edits, strict=True)
    ]
    return asked_changes(rows, sample.parser)
