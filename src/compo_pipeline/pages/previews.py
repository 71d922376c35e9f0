"""Pages of what a training will see: captions and images, recaptions, edits, foils and views."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jinja2.utils import htmlsafe_json_dumps

from compo_pipeline.core.records import Caption, Counterfactual, Foil, View
from compo_pipeline.core.seeding import drawn
from compo_pipeline.data.images.composites import Axis, compose
from compo_pipeline.data.images.decoding import ACCEPTED, load
from compo_pipeline.generation.counterfactuals.generation import FAILED, failure_reasons, summary
from compo_pipeline.generation.recaption.recaptioning import Recaptioning
from compo_pipeline.pages import pages
from compo_pipeline.pages.pages import (
    Card,
    Cards,
    ImageCard,
    List,
    Page,
    Side,
    Table,
    Text,
    image_card,
    marked,
)

if TYPE_CHECKING:
    import pandas as pd

RECAPTIONS, REVIEW = "recaptions.html", "review.html"
COUNT = 50  # shown
_LISTED = 32  # kinds
_RECAPTIONED = {
    "rejected": "Without a new caption, by reason",
    "openings": "Opening phrases that were removed",
    "shared_first_sentences": "First sentences that many captions share",
}
_EDITS = (
    "{:,} of {:,} captions, drawn at random. A negative means something else than its caption, a "
    "positive the same; new words are marked. `counterfactuals_quarantine` has every failure."
)
_REVIEW = (
    "{} items, drawn at random among those that are scored. Accept an item if the caption is true "
    "of the image and the foil is false. Reject it if the foil is true as well, or the caption "
    "false. Judge every item: one that you pass over counts as unsure.",
    "Keys: `a` accept, `r` reject, `u` unsure, `j` or `k` the next or the previous item, `s` save. "
    "Put the saved file where the entry `foils_review` of conf/base/catalog.yml says; the next "
    "evaluation reads it.",
)
_VIEWS = (
    "{:,} of {:,} views, drawn at random. Texts with a green line are positives: captions and "
    "texts made of them. Those with a red line are hard negatives, whose changes are marked. "
    "Training takes negatives to be false of the image. Nobody has checked that: they are written "
    "without looking at the image, and some are true of it, or no English."
)


def data_page(
    result: Mapping[str, Any], facts: pd.DataFrame, ingest_report: Mapping[str, Any]
) -> Page:
    """The page of captions and images: how many are bad, a profile of the data, and the rules.

    Args:
        result: the summary of the validation.
        facts: one row per caption row.
        ingest_report: report of ingest on the captions.
    """
    share, tolerated = result["bad_share"], result["tolerated_share"]
    bad = (
        f"{result['bad']:,} of {result['records']:,} records are bad ({share:.2%}; tolerated are "
        f"{tolerated:.2%})."
    )
    left = (
        f"{result['unparseable']} of them could not be parsed. {result['not_downloaded']} more "
        "were never downloaded. All of these are in quarantine, each with its reason."
    )
    unreadable = facts.decode_error.notna()
    readable, written = facts[~unreadable], facts[facts.sentences > 0]
    splits = facts.assign(unreadable=unreadable, seen=facts.image_hash.mask(unreadable))
    splits = splits.groupby("split", sort=False).agg(
        {"decode_error": "size", "seen": "nunique", "unreadable": "sum"}
    )
    sizes = {
        "sentences a row": facts.sentences,
        "words of the shortest sentence": written.least_words,
        "words of the longest sentence": written.most_words,
        "image width, pixels": readable.width,
        "image height, pixels": readable.height,
    }
    duplicates = {
        "rows with the sample_id of an earlier row": facts.repeats_id,
        "rows with image and first sentence of an earlier row": facts.repeats_pair,
        "rows whose image is in a later, held-out split too": facts.leaks,
        "rows that share their image with another row": readable.image_hash.duplicated(keep=False),
    }
    lengths = {label: one.quantile([0, 0.05, 0.5, 0.95, 1]) for label, one in sizes.items()}
    forms, rules = ingest_report["forms"], result["rules"]
    sections = [
        Table.of(
            splits.itertuples(),
            "split | rows | distinct images | rows without a readable image",
            "{0} | {1:,} | {2:,} | {3:,}",
            title="Profile",
        ),
        Table.of(
            ((label, *found) for label, found in lengths.items() if found.notna().all()),
            "column | least | 5% | median | 95% | most",
            "{0} | {1:,g} | {2:,g} | {3:,g} | {4:,g} | {5:,g}",
        ),
        Table.of(
            ((label, found.sum()) for label, found in duplicates.items()),
            "duplicates | rows",
            "{0} | {1:,}",
        ),
        Table.of(
            ingest_report["distinct_texts"].items(),
            "captions of | distinct first sentences | images | most frequent | rows",
            "{0} | {1[texts]:,} | {1[images]:,} | {1[most_frequent]} | {1[rows]:,}",
            words=["most frequent"],
        ),
        Table.of(
            ((name, one["captions"], " · ".join(one["examples"])) for name, one in forms.items()),
            "found in captions | captions | such as",
            "{0} | {1:,} | {2}",
            words=["such as"],
        ),
        Table.of(
            ((name, one, ", ".join(map(str, one["rows"]))) for name, one in rules.items()),
            "rule | broken where | rows | such as",
            "{0} | {1[means]} | {1[broken_by]:,} | {2}",
            words=["broken where", "such as"],
            title="Rules",
            note="A row that breaks a rule is in quarantine and is not trained on. "
            "`validation.rules` says what exactly each rule checks.",
        ),
    ]
    return Page(
        "Captions and images",
        "What was read, and which of it trains",
        sections,
        [bad, left, *(f"{warning}." for warning in result["warnings"])],
        alarm=share > tolerated,
    )


def recaptions_page(recaptioning: Recaptioning, root: Path, dataset: str) -> Page:
    """The page of images with the source's captions and the model's captions.

    Args:
        recaptioning: captions, images without one, and their numbers.
        root: the folder that images are relative to.
        dataset: name of the dataset, which also seeds the draw of the shown images.
    """
    rows, report = recaptioning.rows, recaptioning.report
    captioned = [
        Card(
            [row.image],
            [
                Side("image", image_card(root, row.image)),
                Side("new", text=row.caption, kind="positive"),
                Side("old" if row.originals else "old: none", lines=row.originals),
            ],
        )
        for row in drawn(rows, COUNT, "recaptions", dataset)
    ]
    refused = [
        Card(
            [row.image, _words(row.rule)],
            [Side("image", image_card(root, row.image)), Side(problem=row.detail)],
        )
        for row in drawn(recaptioning.rejected, COUNT // 2, "recaptions", dataset)
    ]
    facts = {name: str(report[name]) for name in ("captioner", "model", "prompt") if report[name]}
    if dates := sorted({row.date[:10] for row in rows} - {""}):
        facts["date"] = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    counts = {text: report[key] for key, text in _RECAPTIONED.items() if report[key]}
    sections = [
        List([f"{text}: {pages.counted(found)}." for text, found in counts.items()]),
        Cards(captioned, note=f"{len(captioned)} new captions, drawn at random."),
        Cards(
            refused,
            title="Without a new caption",
            note="Drawn at random. `recaptions_quarantine` has each with its reason.",
        ),
    ]
    summed = f"{report['captions']:,} of {report['images']:,} images have a new caption."
    over = "Captions that a model wrote"
    return Page(f"Recaptions of {dataset}", over, sections, [summed], facts)


def counterfactuals_page(
    rows: Sequence[Counterfactual],
    captions: Sequence[Caption],
    root: Path,
    images: Path,
    dataset: str,
) -> Page:
    """The page of captions and their edits, with real and generated images side by side.

    Args:
        rows: all counterfactuals.
        captions: rows that include all edited ones.
        root: the folder that real images are relative to.
        images: the folder that counterfactual images are relative to.
        dataset: name of the dataset, which also seeds the draw of the shown captions.
    """
    title, over = f"Counterfactuals of {dataset}", "Edited captions and their images"
    if not rows:
        text = "There is no counterfactual to show: the method of this run does not use any."
        return Page(title, over, [Text(text)])
    edited = list(dict.fromkeys((row.sample_id, row.sentence) for row in rows))
    edits: dict[tuple[str, int], list[Counterfactual]] = {
        key: [] for key in drawn(edited, COUNT, "counterfactuals", dataset)
    }
    for row in rows:
        if (row.sample_id, row.sentence) in edits:
            edits[row.sample_id, row.sentence].append(row)
    names = {name for name, _ in edits}
    of_sample = {one.sample_id: one for one in captions if one.sample_id in names}

    def sides(caption: Caption, own: Sequence[Counterfactual]) -> Iterator[Side]:
        text = caption.sentences[own[0].sentence]
        yield Side("real", image_card(root, caption.image), text)
        for edit in own:
            image = image_card(images, edit.image) if edit.image else ImageCard()
            failed = edit.state == FAILED
            yield Side(
                edit.role if failed else f"{edit.role}: {_words(edit.detail)}".removesuffix(": "),
                image if edit.image_generator else None,
                marked(edit.text or "", [text]),
                problem=f"failed: {edit.detail}" * failed,
                kind=edit.role,
            )

    cards = [
        Card([f"{name}, sentence {place + 1}"], [*sides(of_sample[name], own)])
        for (name, place), own in edits.items()
    ]
    kinds = Counter(
        (row.role, row.state, _words(row.detail.partition(":")[0]))
        for row in rows
        if row.state != FAILED
    )
    failed = [(one.role, FAILED, one.reason, one.times) for one in failure_reasons(rows)]
    sections = [
        Table.of(
            [*((*kind, times) for kind, times in kinds.most_common(_LISTED)), *failed[:_LISTED]],
            "edits | state | kind, or why it failed | times",
            "{0} | {1} | {2} | {3:,}",
            words=["state", "kind, or why it failed"],
        ),
        Cards(cards, title="Captions", note=_EDITS.format(len(cards), len(edited))),
    ]
    made = summary(rows)
    facts = {
        "caption editor": made["caption_editor"],
        "image generator": made["image_generator"] or "none",
        "fingerprint": made["fingerprint"],
    }
    return Page(title, over, sections, facts=facts)


def review_page(items: Sequence[Foil], report: Mapping[str, Any], root: Path) -> Page:
    """The page on which a person judges items that are foils of captions.

    Args:
        items: items in their order, at least one.
        report: content of the dataset `foils_report`.
        root: folder that the images' paths are relative to.
    """
    review = {name: report[name] for name in ("builder", "fingerprint")}
    review |= {"split": items[0].split, "items": [one.item for one in items]}
    script = files(__package__).joinpath("templates/foils_review.js").read_text("utf-8")
    cards = [
        Card(
            [f"{place}. {_words(one.kind)}", one.item],
            [
                Side("image", image_card(root, one.image)),
                Side("caption", text=marked(one.caption, [one.foil]), kind="positive"),
                Side("foil", text=marked(one.foil, [one.caption]), kind="negative"),
            ],
        )
        for place, one in enumerate(items, 1)
    ]
    return Page(
        f"Review of the foils of '{items[0].split}'",
        "Foils of own captions",
        [List([_REVIEW[0].format(len(items)), _REVIEW[1]]), Cards(cards)],
        facts={"fingerprint": report["fingerprint"], "language model": report["language"]},
        script=f"var review = {htmlsafe_json_dumps(review)};\n{script}",
    )


def views_page(
    views: Sequence[View],
    root: Path,
    made: Path,
    method: str,
    dataset: str,
    epoch: int,
    seed: int,
    count: int = COUNT,
) -> Page:
    """The page of views: the images and texts that a method trains on, changed words marked.

    It reads views as the tables hold them and does not depend on the method.

    Args:
        views: all views of the epoch.
        root: the folder that image paths are relative to.
        made: the folder of counterfactual images, if views have any.
        method: name of the method.
        dataset: name of the dataset.
        epoch: epoch, from 0. It seeds the draw of the shown views, together with `seed`.
        seed: seed of the run.
        count: number of views to show.
    """
    title, over = f"Views of {method} on {dataset}", "Images and texts, before training"
    facts = {"epoch": str(epoch), "seed": str(seed)}
    if not views:
        return Page(title, over, [Text("There is no view to show.")], facts=facts)
    if language := json.loads(views[0].provenance).get("language"):
        facts["language model"] = language
    counts = Counter(
        (f"{slot}", _words(origin["generator"]), _words(origin["category"].partition(":")[0]))
        for view in views
        for slot, origin in enumerate(_origins(view), 1)
        if origin is not None
    )
    cards = [
        Card(
            [" + ".join(view.sample_ids), f"{view.kind}, {view.axis}" if view.axis else view.kind],
            [*_image_sides(view, root), *_text_sides(view, made)],
        )
        for view in drawn(views, count, "preview", seed, epoch)
    ]
    sections = [
        Table.of(
            counts.most_common(_LISTED),
            "negative | by | category | views",
            "{0[0]} | {0[1]} | {0[2]} | {1:,}",
            words=["by", "category"],
            title=f"Negatives of all {len(views):,} views",
            folded=True,
        ),
        Cards(cards, title="Views", note=_VIEWS.format(len(cards), len(views))),
    ]
    return Page(title, over, sections, facts=facts)


def _image_sides(view: View, root: Path) -> Iterator[Side]:
    """Yield a view's image, composed as in training, or its two parts if a part cannot be read."""
    images = [image_card(root, path) for path in view.images]
    if view.axis is not None and not any(image.problem for image in images):
        first, second = (load(root, path, ACCEPTED) for path in view.images)
        joined = compose(first, second, cast("Axis", view.axis), pages.SIDE)
        images = [ImageCard(", ".join(view.images), *pages.thumbnail(joined))]
    for place, image in enumerate(images, 1):
        yield Side(f"image {place}" if len(images) > 1 else "image", image)


