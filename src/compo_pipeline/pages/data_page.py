"""Page of captions and images: how many are bad, a profile of the data, and the rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from compo_pipeline.pages.pages import Cell, Page, Table

if TYPE_CHECKING:
    import pandas as pd

_QUANTILES = {"least": 0, "5%": 0.05, "median": 0.5, "95%": 0.95, "most": 1}


def data_page(
    result: Mapping[str, Any], facts: pd.DataFrame, ingest_report: Mapping[str, Any]
) -> Page:
    """The page of a dataset before training.

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
    sections = [
        *_profile(facts),
        Table(
            ("captions of", "distinct first sentences", "images", "most frequent", "rows"),
            [
                (split, one["texts"], one["images"], one["most_frequent"], one["rows"])
                for split, one in ingest_report["distinct_texts"].items()
            ],
            ["most frequent"],
        ),
        Table(
            ("found in captions", "captions", "such as"),
            [
                (name, one["captions"], " · ".join(one["examples"]))
                for name, one in ingest_report["forms"].items()
            ],
            ["such as"],
        ),
        Table(
            ("rule", "broken where", "rows", "such as"),
            [
                (
                    *(name, rule["means"]),
                    Cell(rule["broken_by"], "bad" if rule["broken_by"] else "good"),
                    ", ".join(map(str, rule["rows"])),
                )
                for name, rule in result["rules"].items()
            ],
            ["broken where", "such as"],
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


def _profile(facts: pd.DataFrame) -> Iterator[Table]:
    """Splits, lengths of captions and sizes of images, and duplicates."""
    readable, written = facts[facts.decode_error.isna()], facts[facts.sentences > 0]
    yield Table(
        ("split", "rows", "distinct images", "rows without a readable image"),
        [
            (
                *(str(name), len(part)),
                part.image_hash[part.decode_error.isna()].nunique(),
                int(part.decode_error.notna().sum()),
            )
            for name, part in facts.groupby("split", sort=False)
        ],
        title="Profile",
    )
    columns = {
        "sentences a row": facts.sentences,
        "words of the shortest sentence": written.least_words,
        "words of the longest sentence": written.most_words,
        "image width, pixels": readable.width,
        "image height, pixels": readable.height,
    }
    yield Table(
        ("column", *_QUANTILES),
        [
            (label, *(f"{each:,g}" for each in column.quantile([*_QUANTILES.values()])))
            for label, column in columns.items()
            if len(column)
        ],
    )
    duplicates = {
        "rows with the sample_id of an earlier row": facts.repeats_id,
        "rows with image and first sentence of an earlier row": facts.repeats_pair,
        "rows whose image is in a later, held-out split too": facts.leaks,
        "rows that share their image with another row": readable.image_hash.duplicated(keep=False),
    }
    yield Table(("duplicates", "rows"), [(label, int(n.sum())) for label, n in duplicates.items()])
