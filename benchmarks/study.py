"""Parts common to the studies of methods on the scenes: counterfactuals, training, stored scores.

A study trains several methods for each seed on the same views, and scores them. Its results are
stored under data/*/scenes/<name> and not computed again, so a stopped study can be resumed.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import pyarrow.parquet as pq
from filelock import FileLock
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from omegaconf import OmegaConf

from compo_pipeline.benchmarks import loading
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration.settings import parse
from compo_pipeline.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.scoring import score
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.language.parsing import load as load_language
from compo_pipeline.language.parsing import name_and_version
from compo_pipeline.language.parsing import parse as parse_sentences
from compo_pipeline.methods.contract import Method, ViewContext
from compo_pipeline.methods.registry import method_type
from compo_pipeline.methods.views import ViewSettings, by_sample, write
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.pipelines.counterfactuals.nodes import make_counterfactuals
from compo_pipeline.project.settings import all_values, loader_of
from compo_pipeline.run.engines import LOCAL
from compo_pipeline.storage.files import atomic_file, read_json
from compo_pipeline.storage.records import Caption, Counterfactual, Fact, Parse, Score, to_table
from compo_pipeline.storage.tables import Table, training_rows
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.run import Job, train
from compo_pipeline.training.settings import TrainingSettings
from tables import BASE

PROJECT = Path(__file__).parents[1]


class Arm(NamedTuple):
    """A method that trains, the method that draws its views, and the counterfactuals in these.

    `edits` is the name of the counterfactuals' settings; empty for none.
    """

    method: Method
    drawing: Method
    edits: str = ""


Row = TypeVar("Row")


def arguments(description: str) -> argparse.ArgumentParser:
    """The command line options of every study."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--split", choices=("val", "test"), default="test")
    parser.add_argument("--params", default="", help="as kedro's, to try another recipe")
    return parser


def configured(env: str, params: str) -> dict[str, Any]:
    """The project's parameters under an environment, with those of every method."""
    bootstrap_project(PROJECT)
    pairs = [pair for pair in params.split(",") if pair]
    given: Any = OmegaConf.to_container(OmegaConf.from_dotlist(pairs))
    session: Any = KedroSession.create(PROJECT, env=env, runtime_params=given)
    with session:
        session.load_context()
    return all_values(loader_of(PROJECT / "conf", env, given))


def build(name: str, parameters: Mapping[str, Any]) -> Any:
    """A method as configured."""
    kind, values = method_type(name), parameters[name]
    views: Any = parse(kind.views_type, values["views"], f"{name}.views")
    objective: Any = parse(kind.objective_type, values["objective"], f"{name}.objective")
    return kind(views, objective)


def chosen(
    known: Mapping[str, Arm], rows: str, extra: Container[str] = frozenset()
) -> dict[str, Arm]:
    """The rows asked for, separated by semicolons; by default all but the extra ones.

    Raises:
        SystemExit: there is no row of a name.
    """
    names = [name.strip() for name in rows.split(";") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"--rows: {unknown} are unknown (allowed: {'; '.join(known)})")
    return {name: known[name] for name in names or known if name in names or name not in extra}


