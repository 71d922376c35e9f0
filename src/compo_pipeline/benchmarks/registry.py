"""The benchmarks by name. Importing this module imports no adapter.

A new benchmark is a module with a `Benchmark`, and a line here. An installed package adds its own
by an entry point of the group `compo_pipeline.benchmarks`.
"""

from __future__ import annotations

from compo_pipeline.benchmarks.items import Benchmark
from compo_pipeline.core.plugins import Registry

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
