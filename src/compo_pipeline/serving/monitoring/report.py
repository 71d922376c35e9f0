"""Monitoring report of a window: drift, out-of-distribution requests and the hardest ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from compo_pipeline.core.settings import PlainError
from compo_pipeline.registry.lineage import Lineage
from compo_pipeline.registry.reference import Reference
from compo_pipeline.serving.monitoring import distances as far
from compo_pipeline.serving.monitoring.distances import HardRequest, OutsideShare
from compo_pipeline.serving.monitoring.drift import (
    OTHERS,
    FigureDrift,
    compare_rows,
    margins,
    measure_drift,
)
from compo_pipeline.serving.monitoring.settings import ALPHA
from compo_pipeline.serving.monitoring.vocabulary import NewWord, WordShift
from compo_pipeline.serving.monitoring.window import Window, reference_pairs

SEED = 0  # of permutations and draws
_HARDEST = 50  # requests of each list of the hardest ones
ALARM_STATUS = 3
"""Exit status of a run that raises an alarm."""


class Alarm(PlainError):
    """Exception: a monitoring report found drift.

    It is raised after all results are written.
    """

    exit_code = ALARM_STATUS


@dataclass(frozen=True, eq=False)
class Measured:
    """Measurements of a window of requests: drift, shares out of distribution, hardest requests.

    Attributes:
        figures: drift of the figures.
        outside: shares out of distribution.
        hardest: lists of the hardest requests.
    """

    figures: Sequence[FigureDrift]
    outside: Sequence[OutsideShare]
    hardest: dict[str, list[HardRequest]]


@dataclass(frozen=True, eq=False)
class Words:
    """Shifted and new words of the logged texts.

    `texts` is the number of images with a text.
    """

    texts: int
    shifts: Sequence[WordShift]
    new: Sequence[NewWord]


def measure(window: Window, reference: Reference) -> Measured:
    """Compare a window of requests with the reference sample of their version."""
    places = window.one_of_each(SEED)
    compared = compare_rows(window.pairs(places), reference_pairs(reference), SEED)
    distances = far.measure_distances(window, reference)
    given = np.where(window.given[:, None], window.texts, np.nan)
    over_others = margins(window.images, given, reference.texts[:OTHERS])
    return Measured(
        measure_drift(compared, SEED),
        far.outside_shares(window, distances),
        far.hardest(window, distances, over_others, _HARDEST),
    )


def summary(
    window: Window,
    version: Lineage,
    reference: Reference,
    measured: Measured,
    words: Words,
) -> dict[str, Any]:
    """The monitoring report as a dict that can be written as JSON."""
    drifted = [
        each.name
        for each in measured.figures
        if each.adjusted is not None and each.adjusted <= ALPHA
    ]
    largest = int(window.sizes.argmax())
    there = window.clusters == largest
    return {
        "model": version.name,
        "version": version.version,
        "fingerprint": version.fingerprint,
        "since": f"{window.since:%Y-%m-%dT%H:%M:%SZ}",
        "until": f"{window.until:%Y-%m-%dT%H:%M:%SZ}",
        "alpha": ALPHA,
        "alarm": bool(drifted),
        "drifted": drifted,
        "requests": int(window.sizes.sum()),
        "read": len(window),
        "clusters": len(window.sizes),
        "largest_cluster": {
            "image_hash": window.hashes[there][0],
            "requests": int(window.sizes[largest]),
        },
        "reference": len(reference.images),
        "left_out": window.left_out,
        "figures": [asdict(each) for each in measured.figures],
        "outside": [asdict(each) for each in measured.outside],
        "hardest": {name: [asdict(each) for each in own] for name, own in measured.hardest.items()},
        "texts_logged": words.texts,
        "word_shifts": [asdict(each) for each in words.shifts],
        "new_words": [asdict(each) for each in words.new],
    }


def metrics(report: Mapping[str, Any]) -> dict[str, Any]:
    """MLflow metrics of a monitoring report: p values, effect sizes and shares."""
    found: dict[str, Any] = {"alarm": float(report["alarm"]), "requests": report["requests"]}
    for each in report["figures"]:
        numbers = {
            key: each[key]
            for key in ("p", "adjusted", "apart", "deviations", "requests")
            if each[key] is not None
        }
        if each["means"] is not None:
            numbers["mean"], numbers["reference_mean"] = each["means"]
        found[each["name"]] = numbers
    for each in report["outside"]:
        found[f"outside_{each['kind']}"] = {
            "share": each["share"],
            "requests_share": each["requests_share"],
        }
    return {"monitoring": found}


def check(report: Mapping[str, Any]) -> None:
    """Raise the exception Alarm if a monitoring report found drift.

    Raises:
        Alarm: a figure has drifted.
    """
    if report["alarm"]:
        by_name = {each["name"]: each for each in report["figures"]}
        named = ", ".join(
            f"{name.replace('_', ' ')} (p {by_name[name]['adjusted']:.3f})"
            for name in report["drifted"]
        )
        raise Alarm(
            f"monitoring: requests of {report['model']} version {report['version']} have drifted "
            f"from its reference sample: {named}"
        )
