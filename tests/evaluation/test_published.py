import re
from dataclasses import replace
from pathlib import Path

import pytest

from compo_pipeline.benchmarks.settings import BENCHMARKS
from compo_pipeline.evaluation.comparison import Difference, Estimate, Row
from compo_pipeline.evaluation.suite import Paper, published_results, read_published

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
    (only,) = published_results([karpathy], coco=False)
    assert only.rows[0][1][only.paper.models.index("CLIP")] == 74.9


@pytest.mark.parametrize("paper", read_published()[0], ids=lambda paper: paper.title)
def test_published_averages_are_means_of_their_published_parts(paper: Paper) -> None:
    compared = 0
    for benchmark in BENCHMARKS.values():
        for metric, averages in benchmark.averages.items():
            for name, parts in averages.items():
                key = f"{benchmark.name}/{metric}"
                values = paper.results.get(f"{key}/{name}", ())
                published_parts = [paper.results.get(f"{key}/{part}") for part in parts.subtasks]
                if not published_parts or None in published_parts:
                    continue
                for place, value in enumerate(values):
                    found = [part[place] for part in published_parts]
                    if None in found:
                        continue
                    # The CLIC paper's two tables of NegCLIP do not agree.
                    tolerance = 0.9 if paper.models[place] == "NegCLIP" else 0.11
                    assert value == pytest.approx(sum(found) / len(found), abs=tolerance), name
                    compared += 1
    # Of some papers, and of some models, the averages alone are known.
    parts = paper.results.get("sugar_crepe/accuracy/swap_att", ())
    assert compared >= 7 * (len(parts) - parts.count(None))


CLIC_TABLES = {
    1: {
        "sugar_crepe_pp/itt/replace": 0,
        "sugar_crepe_pp/tot/replace": 1,
        "sugar_crepe_pp/itt/swap": 2,
        "sugar_crepe_pp/tot/swap": 3,
        "winoground/text/all": 4,
        "winoground/image/all": 5,
        "winoground/group/all": 6,
        "sugar_crepe/accuracy/add": 7,
        "sugar_crepe/accuracy/replace": 8,
        "sugar_crepe/accuracy/swap": 9,
    },
    2: {
        "coco/i2t_r5/clic": 2,
        "flickr30k/i2t_r5/clic": 3,
        "coco/t2i_r5/clic": 4,
        "flickr30k/t2i_r5/clic": 5,
    },
    20: {
        "coco/i2t_r1/clic": 0,
        "flickr30k/i2t_r1/clic": 1,
        "coco/t2i_r1/clic": 2,
        "flickr30k/t2i_r1/clic": 3,
    },
}
"""The columns of numbers that a table of the paper has, by our metric."""


@pytest.mark.parametrize("number", CLIC_TABLES)
def test_values_of_clic_are_those_of_the_papers_text(shared: Path, number: int) -> None:
    lines = (shared.parent / "papers" / "clic_paper.txt").read_text("utf-8").splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith(f"Table {number}:"))
    paper = next(one for one in read_published()[0] if one.title.startswith("CLIC paper"))
    compared = 0
    for line in lines[start + 1 : start + 20]:
        name, *cells = line.split() or [""]
        name = name.partition("[")[0]
        if name not in paper.models:
            continue
        numbers = [float(cell) for cell in cells if re.fullmatch(r"\d+\.\d", cell)]
        for metric, column in CLIC_TABLES[number].items():
            value = paper.results[metric][paper.models.index(name)]
            assert value == numbers[column], (name, metric)
            compared += 1
    # Table 20 has no CLIC-CC12M.
    assert compared == len(CLIC_TABLES[number]) * (len(paper.models) - (number == 20))
