"""Parts of a batch, in microbatches or over processes: the loss and gradient of the whole."""

from contextlib import nullcontext
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from compo_pipeline.core.compute import Compute
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.methods.c2lip import C2lip, C2lipObjective
from compo_pipeline.methods.contract import Method, NoViewSettings, ViewContext
from compo_pipeline.methods.registry import METHODS, method_type
from compo_pipeline.methods.views import write
from compo_pipeline.models.dense import encode_images_densely
from compo_pipeline.models.encoding import image_projection, pool_images
from compo_pipeline.models.loading import LoadedModel, give_bias, load
from compo_pipeline.models.settings import SHIPPED
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.encoder import ModelEncoder
from compo_pipeline.training.features import Features
from compo_pipeline.training.optimisation import freeze
from compo_pipeline.training.preprocessing import ModelPreprocessor
from compo_pipeline.training.ranks import ALONE, Ranks, share

BOTH: Any = ("image", "text")
PROCESSES = 2
# Methods that differ in what they ask of the encoder; on processes the others repeat them.
KINDS = (
    *("ce_clip", "clic", "c2lip", "c2lip tokens", "fsc_clip", "lab_clip", "read_clip", "siglip"),
    "sparcl",
)
LONG = "a very long sentence that says about a thing more than any other sentence of the batch does"

# A process: the loss and the gradient of each case, from its own share of the images.
PROCESS = """
import torch.distributed as dist
from safetensors.torch import save_file
from compo_pipeline.training.ranks import Ranks

dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=world)
ranks = Ranks(rank, world)
for name, (method, batch, microbatch, stored) in cases.items():
    if not stored:
        batch = batch._replace(images=batch.images[ranks.share(len(batch.images))])
    found = gradients(method, batch, tiny, ranks, microbatch, stored)
    save_file(found, f"{folder}/{name}-{rank}.safetensors")
dist.destroy_process_group()
"""


def every_method() -> dict[str, Method]:
    """All of the registry, and one that averages tokens of the captions."""
    kinds = {name: method_type(name) for name in METHODS}
    methods = {
        name: kind(kind.views_type(), kind.objective_type(trains=BOTH))
        for name, kind in kinds.items()
    }
    tokens = C2lipObjective(trains=BOTH, phrases="tokens")
    return {**methods, "c2lip tokens": C2lip(NoViewSettings(), tokens)}


def gradients(
    method: Method,
    batch: Any,
    folder: Path,
    ranks: Ranks = ALONE,
    microbatch: int | None = None,
    stored: bool = False,
) -> dict[str, Tensor]:
    """The loss, and the gradient of each parameter that has one, on a fresh model.

    With `stored`, of precomputed features: patches of a frozen image tower, or else what its
    projection projects, which trains.
    """
    loaded = load(folder)
    if method.bias is not None:
        give_bias(loaded, -5.0)
    torch.manual_seed(0)
    method.extend(loaded.model, SHIPPED)
    freeze(loaded.model, method.trains, scale=method.trains_scale)
    compute, features = Compute(torch.device("cpu"), "fp32"), None
    if stored:
        batch, features = of_features(batch, loaded.model, patches=method.uses_patches)
    encoder = ModelEncoder(
        *(loaded.model, "", features, True, compute), ranks=ranks, microbatch=microbatch
    )
    terms = method.loss(encoder, batch)
    total = torch.stack([weight * value for value, weight in terms.values()]).sum()
    total.backward()
    trained = [one for one in loaded.model.parameters() if one.requires_grad]
    ranks.sum_gradients(trained)
    named = loaded.model.named_parameters()
    return {
        "loss": total.detach(),
        **{name: one.grad for name, one in named if one.grad is not None},
    }


def of_features(batch: Any, model: Any, *, patches: bool) -> tuple[Any, Features]:
    """A batch of rows of features, and these; what is stored of the image tower trains no more."""
    projection = image_projection(model)
    assert projection is not None
    for name, one in model.visual.named_parameters(prefix="visual"):
        one.requires_grad_(not patches and name.startswith(projection[1]))
    with torch.no_grad():
        if patches:
            features = Features({}, *encode_images_densely(model, batch.images, ""))
        else:
            features = Features({}, pool_images(model, batch.images), pooled=True)
    return batch._replace(images=torch.arange(len(batch.images))), features


@pytest.fixture
def batches(
    world: Any, tiny: LoadedModel, recipe: Any, tmp_path: Path
) -> dict[str, tuple[Method, Any]]:
    """A batch of six rows of every method: some have no negative, and one text is long."""
    context = ViewContext(world.parses, "hand", 0, 0, world.edits())
    for row in world.captions[1::2]:
        context.counterfactuals[row.sample_id].clear()
    long = tiny.tokenize([LONG])[0]
    found = {}
    for name, method in every_method().items():
        write(method, world.captions, context, 1, tmp_path / name)
        reader = ModelPreprocessor(tiny, world.root)
        settings = recipe(batch_size=6, epochs=1)
        rows = Batches(world.captions, tmp_path / name, method, reader, settings, 0)
        batch = rows[0][0].batch
        next(one for one in batch[1:] if one.shape[-1] == len(long)).view(-1, len(long))[0] = long
        found[name] = method, batch
    return found


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    """To 1e-5 of the largest gradient; scalars each by itself, for a factor of the processes."""
    largest = max(one.abs().max() for name, one in expected.items() if name != "loss")
    close = [
        torch.allclose(found[name], one, rtol=1e-4, atol=1e-6)
        if one.ndim == 0
        else bool((found[name] - one).abs().max() <= 1e-5 * largest)
        for name, one in expected.items()
    ]
    return found.keys() == expected.keys() and all(close)


def test_microbatches_and_processes_give_the_gradient_of_the_whole_batch(
    batches: dict[str, Any], tiny_clip: Path, tmp_path: Path, imported: ForkServerContext
) -> None:
    whole = {name: gradients(*one, tiny_clip) for name, one in batches.items()}
    for name, one in batches.items():
        assert same(gradients(*one, tiny_clip, microbatch=4), whole[name]), name
    cases = {name: (*batches[name], 2, False) for name in KINDS}
    cases |= {f"{name} of features": (*batches[name], 2, True) for name in KINDS}
    whole |= {
        f"{name} of features": gradients(*batches[name], tiny_clip, stored=True) for name in KINDS
    }
    given = {"folder": tmp_path, "cases": cases, "world": PROCESSES, "tiny": tiny_clip}
    source = Path(__file__).read_text()
    started = [
        imported.Process(target=exec, args=(source + PROCESS, {**given, "rank": rank}))
        for rank in range(PROCESSES)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * PROCESSES
    for name in cases:
        for rank in range(PROCESSES):
            found = load_file(tmp_path / f"{name}-{rank}.safetensors")
            assert same(found, whole[name]), (name, rank)


def test_shares_cover_all_rows_in_order() -> None:
    for count, parts in ((12, 4), (7, 3), (1, 2), (0, 2)):
        rows = [row for part in range(parts) for row in range(count)[share(count, part, parts)]]
        assert rows == list(range(count))


@pytest.mark.parametrize(
    ("rows", "group", "world", "fits"),
    [(8, None, 3, False), (8, 4, 4, False), (8, 2, 4, True), (8, None, 8, True)],
)
def test_processes_share_a_batch_evenly_and_split_no_group(
    rows: int, group: int | None, world: int, fits: bool
) -> None:
    refused = pytest.raises(SettingsError, match=r"^training.distributed: [^\n]*$")
    with nullcontext() if fits else refused:
        Ranks(0, world).refuse_uneven(rows, group)
