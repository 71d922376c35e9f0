"""The benchmarks by name, which of them are scored, and where their files are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from compo_pipeline.benchmarks.items import Benchmark
from compo_pipeline.core.plugins import Registry
from compo_pipeline.core.settings import settings

TextProtocol = Literal["raw", "clic", "whole"]


@settings
class RetrievalSettings:
    """Settings of retrieval over the images and captions of one split of the dataset."""

    split: str | None = "test"
    """Name of the split in the captions table; null switches retrieval off."""
    text: TextProtocol | Annotated[tuple[TextProtocol, ...], Field(min_length=1)] = "raw"
    """Text protocol, or a list of them: `raw` captions (first sentences), `clic` for captions
    normalised as in CLIC's evaluation, or `whole` captions (all sentences)."""


@settings
class FoilBenchmarkSettings:
    """Settings of the benchmark of foils made from the dataset's own captions (`foils`)."""

    split: str | None = None
    """Set of foils to score, a name from `foils.splits`. Null scores none."""


@settings
class BenchmarkSet:
    """Settings of one benchmark in `benchmarks.sets`: folders of its files, number of items."""

    root: str | None = None
    """Folder of the benchmark's annotation files, or its URL. Null is
    `<benchmarks.root>/<name>`."""
    images: str | None = None
    """Folder of the benchmark's images, or its URL. Null is `benchmarks.images`, else the folder
    `images` beside the annotation files, else `<benchmarks.root>/images`."""
    optional: bool | None = None
    """Whether the benchmark is listed as not run if its folder does not exist; otherwise that is an
    error. Null is true for members of `benchmarks.suite`."""
    items: PositiveInt | Mapping[str, PositiveInt] | None = None
    """Number of items of each subtask, or of the subtasks that are named. Null is all, or as many
    as in the paper for a member of a suite. Items are drawn at random, always the same; in
    VL-CheckList they are the first ones with an image."""


@settings
class BenchmarksSettings:
    """Settings of the benchmarks to score: suite, folders of their files, and tie rule."""

    root: str | None = None
    """Folder with one folder of annotation files per benchmark, or its URL. Null is the folder of
    rendered scenes; for other data it leaves out all benchmarks without a root of their own."""
    images: str | None = None
    """Folder with the images of the benchmarks, or its URL. Null is `<root>/<name>/images` if it
    exists, else `<root>/images`."""
    sets: Mapping[str, BenchmarkSet | None] = field(default_factory=dict)
    """Benchmarks by name, such as sugar_crepe, with the places of their files. They extend or
    change those of `suite`; null removes one. See docs/reference/benchmarks.md for the names."""
    suite: str | None = None
    """Benchmarks of a paper's tables: clic, fsc, sparcl or c2lip. Null scores only those of
    `sets`."""
    ties: Literal["strict", "official"] = "strict"
    """How equal similarities count: as wrong (`strict`), or as in the official code of each
    benchmark (`official`)."""
    exif: bool = True
    """Whether images are turned upright by their EXIF orientation, as in training. The benchmarks'
    official code does not do so."""
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
    """Retrieval over the dataset's own captions."""
    foils: FoilBenchmarkSettings = field(default_factory=FoilBenchmarkSettings)
    """Foils of the dataset's own captions."""
    follow_symlinks: bool = False
    """Whether benchmark files and images may be links to files outside `root` and `images`."""


BENCHMARKS: Registry[Benchmark] = Registry(
    "compo_pipeline.benchmarks",
    {
        name: f"{__package__}.{path}"
        for name, path in {
            "sugar_crepe": "sugar_crepe:SUGAR_CREPE",
            "sugar_crepe_pp": "sugar_crepe:SUGAR_CREPE_PP",
            "retrieval": "retrieval:RETRIEVAL",
            "foils": "foils:BENCHMARK",
            "zero_shot": "zero_shot:BENCHMARK",
            "zero_shot_sets": "zero_shot_sets:BENCHMARK",
            "winoground": "pairs:WINOGROUND",
            "color_swap": "pairs:COLOR_SWAP",
            "bivlc": "pairs:BIVLC",
            "mmvp_vlm": "pairs:MMVP_VLM",
            "eqben": "pairs:EQBEN",
            "coco_counterfactuals": "pairs:COCO_COUNTERFACTUALS",
            "coco": "retrieval:COCO",
            "flickr30k": "retrieval:FLICKR30K",
            "flickr8k": "retrieval:FLICKR8K",
            "docci": "retrieval:DOCCI",
            "iiw": "retrieval:IIW",
            "urban1k": "retrieval:URBAN1K",
            "aro": "aro:BENCHMARK",
            "cola": "cola:BENCHMARK",
            "crepe": "crepe:BENCHMARK",
            "half_truths": "half_truths:BENCHMARK",
            "valse": "valse:BENCHMARK",
            "vl_checklist": "vl_checklist:BENCHMARK",
            "whatsup": "whatsup:BENCHMARK",
            "svo_probes": "image_choice:SVO_PROBES",
            "imagecode": "image_choice:IMAGECODE",
            "spec": "image_choice:SPEC",
            "negbench": "negbench:BENCHMARK",
        }.items()
    },
)
"""The benchmarks by name, each imported where it is first looked up.

A new benchmark is a module with a `Benchmark`, and a line here. An installed package adds its own
by an entry point of the group `compo_pipeline.benchmarks`.
"""
