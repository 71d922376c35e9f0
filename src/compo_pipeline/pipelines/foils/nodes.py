"""Nodes of the pipeline `foils`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks.loading import from_files
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.core.records import Caption, Fact, Foil
from compo_pipeline.core.tables import Splits, Table
from compo_pipeline.evaluation.contamination import image_hashes
from compo_pipeline.generation.foils import build as builder
from compo_pipeline.generation.foils import review
from compo_pipeline.generation.foils.settings import FoilSettings
from compo_pipeline.language.parsing import load_once, name_and_version, parses_of
from compo_pipeline.pages.previews import REVIEW, review_page


def build_foils(
    valid_captions: Sequence[Caption],
    facts: Sequence[Fact],
    foils: FoilSettings,
    benchmarks: BenchmarksSettings,
    trains: Splits,
    language_model: str,
    workers: int,
) -> tuple[list[Foil], dict[str, Any]]:
    """Build the foil items of every configured set, and a report with counts and reasons.

    Images of official benchmark files are left out.
    """
    captions, measured = Table.of(valid_captions, Caption), Table.of(facts, Fact)
    hashes = image_hashes(from_files(benchmarks) if foils.splits else [], workers).values()
    own = {*measured.column("image_hash").unique().to_pylist()}
    official = frozenset(each for each in hashes if each and each in own)
    language = name_and_version(load_once(language_model))
    drawn_from = f"{captions.fingerprint} {sorted(official)}"
    report: dict[str, Any] = {
        "builder": builder.VERSION,
        "fingerprint": hash_of(builder.VERSION, drawn_from, language, foils),
        "language": language,
        "splits": {},
    }
    items: list[Foil] = []
    if foils.splits:
        parser = partial(parses_of, language_model)
        items, report["splits"] = builder.build_splits(
            captions, measured, trains, official, foils, parser
        )
    return items, report


def write_review_page(
    foils: Sequence[Foil],
    foils_report: Mapping[str, Any],
    foils_review: Mapping[str, Any],
    benchmarks: BenchmarksSettings,
    root: Path,
) -> dict[str, str | bytes]:
    """Page for reviewing foil items by hand, empty if there are none.

    Raises:
        SettingsError: there is a review, and it is one of other items.
    """
    drawn = review.draw(foils, benchmarks.foils.split, foils_report["fingerprint"])
    review.read(foils_review, foils_report, drawn)
    if not drawn:
        return {}
    return review_page(drawn, foils_report, root).files(REVIEW)
