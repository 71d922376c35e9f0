"""The papers' suites: which benchmarks their tables have, and their means over several of these.

A benchmark that a paper scores on a part of its items is drawn as there (`BenchmarkSet.items`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from compo_pipeline.benchmarks.items import Key
from compo_pipeline.benchmarks.settings import BENCHMARKS, BenchmarkSet, BenchmarksSettings
from compo_pipeline.benchmarks.zero_shot_sets import NAME as ZERO_SHOT
from compo_pipeline.benchmarks.zero_shot_sets import ZS10, ZS11, ZS21
from compo_pipeline.core.settings import SettingsError, nearest

Member = tuple[Key, ...]
"""A metric, or several of equal weight."""

CLIC_DRAW = 1000
"""Images of each of CLIC's ten zero-shot sets."""
_EQBEN_DRAW = 20_000
_RECALLS = ("i2t_r5", "t2i_r5")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Named mean over benchmarks, as a paper's tables report it.

    Attributes:
        label: label in reports.
        members: members whose mean this is.
        source: the tables of the paper that have it.
        items: number of items of each metric, where the paper draws them; None for all.
    """

    label: str
    members: tuple[Member, ...]
    source: str = ""
    items: int | None = None

    def member_name(self, member: Member) -> str:
        """Display name of a member: its benchmark, and metric and subtask where members differ."""
        benchmark, metric, subtask = member[0]
        others = [other[0] for other in self.members if other[0][0] == benchmark]
        words = [BENCHMARKS[benchmark].label]
        if len({other[1] for other in others}) > 1:
            words.append(metric)
        if len({other[2] for other in others}) > 1:
            words.append(subtask.replace("_", " "))
        return " ".join(words)

    def mean(self, values: Mapping[Key, float]) -> float:
        """Value of the mean, from metric values by (benchmark, metric, subtask).

        Each member weighs the same, and is the mean of its metrics.
        """
        parts = [sum(values[key] for key in member) / len(member) for member in self.members]
        return sum(parts) / len(parts)


@dataclass(frozen=True, slots=True)
class PaperSuite:
    """A paper's benchmarks with their settings, and the means over them in its tables."""

    title: str
    sets: Mapping[str, BenchmarkSet]
    aggregates: tuple[Aggregate, ...]


def _benchmark_sets(*names: str, **drawn: BenchmarkSet) -> dict[str, BenchmarkSet]:
    """Benchmark settings by name, with defaults for names that are given alone."""
    return {name: BenchmarkSet() for name in names} | drawn


def _single_members(benchmark: str, metric: str, names: Iterable[str]) -> tuple[Member, ...]:
    """Members of an aggregate with one metric key each, for several subtasks of a benchmark."""
    return tuple(((benchmark, metric, name),) for name in names)


def _retrieval_members(metric: str) -> tuple[Member, ...]:
    """Members of an aggregate: FSC-CLIP's three retrieval sets in one metric."""
    sets = {"coco": "karpathy", "flickr30k": "karpathy", "coco_counterfactuals": "retrieval"}
    return tuple(((benchmark, metric, subtask),) for benchmark, subtask in sets.items())


_PLUS_PLUS, _CREPE = "sugar_crepe_pp", "sugar_crepe"
_ATTRIBUTES = ("replace_att", "swap_att")
_C2LIP_RETRIEVAL = {
    "coco": "karpathy",
    "flickr30k": "karpathy",
    "docci": "test",
    "iiw": "iiw_400",
}
_PLUS_PLUS_MEANS = tuple(
    ((_PLUS_PLUS, metric, name),) for name in ("replace", "swap") for metric in ("itt", "tot")
)

