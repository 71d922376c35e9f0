"""Published results of papers, and their means over benchmarks, next to those of a run."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import yaml

from compo_pipeline.benchmarks import retrieval
from compo_pipeline.benchmarks.suites import SUITES, aggregates_of
from compo_pipeline.core.settings import parse
from compo_pipeline.evaluation.comparison import Row
from compo_pipeline.evaluation.evaluate import Comparison

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
        row: row of the metric.
        benchmark: benchmark whose official count is compared.
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


@dataclass(frozen=True, slots=True)
class AggregateRow:
    """One mean over benchmarks from a paper's tables, with its value for each model.

    Attributes:
        label: label of the aggregate.
        source: place of the aggregate in the paper.
        values: values in per cent. None if a member is missing.
        missing: members that were not run on the official files.
        partial: members that were not scored as in the paper: then it is not the paper's figure.
    """

    label: str
    source: str
    values: tuple[float, ...]
    missing: tuple[str, ...]
    partial: tuple[str, ...] = ()

    @property
    def remark(self) -> str:
        """Why the mean cannot be compared with the paper's value, empty if it can be compared."""
        if self.missing:
            return f"not complete: {', '.join(self.missing)} not run"
        if self.partial:
            return f"not the paper's figure: {', '.join(self.partial)} not scored as there"
        return ""


def aggregate_rows(comparison: Comparison) -> list[AggregateRow]:
    """Means over benchmarks of the comparison's suite, or all complete means without a suite.

    A mean is complete if all of its members were scored. Benchmarks whose files are not the
    official ones are members of none.
    """
    rows = [row for row in comparison.rows if row.benchmark not in comparison.titles]
    values = {name: {row.key: row.values[name].value for row in rows} for name in comparison.models}
    items = {row.key: row.items for row in rows}
    deviating = {
        row.key
        for row in comparison.rows
        if row.benchmark in comparison.deviating or is_partial(row, row.benchmark)
    }
    found = []
    for one in aggregates_of(comparison.suite):
        missing = [member for member in one.members if not items.keys() >= set(member)]
        partial = [
            member
            for member in one.members
            if member not in missing
            and any(key in deviating or one.items not in (None, items[key]) for key in member)
        ]
        if comparison.suite in SUITES or not missing:
            means = () if missing else tuple(map(one.mean, values.values()))
            names = (tuple(dict.fromkeys(map(one.member_name, own))) for own in (missing, partial))
            found.append(AggregateRow(one.label, one.source, means, *names))
    return found
