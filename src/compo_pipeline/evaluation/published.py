"""Published results of papers, next to those of a run that followed the same protocol."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import yaml

from compo_pipeline.benchmarks import retrieval
from compo_pipeline.configuration.settings import parse
from compo_pipeline.evaluation.comparison import Row

_IMAGES_COUNT = ("coco", "flickr30k")


@dataclass(frozen=True, slots=True)
class Paper:
    """Published results: for each `benchmark/metric/name` one value for each model.

    A value is per cent, or None if there is none. `source` says where they are from.
    """

    title: str
    models: tuple[str, ...]
    results: dict[str, tuple[float | None, ...]]
    source: str


class PublishedResults(NamedTuple):
    """A paper, and the run's comparison rows beside the paper's values of the same metrics."""

    paper: Paper
    rows: tuple[tuple[Row, tuple[float | None, ...]], ...]


@cache
def read_published() -> tuple[tuple[Paper, ...], dict[str, int]]:
    """Papers with their results, and official item counts, from `published.yml`.

    The counts are by `benchmark/name`.
    """
    content = yaml.safe_load(files(__package__).joinpath("published.yml").read_text("utf-8"))
    papers = tuple(parse(Paper, paper, "papers") for paper in content["papers"])
    return papers, content["items"]


def is_partial(row: Row, benchmark: str) -> bool:
    """Whether items of a metric were skipped, or their number is not the official one.

    Args:
        row: of the metric.
        benchmark: whose official count is compared.
    """
    count = row.images if benchmark in _IMAGES_COUNT else row.items
    return row.skipped > 0 or count != read_published()[1].get(f"{benchmark}/{row.name}", count)


def published_results(
    rows: Iterable[Row], *, coco: bool, deviating: Container[str] = ()
) -> list[PublishedResults]:
    """The papers that have values of a run's metrics, with these values.

    Only metrics over the complete official files with all items scored have any: none for rendered
    scenes, for a part of the official images, or where ties are counted otherwise.

    Args:
        rows: the run's comparison.
        coco: whether the dataset's own retrieval split is that of MS-COCO.
        deviating: benchmarks that were not scored as in their official run.
    """
    papers, counts = read_published()
    complete: dict[str, Row] = {}
    for row in rows:
        benchmark = row.benchmark
        if benchmark in deviating:
            continue
        if benchmark == retrieval.NAME and coco:
            benchmark = "coco"
        if f"{benchmark}/{row.name}" in counts and not is_partial(row, benchmark):
            complete[f"{benchmark}/{row.metric}/{row.name}"] = row
    compared = []
    for paper in papers:
        pairs = ((row, paper.results.get(key)) for key, row in complete.items())
        found = tuple((row, values) for row, values in pairs if values is not None)
        if found:
            compared.append(PublishedResults(paper, found))
    return compared