SUITES: Mapping[str, PaperSuite] = {
    "clic": PaperSuite(
        "CLIC",
        _benchmark_sets(
            _PLUS_PLUS,
            "winoground",
            _CREPE,
            "coco",
            "flickr30k",
            zero_shot_sets=BenchmarkSet(items=dict.fromkeys(ZS10, CLIC_DRAW)),
        ),
        (
            Aggregate(
                "CLIC's ZS-10, mean top-1 of 10 sets",
                _single_members(ZERO_SHOT, "top1", ZS10),
                "Tables 2 and 15",
                CLIC_DRAW,
            ),
        ),
    ),
    "fsc": PaperSuite(
        "FSC-CLIP",
        _benchmark_sets(
            "aro",
            "crepe",
            "imagecode",
            "spec",
            _CREPE,
            "svo_probes",
            "valse",
            "vl_checklist",
            "whatsup",
            "winoground",
            "coco",
            "flickr30k",
            "coco_counterfactuals",
            ZERO_SHOT,
            eqben=BenchmarkSet(items=_EQBEN_DRAW),
        ),
        (
            Aggregate(
                "FSC-CLIP's Comp, mean of 11 benchmarks",
                (
                    (("aro", "accuracy", "aro4"),),
                    (("crepe", "accuracy", "average"),),
                    (("eqben", "group", "average"),),
                    (("imagecode", "t2i", "average"),),
                    (("spec", "accuracy", "image2text"), ("spec", "t2i", "text2image")),
                    ((_CREPE, "accuracy", "by_group"),),
                    (("svo_probes", "t2i", "average"),),
                    (("valse", "accuracy", "average"),),
                    (("vl_checklist", "accuracy", "average"),),
                    (("whatsup", "accuracy", "average"),),
                    (("winoground", "group", "all"),),
                ),
                "comparison of methods",
            ),
            Aggregate(
                "FSC-CLIP's I2T, mean R@1 of 3 sets",
                _retrieval_members("i2t_r1"),
                "comparison of methods",
            ),
            Aggregate(
                "FSC-CLIP's T2I, mean R@1 of 3 sets",
                _retrieval_members("t2i_r1"),
                "comparison of methods",
            ),
            Aggregate(
                "FSC-CLIP's ZS, mean top-1 of 21 sets",
                _single_members(ZERO_SHOT, "top1", ZS21),
                "zero-shot classification of appendix B.3",
            ),
        ),
    ),
    "sparcl": PaperSuite(
        "SPARCL",
        _benchmark_sets("aro", "vl_checklist", _CREPE, _PLUS_PLUS),
        (
            Aggregate(
                "SPARCL's average of 4 benchmarks",
                (
                    (("aro", "accuracy", "aro2"),),
                    (("vl_checklist", "accuracy", "average"),),
                    ((_CREPE, "accuracy", "average"),),
                    ((_PLUS_PLUS, "itt", "average"),),
                ),
                "ablation study",
            ),
        ),
    ),
    "c2lip": PaperSuite(
        "C2LIP",
        _benchmark_sets(_CREPE, _PLUS_PLUS, ZERO_SHOT, *_C2LIP_RETRIEVAL, "flickr8k"),
        (
            Aggregate(
                "C2LIP's average of 12 columns",
                (
                    *_single_members(_CREPE, "accuracy", ("add", "replace", "swap")),
                    *_PLUS_PLUS_MEANS,
                    ((ZERO_SHOT, "top1", "imagenet1k"),),
                    *(
                        tuple((name, metric, subtask) for metric in _RECALLS)
                        for name, subtask in _C2LIP_RETRIEVAL.items()
                    ),
                ),
                "Tables 2 and 4",
            ),
            Aggregate(
                "C2LIP's average of 6 attribute tasks",
                (
                    *_single_members(_CREPE, "accuracy", _ATTRIBUTES),
                    *(
                        ((_PLUS_PLUS, metric, name),)
                        for name in _ATTRIBUTES
                        for metric in ("itt", "tot")
                    ),
                ),
                "Table 3",
            ),
            Aggregate(
                "C2LIP's SugarCrepe, mean of the 7 subtasks",
                (((_CREPE, "accuracy", "average"),),),
                "Tables 5 and A3",
            ),
            Aggregate(
                "C2LIP's SugarCrepe++, mean of the ten ITT and TOT scores",
                (((_PLUS_PLUS, "itt", "average"),), ((_PLUS_PLUS, "tot", "average"),)),
                "Table A4",
            ),
            Aggregate(
                "C2LIP's retrieval, mean R@5 of 4 sets both ways",
                tuple(
                    ((name, metric, subtask),)
                    for name, subtask in _C2LIP_RETRIEVAL.items()
                    for metric in _RECALLS
                ),
                "Table A5",
            ),
            Aggregate(
                "C2LIP's zero-shot, mean top-1 of 11 sets",
                _single_members(ZERO_SHOT, "top1", ZS11),
                "Table A6",
            ),
        ),
    ),
}


def aggregates_of(suite: str) -> tuple[Aggregate, ...]:
    """Means over benchmarks that a suite defines, or all suites' means for an unknown name."""
    if suite in SUITES:
        return SUITES[suite].aggregates
    return tuple(one for paper in SUITES.values() for one in paper.aggregates)


def enabled_sets(settings: BenchmarksSettings) -> dict[str, BenchmarkSet]:
    """Settings of the enabled benchmarks by name: those of the suite, changed by `sets`.

    What `sets` leaves null of a member is as the suite has it; a member is optional by default.

    Raises:
        SettingsError: there is no such suite.
    """
    of_suite: Mapping[str, BenchmarkSet] = {}
    if (suite := settings.suite) is not None:
        if suite not in SUITES:
            raise SettingsError(
                f"benchmarks.suite: there is no suite '{suite}'{nearest(suite, SUITES)} "
                f"(allowed: {', '.join(SUITES)}, or null)"
            )
        of_suite = SUITES[suite].sets
    found = {}
    for name in dict.fromkeys((*of_suite, *settings.sets)):
        own, default = settings.sets.get(name, BenchmarkSet()), of_suite.get(name)
        if own is not None:
            optional = default is not None if own.optional is None else own.optional
            items = own.items or (default.items if default else None)
            found[name] = replace(own, optional=optional, items=items)
    return found
