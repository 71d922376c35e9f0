"""Views: their tables on disk, one parquet file an epoch, and views of a single image."""

from __future__ import annotations

import inspect
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np
from pydantic import PositiveInt

from compo_pipeline.configuration.settings import SettingsError, Share, settings
from compo_pipeline.language.concepts import Concept
from compo_pipeline.language.editing import Generated
from compo_pipeline.methods.contract import Example, ImageInput, Method, Sampler, ViewContext
from compo_pipeline.methods.mixture import Anchors, Mixture, SourceRows
from compo_pipeline.methods.registry import find
from compo_pipeline.run.engines import LOCAL, PrepareSettings
from compo_pipeline.storage.annotations import Annotations, AnnotationSettings
from compo_pipeline.storage.files import atomic_folder
from compo_pipeline.storage.hashing import files_hash
from compo_pipeline.storage.records import Annotation, Caption, Counterfactual, View
from compo_pipeline.storage.table_files import Parts, is_whole, resumable, stream_rows, write_rows
from compo_pipeline.storage.tables import Groups, Table

VIEWS = 1
"""Version of views: raised where equal captions and settings give other views than before."""

_JSON = json.JSONEncoder(ensure_ascii=False)

FROM_TABLE = "views.from_table"
PAIR = "pair"
"""Kind of a view of two rows with similar images."""

log = logging.getLogger(__name__)


@settings
class ViewSettings:
    """Settings of views: number of epochs, training split, and texts of an external table."""

    epochs: PositiveInt = 1
    """Tables that are written; every epoch draws partners, sentences and swaps afresh."""

    split: str | tuple[str, ...] = "train"
    """The split that trains, or several: [train, carved] is all rows, where foils.carve holds some
    out."""

    long_share: Share = 0.0
    """Chance that a caption's view shows its own image with the whole caption, all sentences of it,
    in place of the method's view; for bases that read long texts (`model.context_length`)."""

    from_table: AnnotationSettings = field(default_factory=AnnotationSettings)
    """Texts of others, which take the place of those that the method makes."""


def annotated_contents(method: Method, settings: AnnotationSettings) -> frozenset[str]:
    """Names of the external table's fields that a method's views use; empty without a table.

    Raises:
        SettingsError: a column that the method has no use for is named.
    """
    if settings.file is None:
        return frozenset()
    if find(method.name).counterfactuals:
        raise SettingsError(
            f"{FROM_TABLE}.file: the texts of {method.name} are counterfactuals; set "
            "counterfactuals.caption_editor to table, and counterfactuals.table.file"
        )
    return settings.usable(method.annotations, FROM_TABLE, f"the method {method.name}")


def annotations_of(
    method: Method, settings: AnnotationSettings, rows: Sequence[Annotation]
) -> Annotations:
    """Texts of the external table that a method's views use.

    Args:
        method: draws the views.
        settings: of the table.
        rows: of the table `annotations`.
    """
    return Annotations.from_rows(rows, settings, annotated_contents(method, settings))


class Origin(NamedTuple):
    """Origin of a negative: the rule, the category of its change, and the words."""

    generator: str
    """The rule."""

    category: str
    """What the rule changed (a part of speech, an entity, a relation, ...)."""

    words: tuple[str, ...]
    """What it removed, moved or inserted."""

    @classmethod
    def from_generated(cls, generated: Generated) -> Origin:
        """The origin of a text that a rule generated."""
        return cls(generated.generator, generated.category, generated.words)


class NegativeText(NamedTuple):
    """A negative text and its origin."""

    text: str
    origin: Origin

    @classmethod
    def from_rule(cls, generated: Generated | None) -> NegativeText | None:
        """The negative that a rule generated; None where the rule found nothing."""
        return cls(generated.text, Origin.from_generated(generated)) if generated else None

    @classmethod
    def from_table(cls, found: tuple[str, str] | None) -> NegativeText | None:
        """A negative taken from a column of an external table; None if the table has none."""
        return cls(found[0], Origin("table", found[1], ())) if found else None


