"""Views: those of a single image, the rows of an epoch of several sources, tables on disk."""

from __future__ import annotations

import inspect
import json
import logging
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt

from compo_pipeline.core.files import atomic_folder
from compo_pipeline.core.hashing import files_hash
from compo_pipeline.core.records import Caption, Counterfactual, View, decoded
from compo_pipeline.core.seeding import rng
from compo_pipeline.core.settings import SettingsError, Share, settings
from compo_pipeline.core.table_files import LOCAL, Parts, PrepareSettings, resumable, write_rows
from compo_pipeline.core.tables import GROUP, Groups, Table, batches, parquet_file
from compo_pipeline.data.annotations import AnnotationSettings
from compo_pipeline.language.concepts import Concept
from compo_pipeline.language.editing import Generated
from compo_pipeline.methods.contract import Example, ImageInput, Method, Sampler, ViewContext
from compo_pipeline.methods.registry import find

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
    """Number of tables of views. Each epoch draws partners, sentences and swaps again."""

    split: str | tuple[str, ...] = "train"
    """Split that trains, or several. If foils.carve holds rows out, [train, carved] is all rows."""

    long_share: Share = 0.0
    """Probability that a view shows the whole caption (all sentences) with its own image, in place
    of the method's view. For bases that read long texts (`model.context_length`)."""

    from_table: AnnotationSettings = AnnotationSettings()
    """Published texts, which replace those that the method makes."""


def annotated_contents(method: Method, settings: AnnotationSettings) -> frozenset[str]:
    """Names of the external table's fields that a method's views use, empty without a table.

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


def from_table(found: tuple[str, str] | None) -> Generated | None:
    """A negative taken from a column of an external table, or None if the table has none."""
    return Generated(found[0], "table", found[1], ()) if found else None


def provenance(language: str, negatives: Sequence[Generated | None]) -> str:
    """JSON of a view's provenance: the language pipeline, and the origin of each negative.

    Args:
        language: name and version of the language pipeline.
        negatives: parallel to `View.negatives`, None where a rule found nothing.
    """
    names = ("generator", "category", "words")
    origins = [one and {name: getattr(one, name) for name in names} for one in negatives]
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
    negatives: Sequence[Generated | None],
    language: str,
    phrases: Sequence[Concept] = (),
    counterfactuals: Sequence[str] = (),
) -> View:
    """A view of one image.

    Args:
        caption: caption whose image is shown.
        positives: texts that are true of it.
        negatives: hard negatives with their generators, None if a generator found nothing.
        language: name and version of the language pipeline, for provenance.
        phrases: phrases of the first positive.
        counterfactuals: paths of images of the negative and of the second positive.
    """
    return View(
        sample_id=caption.sample_id,
        kind="single",
        sample_ids=(caption.sample_id,),
        images=(caption.image,),
        axis=None,
        positives=tuple(positives),
        negatives=tuple(one.text if one else None for one in negatives),
        phrases=tuple(phrase.text for phrase in phrases),
        phrase_spans=tuple(place for phrase in phrases for place in (phrase.start, phrase.end)),
        counterfactuals=tuple(counterfactuals),
        provenance=provenance(language, negatives),
    )


def long_view(caption: Caption, view: View, language: str) -> View:
    """A view of a caption's image with the whole caption as its text, without negatives.

    It has no phrases either.

    Args:
        caption: caption of the view.
        view: view that the method makes of the caption. The result has as many texts per image.
        language: name and version of the language pipeline.
    """
    rows = 2 if view.kind == PAIR else 1
    whole = single_view(
        caption,
        [caption.whole] * (len(view.positives) // rows),
        [None] * (len(view.negatives) // rows),
        language,
        counterfactuals=[""] * len(view.counterfactuals),
    )
    return replace(whole, kind="long")


def by_sample(counterfactuals: Iterable[Counterfactual]) -> Mapping[str, Sequence[Counterfactual]]:
    """Counterfactuals (edited captions), grouped by sample_id."""
    return Groups(Table.of(counterfactuals, Counterfactual))


def apportion(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Integers that sum to `total` in proportion to weights, by the largest remainders.

    Each is its exact share, rounded up or down; of equal remainders the first names are rounded up.

    Args:
        total: sum of the numbers.
        weights: weights above zero, by name.
    """
    exact = {name: Fraction(weight) for name, weight in weights.items()}
    quotas = {name: total * weight / sum(exact.values()) for name, weight in exact.items()}
    found = {name: int(quota) for name, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda name: found[name] - quotas[name])
    for name in by_remainder[: total - sum(found.values())]:
        found[name] += 1
    return found


