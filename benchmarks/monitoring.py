"""Monitoring's alarm: how often a report raises one without drift, and how often with drift.

    python benchmarks/monitoring.py [--windows 1000] [--drifted 100] [--tuned FOLDER]

Embeds 8,000 rendered scenes of the test split once under the shipped base and, where it is named,
under a fine-tuned model such as the checkpoint of `make demo`: three captions of each scene, the
blurred image, captions with new words, captions with every colour swapped for another one, and
captions of the scene whose first two things have exchanged colours. A report compares a window with
a reference of 5,000 rows, both drawn anew from these scenes: a window has 200 or 2,000 requests, a
twentieth of them of one image and the others of images that come 1.4 times on average, each time
with one of the image's captions. Drift concerns all images of a window, or a fifth of them. The
alarm rate without drift has a Clopper-Pearson interval; beside it is the rate of a report that
takes requests as independent. Then single tests of embeddings at 5% are compared on windows of 300
images against 700, with all images blurred, or half of the captions with new words: power, and
seconds of the processor a test. Windows that are done are not simulated again. Writes
benchmarks/results/monitoring.json and monitoring.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from PIL import ImageFilter
from scipy.stats import binomtest

from compo_pipeline.evaluation.contamination import normalise_text
from compo_pipeline.models.encoding import encode_images, encode_texts
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.monitoring import drift
from compo_pipeline.monitoring.drift import PairRows, compare_rows, measure_drift
from compo_pipeline.monitoring.window import Window
from compo_pipeline.run import compute
from compo_pipeline.run.seeding import rng
from compo_scenes import scenes_base
from compo_scenes.captions import first, sentences
from compo_scenes.render import image
from compo_scenes.world import Scene, World, exchanged_colours

RESULTS = Path(__file__).parent / "results"
DONE = Path("data/07_model_output/monitoring_windows")
POOLS = "data/07_model_output/monitoring_pool_{}.npz"
IMAGES, CAPTIONS, TRAINING = 8000, 3, 4000
BLUR = 2.0
"""Radius of the blur in pixels, of images of some 170 pixels."""
NEW_WORDS = {
    "ball": "sphere", "box": "crate", "star": "asterisk", "house": "cottage", "mug": "beaker"
}  # fmt: skip
SWAPPED = {
    "red": "blue", "blue": "red", "yellow": "purple", "purple": "yellow", "violet": "yellow",
    "green": "pink", "pink": "green", "cyan": "brown", "turquoise": "brown", "brown": "cyan",
}  # fmt: skip
"""Every colour for another one."""
TEXTS = ("plain", "exchanged", "new", "swapped")
WANTED = {"images", "blurred", *(f"{name}_texts" for name in TEXTS)}
BATCH = 64
REFERENCE, SIZES = 5000, (200, 2000)
ALPHA, SHARES = 0.05, (1.0, 0.2)
EXCHANGED = "colours exchanged between things"
# Images and captions of the drifted rows.
KINDS = {
    "blurred images": ("blurred", "plain"),
    "new vocabulary": ("images", "new"),
    "colours swapped for others": ("images", "swapped"),
    EXCHANGED: ("images", "exchanged"),
}
TIME = datetime(2026, 1, 1, tzinfo=UTC)
Pool = dict[str, NDArray[Any]]


def pool(name: str, folder: Path) -> Pool:
    """Embeddings of held-out scenes, of their blurred images and of their captions, by name.

    Images [N, D]; captions of each [N, C, D], and their numbers of tokens, words, unknown words.
    """
    file = Path(POOLS.format(name))
    found: Pool = {}
    if file.exists():
        with np.load(file) as stored:
            found = dict(stored)
    if found.keys() >= WANTED:
        return found
    model, known = load(folder), training_words()
    scenes = list(itertools.islice(World().scenes(0, "test"), IMAGES))
    for column, blur in {"images": 0.0, "blurred": BLUR}.items():
        if column not in found:
            found[column] = embedded_images(model, scenes, blur)
    for kind, captions in {
        "plain": [texts(scene, scene) for scene in scenes],
        "exchanged": [texts(scene, exchanged_colours(scene) or scene) for scene in scenes],
        "new": [[with_words(text, NEW_WORDS) for text in texts(scene, scene)] for scene in scenes],
        "swapped": [
            [with_words(text, SWAPPED) for text in texts(scene, scene)] for scene in scenes
        ],
    }.items():
        if f"{kind}_texts" not in found:
            for column, values in embedded_texts(model, captions, known).items():
                found[f"{kind}_{column}"] = values
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **found)  # type: ignore[arg-type]
    return found


def texts(scene: Scene, said: Scene) -> list[str]:
    """Sentences about a scene, as captions of another one; the scene names the draw."""
    return [first(said, rng(0, "monitoring", scene.scene_id, k)) for k in range(CAPTIONS)]


def with_words(text: str, others: Mapping[str, str]) -> str:
    """The text with other words in place of some."""
    return re.sub("[a-z]+", lambda word: others.get(word[0], word[0]), text)


def training_words() -> set[str]:
    """Words of the captions of the demo's training split."""
    scenes = itertools.islice(World().scenes(0, "train"), TRAINING)
    captions = (sentences(scene, rng(0, "caption", scene.scene_id)) for scene in scenes)
    return {word for each in captions for text in each for word in normalise_text(text).split()}


