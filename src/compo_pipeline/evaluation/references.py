"""Result files of other harnesses as reference values: mteb's and UniBench's.

mteb writes `<model>/<revision>/<task>.json` of {task_name, scores: {split: [{hf_subset, text_acc,
accuracy, ...}]}} with a `model_meta.json` beside it, and {model_name, task_results: [...]} as one
file of a model. UniBench writes `aggregate.f` and `<model>/<benchmark>.f`, feather tables with the
columns model_name, benchmark_name and correctness, which may be exported as CSV. Values are shares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from compo_pipeline.benchmarks.averages import Key
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.evaluation.published import Paper
from compo_pipeline.evaluation.settings import ReferenceSettings
from compo_pipeline.storage.untrusted import read_csv, read_json, shown


class Result(NamedTuple):
    """One value of a result file, with model, benchmark and score name.

    `score` is mteb's name of it, empty in UniBench.
    """

    file: Path
    model: str
    benchmark: str
    score: str
    value: float


def _zero_shot_key(name: str) -> Key:
    """Metric key of the top-1 accuracy on a zero-shot data set."""
    return "zero_shot_sets", "top1", name


# (benchmark, score) of a harness to our metric of the same rule.
_MTEB: dict[tuple[str, str], Key] = {
    ("SugarCrepe", "text_acc"): ("sugar_crepe", "accuracy", "by_item"),
    ("Winoground", "text_acc"): ("winoground", "text", "all"),
    ("Winoground", "image_acc"): ("winoground", "image", "all"),
    ("Winoground", "accuracy"): ("winoground", "group", "all"),
    ("AROCocoOrder", "text_acc"): ("aro", "accuracy", "coco_order"),
    ("AROFlickrOrder", "text_acc"): ("aro", "accuracy", "flickr30k_order"),
    **{
        (f"{task}ZeroShot", "accuracy"): _zero_shot_key(name)
        for task, name in {
            "Food101": "food101",
            "CIFAR10": "cifar10",
            "CIFAR100": "cifar100",
            "StanfordCars": "stanford_cars",
            "FGVCAircraft": "fgvc_aircraft",
            "DTD": "dtd",
            "OxfordPets": "oxford_pets",
            "Caltech101": "caltech101",
            "Country211": "country211",
            "EuroSAT": "eurosat",
            "FER2013": "fer2013",
            "GTSRB": "gtsrb",
            "MNIST": "mnist",
            "PatchCamelyon": "patch_camelyon",
            "RESISC45": "resisc45",
            "Imagenet1k": "imagenet1k",
        }.items()
    },
}
_SAME_NAMES = """
food101 cifar10 cifar100 fgvc_aircraft dtd caltech101 flowers102 country211 eurosat fer2013 gtsrb
mnist resisc45 voc2007 imagenet1k
"""
_UNIBENCH: dict[tuple[str, str], Key] = {
    ("sugarcrepe", ""): ("sugar_crepe", "accuracy", "by_item"),
    ("winoground", ""): ("winoground", "group", "all"),
    ("coco_order", ""): ("aro", "accuracy", "coco_order"),
    ("flickr30k_order", ""): ("aro", "accuracy", "flickr30k_order"),
    **{
        (theirs, ""): _zero_shot_key(ours)
        for theirs, ours in {
            **{name: name for name in _SAME_NAMES.split()},
            "cars": "stanford_cars",
            "pets": "oxford_pets",
            "pcam": "patch_camelyon",
            "imagenet": "imagenet1k",
        }.items()
    },
}
_OVER_ITEMS = "a mean over items, ours is over relations or pairs of attributes"
_OTHER_RULE = {
    "AROVisualRelation": _OVER_ITEMS,
    "AROVisualAttribution": _OVER_ITEMS,
    "vg_relation": _OVER_ITEMS,
    "vg_attribution": _OVER_ITEMS,
    "ImageCoDe": "its items are not named, so it is not known whether they are the same",
}
_TASKS = (None, "", "zeroshot_classification", "relation_classification")


def read_references(settings: ReferenceSettings) -> tuple[tuple[Paper, ...], tuple[str, ...]]:
    """Read result files of other harnesses: values by harness, and notes on unused results.

    Raises:
        SettingsError: a file is missing or has another format, or two disagree.
    """
    papers, lines = [], []
    for name, (label, keys, read) in _HARNESSES.items():
        setting, files = f"suite.references.{name}", getattr(settings, name)
        results = [one for file in files for one in read(Path(file).expanduser(), setting)]
        known = [one for one in results if (one.benchmark, one.score) in keys]
        if known:
            papers.append(
                _as_paper(f"{label}, result files", ", ".join(files), known, keys, setting)
            )
        others = sorted({one.benchmark for one in results if one not in known})
        if others:
            named = (
                f"{other} ({_OTHER_RULE[other]})" if other in _OTHER_RULE else other
                for other in others
            )
            lines.append(
                f"{label}: {len(others)} benchmarks of the result files have no counterpart here: "
                f"{', '.join(named)}"
            )
    return tuple(papers), tuple(lines)


def _as_paper(
    title: str,
    source: str,
    results: Iterable[Result],
    keys: Mapping[tuple[str, str], Key],
    setting: str,
) -> Paper:
    """Reference values as a `Paper`; raises an error if two files disagree on one score."""
    found: dict[tuple[str, str], Result] = {}
    for one in results:
        place = "/".join(keys[one.benchmark, one.score]), one.model
        other = found.setdefault(place, one)
        if abs(other.value - one.value) > 1e-4:
            raise SettingsError(
                f"{setting}: {other.file} and {one.file} have different values of {one.benchmark} "
                f"for {one.model}: {other.value:.4f} and {one.value:.4f}; name one of them"
            )
    models = tuple(dict.fromkeys(model for _, model in found))
    metrics = dict.fromkeys(metric for metric, _ in found)
    values = {place: 100 * one.value for place, one in found.items()}
    table = {metric: tuple(values.get((metric, model)) for model in models) for metric in metrics}
    return Paper(title, models, table, source)


def _result_files(place: Path, key: str, pattern: str) -> list[Path]:
    """The given file, or the files of the given folder that match a pattern."""
    if place.is_file():
        return [place]
    found = sorted(place.rglob(pattern))
    if not found:
        raise SettingsError(f"{key}: there is no file {place}, and no folder with {pattern}")
    return found


def _checked_share(value: Any, file: Path, what: str, key: str) -> float:
    """The value as a float; raises an error unless it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise SettingsError(f"{key}: {file}: expected a share from 0 to 1 as {what}, got {value!r}")
    return float(value)