def provenance(language: str, negatives: Sequence[Origin | None]) -> str:
    """JSON of a view's provenance: the language pipeline, and the origin of each negative.

    Args:
        language: name and version of the language pipeline.
        negatives: parallel to `View.negatives`, None where a rule found nothing.
    """
    origins = [origin and origin._asdict() for origin in negatives]
    return _JSON.encode({"language": language, "negatives": origins})


def negative_kinds(provenance: str) -> set[str]:
    """Kinds of the hard negatives of a view, from its provenance.

    That is `Origin.category`; of edited captions it names the rule, its category and the words.
    """
    origins = filter(None, json.loads(provenance)["negatives"])
    named = (origin["category"].partition(":")[0] for origin in origins)
    return {kind for names in named for kind in names.split(", ")}


def single_image(example: Example) -> ImageInput:
    """Image input of an example's own caption image, without a second image."""
    return ImageInput((example.caption.image,))


def own_sentence(example: Example) -> str:
    """The sentence that describes the anchor's own image, also where the view is a composite.

    That of its view, which may be a whole caption; of a composite, the first of the anchor's
    caption.
    """
    view = example.view
    return example.caption.sentences[0] if view.kind == "composite" else view.positives[0]


def single_view(
    caption: Caption,
    positives: Sequence[str],
    negatives: Sequence[str | None],
    provenance: str,
    phrases: Sequence[Concept] = (),
    counterfactuals: Sequence[str] = (),
) -> View:
    """A view of one image with the given texts, phrases and provenance.

    Negatives are None where a generator found nothing, phrases are of the first positive.
    """
    return View(
        sample_id=caption.sample_id,
        kind="single",
        sample_ids=(caption.sample_id,),
        images=(caption.image,),
        axis=None,
        positives=tuple(positives),
        negatives=tuple(negatives),
        phrases=tuple(phrase.text for phrase in phrases),
        phrase_spans=tuple(place for phrase in phrases for place in (phrase.start, phrase.end)),
        counterfactuals=tuple(counterfactuals),
        provenance=provenance,
    )


def written_view(
    caption: Caption,
    positives: Sequence[str],
    negatives: Sequence[NegativeText | None],
    language: str,
) -> View:
    """A view of one image with negatives and their origins; None for an absent negative."""
    texts = [one.text if one else None for one in negatives]
    origins = [one.origin if one else None for one in negatives]
    return single_view(caption, positives, texts, provenance(language, origins))


