import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from platform import python_version
from typing import Any

import mlflow
import numpy as np
import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.io.memory_dataset import _EMPTY as NOTHING
from kedro.pipeline import Pipeline
from kedro.runner import SequentialRunner
from PIL import Image

from compo_pipeline.benchmarks import zero_shot_sets
from compo_pipeline.benchmarks.items import Key
from compo_pipeline.benchmarks.loading import benchmark_availability, from_files
from compo_pipeline.benchmarks.settings import BenchmarkSet, BenchmarksSettings
from compo_pipeline.benchmarks.sugar_crepe import ADD, REPLACE, SWAP
from compo_pipeline.benchmarks.suites import CLIC_DRAW, SUITES
from compo_pipeline.core.files import record_json, write_files
from compo_pipeline.core.provenance import Site
from compo_pipeline.core.records import Score
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.evaluation.comparison import Difference, Estimate, Row, item_changes
from compo_pipeline.evaluation.evaluate import Audit, ComparedModel, Comparison
from compo_pipeline.evaluation.settings import EvaluationSettings, ListedModel
from compo_pipeline.evaluation.suite import (
    aggregate_rows,
    listed_models,
    read_published,
    reference_rows,
)
from compo_pipeline.pages import report
from compo_pipeline.pipeline_registry import register_pipelines
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.settings import RegistrationSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings

CPU = EvaluationSettings(device="cpu")
DEFAULTS = {
    "models": "two",
    "evaluation": CPU,
    "generator_settings": {},
    "registration": RegistrationSettings(),
    "site": Site(),
}
SCORED = "suite_scores", "suite"
SUBTASKS = (*ADD, *REPLACE, *SWAP)
FETCHED = re.compile(r"""(?:src|href)=["']([^"']*)|url\(([^)]*)\)""")


@pytest.fixture
def benchmarks(tmp_path: Path) -> BenchmarksSettings:
    """Two benchmarks over four images."""
    (tmp_path / "images").mkdir()
    items = {}
    for number in range(4):
        noise = np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "images" / f"{number}.png")
        items[str(number)] = {
            "filename": f"{number}.png",
            "caption": f"{number} red cubes",
            "negative_caption": f"{number} blue cubes",
        }
    for name, content in (("sugar_crepe", items), ("sugar_crepe_pp", [])):
        (tmp_path / name).mkdir()
        records = content or [
            {**record, "caption2": "cubes", "id": key} for key, record in items.items()
        ]
        (tmp_path / name / "swap_att.json").write_text(json.dumps(records))
    sets = dict.fromkeys(("sugar_crepe", "sugar_crepe_pp"), BenchmarkSet())
    return BenchmarksSettings(str(tmp_path), sets=sets)


def run(name: str, *wanted: str, **given: Any) -> list[Any]:
    """Outputs of a pipeline, of which parameters and some entries are given."""
    whole = register_pipelines()[name]
    nodes = [node for node in whole.nodes if not given.keys() & set(node.outputs)]
    asked = Pipeline(nodes).to_outputs(*wanted)
    own = {"embeddings": "paths.embeddings"}
    values = {**DEFAULTS, **given}
    values |= {f"params:{own.get(k, k)}": value for k, value in values.items() if k != "suite"}
    held = {entry: values.get(entry, NOTHING) for entry in asked.datasets()}
    catalog = DataCatalog(
        {e: MemoryDataset(value, copy_mode="assign") for e, value in held.items()}
    )
    found = SequentialRunner().run(asked, catalog)
    return [found[entry].load() for entry in wanted]


def written(files: dict[str, bytes], folder: Path) -> Path:
    """The folder with these files."""
    write_files(files, folder)
    return folder


@pytest.fixture
def inputs(
    benchmarks: BenchmarksSettings, tiny_model: Callable[..., Path], tmp_path: Path
) -> dict[str, Any]:
    """Two random models, a and b, and what they are scored on."""
    models = {name: ListedModel(f"local-dir:{tiny_model(k)}") for k, name in enumerate("ab")}
    return {
        "model_lists": {"two": models},
        "benchmarks": benchmarks,
        "data": DataSettings(tmp_path, "coco_captions", {"train": "train"}),
        "embeddings": str(tmp_path / "stored"),
    }


