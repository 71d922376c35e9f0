"""Training samples a second of each method, against a straightforward implementation of its step.

    python benchmarks/speed/training_speed.py [--rounds 5] [--methods clic fsc_clip sparcl c2lip]

Both take steps of the shipped scenes base on rendered scenes: batches of 64 rows, the text tower
trains without its token embeddings, fp32, one thread, no loader processes. Straightforward is
`PLAINLY`, below. Between both, the package's step is also measured with one of its savings left
out: image features precomputed, texts cut to the longest of their group, the text sets of a step
encoded together. All ways take turns; ratios are medians over the rounds, of seconds of the
processor, since other work may share the machine, and of the clock. Checks that the losses of all
ways agree. Embedding the images once, before the first step, is not part of a step; its seconds an
image are beside. Writes benchmarks/results/training_speed.json and training_speed.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import psutil
import torch
import torch.nn.functional as F
from spacy.language import Language
from torch import Tensor

import idle
from compo_pipeline.core.compute import Compute
from compo_pipeline.core.records import Caption, Counterfactual, Parse
from compo_pipeline.core.seeding import rng
from compo_pipeline.language import parsing
from compo_pipeline.losses import concept, contrastive
from compo_pipeline.methods.c2lip import C2lip, C2lipObjective, ConceptBatch
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.methods.contract import (
    Collated,
    Encoder,
    Example,
    LossTerms,
    Method,
    NoViewSettings,
    Term,
    ViewContext,
)
from compo_pipeline.methods.fsc_clip import FscClip, FscClipObjective, FscClipViews
from compo_pipeline.methods.sparcl import Sparcl, SparclObjective
from compo_pipeline.methods.views import by_sample, write
from compo_pipeline.models import encoding
from compo_pipeline.models.loading import LoadedModel, give_bias, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.encoder import ModelEncoder, pad_rows
from compo_pipeline.training.features import Features, embed
from compo_pipeline.training.optimisation import adamw, freeze
from compo_pipeline.training.preprocessing import ModelPreprocessor
from compo_pipeline.training.settings import OptimizerSettings, TrainingSettings
from compo_scenes.captions import sentences
from compo_scenes.counterfactuals import edit
from compo_scenes.render import image
from compo_scenes.world import Scene, World

RESULTS = Path(__file__).parents[1] / "results"
ROWS, BATCH, SEED = 512, 64, 0
COMPUTE = Compute(torch.device("cpu"), "fp32")
OPTIMIZER = OptimizerSettings(1e-4, 1e-4, 1e-4)
FROZEN = ("token_embedding",)
METHODS: dict[str, Method] = {
    "clic": Clic(ClicViews(), ClicObjective(trains=("text",))),
    "fsc_clip": FscClip(FscClipViews(), FscClipObjective(trains=("text",))),
    "sparcl": Sparcl(NoViewSettings(), SparclObjective(trains=("text",))),
    "c2lip": C2lip(NoViewSettings(), C2lipObjective(trains=("text",))),
}
PLAINLY = {
    "clic": "captions of both images parsed in the loader, five text passes",
    "fsc_clip": "captions parsed and negatives written in the loader, four text passes",
    "sparcl": "real, negative and positive images and texts in passes of their own",
    "c2lip": "captions parsed in the loader, a text pass for each phrase, xac phrase by phrase",
}
COMMON = (
    "images decoded and encoded at every step, with a graph through the frozen image tower; all "
    "texts at full context"
)
OURS, PLAIN = "ours", "straightforward"
WITHOUT = ("image features", "length trimming", "text sets together")


class Apart(ModelEncoder):
    """Encodes at most a batch's rows of texts or of images at a time."""

    def _in_parts(
        self, encode: Callable[..., tuple[Tensor, ...]], own: Sequence[Tensor], count: int
    ) -> tuple[Tensor, ...]:
        chunks = zip(*(torch.split(one, BATCH) for one in own), strict=True)
        columns = list(zip(*(encode(*chunk) for chunk in chunks), strict=True))
        return tuple(
            torch.cat([pad_rows(one, max(part.shape[1] for part in column)) for one in column])
            for column in columns
        )