class SourceRows(NamedTuple):
    """A source's training rows, its rows that have a view, and its number of rows per epoch."""

    captions: Table[Caption]
    anchors: Table[Caption]
    share: int


@dataclass(frozen=True)
class Mixture:
    """Sampling weights of several data sources, and the rows that an epoch takes of each.

    A source is passed through again and again, each time in a new order, and an epoch takes the
    next rows of each source: as many as its weight says.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights by source. Without any, an epoch takes every row once, from any source."""

    epoch_rows: int | None = None
    """Rows of an epoch; None: as many as the largest source has."""

    seed: int = 0
    """Seed of the order of each pass."""

    def sources(self, captions: Table[Caption], method: Method) -> dict[str, SourceRows]:
        """Training rows of each source, and its number of rows per epoch, by source name.

        Args:
            captions: all rows that train.
            method: says which of them have a view.

        Raises:
            SettingsError: a source has no row that trains, or none in an epoch.
        """
        if not self.weights:
            return {"": SourceRows(captions, captions, len(captions))}
        found = {name: captions.having("source", [name]) for name in self.weights}
        if empty := next((name for name, own in found.items() if not own), None):
            others = ", ".join(captions.column("source").unique().to_pylist())
            raise SettingsError(
                f"data.sources.{empty}: none of its rows trains (views.split), only rows of "
                f"{others} do; see its splits and the quarantine table, and run ingest and "
                "validation again after a change of data.sources"
            )
        anchors = {name: own.where(method.anchors(own)) for name, own in found.items()}
        if empty := next((name for name, own in anchors.items() if not own), None):
            raise SettingsError(
                f"data.sources.{empty}: none of its {len(found[empty])} rows has a view under the "
                f"method '{method.name}': composites need two images of one orientation"
            )
        total = self.epoch_rows or max(map(len, anchors.values()))
        shares = apportion(total, self.weights)
        if empty := next((name for name, share in shares.items() if not share), None):
            raise SettingsError(
                f"data.sources.{empty}.weight: {self.weights[empty]:g} is less than a row of an "
                f"epoch of {total}; expected a higher weight, or more rows at data.epoch_rows"
            )
        return {name: SourceRows(own, anchors[name], shares[name]) for name, own in found.items()}

    def taken(
        self, source: str, rows: int, share: int, epoch: int
    ) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the rows that an epoch takes of each pass through a source, ascending.

        So no row comes again before all others of its source have come, and a row that an epoch
        has twice has two views: those of two passes.

        Args:
            source: name of the source.
            rows: rows of the source that have a view.
            share: number of rows of the source in every epoch.
            epoch: number of the epoch.
        """
        first, last = epoch * share, (epoch + 1) * share
        for number in range(first // max(rows, 1), -(-last // max(rows, 1))):
            start, stop = max(first - number * rows, 0), min(last - number * rows, rows)
            order = array("q", range(rows))
            if stop - start < rows:
                rng(self.seed, "pass", source, number).shuffle(order)
            yield number, np.sort(np.frombuffer(order, np.int64)[start:stop])


ALL_ROWS = Mixture()
"""Every row once in an epoch."""


def write(
    method: Method,
    captions: Sequence[Caption],
    context: ViewContext,
    epochs: int,
    folder: Path,
    fingerprint: str | None = None,
    engine: PrepareSettings = LOCAL,
    long_share: float = 0.0,
    mixture: Mixture = ALL_ROWS,
) -> None:
    """Write the views of all epochs to a folder, which is replaced as a whole.

    Args:
        method: draws the views.
        captions: the rows that train.
        context: inputs that views are drawn from, in the first epoch.
        epochs: number of epochs.
        folder: `epoch=NN.parquet` go here.
        fingerprint: hash of everything except code that the views depend on. A run after a kill
            draws only what is missing. None starts again.
        engine: draws them.
        long_share: chance of a view with the whole caption.
        mixture: mixture of several sources, whose shares of an epoch replace one view per caption.

    Raises:
        ValueError: no caption has a view.
        SettingsError: no row of a source has.
    """
    code = Path(inspect.getfile(type(method)))
    own = files_hash([(f"{VIEWS} {fingerprint or uuid4().hex}", code)])
    table = Table.of(captions, Caption)
    sources, mixed = mixture.sources(table, method), bool(mixture.weights)
    with resumable(folder.with_name(f".{folder.name}.parts"), own) as place:
        files = [place / f"epoch={epoch:02d}.parquet" for epoch in range(epochs)]
        for epoch, file in enumerate(files):
            if not file.exists():
                taken = [
                    (name, number, rows)
                    for name, (_, anchors, share) in sources.items()
                    for number, rows in mixture.taken(name, len(anchors), share, epoch)
                ]
                drawing = _Drawing(method, sources, taken, context, long_share, mixed)
                count = sum(len(rows) for _, _, rows in taken)
                what = f"drawing views of epoch {epoch}"
                write_rows(file, Parts(what, drawing, count, own, engine), View)
            if epoch == 0:
                _log_counts(method, captions, file, sources if mixed else {})
        for name, source in sources.items() if mixed else ():
            _log_source(name, source, epochs)
        with atomic_folder(folder) as new:
            for file in files:
                file.rename(new / file.name)


@dataclass(frozen=True)
class _Drawing:
    """Draws the views of a range of an epoch's anchors, source by source.

    What a view shows is of one source: partners are drawn there. A pass through the rows of a
    source takes the place of an epoch.
    """

    method: Method
    sources: Mapping[str, SourceRows]
    taken: Sequence[tuple[str, int, NDArray[np.int64]]]
    """Source, pass, and rows of the source that have a view."""

    context: ViewContext
    long_share: float
    every: bool
    """Whether every anchor must have a view."""

    @cached_property
    def _sampler(self) -> Callable[[str, int], Sampler]:
        """A function from a source and a pass to a view sampler.

        It caches the last two samplers.
        """
        return lru_cache(2)(self._sampler_of)

    def _sampler_of(self, name: str, number: int) -> Sampler:
        """View sampler of a source in one pass, with a share of whole captions."""
        context = self.context._replace(epoch=number)
        own = self.method.sampler(self.sources[name].captions, context)

        def view(caption: Caption) -> View | None:
            drawn = own(caption)
            if drawn is None or context.rng("long", caption).random() >= self.long_share:
                return drawn
            return long_view(caption, drawn, context.language)

        return view

    def __call__(self, part: range) -> Iterator[View]:
        start = 0
        for name, number, rows in self.taken:
            own = rows[max(part.start - start, 0) : max(part.stop - start, 0)]
            start += len(rows)
            for caption in self.sources[name].anchors.take(own):
                view = self._sampler(name, number)(caption)
                if view is not None:
                    yield view
                elif self.every:
                    raise ValueError(
                        f"'{self.method.name}' has no view of {caption.sample_id}, which its "
                        "`anchors` name: the shares of data.sources would not hold"
                    )


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
    """Log how many views and negatives an epoch has, and warn about missing ones.

    Raises:
        ValueError: it has no view.
    """
    counts: Counter[str] = Counter()
    with parquet_file(file) as opened:
        for view in chain.from_iterable(decoded(batch, View) for batch in batches(opened, GROUP)):
            counts.update(["views", view.kind])
            if view.kind != "long":
                counts["lost"] += view.negatives.count(None)
                counts.update(["edited"] * bool(view.counterfactuals))
                counts["images"] += sum(map(bool, view.counterfactuals))
    name, rows = method.name, len(captions)
    if not counts["views"]:
        raise ValueError(
            f"none of {rows} captions has a view under the method '{name}': composites need two "
            "images of one orientation"
        )
    text = "%s: %d views of %d captions an epoch; negatives that could not be made: %d."
    log.info(text, name, counts["views"], rows, counts["lost"])
    if counts["long"]:
        log.info("%d views show whole captions, without negatives.", counts["long"])
    if short := sum(len(caption.sentences) < method.sentences for caption in captions):
        text = "%s: %d of %d captions have fewer than %d sentences: the first is repeated."
        log.warning(text, name, short, rows, method.sentences)
    if counts["edited"] and not counts["images"]:
        log.warning(
            "No view has a synthetic image: %s trains on edited captions alone. Set "
            "counterfactuals.image_generator, or %s.objective.images=false where that is meant.",
            name,
            name,
        )
    views = sum(len(source.anchors) for source in sources.values()) or counts["views"]
    if views < rows and counts["composite"]:
        log.warning("%d captions have no view: no other image has their orientation.", rows - views)


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
        """Table of an epoch's views.

        Epochs beyond the last table start again with the first.
        """
        return self._read(epoch % len(self.files))
