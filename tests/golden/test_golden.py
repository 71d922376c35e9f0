"""What must not change unnoticed: texts of views, intervals, and decisions of the gate.

The expected values are this project's own, stored before its code was moved; `golden.json` is
written anew by `python tests/golden/test_golden.py`. Where one differs, `benchmarks/golden.py`
tells what differs first. Whoever wants a change says so in the changelog.
"""

import hashlib
import json
import math
from dataclasses import astuple, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compo_pipeline.core.records import Caption, Counterfactual, Parse, Score
from compo_pipeline.evaluation.comparison import compare
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.protocols import verdicts
from compo_pipeline.generation.counterfactuals.contract import EditedCaption, EditRequest, Opening
from compo_pipeline.generation.counterfactuals.editors.rules import RuleEditor
from compo_pipeline.generation.counterfactuals.settings import RulesSettings
from compo_pipeline.language.parsing import parse_by
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.registry import METHODS, build
from compo_pipeline.registry.gate import Check, judge
from compo_pipeline.registry.settings import Contamination, Gate, GateRule

HERE = Path(__file__).parent
LANGUAGE = "compo_en"


def stored(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text("utf-8"))


def captions() -> list[Caption]:
    return [
        Caption(
            *[row["sample_id"]] * 2,
            f"{row['sample_id']}.jpg",
            *row["sizes"],
            tuple(row["sentences"]),
            "golden",
            "train",
        )
        for row in stored("captions")
    ]


@cache
def edited() -> dict[str, list[Counterfactual]]:
    """A true and a false edit of every caption's first sentence."""
    editor = RuleEditor(RulesSettings(), "counterfactuals.rules", Opening(0))
    firsts = [parse for parse in parsed() if parse.sentence == 0]
    requests = [
        EditRequest(p.sample_id, 0, role, p.text, p)
        for p in firsts
        for role in ("positive", "negative")
    ]
    found: dict[str, list[Counterfactual]] = {}
    for asked, answer in zip(requests, editor.edit(requests), strict=True):
        text = answer.text if isinstance(answer, EditedCaption) else ""
        state = "edited" if text else "failed"
        row = Counterfactual(
            asked.sample_id, 0, asked.caption, asked.role, text, "", "rules", "", "", state, ""
        )
        found.setdefault(asked.sample_id, []).append(row)
    return found


@cache
def parsed() -> tuple[Parse, ...]:
    sentences = ((r.sample_id, n, text) for r in captions() for n, text in enumerate(r.sentences))
    return tuple(parse_by(LANGUAGE, sentences))


def view_texts(method: str, epoch: int) -> list[list[Any]]:
    """What the views of an epoch show, in the order of the captions."""
    context = ViewContext.from_parses(parsed(), LANGUAGE, 0, edited())._replace(epoch=epoch)
    views = build(method, {}).views(captions(), context)
    return [
        [
            view.kind,
            view.sample_ids,
            view.images,
            view.axis,
            view.positives,
            view.negatives,
            view.phrases,
        ]
        for view in views
    ]


def hashes(method: str) -> list[str]:
    """Of the texts of every view, a line for each epoch."""
    epochs = [[json.dumps(row).encode() for row in view_texts(method, epoch)] for epoch in (0, 1)]
    return [" ".join(hashlib.sha256(row).hexdigest()[:8] for row in rows) for rows in epochs]


def scores(model: str, seed: int) -> list[Score]:
    """Rows of stored similarities; an item without any could not be scored."""
    rows = []
    for place, table in stored("similarities").items():
        benchmark, subtask, metric = place.split("/")
        values = table[f"{model}/{seed}"]
        for number, (image, given) in enumerate(zip(table["images"], values, strict=True)):
            matches = 2 if metric == "itt" else 1
            right = bool(verdicts(metric, np.array([given]), matches)[0]) if given else None
            reason = None if given else "image missing"
            key = (model, benchmark, subtask, metric, str(number), image)
            rows.append(Score(*key, tuple(given), right, reason))
    return rows


def intervals() -> dict[str, list[float]]:
    """By metric: both models' values and their difference with intervals, p and Holm's p."""
    seeds = [scores("base", seed) + scores("fine_tuned", seed) for seed in (0, 1, 2)]
    found = {}
    for name, given in (("one seed", seeds[:1]), ("three seeds", seeds)):
        models = {model: model for model in ("base", "fine_tuned")}
        for row in compare(given, models, [("fine_tuned", "base")], {}):
            estimates = [row.values["base"], row.values["fine_tuned"], row.difference]
            numbers = [number for each in estimates for number in (each.value, each.low, each.high)]
            difference = row.difference
            numbers += [difference.p, difference.p_holm, difference.least_detectable]
            found[f"{name}: {'/'.join(row.key)}"] = numbers
    return found


