"""Which benchmarks are scored, and where their files are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from compo_pipeline.core.settings import settings

TextProtocol = Literal["raw", "clic", "whole"]


@settings
class RetrievalSettings:
    """Settings of retrieval over the images and captions of one split of the dataset."""

    split: str | None = "test"
    """Name of the split in the captions table; null switches retrieval off."""
    text: TextProtocol | Annotated[tuple[TextProtocol, ...], Field(min_length=1)] = "raw"
    """Text protocol, or several: `raw` captions (first sentences), CLIC's normalised ones, or
    `whole` captions (all sentences)."""


@settings
class FoilBenchmarkSettings:
    """Settings of the benchmark of foils made from the dataset's own captions (`foils`)."""

    split: str | None = None
    """Set of foils that is scored, a name of `foils.splits`; null switches them off."""


@settings
class BenchmarkSet:
    """Settings of one benchmark in `benchmarks.sets`: folders of its files, number of items."""

    root: str | None = None
    """Folder of its annotation files, or its URL; null is `<benchmarks.root>/<name>`."""
    images: str | None = None
    """Folder of its images, or its URL; null is `benchmarks.images`, else the folder `images` in
    that of its annotation files or, where there is none below `benchmarks.root`,
    `<benchmarks.root>/images`."""
    optional: bool | None = None
    """Whether it is listed as not run where its folder does not exist, which is an error else; null
    is true for members of `benchmarks.suite`."""
    items: PositiveInt | Mapping[str, PositiveInt] | None = None
    """So many items of each subtask, or of those named; null is all, of a suite's member as many as
    its paper has. They are drawn at random, always the same; of VL-CheckList they are the first
    with an image."""


@settings
class BenchmarksSettings:
    """Settings of the benchmarks to score: suite, folders of their files, and tie rule."""

    root: str | None = None
    """Folder with one folder of annotation files per benchmark, or its URL; null is that of
    rendered scenes, and for other data leaves out all benchmarks without a root of their own."""
    images: str | None = None
    """Folder with the images of these files, or its URL; null is `<root>/<name>/images` of a
    benchmark that has it, else `<root>/images`."""
    sets: Mapping[str, BenchmarkSet | None] = field(default_factory=dict)
    """Benchmarks by name, such as sugar_crepe, with the places of their files: further ones, and
    changes of those of `suite`; null leaves one out. The names: docs/reference/benchmarks.md."""
    suite: str | None = None
    """The benchmarks of a paper's tables: clic, fsc, sparcl or c2lip; null is
    none but those of `sets`."""
    ties: Literal["strict", "official"] = "strict"
    """Equal similarities: wrong (`strict`), or as the official code of each benchmark has it."""
    exif: bool = True
    """Whether images are turned upright by their EXIF orientation, which training does and no
    official code of a benchmark does."""
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
    """Score retrieval over the dataset's own captions."""
    foils: FoilBenchmarkSettings = field(default_factory=FoilBenchmarkSettings)
    """Score foils of the dataset's own captions."""
    follow_symlinks: bool = False
    """Whether benchmark files and images may be links to files outside `root` and `images`."""
