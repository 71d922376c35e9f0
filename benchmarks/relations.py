"""Why relations stand at chance on the scenes, measured in images, texts and data.

    kedro run --pipelines=raw,ingest,validation
    kedro run --env=relations_scenes --pipelines=raw,ingest,validation,counterfactuals,views
    python benchmarks/relations.py

Images and texts: for each kind of edit, how far apart the base puts a training scene and its edited
scene, and the logit margin that the distance allows. Data: what the hard negatives of the methods'
views change. Writes benchmarks/results/relations.json and .md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from torch import Tensor

import study
from compo_pipeline.language.parsing import load as load_language
from compo_pipeline.language.parsing import name_and_version
from compo_pipeline.language.parsing import parse as parse_sentences
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.models.encoding import encode_texts, scale_of
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.run.compute import Compute
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.records import Caption, View
from compo_pipeline.storage.tables import Table, training_rows
from compo_scenes.base_model.text_tower import embed_scenes, probe
from compo_scenes.captions import first
from compo_scenes.counterfactuals import edit
from compo_scenes.edits import EditKind
from compo_scenes.reading import read
from compo_scenes.world import Scene, World

RESULTS = Path("benchmarks/results")
ENV = "relations_scenes"
KINDS: tuple[EditKind, ...] = (
    *("replace_relation", "swap_things", "swap_colours"),
    *("replace_kind", "replace_colour", "replace_pattern"),
)


def edited_pairs(scenes: int) -> tuple[list[Scene], dict[str, list[tuple[int, int, str, str]]]]:
    """Scenes with edited ones, and by kind of edit (scene, edited scene, caption, new caption)."""
    shown: list[Scene] = []
    pairs: dict[str, list[tuple[int, int, str, str]]] = {kind: [] for kind in KINDS}
    for scene in itertools.islice(World().scenes(0, "train", "relations", things=2), scenes):
        caption, place = first(scene, rng(0, scene.scene_id), relations=1.0), len(shown)
        shown.append(scene)
        for kind in KINDS:
            made = edit(scene, caption, "negative", rng(1, scene.scene_id), edits=(kind,))
            if made:
                pairs[kind].append((place, len(shown), caption, made.text))
                shown.append(made.scene)
    return shown, pairs


@torch.no_grad()
def distances(base: LoadedModel, scenes: int) -> dict[str, Any]:
    """By kind of edit: the pair's share of the variance, distances, and logit margins."""
    shown, pairs = edited_pairs(scenes)
    images = embed_scenes(base, shown, Compute(torch.device("cpu"), "fp32"), "edited scenes")
    scale, found = scale_of(base.model).item(), dict[str, Any]()
    for kind, each in pairs.items():
        before, after, old, new = zip(*each, strict=True)
        apart = images[list(before)] - images[list(after)]
        texts = _texts(base, old) - _texts(base, new)
        variance = images[list(before)].var(0, unbiased=False).sum()
        found[kind] = {
            "pairs": len(each),
            # Half the pair's distance is its deviation from the pair's mean.
            "share of variance": 100 * (apart.square().sum(1).mean() / 4 / variance).item(),
            "distance of images": apart.norm(dim=1).mean().item(),
            "distance of texts": texts.norm(dim=1).mean().item(),
            "largest margin": scale * apart.norm(dim=1).mean().item(),
            "margin": scale * ((apart * texts).sum(1) / 2).mean().item(),
        }
    return found


def _texts(model: LoadedModel, texts: Sequence[str]) -> Tensor:
    return encode_texts(model.model, model.tokenize([text.lower() for text in texts]))


def probed(base: LoadedModel) -> dict[str, float]:
    """Accuracy of linear readouts of the base's image embeddings, on held-out scenes."""
    cpu = Compute(torch.device("cpu"), "fp32")
    parts = {
        split: list(itertools.islice(World().scenes(0, split, "probe", things=2), count))
        for split, count in (("train", 2000), ("val", 500))
    }
    embedded = {split: embed_scenes(base, some, cpu, split) for split, some in parts.items()}
    with torch.enable_grad():
        return probe(
            *(embedded["train"], parts["train"], embedded["val"], parts["val"]), World(), steps=600
        )


def asked(positive: str, negative: str | None) -> str:
    """What a hard negative changes: relation, binding (attributes of other things) or other."""
    if negative is None:
        return "no negative"
    old, new = _claims(positive), _claims(negative)
    if old is None or new is None:
        return "other"
    if _without_relations(old) == _without_relations(new):
        return "relation"
    return "binding" if _words(old) == _words(new) else "other"


