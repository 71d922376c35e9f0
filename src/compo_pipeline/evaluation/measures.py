"""Which figures are made of the scores: one per subtask, and the averages the papers report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from compo_pipeline.records import PER_CLASS, Score

Key = tuple[str, str, str]
"""(benchmark, metric, subtask), as in the scores table."""

_REPLACE = ("replace_obj", "replace_att", "replace_rel")
_SWAP = ("swap_obj", "swap_att")
_ADD = ("add_obj", "add_att")

# CLIC Tables 1, 8 and 9. SugarCrepe's average is the mean of its seven subtasks, SugarCrepe++'s
# of its five, not of the groups.
AVERAGES: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    ("sugar_crepe", "accuracy"): {
        "add": _ADD,
        "replace": _REPLACE,
        "swap": _SWAP,
        "average": (*_ADD, *_REPLACE, *_SWAP),
    },
    ("sugar_crepe_pp", "itt"): {
        "replace": _REPLACE,
        "swap": _SWAP,
        "average": (*_REPLACE, *_SWAP),
    },
    ("sugar_crepe_pp", "tot"): {
        "replace": _REPLACE,
        "swap": _SWAP,
        "average": (*_REPLACE, *_SWAP),
    },
}

# The figures that a summary shows; the others stand in the full table.
HEADLINES: dict[str, Callable[[str, str], bool]] = {
    "sugar_crepe": lambda metric, name: name in ("add", "replace", "swap", "average"),
    "sugar_crepe_pp": lambda metric, name: name == "average",
    "retrieval": lambda metric, name: metric in ("i2t_r1", "t2i_r1", "i2t_r5", "t2i_r5"),
    "zero_shot": lambda metric, name: metric == "top1",
}

# The official names; files that are not the official ones have titles of their own.
BENCHMARK_LABELS = {
    "sugar_crepe": "SugarCrepe",
    "sugar_crepe_pp": "SugarCrepe++",
    "retrieval": "Retrieval",
    "zero_shot": "Zero-shot",
}
METHOD_LABELS = {
    "c2lip": "C2LIP",
    "clic": "CLIC",
    "clip": "CLIP",
    "fsc_clip": "FSC-CLIP",
    "negclip": "NegCLIP",
    "siglip": "SigLIP",
    "sparcl": "SPARCL",
    "triplet_clip": "TripletCLIP",
}
METRIC_LABELS = {
    "accuracy": "",
    "itt": "ITT",
    "tot": "TOT",
    "top1": "top-1",
    "top5": "top-5",
    PER_CLASS: "mean per class",
    **{f"i2t_r{k}": f"image to text R@{k}" for k in (1, 5, 10)},
    **{f"t2i_r{k}": f"text to image R@{k}" for k in (1, 5, 10)},
}
_ORDER = (*_ADD, *_REPLACE, *_SWAP, "add", "replace", "swap", "average")


@dataclass(frozen=True, slots=True)
class Measure:
    """The mean over `parts` (subtasks) of the mean over each part's items."""

    benchmark: str
    metric: str
    name: str
    parts: tuple[str, ...]
    title: str

    @property
    def averaged(self) -> bool:
        """Whether it is a mean of several subtasks."""
        return self.parts != (self.name,)

    @property
    def headline(self) -> bool:
        """Whether a summary shows it."""
        return self.benchmark in HEADLINES and HEADLINES[self.benchmark](self.metric, self.name)

    @property
    def label(self) -> str:
        """Its name for readers."""
        metric = METRIC_LABELS.get(self.metric, self.metric)
        words = [metric, self.name.replace("_", " ")]
        if self.benchmark == "retrieval":
            words = [metric]
        elif self.benchmark == "zero_shot":
            words.reverse()
        return " ".join(word for word in (self.title, *words) if word)


def measures(keys: Iterable[Key], titles: Mapping[str, str] | None = None) -> list[Measure]:
    """Every figure that can be made of what was scored, benchmark by benchmark.

    An average is made only where all its subtasks were scored.

    Args:
        keys: what was scored.
        titles: of benchmarks that are not the official ones.
    """
    known = {**BENCHMARK_LABELS, **(titles or {})}
    parts: dict[tuple[str, str], list[str]] = {}
    for benchmark, metric, subtask in dict.fromkeys(keys):
        parts.setdefault((benchmark, metric), []).append(subtask)
    found = []
    for (benchmark, metric), subtasks in parts.items():
        named: dict[str, tuple[str, ...]] = {name: (name,) for name in subtasks}
        if metric == PER_CLASS:
            named = _by_set(subtasks)
        for name, members in AVERAGES.get((benchmark, metric), {}).items():
            if set(members) <= set(subtasks):
                named[name] = members
        order = {name: place for place, name in enumerate(_ORDER)}
        for name in sorted(named, key=lambda name: order.get(name, -1)):
            title = known.get(benchmark, benchmark)
            found.append(Measure(benchmark, metric, name, named[name], title))
    return found


def _by_set(subtasks: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Zero-shot sets and their classes, from subtasks named `<set>/<class>`."""
    sets: dict[str, tuple[str, ...]] = {}
    for subtask in subtasks:
        name = subtask.split("/", 1)[0]
        sets[name] = (*sets.get(name, ()), subtask)
    return sets


def values(scores: Iterable[Score]) -> dict[str, float]:
    """Every figure of one model, per cent, by its key `benchmark/metric/name`; items that could not
    be scored are left out.
    """
    right: dict[Key, list[bool]] = {}
    for score in scores:
        if score.correct is not None:
            key = (score.benchmark, score.metric, score.subtask)
            right.setdefault(key, []).append(score.correct)
    means = {key: sum(found) / len(found) for key, found in right.items()}
    return {
        f"{one.benchmark}/{one.metric}/{one.name}": 100
        * sum(means[one.benchmark, one.metric, part] for part in one.parts)
        / len(one.parts)
        for one in measures(right)
    }
