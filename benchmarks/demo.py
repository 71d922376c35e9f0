"""Where the demo's training time goes: its recipe beside the one with CLIC's own numbers.

    python benchmarks/demo.py --precision fp32

Measures, for each recipe in turn and in one process, images embedded a second and steps a second
of CLIC and of its control, over the first steps of a run; multiplies them with what a whole run
needs; writes benchmarks/results/demo_<precision>.md. Needs what `kedro run
--pipelines=raw,ingest,validation` makes, and a machine that does nothing else.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch

import study
from compo_pipeline.methods.contract import Method, ViewContext
from compo_pipeline.methods.views import write
from compo_pipeline.models.loading import load
from compo_pipeline.run.compute import resolve
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.preprocessing import ModelPreprocessor
from compo_pipeline.training.run import Trainer, control_of
from study import Study

# Two positives more, fresh composites in four epochs, all weights of the text tower, small steps.
LARGER = (
    "training.epochs=24,training.batch_size=64,training.optimizer.lr=0.002,training.frozen=[],"
    "views.epochs=4,clic.objective.positives=4"
)
RECIPES = {"four positives, batch 64, 24 epochs, nothing frozen": LARGER, "the demo's": ""}
MEASURED = 24  # steps, after WARM_UP
WARM_UP = 4
RESULTS = Path("benchmarks/results")


class Cost(NamedTuple):
    """What a recipe needs, and how fast that goes: images, steps, and both a second."""

    images: int
    steps: int
    images_a_second: float
    clic: float
    control: float

    @property
    def seconds(self) -> float:
        """Of embedding and of both trainings."""
        trained = self.steps / self.clic + self.steps / self.control
        return self.images / self.images_a_second + trained


def measured(params: str, precision: str) -> Cost:
    """The cost of a recipe, given as Kedro's --params on top of the demo's."""
    given = f"training.precision={precision},training.log_every=1"
    parameters = study.configured("base", f"{given},{params}" if params else given)
    scenes = Study("demo_cost", parameters, "val")
    clic = study.build("clic", parameters)
    with tempfile.TemporaryDirectory() as folder:
        views = Path(folder) / "views"
        drawn = ViewContext(scenes.parses, "", 0, 0)
        write(clic, scenes.rows, drawn, scenes.views.epochs, views)

        def runner(max_steps: int | None, name: str) -> Trainer:
            settings = dataclasses.replace(scenes.training, max_steps=max_steps)
            resume = Path(folder) / name
            inputs = (scenes.rows, scenes.data, views, scenes.root, scenes.base, settings)
            return Trainer(TrainingInputs(*inputs, 0, resume, features=Path(folder) / "features"))

        preprocessor = ModelPreprocessor(load(scenes.base), scenes.root)
        batches = runner(None, "whole").batches(clic, preprocessor)
        short = runner(WARM_UP + MEASURED, "short")
        shown = short.batches(clic, preprocessor).images()
        started = time.perf_counter()
        short.store_features(clic)
        images_a_second = len(shown) / (time.perf_counter() - started)
        rates = [steps_a_second(short, method) for method in (clic, control_of(clic))]
        return Cost(len(batches.images()), len(batches), images_a_second, *rates)


def steps_a_second(runner: Trainer, method: Method) -> float:
    """Steps a second of a training, warm-up left out."""
    times: list[float] = []
    folder = runner.inputs.resume / "checkpoint"
    runner.train(method, method.name, folder, lambda point: times.append(time.perf_counter()))
    return MEASURED / (times[-1] - times[WARM_UP - 1])


def main() -> None:
    """Measure the recipes, write the table."""
    parser = study.arguments(__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    arguments = parser.parse_args()
    costs = {name: measured(params, arguments.precision) for name, params in RECIPES.items()}
    first = next(iter(costs.values()))
    lines = [
        f"{resolve('cpu', arguments.precision, key='training')}, torch {torch.__version__}; rates "
        f"over {MEASURED} steps.",
        "",
        "| recipe | images | a second | steps | CLIC, a second | control, a second | seconds "
        "| of the first |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| {name} | {cost.images} | {cost.images_a_second:.0f} | {cost.steps} | "
            f"{cost.clic:.2f} | {cost.control:.2f} | {cost.seconds:.0f} | "
            f"{cost.seconds / first.seconds:.2f} |"
            for name, cost in costs.items()
        ),
    ]
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"demo_{arguments.precision}.md"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