def _claims(text: str) -> Counter[tuple[str, ...]] | None:
    """Claims of all sentences of a text; None where one is outside the scenes' grammar."""
    parsed = [read(part.strip()) for part in re.findall(r"[^.]+\.", text)]
    return Counter(c for one in parsed if one for c in one.claims) if all(parsed) else None


def _without_relations(claims: Counter[tuple[str, ...]]) -> Counter[tuple[str, ...]]:
    return Counter({claim: n for claim, n in claims.items() if claim[0] != "relation"})


def _words(claims: Counter[tuple[str, ...]]) -> Counter[tuple[str, ...]]:
    """Fields and values, whatever thing they are of."""
    return Counter(claim[:2] for claim in _without_relations(claims).elements())


def shares(views: Iterable[View]) -> dict[str, float]:
    """What the hard negatives of views change, in per cent of them; one that could not be made
    counts too.
    """
    counts = Counter(
        asked(view.positives[0], negative)
        for view in views
        for negative in view.negatives or [None]
    )
    return {what: 100 * count / counts.total() for what, count in counts.most_common()}


def data(captions: int) -> dict[str, dict[str, float]]:
    """Shares for the methods' own views of the demo's captions, and for those of the recipe."""
    demo = "data/03_primary/scenes/captions.parquet"
    rows = training_rows(list(Table(Caption, pq.read_table(demo))), "train")[:captions]
    parameters = study.configured("base", "")
    nlp = load_language(parameters["language"]["model"])
    firsts = ((row.sample_id, 0, row.sentences[0]) for row in rows)
    parses = {parse.sample_id: parse for parse in parse_sentences(nlp, firsts)}
    context = ViewContext(parses, name_and_version(nlp), 0, 0)
    found = {}
    for name in ("clic", "negclip", "fsc_clip"):
        found[name] = shares(study.build(name, parameters).views(rows, context))
    world = World(counts=tuple(parameters["scenes"]["counts"]))
    drawn = itertools.islice(world.scenes(0, "train"), captions)
    found["sparcl"] = _edits((scene, first(scene, rng(0, scene.scene_id))) for scene in drawn)
    run = study.configured(ENV, "")
    folder = Path("data/05_model_input", run["dataset"], run["method"], run["variant"], "seed=0")
    table = pq.read_table(next(folder.glob("views/epoch=*")))
    found[ENV] = shares(Table(View, table))
    return found


def _edits(captions: Iterable[tuple[Scene, str]]) -> dict[str, float]:
    """The same for edits of SPARCL as the demo draws them."""
    made = [(text, edit(scene, text, "negative", rng(1, text))) for scene, text in captions]
    counts = Counter(asked(text, one.text if one else None) for text, one in made)
    return {what: 100 * count / counts.total() for what, count in counts.most_common()}


def markdown(found: Mapping[str, Any]) -> str:
    """All figures as tables."""
    numbers = ("share of variance", "distance of images", "distance of texts")
    columns = (*numbers, "largest margin", "margin")
    lines = [
        "Edits of training scenes under the base. Share of variance: of the image embedding, "
        "between a scene and its edited scene, per cent. Margin: mean logit by which an image "
        "prefers its own text to the other's; the largest is what the images' distance allows.",
        "",
        f"| edit | pairs | {' | '.join(columns)} |",
        "| --- " * (2 + len(columns)) + "|",
    ]
    for kind, row in found["distances"].items():
        cells = [f"{row[column]:.3g}" for column in columns]
        lines.append(f"| {kind} | {row['pairs']} | {' | '.join(cells)} |")
    read_out = ", ".join(f"{what} {100 * value:.1f}%" for what, value in found["probe"].items())
    kinds = ("relation", "binding", "other", "no negative")
    lines += [
        "",
        f"A linear readout of the base's image embeddings, on held-out scenes: {read_out}.",
        "",
        "What the hard negatives change, per cent of them (relation: a relation is replaced, "
        "or things are exchanged; binding: attributes change places):",
        "",
        f"| views | {' | '.join(kinds)} |",
        "| --- " * (1 + len(kinds)) + "|",
    ]
    for name, row in found["data"].items():
        lines.append(f"| {name} | {' | '.join(f'{row.get(k, 0.0):.1f}' for k in kinds)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=1000)
    arguments = parser.parse_args()
    base = load(ModelSettings())
    found = {
        "distances": distances(base, arguments.scenes),
        "probe": probed(base),
        "data": data(4 * arguments.scenes),
    }
    (RESULTS / "relations.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    (RESULTS / "relations.md").write_text(markdown(found), encoding="utf-8")


if __name__ == "__main__":
    main()