@torch.inference_mode()
def embedded_images(
    model: LoadedModel, scenes: Sequence[Scene], blur: float
) -> NDArray[np.float32]:
    """Embeddings [N, D] of the scenes' images."""
    rows = []
    for start in range(0, len(scenes), BATCH):
        drawn = [image(scene) for scene in scenes[start : start + BATCH]]
        if blur:
            drawn = [each.filter(ImageFilter.GaussianBlur(blur)) for each in drawn]
        rows.append(encode_images(model.model, torch.stack([model.preprocess(i) for i in drawn])))
        if start % (BATCH * 10) == 0:
            print(f"images {start} of {len(scenes)}", file=sys.stderr)
    return torch.cat(rows).numpy()


@torch.inference_mode()
def embedded_texts(model: LoadedModel, captions: Sequence[Sequence[str]], known: set[str]) -> Pool:
    """Embeddings [N, C, D] of captions, and their numbers of tokens, words and unknown words."""
    flat = [text for each in captions for text in each]
    rows, tokens = [], []
    for start in range(0, len(flat), 8 * BATCH):
        ids = model.tokenize(flat[start : start + 8 * BATCH])
        rows.append(encode_texts(model.model, ids))
        tokens.append((ids != 0).sum(dim=1))
    shape = len(captions), len(captions[0])
    words = [normalise_text(text).split() for text in flat]
    return {
        "texts": torch.cat(rows).numpy().reshape(*shape, -1),
        "tokens": torch.cat(tokens).numpy().reshape(shape),
        "words": np.array([len(text.split()) for text in flat]).reshape(shape),
        "unknown": np.array([sum(w not in known for w in each) for each in words]).reshape(shape),
    }