def _mteb_results(place: Path, key: str) -> Iterator[Result]:
    """Yield the results in MTEB's JSON files."""
    for file in _result_files(place, key, "*.json"):
        if file.name == "model_meta.json":
            continue
        try:
            content = read_json(file)
            whole = isinstance(content, dict) and "task_results" in content
            tasks = content["task_results"] if whole else [content]
            model = str(content["model_name"]) if whole else _mteb_model(file)
            for task in tasks:
                name, scores = task["task_name"], task["scores"]
                split = scores["test"] if "test" in scores else next(iter(scores.values()))
                subset = next((one for one in split if one.get("hf_subset") == "default"), split[0])
                values = {k: v for k, v in subset.items() if (name, k) in _MTEB}
                # A task that is not known is counted once.
                for score, value in (values or {"": 0.0}).items():
                    share = _checked_share(value, file, f"{name} {score}", key)
                    yield Result(file, model, str(name), score, share)
        except SettingsError:
            raise
        except ValueError as error:
            raise SettingsError(f"{key}: {error}") from error
        except (KeyError, TypeError, AttributeError, IndexError, StopIteration) as error:
            raise SettingsError(
                f"{key}: {file}: expected task_name and scores by split, got {shown(content)}"
            ) from error


def _mteb_model(file: Path) -> str:
    """Name of the model from `model_meta.json`, else from the folder's name."""
    meta = file.parent / "model_meta.json"
    if meta.is_file() and isinstance(content := read_json(meta), dict) and "name" in content:
        return str(content["name"])
    return file.parent.parent.name.replace("__", "/")


def _unibench_results(place: Path, key: str) -> Iterator[Result]:
    """Yield mean accuracies from UniBench's tables, by model and benchmark."""
    sums: dict[tuple[str, str], list[float]] = {}
    for file in _result_files(place, key, "*.f"):
        sums.clear()
        for row in _unibench_rows(file, key):
            try:
                name, task = str(row["benchmark_name"]), row.get("task_name")
                value = float(row["correctness"])
                model = str(row["model_name"])
            except (KeyError, TypeError, ValueError) as error:
                raise SettingsError(
                    f"{key}: {file}: expected the columns model_name, benchmark_name and "
                    f"correctness, got {shown(row)}"
                ) from error
            name = name if task in _TASKS else f"{name} ({task})"
            sums.setdefault((model, name), []).append(_checked_share(value, file, name, key))
        for (model, name), values in sums.items():
            yield Result(file, model, name, "", math.fsum(values) / len(values))


def _unibench_rows(file: Path, key: str) -> Iterable[Mapping[str, Any]]:
    """Rows of a UniBench table in CSV or feather format."""
    import pyarrow as pa

    wanted = ("model_name", "benchmark_name", "correctness", "task_name")
    try:
        if file.suffix == ".csv":
            return read_csv(file)
        # Feather's second version is the Arrow IPC file format.
        table = pa.ipc.open_file(file.read_bytes()).read_all()
        chosen = table.select([name for name in wanted if name in table.column_names])
        rows: list[Mapping[str, Any]] = chosen.to_pylist()
        return rows
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SettingsError(f"{key}: {file} is no CSV or feather table: {error}") from error


_Reader = Callable[[Path, str], Iterator[Result]]

_HARNESSES: dict[str, tuple[str, Mapping[tuple[str, str], Key], _Reader]] = {
    "mteb": ("mteb", _MTEB, _mteb_results),
    "unibench": ("UniBench", _UNIBENCH, _unibench_results),
}
"""Label, metrics that we have too, and reader of each harness."""