def looped(patches: Tensor, phrases: Tensor, scale: Tensor, bias: Tensor, owners: Tensor) -> Tensor:
    """C2LIP's cross-attended loss as its paper prints it (Eq. 6 and 7), phrase by phrase."""
    values = F.normalize(patches, dim=-1)
    images = torch.arange(len(values))
    total = torch.zeros(())
    for phrase, owner in zip(phrases, owners, strict=True):
        weights = (values @ phrase).softmax(dim=-1)
        attended = F.normalize(torch.einsum("mp,mpd->md", weights, values), dim=-1)
        logits = scale * (attended @ phrase) + bias
        total = total - F.logsigmoid(torch.where(images == owner, 1.0, -1.0) * logits).sum()
    return total / len(phrases)


class PlainC2lip(C2lip):
    """Each phrase in a text pass of its own, and what it attends to in a loop."""

    def loss(self, encoder: Encoder, batch: ConceptBatch) -> LossTerms:
        """The same three losses."""
        weights, scale, bias = self.objective.weights, encoder.scale, encoder.bias
        images, patches = encoder.dense_images(batch.images)
        texts = encoder.texts(batch.texts)
        phrases = torch.cat([encoder.texts(batch.phrases[label][None]) for label in batch.labels])
        matches = concept.match_mask(batch.owners, len(images))
        npc = concept.npc(images, phrases, matches, scale, bias)
        attended = looped(patches, phrases, scale, bias, batch.owners)
        return {
            "contrastive": Term(
                contrastive.sigmoid(images, texts, scale, bias), weights.contrastive
            ),
            "npc": Term(npc, weights.npc),
            "xac": Term(attended, weights.xac),
        }


class ParsedWhenAsked(dict[str, Parse]):
    """Parses each sentence whenever it is looked up."""

    def __init__(self, nlp: Language, captions: list[Caption]) -> None:
        self.nlp = nlp
        self.texts = {row.sample_id: row.sentences[0] for row in captions}

    def __getitem__(self, sample_id: str) -> Parse:
        return next(parsing.parse(self.nlp, [(sample_id, 0, self.texts[sample_id])]))


class PlainLoader:
    """Batches whose views are drawn when they are asked for, each sentence parsed anew."""

    def __init__(self, batches: Batches, method: Method, data: Data) -> None:
        parses = ParsedWhenAsked(data.nlp, data.captions)
        self.batches, self.method = batches, method
        self.sampler = method.sampler(data.captions, data.context._replace(parses=parses))

    def __getitem__(self, step: int) -> Collated:
        examples = [
            Example(row.caption, self.sampler(row.caption) or row.view)
            for row in self.batches.examples(step)
        ]
        return self.method.collate(examples, step, self.batches.preprocessor)


@dataclass
class Way:
    """One way to take a method's steps: its own model and optimiser, from the same start."""

    batches: Any
    method: Method
    encoder: ModelEncoder
    trimmed: bool

    @cached_property
    def _optimizer(self) -> torch.optim.Optimizer:
        graph = [one for one in self.encoder.model.parameters() if self.encoder.image_trains]
        freeze(
            self.encoder.model,
            {"text"},
            scale=self.method.trains_scale,
            frozen=FROZEN,
        )
        optimizer = adamw(self.encoder.model, OPTIMIZER)
        for parameter in graph:  # gradients that no step uses
            parameter.requires_grad_(True)
        return optimizer

    def step(self, number: int) -> float:
        """Take a step; its loss."""
        optimizer = self._optimizer
        with ExitStack() as stack:
            if not self.trimmed:
                stack.enter_context(full_context())
            terms = self.method.loss(self.encoder, self.batches[number][0].batch)
            total = torch.stack([weight * value for value, weight in terms.values()]).sum()
            self.encoder.model.zero_grad(set_to_none=True)
            total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return total.item()


@contextmanager
def full_context() -> Iterator[None]:
    """Texts are encoded with all their padding."""
    with mock.patch.object(encoding, "reads_padding", lambda tower: True):
        yield