def clusters(size: int, rng_: np.random.Generator) -> NDArray[np.int64]:
    """Number of the image of each request [size]: a twentieth are of one image."""
    counts = [size // 20]
    while sum(counts) < size:
        counts.append(min(int(rng_.geometric(0.7)), size - sum(counts)))
    return np.repeat(np.arange(len(counts)), counts)


def drawn(
    every: Pool, scenes: NDArray[np.int64], said: NDArray[np.int64], kind: tuple[str, str]
) -> PairRows:
    """Rows of these scenes and captions."""
    images, name = kind
    numbers = (every[f"{name}_{each}"][scenes, said] for each in ("tokens", "words", "unknown"))
    texts_ = every[f"{name}_texts"][scenes, said]
    return PairRows(every[images][scenes], texts_, *(each.astype(float) for each in numbers))


def simulated(
    every: Pool, size: int, kind: str, share: float, seed: int
) -> tuple[Window, PairRows]:
    """A window of requests, and a reference."""
    rng_ = np.random.default_rng([seed, size, len(kind), round(100 * share)])
    order = rng_.permutation(IMAGES)
    captions = rng_.integers(CAPTIONS, size=REFERENCE)
    reference = drawn(every, order[:REFERENCE], captions, ("images", "plain"))
    own = clusters(size, rng_)
    scenes, said = order[REFERENCE:][own], rng_.integers(CAPTIONS, size=size)
    rows = drawn(every, scenes, said, ("images", "plain"))
    if kind:
        changed = (rng_.random(own.max() + 1) < share)[own]
        other = drawn(every, scenes, said, KINDS[kind])
        rows = rows.with_rows(other).take(np.arange(size) + size * changed)
    nothing = np.full(size, None, dtype=object)
    window = Window(
        TIME, TIME, nothing, own, rows.images, rows.texts, np.ones(size, dtype=bool),
        np.full(size, np.nan), rows.tokens, rows.words, rows.unknown_words, nothing, nothing, own,
        np.bincount(own), {},
    )  # fmt: skip
    return window, reference


def report(every: Pool, size: int, kind: str, share: float, seed: int, naive: bool) -> list[float]:
    """Adjusted p of every figure of a report."""
    window, reference = simulated(every, size, kind, share, seed)
    places = np.arange(size) if naive else window.one_of_each(seed)
    found = measure_drift(compare_rows(window.pairs(places), reference, seed), seed)
    return [1.0 if each.adjusted is None else each.adjusted for each in found]


def reports(
    model: str, every: Pool, size: int, kind: str, share: float, count: int, naive: bool = False
) -> list[list[float]]:
    """So many reports of a case; those that are done are read."""
    name = f"{model} {size} {kind or 'no drift'} {share:g}{' naive' if naive else ''}"
    DONE.mkdir(parents=True, exist_ok=True)
    file = DONE / f"{name}.json"
    found = json.loads(file.read_text()) if file.exists() else []
    while len(found) < count:
        for seed in range(len(found), min(len(found) + 25, count)):
            found.append(report(every, size, kind, share, seed, naive))
        file.write_text(json.dumps(found))
        print(f"{name}: {len(found)} of {count}", file=sys.stderr)
    return list(found[:count])


def rate(found: Sequence[bool]) -> dict[str, Any]:
    """Alarms, and the exact interval of their rate."""
    interval = binomtest(sum(found), len(found)).proportion_ci(0.95, "exact")
    ends = [round(100 * float(end), 2) for end in (interval.low, interval.high)]
    return {
        "alarms": sum(found),
        "windows": len(found),
        "per_cent": round(100 * sum(found) / len(found), 2),
        "interval": ends,
    }


def case(found: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Rate of alarms, and how often each figure is below the level."""
    figures = {
        name: round(100 * sum(p[place] <= ALPHA for p in found) / len(found), 1)
        for place, name in enumerate(drift.FIGURES)
    }
    return {**rate([min(p) <= ALPHA for p in found]), "figures": figures}


def kernels() -> dict[str, Callable[..., NDArray[np.floating]]]:
    """Statistics [P + 1] of rows under labels, by test."""

    def of_kernel(
        kernel: NDArray[np.floating], labels: NDArray[np.floating], count: int
    ) -> NDArray[np.floating]:
        weights = labels / count - (1 - labels) / (len(kernel) - count)
        return np.asarray(((weights @ kernel) * weights).sum(axis=1))

    def squares(rows: NDArray[np.floating]) -> NDArray[np.floating]:
        norms = (rows**2).sum(axis=1)
        return np.asarray(np.maximum(norms[:, None] + norms - 2 * rows @ rows.T, 0))

    def gaussian(
        rows: NDArray[np.floating], labels: NDArray[np.floating], count: int, _: Any
    ) -> NDArray[np.floating]:
        found = squares(rows)
        return of_kernel(np.exp(-found / (2 * float(np.median(found)))), labels, count)

    def energy(
        rows: NDArray[np.floating], labels: NDArray[np.floating], count: int, _: Any
    ) -> NDArray[np.floating]:
        return of_kernel(-np.sqrt(squares(rows)), labels, count)

    def means(
        rows: NDArray[np.floating], labels: NDArray[np.floating], count: int, _: Any
    ) -> NDArray[np.floating]:
        centred = (rows - rows.mean(axis=0)).astype(np.float32)
        return drift.kernel_statistics(centred, labels, count)

    def features(number: int) -> Callable[..., NDArray[np.floating]]:
        def statistic(
            rows: NDArray[np.floating],
            labels: NDArray[np.floating],
            count: int,
            rng_: np.random.Generator,
        ) -> NDArray[np.floating]:
            found = drift.random_features(rows, rng_, number)
            return drift.kernel_statistics(found, labels, count)

        return statistic

    return {
        "Gaussian kernel, exact": gaussian,
        "Gaussian kernel, 128 random features": features(128),
        "Gaussian kernel, 512 random features": features(512),
        "energy distance": energy,
        "difference of the means": means,
    }


def choices(every: Pool, count: int) -> list[dict[str, Any]]:
    """Power of single tests at 5%, and their seconds."""
    rows = []
    for name, statistic in kernels().items():
        powers: dict[str, float] = {}
        spent = 0.0
        for kind, part, share in (
            ("no drift", "images", 0.0),
            ("blurred images", "images", 1.0),
            ("new vocabulary", "texts", 0.5),
        ):
            rejected = 0
            for seed in range(count):
                rng_ = np.random.default_rng([7, seed])
                order, n = rng_.permutation(IMAGES)[:1000], 300
                said = rng_.integers(CAPTIONS, size=len(order))
                plain = getattr(drawn(every, order, said, ("images", "plain")), part)
                inside = np.arange(len(order)) < n
                if share:
                    changed = inside & (rng_.random(len(order)) < share)
                    other = getattr(drawn(every, order, said, KINDS[kind]), part)
                    plain = np.where(changed[:, None], other, plain)
                labels = drift.permuted_labels(
                    rng_.random((199, len(order)), dtype=np.float32), inside
                )
                start = time.process_time()
                values = statistic(plain.astype(np.float64), labels, n, rng_)
                spent += time.process_time() - start
                rejected += float(drift.permutation_p_values(values)[0]) <= ALPHA
            powers[kind] = round(100 * rejected / count, 1)
        rows.append({"test": name, **powers, "seconds": round(spent / (3 * count), 3)})
    return rows


def told(every: Pool) -> float:
    """Per cent of the captions with exchanged colours that are less similar than the true one."""
    right, wrong = (
        np.einsum("nd,nkd->nk", every["images"], every[f"{name}_texts"])
        for name in ("plain", "exchanged")
    )
    changed = np.abs(every["plain_texts"] - every["exchanged_texts"]).max(axis=2) > 0
    return round(100 * float((right > wrong)[changed].mean()), 1)


def timed(every: Pool) -> dict[str, float]:
    """Seconds of one comparison of 2,000 images with a reference of 5,000 rows."""
    order = np.random.default_rng(0).permutation(IMAGES)
    rows = drawn(every, order, np.zeros(IMAGES, dtype=np.int64), ("images", "plain"))
    begun = time.process_time(), time.perf_counter()
    measure_drift(compare_rows(rows.take(order[:2000]), rows.take(order[2000:7000]), 0), 0)
    return {
        "processor": round(time.process_time() - begun[0], 2),
        "clock": round(time.perf_counter() - begun[1], 2),
    }


def markdown(found: dict[str, Any]) -> str:
    """The tables."""
    lines = [
        "Alarm rate of a report without drift, per cent, with its exact 95% interval:",
        "",
        "| requests | windows | alarm rate | if requests were independent |",
        "| --- | --- | --- | --- |",
    ]
    for size, one in found["without_drift"].items():
        low, high = one["interval"]
        naive = found["independent"][size]
        lines.append(
            f"| {int(size):,} | {one['windows']:,} | {one['per_cent']:.1f} [{low:.1f}, {high:.1f}] "
            f"| {naive['per_cent']:.1f} |"
        )
    lines += [
        "",
        "Alarm rate with drift (power), per cent, and the figures that were below the level most "
        "often:",
        "",
        "| model | drift | images | requests | windows | power | figures |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in found["with_drift"]:
        low, high = one["interval"]
        often = sorted(one["figures"].items(), key=lambda each: -each[1])[:3]
        named = ", ".join(f"{name.replace('_', ' ')} {p:.0f}" for name, p in often if p)
        lines.append(
            f"| {one['model']} | {one['kind']} | {one['share']:.0%} | {one['requests']:,} | "
            f"{one['windows']} | "
            f"{one['per_cent']:.1f} [{low:.1f}, {high:.1f}] | {named} |"
        )
    accuracies = "; ".join(f"{model}: {value:.1f}" for model, value in found["told"].items())
    seconds = found["seconds"]
    lines += [
        "",
        f"Captions that are more similar to their image than with colours exchanged between two "
        f"things, per cent: {accuracies}.",
        "",
        f"2,000 images against 5,000 rows take {seconds['processor']:.1f} seconds of a core.",
        "",
        "Single tests of embeddings at 5%: 300 images against 700, all images blurred or half of "
        "the captions with new words, per cent:",
        "",
        "| test | no drift | blurred images | new vocabulary | seconds |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {one['test']} | {one['no drift']:.1f} | {one['blurred images']:.1f} | "
        f"{one['new vocabulary']:.1f} | {one['seconds']:.3f} |"
        for one in found["tests"]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulate what is missing, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=1000)
    parser.add_argument("--drifted", type=int, default=100)
    parser.add_argument("--tuned", type=Path, help="folder of a fine-tuned model")
    asked = parser.parse_args()
    folders = {"base": scenes_base(), **({"fine-tuned": asked.tuned} if asked.tuned else {})}
    pools = {model: pool(model, folder) for model, folder in folders.items()}
    every = pools["base"]
    counts = {200: asked.drifted // 2, 2000: asked.drifted}
    cases = [
        *(("base", kind, share, 2000) for kind in KINDS for share in SHARES),
        *(("base", kind, 1.0, 200) for kind in KINDS),
        *((model, EXCHANGED, 1.0, size) for model in [*pools][1:] for size in SIZES),
    ]
    with_drift = [
        {
            "model": model,
            "kind": kind,
            "share": share,
            "requests": size,
            **case(reports(model, pools[model], size, kind, share, counts[size])),
        }
        for model, kind, share, size in cases
    ]
    without = {
        f"{size}": case(reports("base", every, size, "", 0.0, asked.windows)) for size in SIZES
    }
    independent = {
        f"{size}": case(reports("base", every, size, "", 0.0, asked.drifted // 2, naive=True))
        for size in SIZES
    }
    found = {
        "command": " ".join(["python", "benchmarks/monitoring.py", *sys.argv[1:]]),
        "machine": {
            "cores": compute.cores(),
            "load": psutil.getloadavg()[0],
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "reference": REFERENCE,
        "permutations": drift.PERMUTATIONS,
        "without_drift": without,
        "independent": independent,
        "with_drift": with_drift,
        "tests": choices(every, asked.drifted),
        "told": {model: told(own) for model, own in pools.items()},
        "seconds": timed(every),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "monitoring.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "monitoring.md").write_text(markdown(found))


if __name__ == "__main__":
    main()
