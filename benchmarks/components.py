"""FSC-CLIP's components on the scenes: what each loss and each calibration does.

    python benchmarks/components.py --seeds 3

Trains, for each seed and on the same views, plain CLIP (the control), NegCLIP, FSC-CLIP and the
rows of the paper's Table 2 (global and local hard-negative loss, focal weight, label smoothing),
with the recipe of conf/fsc_scenes. Needs what `kedro run --pipelines=raw,ingest,validation` makes.
Views and scores are kept under data/*/scenes/components; what is there is not made again.
Differences are paired on the same items, intervals come from two levels of resampling (seeds, then
pictures). Writes benchmarks/results/components.json and components.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from omegaconf import OmegaConf

from compo_pipeline.configuration import parse
from compo_pipeline.evaluation import benchmarks as adapters
from compo_pipeline.evaluation.comparison import Difference, Row, compare
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.scoring import score
from compo_pipeline.evaluation.settings import (
    BenchmarksSettings,
    Bootstrap,
    EvaluationSettings,
)
from compo_pipeline.language.loading import identity
from compo_pipeline.language.loading import load as load_language
from compo_pipeline.language.parsing import parse as parse_sentences
from compo_pipeline.methods import METHODS
from compo_pipeline.methods.contract import Method
from compo_pipeline.methods.view_tables import ViewSettings, training_rows, write
from compo_pipeline.models.loading import LoadedModel, ModelSettings, load
from compo_pipeline.records import Caption, Parse, Score, from_table, to_table
from compo_pipeline.training.run import Plan, Runner, control_of
from compo_pipeline.training.settings import TrainingSettings

PROJECT = Path(__file__).parents[1]
RESULTS = PROJECT / "benchmarks" / "results"

# Global and local hard-negative loss, focal weight, label smoothing: the paper's Table 2 by id.
COMPONENTS = {
    "global": (True, False, False, False),
    "local": (False, True, False, False),
    "global + local": (True, True, False, False),
    "global + local, focal": (True, True, True, False),
    "global + local, smoothed": (True, True, False, True),
    "FSC-CLIP": (True, True, True, True),
    "FSC-CLIP without local": (True, False, True, True),
    "FSC-CLIP without global": (False, True, True, True),
}
# The paper's claims as differences: what is claimed, and the two rows that it compares.
CLAIMS = {
    "the local loss in place of the global one": ("local", "global"),
    "the local loss beside the global one": ("global + local", "global"),
    "focal weight": ("global + local, focal", "global + local"),
    "label smoothing": ("global + local, smoothed", "global + local"),
    "both calibrations": ("FSC-CLIP", "global + local"),
    "the local loss in FSC-CLIP": ("FSC-CLIP", "FSC-CLIP without local"),
    "FSC-CLIP against NegCLIP": ("FSC-CLIP", "NegCLIP"),
    "FSC-CLIP against the control": ("FSC-CLIP", "control"),
}
FIGURES = {
    ("sugar_crepe", "accuracy", "average"): "SugarCrepe",
    ("sugar_crepe", "accuracy", "swap_att"): "swapped attributes",
    ("sugar_crepe", "accuracy", "replace_rel"): "replaced relations",
    ("sugar_crepe_pp", "itt", "average"): "ITT",
    ("sugar_crepe_pp", "tot", "average"): "TOT",
    ("zero_shot", "top1", "colours"): "ZS colours",
    ("zero_shot", "top1", "things"): "ZS things",
    ("retrieval", "i2t_r1", "raw"): "I2T R@1",
    ("retrieval", "t2i_r1", "raw"): "T2I R@1",
}


def methods(parameters: Mapping[str, Any]) -> dict[str, Method]:
    """The rows to train, by name."""

    def build(name: str) -> Method:
        kind, values = METHODS[name], parameters[name]
        views: Any = parse(kind.views_type, values["views"], f"{name}.views")
        objective: Any = parse(kind.objective_type, values["objective"], f"{name}.objective")
        return kind(views, objective)

    full = build("fsc_clip")
    rows = {"NegCLIP": build("negclip")}
    for name, (of_all, of_patches, focal, smoothed) in COMPONENTS.items():
        weights = full.objective.weights
        kept = dataclasses.replace(
            weights,
            global_hn=weights.global_hn if of_all else 0.0,
            local_hn=weights.local_hn if of_patches else 0.0,
        )
        objective = dataclasses.replace(
            full.objective,
            weights=kept,
            gamma=full.objective.gamma if focal else 0.0,
            beta=full.objective.beta if smoothed else 0.0,
        )
        rows[name] = METHODS["fsc_clip"](full.settings, objective)  # type: ignore[attr-defined]
    return {**rows, "control": control_of(full)}


def _trained(name: str, method: Method, runner: Callable[[], Runner]) -> LoadedModel:
    folder = runner().plan.resume / "checkpoints" / name
    runner().train(method, name, folder, lambda point: None)
    return load(folder)


class Study:
    """Captions, parses and questions, read once for all seeds and rows."""

    def __init__(self, parameters: Mapping[str, Any], split: str) -> None:
        self.parameters = parameters
        root = Path(parameters["data"]["root"])
        self.captions = list(
            from_table(pq.read_table("data/03_primary/scenes/captions.parquet"), Caption)
        )
        self.rows = training_rows(self.captions, "train")
        language = load_language(parameters["language"]["model"])
        self.language = identity(language)
        wanted = [(row.sample_id, 0, row.sentences[0]) for row in self.rows]
        self.parses: dict[str, Parse] = {p.sample_id: p for p in parse_sentences(language, wanted)}
        questions = parse(BenchmarksSettings, dict(parameters["benchmarks"]), "benchmarks")
        where = Path(questions.root).parent / split
        retrieval = dataclasses.replace(questions.retrieval, split=split)
        questions = dataclasses.replace(
            questions, root=str(where), images=str(where / "images"), retrieval=retrieval
        )
        self.subtasks = adapters.gather(questions, self.captions, root)
        settings = parse(EvaluationSettings, parameters["evaluation"], "evaluation")
        self.embedder = Embedder(self.subtasks, settings)
        self.base = parse(ModelSettings, parameters["model"], "model")
        self.training = parse(TrainingSettings, parameters["training"], "training")
        self.views = parse(ViewSettings, parameters["views"], "views")
        self.kept = Path("data/07_model_output/scenes/components") / split

    def scores(self, seed: int, names: Collection[str]) -> list[Score]:
        """Of the base and of the named rows under a seed."""
        found = self._scores("base", seed, lambda: load(self.base))
        runners = {
            kind: cache(partial(self._runner, kind, seed)) for kind in ("negclip", "fsc_clip")
        }
        for name in names:
            method = methods(self.parameters)[name]
            runner = runners["negclip" if name == "NegCLIP" else "fsc_clip"]
            found += self._scores(name, seed, partial(_trained, name, method, runner))
        return found

    def _runner(self, kind: str, seed: int) -> Runner:
        folder = Path(f"data/06_models/scenes/components/{kind}/seed={seed}")
        drawing = methods(self.parameters)["NegCLIP" if kind == "negclip" else "FSC-CLIP"]
        views = folder / "views"
        if not views.is_dir():
            write(drawing, self.rows, self.parses, self.language, self.views, seed, views)
        root = Path(self.parameters["data"]["root"])
        data = json.loads(Path("data/02_intermediate/scenes/manifest.json").read_text())
        plan = Plan(
            self.rows, data["data_hash"], views, root, self.base, self.training, seed, folder
        )
        return Runner(plan)

    def _scores(self, name: str, seed: int, model: Callable[[], LoadedModel]) -> list[Score]:
        file = self.kept / f"seed={seed}" / f"{name}.parquet"
        if not file.exists():
            embedded = self.embedder(model(), name)
            rows: Iterator[Score] = (
                row
                for subtask in self.subtasks
                for scored in score(name, subtask, embedded)
                for row in scored.rows
            )
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(to_table(rows, Score), file)
        return list(from_table(pq.read_table(file), Score))


def _picked(rows: list[Row]) -> dict[str, Row]:
    found = {(row.benchmark, row.metric, row.name): row for row in rows}
    return {label: found[key] for key, label in FIGURES.items()}


def _cell(difference: Difference) -> str:
    return f"{difference.value:+.1f} [{difference.low:+.1f}, {difference.high:+.1f}]"


def _table(head: list[str], lines: list[list[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{' --- |' * len(head)}",
        *(f"| {' | '.join(line)} |" for line in lines),
        "",
    ]


def markdown(
    against_base: Mapping[str, dict[str, Row]], claims: Mapping[str, dict[str, Row]], seeds: int
) -> str:
    """Three tables: values, differences to the base, differences that test the claims."""
    labels = list(next(iter(against_base.values())))
    first = next(iter(against_base.values()))
    values = [["base", *(f"{first[label].base.value:.1f}" for label in labels)]]
    values += [
        [name, *(f"{rows[label].fine_tuned.value:.1f}" for label in labels)]
        for name, rows in against_base.items()
    ]
    moved = [
        [name, *(_cell(rows[label].vs_base) for label in labels)]
        for name, rows in against_base.items()
    ]
    moved.append(
        [
            "least detectable",
            *(
                f"{max(rows[label].vs_base.least_detectable for rows in against_base.values()):.1f}"
                for label in labels
            ),
        ]
    )
    tested = [
        [name, *(_cell(rows[label].vs_base) for label in labels)] for name, rows in claims.items()
    ]
    lines = [
        f"{seeds} training seeds; per cent; 95% intervals from two levels of resampling (seeds, "
        "then pictures); differences paired on the same items. `least detectable` is the largest "
        "of its column.",
        "",
        *_table(["", *labels], values),
        "Difference to the base:",
        "",
        *_table(["", *labels], moved),
        "What each component changes:",
        "",
        *_table(["", *labels], tested),
    ]
    return "\n".join(lines)


def main() -> None:
    """Train and score what is missing, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--split", choices=("val", "test"), default="test")
    parser.add_argument("--params", default="", help="as kedro's, to try another recipe")
    arguments = parser.parse_args()
    bootstrap_project(PROJECT)
    pairs = [pair for pair in arguments.params.split(",") if pair]
    given: Any = OmegaConf.to_container(OmegaConf.from_dotlist(pairs))
    with KedroSession.create(PROJECT, env="fsc_scenes", runtime_params=given) as session:
        parameters = session.load_context().params
    study = Study(parameters, arguments.split)
    names = list(methods(parameters))
    seeds = [study.scores(seed, names) for seed in range(arguments.seeds)]
    against_base = {
        name: _picked(compare(seeds, {"base": "base", "fine_tuned": name}, Bootstrap(), {}))
        for name in names
    }
    claims = {
        f"{claim} ({ours} - {theirs})": _picked(
            compare(seeds, {"base": theirs, "fine_tuned": ours}, Bootstrap(), {})
        )
        for claim, (ours, theirs) in CLAIMS.items()
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = "components" if arguments.split == "test" else f"components_{arguments.split}"
    content = {
        "seeds": arguments.seeds,
        "against base": _plain(against_base),
        "claims": _plain(claims),
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    (RESULTS / f"{name}.md").write_text(
        markdown(against_base, claims, arguments.seeds), encoding="utf-8"
    )


def _plain(tables: Mapping[str, dict[str, Row]]) -> dict[str, dict[str, Any]]:
    return {
        name: {label: dataclasses.asdict(row) for label, row in rows.items()}
        for name, rows in tables.items()
    }


if __name__ == "__main__":
    main()
