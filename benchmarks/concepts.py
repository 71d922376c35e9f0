"""C2LIP's components on the scenes: what each loss does.

    python benchmarks/concepts.py --seeds 3

Trains, for each seed and on the same views, plain SigLIP (the control), the rows of the paper's
Table 5 (the noun-phrase loss, then the cross-attended one), other weights of Table A2, concepts
pooled from the caption's tokens, and plain CLIP, with the recipe of conf/c2lip_scenes. `--rows`
picks rows by name, `--seed` does one seed and stops: two processes can share the work. Beside the
benchmarks it asks about swapped attributes phrase by phrase. Needs what
`kedro run --pipelines=raw,ingest,validation` makes. Models and scores are kept under
data/*/scenes/concepts/<variant>; what is there is not made again, and what belongs to another
recipe is refused. Writes benchmarks/results/concepts.json and concepts.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import study
import tables
from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.language.concepts import concepts
from compo_pipeline.methods.c2lip import C2lip
from compo_pipeline.methods.clip import Clip, ClipObjective
from compo_pipeline.methods.contract import Method, NoViewSettings
from compo_pipeline.storage.records import Score
from compo_pipeline.training.run import control_of
from study import Arm, Study
from tables import BASE, Compared

ENV = "c2lip_scenes"
SIGLIP, CLIP, FULL = "SigLIP fine-tuning", "CLIP fine-tuning", "C2LIP"

# What a row changes of the configured weights.
WEIGHTS: dict[str, dict[str, float]] = {
    "+ npc": {"xac": 0.0},
    "xac alone": {"npc": 0.0},
    FULL: {},
    "C2LIP, lambda_xac 0.1": {"xac": 0.1},
    "C2LIP, lambda_xac 0.5": {"xac": 0.5},
}
# The other half of the paper's Table A2, trained only where `--rows` asks for it.
EXTRA: dict[str, dict[str, float]] = {
    "C2LIP, lambda_npc 0.5": {"npc": 0.5},
    "C2LIP, lambda_npc 0.5, lambda_xac 0.1": {"npc": 0.5, "xac": 0.1},
    "C2LIP, lambda_npc 0.5, lambda_xac 0.5": {"npc": 0.5, "xac": 0.5},
}
POOLED = "C2LIP, phrases pooled from the caption's tokens"

# The paper's claims (Sec. 4.2 and 4.4) as differences: what is claimed, and the two rows.
CLAIMS = {
    "the noun-phrase loss": ("+ npc", SIGLIP),
    "the cross-attended loss beside it": (FULL, "+ npc"),
    "the cross-attended loss alone": ("xac alone", SIGLIP),
    "C2LIP against the base": (FULL, BASE),
    "C2LIP against the control": (FULL, SIGLIP),
    "C2LIP against plain CLIP": (FULL, CLIP),
    "a larger weight, 0.1": ("C2LIP, lambda_xac 0.1", FULL),
    "a larger weight, 0.5": ("C2LIP, lambda_xac 0.5", FULL),
    "phrases as texts of their own": (FULL, POOLED),
}
FIGURES = {
    ("sugar_crepe", "accuracy", "average"): "SugarCrepe",
    ("sugar_crepe", "accuracy", "swap_att"): "swapped attributes",
    ("phrases", "accuracy", "swap_att"): "... phrase by phrase",
    ("sugar_crepe", "accuracy", "replace_att"): "replaced attributes",
    ("sugar_crepe", "accuracy", "add_att"): "added attributes",
    ("sugar_crepe", "accuracy", "replace_rel"): "replaced relations",
    **tables.COMMON,
}


def arms(parameters: Mapping[str, Any]) -> dict[str, Arm]:
    """All rows that can be trained, by name; the views are C2LIP's for all of them."""
    full: C2lip = study.build("c2lip", parameters)

    def changed(weights: Mapping[str, float]) -> C2lip:
        weighted = replace(full.objective.weights, **weights)
        return C2lip(NoViewSettings(), replace(full.objective, weights=weighted))

    methods: dict[str, Method] = {
        SIGLIP: control_of(full),
        **{name: changed(weights) for name, weights in (WEIGHTS | EXTRA).items()},
        POOLED: C2lip(NoViewSettings(), replace(full.objective, phrases="tokens")),
        CLIP: Clip(NoViewSettings(), ClipObjective(tuple(sorted(full.trains)))),
    }
    return {name: Arm(method, full) for name, method in methods.items()}