def test_a_list_of_models_is_compared_with_its_first(
    inputs: dict[str, Any], mlflow_project: Path, tmp_path: Path
) -> None:
    tracking.configure(TrackingSettings(experiment="benchmark"), mlflow_project)
    scores, suite = run("benchmark", *SCORED, **inputs)
    assert {row.model for row in scores} == {"a", "b"} and len(scores) == 2 * (4 + 4 + 4)
    assert suite.models["a"].fingerprint != suite.models["b"].fingerprint
    for row in suite.rows:
        values = {name: value.value for name, value in row.values.items()}
        for name in "ab":
            right = [s.correct for s in scores if (s.model, s.metric) == (name, row.metric)]
            assert values[name] == pytest.approx(100 * np.mean(right))
        (found,) = row.differences
        assert (found.model, found.against) == ("b", "a")
        assert found.value == pytest.approx(values["b"] - values["a"])
    assert run("benchmark", "suite", **inputs) == [suite]
    (page,) = run("benchmark", "suite_report", **inputs, suite=suite, suite_scores=scores)
    run("benchmark", "suite_report", **inputs, suite=suite, suite_scores=scores)
    folder = written(page, tmp_path / "page")
    for name in ("benchmark.html", "benchmark.md"):
        content = (folder / name).read_text()
        assert "SugarCrepe++ ITT swap att" in content and f"Python {python_version()}" in content
    # The HTML page needs no other file and no network.
    content = (folder / "benchmark.html").read_text()
    fetched = [one or other for one, other in FETCHED.findall(content)]
    assert all(each.startswith(("data:", "#")) for each in fetched)

    client = mlflow.MlflowClient()
    # The same figures are logged once.
    (both,) = client.search_runs([tracking.experiment_id()], "tags.models = 'two'")
    logged = both.data.metrics
    accuracy = next(row for row in suite.rows if row.name == "swap_att")
    assert logged["b/sugar_crepe/accuracy/swap_att"] == accuracy.values["b"].value
    assert {file.path for file in client.list_artifacts(both.info.run_id)} == {"page"}