def long_view(caption: Caption, view: View, language: str) -> View:
    """A view of a caption's image with the whole caption as its text, without negatives.

    It has no phrases either.

    Args:
        caption: of the view.
        view: the method's own, which has as many positives and negatives; of a pair half of them.
        language: name and version of the language pipeline.
    """
    rows = 2 if view.kind == PAIR else 1
    absent = [None] * (len(view.negatives) // rows)
    whole = single_view(
        caption,
        [caption.whole] * (len(view.positives) // rows),
        absent,
        provenance(language, absent),
        counterfactuals=[""] * len(view.counterfactuals),
    )
    return replace(whole, kind="long")


def by_sample(counterfactuals: Iterable[Counterfactual]) -> Mapping[str, Sequence[Counterfactual]]:
    """Counterfactuals (edited captions), grouped by sample_id."""
    return Groups(Table.of(counterfactuals, Counterfactual))


def write(
    method: Method,
    captions: Sequence[Caption],
    context: ViewContext,
    epochs: int,
    folder: Path,
    fingerprint: str | None = None,
    engine: PrepareSettings = LOCAL,
    long_share: float = 0.0,
    mixture: Mixture | None = None,
) -> None:
    """Write the views of all epochs to a folder, which is replaced as a whole.

    Args:
        method: draws the views.
        captions: the rows that train.
        context: what views are drawn from, in the first epoch.
        epochs: their number.
        folder: `epoch=NN.parquet` go here.
        fingerprint: of everything that the views depend on, besides code: a run after a kill draws
            what is missing. Without one it begins anew.
        engine: draws them.
        long_share: chance of a view with the whole caption.
        mixture: of several sources; an epoch then has their shares in place of a view a caption.

    Raises:
        ValueError: no caption has a view.
        SettingsError: no row of a source has.
    """
    code = Path(inspect.getfile(type(method)))
    own = files_hash([(f"{VIEWS} {fingerprint or uuid4().hex}", code)])
    with resumable(folder.with_name(f".{folder.name}.parts"), own) as place:
        files = [place / f"epoch={epoch:02d}.parquet" for epoch in range(epochs)]
        sources = mixture.sources(Table.of(captions, Caption), method) if mixture else {}
        for epoch, file in enumerate(files):
            if not is_whole(file):
                of_epoch = context._replace(epoch=epoch)
                drawing = (
                    _MixedDrawing(method, mixture, sources, of_epoch, long_share)
                    if mixture
                    else _Drawing(method, captions, of_epoch, long_share)
                )
                what = f"drawing views of epoch {epoch}"
                write_rows(file, Parts(what, drawing, len(drawing), own, engine), View)
            if epoch == 0:
                _log_counts(method, captions, file, sources)
        for name, source in sources.items():
            _log_source(name, source, epochs)
        with atomic_folder(folder) as new:
            for file in files:
                file.rename(new / file.name)


def _view_sampler(
    method: Method, captions: Sequence[Caption], context: ViewContext, long_share: float
) -> Sampler:
    """The sampler of a method, with a share of its views replaced by whole captions."""
    own = method.sampler(captions, context)

    def view(caption: Caption) -> View | None:
        drawn = own(caption)
        if drawn is None or context.rng("long", caption).random() >= long_share:
            return drawn
        return long_view(caption, drawn, context.language)

    return view


@dataclass(frozen=True)
class _Drawing:
    """Draws the views of a range of caption rows, in one epoch."""

    method: Method
    captions: Sequence[Caption]
    context: ViewContext
    long_share: float

    @cached_property
    def _sampler(self) -> Sampler:
        """The cached view sampler of this epoch."""
        return _view_sampler(self.method, self.captions, self.context, self.long_share)

    def __len__(self) -> int:
        return len(self.captions)

    def __call__(self, part: range) -> Iterator[View]:
        return filter(None, map(self._sampler, self.captions[part.start : part.stop]))


@dataclass(frozen=True)
class _MixedDrawing:
    """Draws the views of a range of an epoch's anchors from several sources, one by one.

    What a view shows is of one source: partners are drawn there.
    """

    method: Method
    mixture: Mixture
    sources: Mapping[str, SourceRows]
    context: ViewContext
    long_share: float

    def __len__(self) -> int:
        return sum(source.share for source in self.sources.values())

    @cached_property
    def _sampler(self) -> Callable[[str, int], Sampler]:
        """A function from a source and a pass to a view sampler; caches the last two samplers."""
        return lru_cache(2)(self._sampler_of)

    def _sampler_of(self, name: str, number: int) -> Sampler:
        """View sampler of a source in one pass through its rows.

        The pass takes the place of an epoch.
        """
        context = self.context._replace(epoch=number)
        return _view_sampler(self.method, self.sources[name].captions, context, self.long_share)

    @cached_property
    def _anchors(self) -> dict[str, Anchors]:
        """Anchor rows that this epoch takes of each source, by source name."""
        epoch = self.context.epoch
        return {
            name: self.mixture.anchors(name, len(source.anchors), source.share, epoch)
            for name, source in self.sources.items()
        }

    def __call__(self, part: range) -> Iterator[View]:
        start = 0
        for name, source in self.sources.items():
            own = slice(max(part.start - start, 0), max(part.stop - start, 0))
            start += source.share
            rows, passes = (each[own] for each in self._anchors[name])
            for number in np.unique(passes).tolist():
                for caption in source.anchors.take(rows[passes == number]):
                    view = self._sampler(name, number)(caption)
                    if view is None:
                        raise ValueError(
                            f"'{self.method.name}' has no view of {caption.sample_id}, which its "
                            "`anchors` name: the shares of data.sources would not hold"
                        )
                    yield view


def _log_source(name: str, source: SourceRows, epochs: int) -> None:
    """Log how many rows of a source one epoch, and all epochs, take."""
    rows, share = len(source.anchors), source.share
    taken = min(rows, epochs * share)
    text = "%s: %d rows of %d in each epoch%s."
    left = f"; the {epochs} of views.epochs take {taken} of them" if taken < rows else ""
    log.info(text, name, share, rows, left)


def _log_counts(
    method: Method, captions: Sequence[Caption], file: Path, sources: Mapping[str, SourceRows]
) -> None:
    """Log how many views, negatives and synthetic images an epoch has.

    Raises:
        ValueError: it has no view.
    """
    counts: Counter[str] = Counter()
    for view in stream_rows(file, View):
        counts.update(views=1, **{view.kind: 1})
        if view.kind == "long":
            continue
        counts["lost"] += sum(negative is None for negative in view.negatives)
        if view.counterfactuals:
            negative, positive = map(bool, view.counterfactuals)
            counts.update(synthetic=1, rephrased=len(view.positives) > 1)
            counts.update(negatives=negative, positives=positive)
    if not counts["views"]:
        raise ValueError(
            f"none of {len(captions)} captions has a view under the method "
            f"'{method.name}': composites need two images of one orientation"
        )
    name, views, lost, rows = method.name, counts["views"], counts["lost"], len(captions)
    text = "%s: %d views of %d captions an epoch; negatives that could not be made: %d."
    log.info(text, name, views, rows, lost)
    if counts["long"]:
        log.info("%d views show whole captions, without negatives.", counts["long"])
    short = sum(len(caption.sentences) < method.sentences for caption in captions)
    if short:
        log.warning(
            "%s: %d of %d captions have fewer than %d sentences: further positives repeat the "
            "first.",
            name,
            short,
            rows,
            method.sentences,
        )
    if counts["synthetic"]:
        _log_image_counts(name, counts)
    if sources:
        views = sum(len(source.anchors) for source in sources.values())
    if views < rows and counts["composite"]:
        log.warning("%d captions have no view: no other image has their orientation.", rows - views)


def _log_image_counts(method: str, counts: Mapping[str, int]) -> None:
    """Log how many views have rephrased captions and synthetic images; warn if no image exists."""
    rephrased, positives, negatives = (
        counts[name] for name in ("rephrased", "positives", "negatives")
    )
    text = "%d views have a rephrased caption, %d an image of it, %d an image of the negative."
    log.info(text, rephrased, positives, negatives)
    if not negatives and not positives:
        log.warning(
            "No view has a synthetic image: %s trains on edited captions alone. Set "
            "counterfactuals.image_generator, or %s.objective.images=false where that is meant.",
            method,
            method,
        )


class EpochViews:
    """The folder of views (images and texts of training examples): one table for each epoch.

    A table is opened when it is first needed.

    Raises:
        FileNotFoundError: there is no table in the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = sorted(
            folder.glob("epoch=*.parquet"), key=lambda file: int(file.stem.removeprefix("epoch="))
        )
        if not self.files:
            raise FileNotFoundError(
                f"no epoch=NN.parquet in {folder} (catalog entry `views`): "
                "run `kedro run --pipelines=counterfactuals,views`"
            )
        self._read = lru_cache(2)(self._read_table)

    def __reduce__(self) -> tuple[type[EpochViews], tuple[Path]]:
        """Pickled without the tables that were read."""
        return EpochViews, (self.folder,)

    def _read_table(self, number: int) -> Table[View]:
        """Open the table of an epoch's views, mapped to memory."""
        file = self.files[number]
        # DVC compares the folder: nothing is put into it.
        copies = self.folder.with_name(f"{self.folder.name}_mapped")
        return Table.open(file, View, copies / f"{file.stem}.arrow")

    def epoch(self, epoch: int) -> Table[View]:
        """Table of an epoch's views; epochs beyond the last table start again with the first."""
        return self._read(epoch % len(self.files))