def phrase_by_phrase(parts: Study) -> Subtask:
    """The items with swapped attributes, with each noun phrase as an item of its own.

    "A red ball and a blue box" against "a blue ball and a red box" becomes "a red ball" against "a
    blue ball", and the same of the box: what is lost between a phrase and its caption.
    """
    whole = next(
        task
        for task in parts.subtasks
        if (task.benchmark, task.name) == ("sugar_crepe", "swap_att")
    )
    texts = {
        f"{item.item} {side}": text
        for item in whole.items
        for side, (text,) in (("true", item.positives), ("false", item.negatives))
    }
    found = {key: concepts(parsed) for key, parsed in parts.parsed(texts.items()).items()}
    items = []
    for item in whole.items:
        true_phrases, false_phrases = found[f"{item.item} true"], found[f"{item.item} false"]
        if len(true_phrases) != len(false_phrases):
            continue  # the two parses differ: the phrases cannot be paired
        for number, (true, false) in enumerate(zip(true_phrases, false_phrases, strict=True)):
            if true.text.lower() != false.text.lower():
                name = f"{item.item}-{number}"
                items.append(Item(name, item.image, (true.text,), (false.text,)))
    return replace(whole, benchmark="phrases", items=tuple(items))


def same_recipe(parts: Study, seed: int, name: str, method: Method) -> None:
    """Refuse to continue with the files of another recipe.

    Raises:
        SystemExit: naming the file and the ways out.
    """
    inputs = {
        "data": parts.data,
        "model": str(parts.base),
        "views": str(parts.views),
        "wise_ft": str(parts.training.wise_ft),
        "evaluation": str(parts.embedder.settings),
    }
    given = {"method": method.name, "objective": asdict(method.objective), "seed": seed, **inputs}
    recipe = json.loads(json.dumps({**given, "training": asdict(parts.training)}))
    note = parts.file(seed, name).with_suffix(".json")
    if not note.exists():
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(recipe, indent=1), encoding="utf-8")
    elif json.loads(note.read_text(encoding="utf-8")) != recipe:
        raise SystemExit(
            f"{note}: the files beside it were made with another recipe; give this recipe a "
            "folder of its own with --params variant=<name>, or remove the folder"
        )


def measured(parts: Study, seed: int, rows: Mapping[str, Arm]) -> list[Score]:
    """Scores under a seed; trains what is missing."""
    scores = []
    for name, model in parts.trained(seed, rows):
        if name in rows:
            same_recipe(parts, seed, name, rows[name].method)
        scores += parts.scores(seed, name, model)
    return scores


def markdown(scored: Sequence[Compared], seeds: int) -> list[str]:
    """Values, differences to the base and the claims.

    Args:
        scored: the rows against the base, and the claims.
        seeds: their number.
    """
    lines = tables.introduction(seeds)
    lines += tables.table(FIGURES.values(), tables.values(scored[0]))
    return lines + _differences(scored, list(FIGURES.values()))


def _differences(compared: Sequence[Compared], heads: Sequence[str]) -> list[str]:
    lines = []
    for title, rows in zip(
        ("Difference to the base:", "What each part changes:"), compared, strict=True
    ):
        moved = [*tables.differences(rows, 1), tables.least_detectable(rows, 1)]
        lines += [title, "", *tables.table(heads, moved)] if rows else []
    return lines


def main() -> None:
    """Train and measure what is missing, compare, write."""
    parser = study.arguments(__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="train and measure this seed alone, then stop")
    parser.add_argument("--rows", default="", help="names separated by semicolons")
    asked = parser.parse_args()
    parameters = study.configured(ENV, asked.params)
    rows, variant = study.chosen(arms(parameters), asked.rows, EXTRA), parameters["variant"]
    parts = Study(f"concepts/{variant}", parameters, asked.split)
    parts.subtasks.append(phrase_by_phrase(parts))
    if asked.seed is not None:
        measured(parts, asked.seed, rows)
        return
    scores = [measured(parts, seed, rows) for seed in range(asked.seeds)]
    claims = {claim: pair for claim, pair in CLAIMS.items() if {*pair} <= {BASE, *rows}}
    scored = tables.against_base(scores, rows, FIGURES), tables.tested(scores, claims, FIGURES)
    content = {
        "seeds": asked.seeds,
        "against base": tables.plain(scored[0]),
        "claims": tables.plain(scored[1]),
    }
    name = "concepts" if variant == ENV else f"concepts_{variant}"
    tables.save(name, asked.split, content, markdown(scored, asked.seeds))


if __name__ == "__main__":
    main()