def _text_sides(view: View, made: Path) -> Iterator[Side]:
    """Yield a view's positives and negatives, with the words marked that a negative changes.

    Those that have a counterfactual image stand below it: `View.counterfactuals` names the
    negative's image, then the positive's; `negatives[0]` is the edited caption, `positives[1]` the
    paraphrase.
    """
    cards = [image_card(made, each) if each else ImageCard() for each in view.counterfactuals]
    images = dict(zip(("negative 1", "positive 2"), cards, strict=False))
    for place, text in enumerate(view.positives, 1):
        title = f"positive {place}"
        lines = [f"phrases: {' | '.join(view.phrases)}"] if place == 1 and view.phrases else []
        yield Side(title, images.get(title), text, lines, kind="positive")
    if view.kind == "long":  # a whole caption has no negatives
        return
    positives = {tuple(text.casefold().split()) for text in view.positives}
    for place, (negative, origin) in enumerate(
        zip(view.negatives, _origins(view), strict=False), 1
    ):
        title = f"negative {place}"
        image = images.get(title)
        if negative is None or origin is None:
            yield Side(title, image, problem="absent: no negative was found")
            continue
        title += f": {_words(origin['generator'])}"
        text = marked(negative, view.positives)
        if tuple(negative.casefold().split()) in positives:
            yield Side(title, image, text, problem="no negative: it is one of the positives")
            continue
        how = ": ".join(filter(None, (_words(origin["category"]), " | ".join(origin["words"]))))
        yield Side(title, image, text, [how], kind="negative")


def _origins(view: View) -> Sequence[Mapping[str, Any] | None]:
    """Generator, category and words of each negative, from the view's provenance."""
    found: Sequence[Mapping[str, Any] | None] = json.loads(view.provenance)["negatives"]
    return found


def _words(name: str) -> str:
    return name.replace("_", " ")