@pytest.mark.parametrize(
    ("name", "lists", "named"),
    [("tow", {"two": {"a": {}}}, "models: .*'two'"), ("two", {"two": {}}, r"model_lists\.two: ")],
)
def test_a_list_that_cannot_be_used_is_named(name: str, lists: Any, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        listed_models(name, lists)


def test_what_is_there_of_every_benchmark(benchmarks: BenchmarksSettings, tmp_path: Path) -> None:
    (tmp_path / "images" / "3.png").unlink()
    elsewhere = BenchmarkSet(root=str(tmp_path / "absent"))
    sets = {"sugar_crepe": BenchmarkSet(), "sugar_crepe_pp": elsewhere}
    settings = BenchmarksSettings(str(tmp_path), sets=sets)
    found = {one.benchmark.name: one for one in benchmark_availability(settings)}
    there = found["sugar_crepe"]
    counts = (there.subtasks, there.items, there.images, there.missing_images, there.problem)
    assert counts == (1, 4, 4, 1, "")
    assert "absent" in found["sugar_crepe_pp"].problem
    absent = found["winoground"]
    assert not absent.enabled and absent.state == "not enabled"
    assert absent.lines == [f"from {absent.benchmark.source}", absent.benchmark.download]
    assert "0.4 GB" in absent.lines[1]
    # Of seven subtasks one is there, and of its four images three.
    assert there.state == "in part"
    assert there.missing_parts == tuple(name for name in SUBTASKS if name != "swap_att")
    parts, images, *_ = there.lines
    assert parts.startswith("annotation files of 1 of 7 subtasks; missing: add_obj, add_att, repl")
    assert images == "3 of 4 images; missing: swap_att: 1 of 4 (3.png)"
    assert list(there.absent) == [str(tmp_path / "images" / "3.png")]


def suite_of(values: Mapping[Key, float], name: str, items: int = 1) -> Comparison:
    """One model with these metrics of a paper's suite, of all official items or of so many."""
    _, counts, _ = read_published()
    rows = []
    for key, value in values.items():
        count = counts.get(f"{key[0]}/{key[2]}", items)
        rows.append(replace(_row(key, {"m": value}, count), images=count))
    models = {"m": ComparedModel("m", "m", "w", "f")}
    return Comparison(models, tuple(rows), suite=name)


def test_an_aggregate_is_a_mean_of_all_its_members_or_names_the_missing() -> None:
    comp = SUITES["fsc"].aggregates[0]
    keys = [key for member in comp.members for key in member]
    values = {key: 10.0 * number for number, key in enumerate(keys)}
    found, *_ = aggregate_rows(suite_of(values, "fsc"))
    # The two of SPEC, 40 and 50, are one member.
    assert found.values == (pytest.approx((660 - 40 - 50 + 45) / 11),) and not found.remark
    partial, *_ = aggregate_rows(suite_of({key: values[key] for key in keys[1:]}, "fsc"))
    assert partial.values == () and partial.missing == ("ARO",)
    # A member of rendered files is no member.
    rendered = replace(suite_of(values, "fsc"), titles={"aro": "ARO-style"})
    assert aggregate_rows(rendered)[0] == partial
    # Without a suite, what is complete.
    assert aggregate_rows(suite_of(values, "")) == [found]
    assert aggregate_rows(replace(suite_of(values, ""), titles={"aro": "ARO-style"})) == []


AUDIT = Audit("sugar_crepe_pp", "swap_att", 666, 0, {}, 1998, 0, 0)


@pytest.mark.parametrize("left_out", ["items", "skipped", "deviations"])
def test_an_average_of_a_paper_needs_all_items(left_out: str) -> None:
    """The official files of SugarCrepe++ have 4,757 items in five subtasks."""
    keys = [("sugar_crepe_pp", metric, "average") for metric in ("itt", "tot")]
    whole = suite_of(dict.fromkeys(keys, 50.0), "")
    assert [(one.values, one.remark) for one in aggregate_rows(whole)] == [((50.0,), "")]
    changes = {"items": {"items": 25}, "skipped": {"skipped": 1}}.get(left_out, {})
    rows = tuple(replace(row, **changes) for row in whole.rows)  # type: ignore[arg-type]
    whole = replace(whole, rows=rows)
    if left_out == "deviations":
        whole = replace(whole, audits=(replace(AUDIT, deviations=("at most 5 items",)),))
    (found,) = aggregate_rows(whole)
    assert found.values == (50.0,) and found.missing == () and len(found.partial) == 2
    assert found.remark.startswith("not the paper's figure: SugarCrepe++ itt")


def test_an_average_over_drawn_items_needs_as_many_as_the_paper_draws() -> None:
    """CLIC's ZS-10 is of 1,000 images a set."""
    values = {("zero_shot_sets", "top1", name): 50.0 for name in zero_shot_sets.ZS10}
    for items, remarks in ((CLIC_DRAW, 0), (CLIC_DRAW + 1, 1)):
        (found,) = aggregate_rows(suite_of(values, "clic", items))
        assert found.values == (50.0,) and bool(found.remark) == bool(remarks)


def test_a_limited_number_of_items_deviates_from_the_official_run(
    benchmarks: BenchmarksSettings,
) -> None:
    for items, deviations in ((None, 0), (1, 1)):
        sets = {"sugar_crepe": BenchmarkSet(items=items)}
        subtasks = from_files(BenchmarksSettings(benchmarks.root, sets=sets))
        assert all(len(task.deviations) == deviations for task in subtasks) and subtasks


def test_aggregates_within_a_benchmark_name_its_missing_subtasks() -> None:
    sets = ("coco", "flickr30k", "coco_counterfactuals")
    names = ("karpathy", "karpathy", "retrieval")
    recalls = {
        (benchmark, "i2t_r1", name): 10.0 * place
        for place, (benchmark, name) in enumerate(zip(sets, names, strict=True))
    }
    classified = {("zero_shot_sets", "top1", name): 50.0 for name in zero_shot_sets.ZS10[1:]}
    mixed = {
        ("sugar_crepe_pp", metric, "average"): v for metric, v in (("itt", 40.0), ("tot", 60.0))
    }
    found = {
        one.label.partition(",")[0]: (one.values, one.missing)
        for name in ("fsc", "clic", "c2lip")
        for one in aggregate_rows(suite_of(recalls | classified | mixed, name))
    }
    assert found["FSC-CLIP's I2T"] == ((10.0,), ())
    assert found["CLIC's ZS-10"] == ((), ("Zero-shot food101",))
    assert len(found["FSC-CLIP's ZS"][1]) == 12
    assert found["C2LIP's SugarCrepe++"] == ((50.0,), ())
    assert found["FSC-CLIP's T2I"][0] == ()


@pytest.fixture
def scored(inputs: dict[str, Any]) -> tuple[list[Score], Comparison]:
    """Scores and suite of the models."""
    scores, suite = run("benchmark", *SCORED, **inputs)
    return scores, suite


def with_verdicts(scores: list[Score], right: dict[str, set[str]]) -> list[Score]:
    return [replace(row, correct=row.item in right[row.model]) for row in scores]


def _row(key: tuple[str, str, str], values: Mapping[str, float], items: int = 1) -> Row:
    estimates = {name: Estimate(value, value - 1, value + 1) for name, value in values.items()}
    first, *others = values
    same = tuple(Difference(name, first, 0, 0, 0, 1, 1, 0, 0, 0) for name in others)
    return Row(*key, " ".join(key), False, False, items, 0, 1, None, estimates, same)


@pytest.fixture
def official() -> Comparison:
    """Three models on whole benchmarks: b surpasses a, c is better at composition alone."""
    group, top = ("winoground", "group", "all"), ("zero_shot_sets", "top1", "dtd")
    recall, half = ("coco", "i2t_r1", "karpathy"), ("sugar_crepe", "accuracy", "by_group")
    up, across = {"a": 10, "b": 20, "c": 30}, {"a": 50, "b": 60, "c": 40}
    rows = _row(group, up, 400), _row(half, up, 7511), _row(top, across), _row(recall, across)
    models = {name: ComparedModel(name, name, "w", "f") for name in up}
    return Comparison(models, rows)


def test_files_that_are_not_the_official_ones_have_no_reference_values(
    official: Comparison,
) -> None:
    rendered = replace(official, titles={"winoground": "Winoground-style"})
    shown = [row.benchmark for _, lines in reference_rows(rendered) for row, _ in lines]
    assert set(shown) == {"sugar_crepe"}


def test_reference_values_are_marked_and_beside_the_measured_ones(
    official: Comparison, tmp_path: Path
) -> None:
    assert len(reference_rows(official)) == 3
    group = next(row for row in official.rows if row.benchmark == "winoground")
    audit = replace(AUDIT, benchmark=group.benchmark, deviations=("ties",))
    deviating = reference_rows(replace(official, audits=(audit,)))
    assert all(row != group for _, lines in deviating for row, _ in lines)
    assert any(row == group for _, lines in reference_rows(official) for row, _ in lines)
    page_of = report.suite_page(official, "Models", {})
    files = page_of.files(report.SUITE, report.MARKDOWN)
    assert parse(Comparison, record_json(official), "suite") == official
    for name in (report.SUITE, report.MARKDOWN):
        page = str(files[name])
        assert "a (here)" in page and reference_rows(official)[0].paper.title in page
    assert report.FRONTIER in files


def test_items_on_which_two_models_differ(
    inputs: dict[str, Any],
    scored: tuple[list[Score], Comparison],
    tmp_path: Path,
    approved: Callable[[str, str], None],
) -> None:
    # The similarities stay as they are: only the verdicts are made.
    scores = with_verdicts(scored[0], {"a": {"0", "1"}, "b": {"1", "2", "3"}})
    evaluation = EvaluationSettings(gallery=2)
    given = {**inputs, "suite": scored[1], "suite_scores": scores, "evaluation": evaluation}
    changes, page = run("benchmark", "item_changes", "suite_report", **given)
    of_itt = {one.item: one for one in changes if one.metric == "itt"}
    assert {item: one.change for item, one in of_itt.items()} == {
        "0": "broken", "2": "fixed", "3": "fixed"
    }  # fmt: skip
    assert of_itt["2"].positives == ("2 red cubes", "cubes") and of_itt["2"].image == "2.png"
    own = {row.model: row for row in scores if (row.metric, row.item) == ("itt", "2")}
    assert of_itt["2"].model_similarities == own["b"].similarities
    *right, wrong = own["a"].similarities
    assert of_itt["2"].shortfall == wrong - min(right)
    content = (written(page, tmp_path / "page") / "benchmark.html").read_text()
    approved("benchmark", content)


def test_files_without_a_scored_item_are_refused(
    benchmarks: BenchmarksSettings, scored: tuple[list[Score], Comparison]
) -> None:
    scores = with_verdicts(scored[0], {"a": {"0"}, "b": {"1"}})
    tasks = from_files(benchmarks)
    fewer = [replace(task, items=task.items[1:]) for task in tasks]
    with pytest.raises(SettingsError, match=r"sugar_crepe.*swap_att.*'0'"):
        list(item_changes(scores, fewer, ("a", "b")))