def numbers(check: Check) -> tuple[float, ...]:
    return astuple(check.numbers) if check.numbers else ()


def decisions() -> dict[str, list[list[Any]]]:
    """The gate's checks: one decision that passes, and one for each reason to refuse."""
    ours, base = scores("fine_tuned", 0), scores("base", 0)
    keys = [key.split("/")[:2] for key in stored("similarities")]
    overlaps = [Overlap(benchmark, subtask, 30, 0, 0, 30, 0) for benchmark, subtask in keys]
    known = [replace(overlaps[0], same_bytes=3, same_caption=2), *overlaps[1:]]
    rise = GateRule("rise", figure="sugar_crepe_pp/itt/swap_obj")
    hold = GateRule("hold", figure="sugar_crepe/accuracy/add_obj", by=5)
    rules = {
        "composition": GateRule("rise", role="composition"),
        "retrieval": GateRule("hold", role="retrieval", by=20),
        "zero_shot": GateRule("hold", role="zero_shot", by=10),
    }
    gate = Gate(version=1, rules=rules, items=9, skipped=0.1)
    fallen = [
        replace(row, correct=row.correct and row.metric not in ("accuracy", "t2i_r5"))
        for row in ours
    ]
    passes = {"challenger": ours, "opponent": base, "overlaps": overlaps, "gate": gate}

    def only(rule: GateRule, **changed: Any) -> dict[str, Any]:
        return {"gate": replace(gate, rules={"one": rule}, **changed)}

    def without(metric: str) -> dict[str, Any]:
        sides = {"challenger": ours, "opponent": base}
        return {name: [row for row in side if row.metric != metric] for name, side in sides.items()}

    cases: dict[str, dict[str, Any]] = {
        "passes": {},
        "no rise": {"challenger": base, **only(rise)},
        "a fall": {"challenger": fallen, **only(hold)},
        "a set of a role falls": {"challenger": fallen, **only(GateRule("rise", role="retrieval"))},
        "a role is absent": without("top1"),
        "no such figure": only(replace(rise, figure="winoground/*")),
        "no such slice": only(replace(rise, slice="length=*")),
        "few items": {"gate": replace(gate, items=30)},
        "skipped items": only(replace(hold, by=50), skipped=0.0),
        "not a number": {"challenger": [replace(ours[0], similarities=(math.nan, 0)), *ours[1:]]},
        "no scores": {"challenger": []},
        "an item twice": {"opponent": [*base, base[0]]},
        "other items": {"challenger": ours[1:]},
        "not measured": {"overlaps": overlaps[1:]},
        "known images": {"overlaps": known},
        "known captions": {
            "overlaps": known,
            "gate": replace(gate, contamination=Contamination(images=None, captions=0.0)),
        },
    }
    return {
        name: [
            [check.rule, check.passed, check.key, check.enough, *numbers(check)]
            for check in judge(**{**passes, **changed})
        ]
        for name, changed in cases.items()
    }


@pytest.mark.parametrize("method", sorted(METHODS))
def test_view_texts(method: str) -> None:
    assert hashes(method) == stored("golden")["views"][method]


def test_intervals_of_stored_similarities() -> None:
    expected = stored("golden")["intervals"]
    found = intervals()
    assert found.keys() == expected.keys()
    for name, numbers in found.items():
        assert numbers == pytest.approx(expected[name], rel=1e-12, abs=1e-12), name


def test_decisions_of_the_gate() -> None:
    found, expected = decisions(), stored("golden")["decisions"]
    assert found.keys() == expected.keys()
    for name, checks in found.items():
        assert all(check[1] for check in checks) == (name == "passes"), name
        for check, wanted in zip(checks, expected[name], strict=True):
            assert check[:4] == wanted[:4], name
            assert check[4:] == pytest.approx(wanted[4:], rel=1e-12, abs=1e-12), name


if __name__ == "__main__":
    parts = {
        "views": {method: hashes(method) for method in sorted(METHODS)},
        "intervals": intervals(),
        "decisions": decisions(),
    }
    with (HERE / "golden.json").open("w", encoding="utf-8") as file:
        for start, (part, values) in zip("{,,", parts.items(), strict=True):
            rows = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
            print(f'{start} "{part}": {{', ",\n".join(rows), "}", sep="\n", file=file)
        print("}", file=file)
