import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from compo_pipeline.benchmarks.settings import BENCHMARKS
from compo_pipeline.evaluation.comparison import Difference, Estimate, Row
from compo_pipeline.evaluation.evaluate import texts_hash
from compo_pipeline.evaluation.suite import published_results, read_published

PROJECT = Path(__file__).parents[2]
CONF = PROJECT / "conf"
ESTIMATE = Estimate(50.0, 49.0, 51.0)
ROW = Row(
    "sugar_crepe_pp", "itt", "swap_att", "ITT swap att", False, False, 666, 0, 600, 33.3,
    {"base": ESTIMATE, "fine_tuned": ESTIMATE},
    (Difference("fine_tuned", "base", 0.0, -1.0, 1.0, 1.0, 1.0, 1.0, 0, 0),),
)  # fmt: skip


def test_published_results_need_the_same_protocol() -> None:
    clic, c2lip = published_results([ROW], coco=False)
    assert clic.rows[0][1][clic.paper.models.index("CLIP")] == 45.2
    assert c2lip.rows[0][1][c2lip.paper.models.index("C2LIP")] == 66.2
    average = replace(ROW, name="average", items=4757)
    (sparcl,) = (
        one.rows for one in published_results([average], coco=False) if "SPARCL" in one.paper.title
    )
    assert sparcl == ((average, (59.8, 64.9, None, 66.1)),)
    assert published_results([ROW], coco=False, deviating={ROW.benchmark}) == []
    assert published_results([replace(ROW, items=665, skipped=1)], coco=True) == []
    assert published_results([replace(ROW, items=1000)], coco=True) == []
    assert published_results([replace(ROW, name="of_our_own")], coco=True) == []
    recall = replace(ROW, benchmark="retrieval", metric="i2t_r5", name="clic", images=5000)
    (only,) = published_results([recall], coco=True)
    assert only.paper == clic.paper and len(only.rows) == 1
    assert published_results([recall], coco=False) == []
    assert published_results([replace(recall, images=79)], coco=True) == []
    assert published_results([replace(recall, name="raw")], coco=True) == []
    # The official files of COCO are a benchmark of their own.
    karpathy = replace(recall, benchmark="coco", name="karpathy")
    siglip, fsc_clip = published_results([karpathy], coco=False)
    assert fsc_clip.rows[0][1][fsc_clip.paper.models.index("CLIP")] == 74.9
    assert siglip.rows[0][1][siglip.paper.models.index("SigLIP")] == 85.4


def test_a_run_stands_beside_the_papers_blocks_that_pages_show() -> None:
    papers, counts, _ = read_published()
    found = published_results([ROW], coco=False)
    others = [one for one in papers if one.results.keys() & {"sugar_crepe_pp/itt/swap_att"}]
    assert len(found) < len(others) and all(one.paper.shown for one in found)
    for one in papers:
        assert one.runs.keys() | one.bases.keys() | one.hours.keys() <= {*one.models}
        assert one.bases.keys() <= one.runs.keys()
        for key in one.results:
            benchmark, _, name = key.split("/")
            assert f"{benchmark}/{name}" in counts, "a run could never be compared with it"


def test_every_run_that_measures_a_model_has_an_environment_variants_and_a_base() -> None:
    base = CONF / "base"
    variants = yaml.safe_load((base / "parameters_variants.yml").read_text("utf-8"))["variants"]
    lists = yaml.safe_load((base / "parameters_benchmark.yml").read_text("utf-8"))["model_lists"]
    known = set().union(*variants.values())
    for one in read_published()[0]:
        for options in one.runs.values():
            environment, *rest = options.split()
            assert (CONF / environment.removeprefix("--env=")).is_dir(), options
            named = re.findall(r"variant=([^,]+)", " ".join(rest))
            assert {part for each in named for part in each.split("+")} <= known, options
        for model, base in one.bases.items():
            assert base in lists[one.runs[model].rpartition("models=")[2]], model


def test_published_values_are_those_of_the_papers_texts(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(PROJECT / "benchmarks" / "project")
    reader = import_module("published")
    assert reader.published(shared.parent / "papers") == reader.PUBLISHED.read_text("utf-8")


@pytest.mark.parametrize("times", [0, 2])
def test_a_text_with_another_row_than_described_is_refused_by_table_and_row(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.syspath_prepend(PROJECT / "benchmarks" / "project")
    reader = import_module("published")
    for file in (shared.parent / "papers").iterdir():
        lines = file.read_text("utf-8").splitlines(keepends=True)
        changed = (line * (times if line.startswith("CLIC-RedCaps") else 1) for line in lines)
        (tmp_path / file.name).write_text("".join(changed), "utf-8")
    with pytest.raises(reader.TextError, match="clic/1: .*CLIC-RedCaps"):
        reader.published(tmp_path)


@pytest.mark.parametrize("name", ["sugar_crepe", "sugar_crepe_pp"])
def test_hashes_are_those_of_the_official_files_texts(shared: Path, name: str) -> None:
    root = shared / "benchmarks" / name
    known = {key: own for key, own in read_published()[2].items() if key.startswith(f"{name}/")}
    tasks = BENCHMARKS[name].load(root, root)
    assert {f"{name}/{task.name}": texts_hash([task]) for task in tasks} == known
    task = tasks[0]
    item, *items = task.items
    assert texts_hash([replace(task, items=(*items, item))]) == texts_hash([task])
    changed = replace(item, negatives=(f"{item.negatives[0]}.",))
    assert texts_hash([replace(task, items=(*items, changed))]) != texts_hash([task])