class Study:
    """Captions, parses and benchmark items, read once for all seeds and arms."""

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, Any],
        split: str,
        edits: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        self.parameters, self.edits = parameters, edits
        self.root = Path(parameters["data"]["root"])
        self.captions = list(
            Table(Caption, pq.read_table("data/03_primary/scenes/captions.parquet"))
        )
        self.rows = training_rows(self.captions, "train")
        self.nlp = load_language(parameters["language"]["model"])
        self.parses = self.parsed((row.sample_id, row.sentences[0]) for row in self.rows)
        configured = parse(BenchmarksSettings, dict(parameters["benchmarks"]), "benchmarks")
        if configured.root is None:
            raise SystemExit("benchmarks.root: expected the folder of the scenes' benchmarks")
        root = Path(configured.root).parent / split
        wanted = dataclasses.replace(
            configured,
            root=str(root),
            images=str(root / "images"),
            retrieval=dataclasses.replace(configured.retrieval, split=split),
        )
        self.subtasks = [*loading.gather(wanted, self.captions, self.root)]
        settings = parse(EvaluationSettings, parameters["evaluation"], "evaluation")
        self.embedder = Embedder(self.subtasks, settings)
        self.base = parse(ModelSettings, parameters["model"], "model")
        self.training = parse(TrainingSettings, parameters["training"], "training")
        self.views = parse(ViewSettings, parameters["views"], "views")
        manifest = Path("data/02_intermediate/scenes/manifest.json")
        self.data: str = read_json(manifest)["data_hash"]
        self.models = Path("data/06_models/scenes") / name
        self.output = Path("data/07_model_output/scenes") / name / split

    def parsed(self, texts: Iterable[tuple[str, str]]) -> dict[str, Parse]:
        """Parses of texts by their ids."""
        wanted = ((key, 0, text) for key, text in texts)
        return {parse.sample_id: parse for parse in parse_sentences(self.nlp, wanted)}

    def trained(
        self, seed: int, arms: Mapping[str, Arm]
    ) -> Iterator[tuple[str, Callable[[], LoadedModel]]]:
        """The base and each arm under a seed; a model is trained when it is first asked for."""
        yield BASE, cache(partial(load, self.base))
        plans = {
            (drawing.name, edits): cache(partial(self._inputs, seed, drawing, edits))
            for _, drawing, edits in arms.values()
        }
        for name, (method, drawing, edits) in arms.items():
            yield name, cache(partial(_trained, name, method, plans[drawing.name, edits]))

    def scores(self, seed: int, name: str, model: Callable[[], LoadedModel]) -> list[Score]:
        """All scores of a model under a seed."""
        return stored(self.file(seed, name), Score, lambda: self._scored(name, model()))

    def file(self, seed: int, name: str) -> Path:
        """The file of a table of a seed."""
        return self.output / f"seed={seed}" / f"{name}.parquet"

    def _scored(self, name: str, model: LoadedModel) -> Iterator[Score]:
        embedded = self.embedder(model, name)
        for subtask in self.subtasks:
            for scored in score(name, subtask, embedded):
                yield from scored.rows

    def _inputs(self, seed: int, drawing: Method, edits: str) -> TrainingInputs:
        made, counterfactuals = self.counterfactuals(edits)
        folder = self.models / edits / drawing.name / f"seed={seed}"
        views = folder / "views"
        if not views.is_dir():
            drawn = ViewContext(
                self.parses, name_and_version(self.nlp), seed, 0, by_sample(counterfactuals)
            )
            write(drawing, self.rows, drawn, self.views.epochs, views)
        inputs = (self.rows, self.data, views, self.root, self.base, self.training)
        return TrainingInputs(*inputs, seed, folder, made)

    def counterfactuals(self, edits: str) -> tuple[Path, list[Counterfactual]]:
        """The images' folder and the rows of the counterfactuals of a name; none of no name."""
        folder = self.models / edits
        images, file = folder / "counterfactual_images", folder / "counterfactuals.parquet"
        if not edits:
            return images, []

        def make() -> list[Counterfactual]:
            plainly = OmegaConf.merge(self.parameters["counterfactuals"], self.edits[edits])
            given: Any = OmegaConf.to_container(plainly)
            facts = pq.read_table("data/02_intermediate/scenes/facts.parquet")
            measured = list(Table(Fact, facts))
            chosen = parse(CounterfactualSettings, given, "counterfactuals")
            scenes = self.parameters["scenes"]
            language = self.parameters["language"]["model"]
            state = "data/04_feature/scenes/counterfactuals_state"
            rows, _, write_images = make_counterfactuals(
                *(self.captions, measured, self.rows[0].split, "sparcl", chosen, language),
                *(self.root, scenes, state, LOCAL),
            )
            write_images(images)
            return list(rows)

        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "in_use.lock"):
            return images, stored(file, Counterfactual, make)


def _trained(name: str, method: Method, plan: Callable[[], TrainingInputs]) -> LoadedModel:
    folder = plan().resume / "checkpoints" / name
    train(plan(), Job(method, name, folder), lambda point: None)
    return load(folder)


def stored(file: Path, kind: type[Row], make: Callable[[], Iterable[Row]]) -> list[Row]:
    """The rows of a table, which is computed and written if it does not exist."""
    if not file.exists():
        with atomic_file(file) as temporary:
            pq.write_table(to_table(make(), kind), temporary)
    return list(Table(kind, pq.read_table(file)))