class Data:
    """Rendered scenes with captions, parses and counterfactuals, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.root, self.counterfactual_images = folder / "images", folder / "counterfactuals"
        self.root.mkdir()
        self.counterfactual_images.mkdir()
        scenes = list(itertools.islice(World().scenes(SEED, "train"), ROWS))
        self.captions = [self._row(scene) for scene in scenes]
        self.nlp = parsing.load(parsing.SHIPPED)
        texts = ((row.sample_id, 0, row.sentences[0]) for row in self.captions)
        parses = {parse.sample_id: parse for parse in parsing.parse(self.nlp, texts)}
        made = [
            self._edited(scene, row, role)
            for scene, row in zip(scenes, self.captions, strict=True)
            for role in ("negative", "positive")
        ]
        edits = by_sample([row for row in made if row is not None])
        self.context = ViewContext(parses, "", SEED, 0, edits)

    def _row(self, scene: Scene) -> Caption:
        name, shown = scene.scene_id, image(scene)
        shown.save(self.root / f"{name}.jpg", quality=92, subsampling=0)
        texts = sentences(scene, rng(name))
        return Caption(name, name, f"{name}.jpg", *shown.size, texts, "scenes", "train")

    def _edited(self, scene: Scene, row: Caption, role: str) -> Counterfactual | None:
        caption = row.sentences[0]
        found = edit(scene, caption, role, rng(scene.scene_id, role))
        if found is None:
            return None
        name = f"{scene.scene_id}-{role}.jpg"
        image(found.scene).save(self.counterfactual_images / name, quality=92, subsampling=0)
        names = ("rules", "renderer", "", "generated", "")
        return Counterfactual(row.sample_id, 0, caption, role, found.text, name, *names)


def loaded_for(method: Method) -> LoadedModel:
    """The base, with what the method adds to it."""
    base = load(ModelSettings("scenes-base"))
    return base if method.bias is None else give_bias(base, method.bias)


def ways(method: Method, data: Data, views: Path, steps: int) -> tuple[dict[str, Way], float]:
    """All ways by name, for so many steps, and seconds that embedding an image once takes."""

    def batches(kept: Features | None) -> Batches:
        loaded = loaded_for(method)
        reader = ModelPreprocessor(
            loaded,
            data.root,
            kept.rows if kept else None,
            counterfactual_images=data.counterfactual_images,
        )
        recipe = TrainingSettings(steps, BATCH, OPTIMIZER, max_steps=steps)
        return Batches(data.captions, views, method, reader, recipe, SEED)

    plain = batches(None)
    images, started = plain.images(), time.process_time()
    tensors = embed(
        [*images.values()],
        loaded_for(method),
        plain.preprocessor,
        compute=COMPUTE,
        workers=0,
        patches=method.uses_patches,
    )
    rows = {name: row for row, name in enumerate(images)}
    features = Features(rows, tensors["values"], tensors.get("patches"))
    seconds = (time.process_time() - started) / len(images)
    # Halves of composites are not remembered from step to step.
    plain.preprocessor._cached_half = plain.preprocessor._read_half
    naive = PlainC2lip(method.view_settings, method.objective) if method.name == "c2lip" else method

    def encoder(kind: type[ModelEncoder], kept: Features | None, graph: bool) -> ModelEncoder:
        model = loaded_for(method)
        return kind(model.model, model.name, kept, graph, COMPUTE)

    own = batches(features)
    found = {
        OURS: Way(own, method, encoder(ModelEncoder, features, False), True),
        WITHOUT[0]: Way(batches(None), method, encoder(ModelEncoder, None, False), True),
        WITHOUT[1]: Way(own, method, encoder(ModelEncoder, features, False), False),
    }
    if method.name != "c2lip":  # captions and phrases are apart anyhow
        found[WITHOUT[2]] = Way(own, method, encoder(Apart, features, False), True)
    if method.name == "sparcl":
        loader: Any = plain
    else:
        loader = PlainLoader(plain, method, data)
    found[PLAIN] = Way(loader, naive, encoder(Apart, None, True), False)
    return found, seconds


def measured(method: Method, data: Data, folder: Path, rounds: int) -> dict[str, Any]:
    """Seconds a sample of every way, ratios to the first, and how far losses are apart."""
    views = folder / method.name
    write(method, data.captions, data.context, 1, views)
    # CLIC's losses alternate with the plain CLIP loss.
    unit = 2 if method.name == "clic" else 1
    found, embedding = ways(method, data, views, unit * (rounds + 1))
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
    apart = 0.0
    for number in range(rounds + 1):
        losses: dict[str, list[float]] = {}
        for name, way in found.items():
            started = time.process_time(), time.perf_counter()
            losses[name] = [way.step(unit * number + each) for each in range(unit)]
            taken = time.process_time() - started[0], time.perf_counter() - started[1]
            if number:  # the first one loads what is loaded on first use
                seconds[name].append((taken[0] / unit / BATCH, taken[1] / unit / BATCH))
        for values in zip(*losses.values(), strict=True):
            if not all(map(math.isfinite, values)):
                raise SystemExit(f"{method.name}: losses {values} of {list(found)}")
            apart = max(apart, (max(values) - min(values)) / abs(values[0]))
    return {
        "rounds": rounds,
        "samples a second": {
            name: 1 / median(one for one, _ in taken) for name, taken in seconds.items()
        },
        "times the seconds of ours": {
            name: [
                median(a[kind] / b[kind] for a, b in zip(taken, seconds[OURS], strict=True))
                for kind in range(2)
            ]
            for name, taken in seconds.items()
        },
        "losses apart, relative": apart,
        "seconds an image is embedded": embedding,
    }


def table(results: dict[str, Any]) -> str:
    """The figures as Markdown."""
    machine = results["machine"]
    lines = [
        "# Training speed",
        "",
        f"`python benchmarks/speed/training_speed.py`: {machine['processor']}, "
        f"{machine['cores']} cores, torch {machine['torch']}, one thread, fp32, batches of "
        f"{BATCH}, the scenes base. Samples a second of the processor; in brackets the ratio by "
        "the clock. Load before: "
        f"{machine['load']:.0f}.",
        "",
        "| method | rounds | samples a second | straightforward | ratio | "
        + " | ".join(f"ratio to ours without {name}" for name in WITHOUT)
        + " | losses apart | embedding, ms an image, once |",
        f"|{' --- |' * 10}",
    ]
    for name in METHODS:
        if found := results["methods"].get(name):
            rates, ratios = found["samples a second"], found["times the seconds of ours"]
            saved = (f"{ratios[each][0]:.2f}" if each in ratios else "" for each in WITHOUT)
            lines.append(
                f"| {name} | {found['rounds']} | {rates[OURS]:.1f} | {rates[PLAIN]:.1f} | "
                f"{ratios[PLAIN][0]:.1f} ({ratios[PLAIN][1]:.1f}) | {' | '.join(saved)} | "
                f"{found['losses apart, relative']:.0e} | "
                f"{1e3 * found['seconds an image is embedded']:.0f} |"
            )
    lines += ["", f"Straightforward: {COMMON}. Besides:", ""]
    lines += [f"- {name}: {what}." for name, what in PLAINLY.items()]
    return "\n".join(lines) + "\n"


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.processor()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    file = RESULTS / "training_speed.json"
    results = json.loads(file.read_text()) if file.exists() else {"methods": {}}
    results["machine"] = {
        "processor": processor(),
        "cores": psutil.cpu_count(),
        "torch": torch.__version__,
        "load": idle.load(),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = Data(folder)
        for method in options.methods:
            found = measured(METHODS[method], data, folder, options.rounds)
            print(method, json.dumps(found, indent=1), flush=True)
            results["methods"][method] = found
            file.write_text(json.dumps(results, indent=2) + "\n")
            (RESULTS / "training_speed.md").write_text(table(results))


if __name__ == "__main__":
    main()
