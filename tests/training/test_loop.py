"""The loop: what trains and what does not, what it reports, where it stops, how it goes on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from compo_pipeline.core.compute import Compute
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.methods.clip import Clip, ClipObjective
from compo_pipeline.methods.contract import NoViewSettings, Term
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training import checkpoint
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.checkpoint import Point, Progress, TrainingError
from compo_pipeline.training.encoder import ModelEncoder
from compo_pipeline.training.features import Features
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.loop import Job, fit
from compo_pipeline.training.optimisation import AmpOptimizer, freeze, learning_rate
from compo_pipeline.training.preprocessing import ModelPreprocessor

CPU = torch.device("cpu")
CLIC = Clic(ClicViews(), ClicObjective())
MARK = {"seed": 0}

Run = Callable[..., Progress]


@pytest.fixture
def run(world: Any, views: Path, recipe: Any, tmp_path: Path) -> Run:
    """Trains a model in place for six steps."""

    def go(
        loaded: LoadedModel,
        method: Any = CLIC,
        *,
        state: Path = tmp_path / "state.safetensors",
        points: list[Point] | None = None,
        features: Features | None = None,
        mark: dict[str, Any] = MARK,
        **changes: Any,
    ) -> Progress:
        settings = recipe(**changes)
        reader = ModelPreprocessor(loaded, world.root, features.rows if features else None)
        batches = Batches(world.captions, views, method, reader, settings, 0)
        report = [].append if points is None else points.append
        model = ModelSettings("given")
        inputs = TrainingInputs(
            world.captions, "data", views, world.root, model, settings, 0, state.parent
        )
        job = Job(method, state.stem, tmp_path / "checkpoint")
        with pytest.MonkeyPatch.context() as patch:
            # The CPU's fp16 only tests use.
            patch.setattr(TrainingInputs, "compute", Compute(CPU, settings.precision))
            return fit(inputs, job, loaded, batches, features, mark, report)

    return go


def weights(loaded: LoadedModel) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}


def changed(before: dict[str, Tensor], loaded: LoadedModel) -> set[str]:
    after = loaded.model.state_dict()
    return {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}


@pytest.mark.parametrize("trains", [("text",), ("image",), ("image", "text")])
def test_only_the_towers_that_train_change(
    tiny: LoadedModel, run: Run, trains: tuple[Any, ...]
) -> None:
    before = weights(tiny)
    method = Clic(ClicViews(), ClicObjective(trains=trains))
    run(tiny, method)
    visual = {name for name in before if name.startswith("visual.")}
    text = set(before) - visual - {"logit_scale"}
    moved = changed(before, tiny)
    assert ("logit_scale" in moved) and not tiny.model.training
    assert bool(moved & visual) == ("image" in trains)
    assert bool(moved & text) == ("text" in trains)
    if "image" in trains:
        assert visual <= moved
    if "text" in trains:
        assert text <= moved
    frozen = visual if "image" not in trains else text if "text" not in trains else set()
    named = dict(tiny.model.named_parameters())
    assert all(named[name].grad is None for name in frozen)


def test_the_curve_holds_every_loss_and_the_rate(tiny: LoadedModel, run: Run, recipe: Any) -> None:
    points: list[Point] = []
    progress = run(tiny, points=points)
    waits = [point.pop("data_wait") for point in points]
    assert all(0 < wait < 60 for wait in waits)
    assert points == progress.curve and [point["step"] for point in points] == [1, 2, 3, 4, 5, 6]
    common = {"step", "loss", "lr", "scale", "gradient_norm"}
    for number, point in enumerate(points):
        odd = {"clip"} if number % 2 else {"clic", "contrastive", "s_neg", "unimodal"}
        assert set(point) == common | odd
        assert point["lr"] == learning_rate(number, 6, recipe().optimizer)
        if number % 2:
            assert point["loss"] == pytest.approx(point["clip"])
        else:
            weighted = point["contrastive"] / 2 + point["s_neg"] / 2 + point["unimodal"]
            assert point["loss"] == point["clic"] == pytest.approx(weighted)


def interrupt_after_save(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the training once it has saved its state so many times."""
    save, saves = checkpoint.save, []

    def interrupted(*args: Any, **options: Any) -> None:
        save(*args, **options)
        saves.append(args)
        if len(saves) == number:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save", interrupted)


class Counting(Clip):
    """Its one loss has the number of steps that the memory has lasted."""

    def loss(self, encoder: Any, batch: Any) -> Any:
        terms = super().loss(encoder, batch)
        encoder.memory["steps"] = encoder.memory.get("steps", torch.zeros(())) + 1
        zero = 0 * next(iter(terms.values())).value
        return {"steps": Term(zero + encoder.memory["steps"], 1.0)}


@pytest.mark.parametrize("an_epoch", [True, False])
def test_the_memory_of_a_loss_lasts_an_epoch_or_the_training(
    tiny: LoadedModel,
    tiny_clip: Path,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    an_epoch: bool,
) -> None:
    kind = type("Kind", (Counting,), {"memory_lasts_an_epoch": an_epoch})
    method = kind(NoViewSettings(), ClipObjective())
    expected = [1, 2, 3, 1, 2, 3] if an_epoch else [1, 2, 3, 4, 5, 6]
    assert [point["steps"] for point in run(tiny, method).curve] == expected
    for cut in (2, 3):  # inside an epoch, and at its end
        state = tmp_path / f"{cut}.safetensors"
        with monkeypatch.context() as patch:
            interrupt_after_save(cut, patch)
            with pytest.raises(KeyboardInterrupt):
                run(load(tiny_clip), method, state=state, save_every=1)
        resumed = run(load(tiny_clip), method, state=state)
        assert [point["steps"] for point in resumed.curve] == expected


def test_points_are_means_since_the_last_one(
    tiny: LoadedModel, tiny_clip: Path, run: Run, tmp_path: Path
) -> None:
    each = run(tiny).curve
    first, second = run(load(tiny_clip), log_every=4, state=tmp_path / "fours.safetensors").curve
    assert (first["step"], second["step"]) == (4, 6)
    assert first["loss"] == pytest.approx(sum(point["loss"] for point in each[:4]) / 4)
    assert first["clip"] == pytest.approx((each[1]["clip"] + each[3]["clip"]) / 2)
    assert second["loss"] == pytest.approx((each[4]["loss"] + each[5]["loss"]) / 2)
    assert second["clip"] == pytest.approx(each[5]["clip"])


def test_a_short_training_has_points_to_plot(tiny: LoadedModel, run: Run) -> None:
    points = [point["step"] for point in run(tiny, log_every=None).curve]
    assert points == [1, 2, 3, 4, 5, 6]


def test_the_scale_never_leaves_its_bounds(tiny: LoadedModel, run: Run) -> None:
    torch.nn.init.constant_(tiny.model.logit_scale, 4.605)

    class Grow(Clip):
        def loss(self, encoder: Any, batch: Any) -> dict[str, Term]:
            return {"grow": Term(-encoder.scale, 1.0)}

    curve = run(tiny, Grow(NoViewSettings(), ClipObjective())).curve
    assert [point["scale"] for point in curve] == pytest.approx([100.0] * 6, abs=1e-3)


def test_the_loss_is_the_mean_over_groups(
    tiny: LoadedModel, tiny_clip: Path, run: Run, world: Any, views: Path, recipe: Any
) -> None:
    method, fresh = Clip(NoViewSettings(), ClipObjective()), load(tiny_clip)
    progress = run(tiny, method, contrast_group=2)
    reader = ModelPreprocessor(fresh, world.root)
    batches = Batches(world.captions, views, method, reader, recipe(), 0)
    freeze(fresh.model, method.trains)
    encoder = ModelEncoder(fresh.model, fresh.name, None, False, Compute(CPU, "fp32"))
    rows = batches.examples(0)
    losses = [
        method.loss(encoder, method.collate(half, 0, reader).batch)["clip"].value
        for half in (rows[:2], rows[2:])
    ]
    mean = torch.stack(losses).mean()
    mean.backward()
    norm = torch.nn.utils.get_total_norm(
        [one.grad for one in fresh.model.parameters() if one.grad is not None]
    )
    assert progress.curve[0]["loss"] == pytest.approx(mean.item(), rel=1e-5)
    assert progress.curve[0]["gradient_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert progress.counts["rows"] == 24 and progress.counts["truncated texts"] == 0


class Spoilt(Clip):
    """CLIP whose loss, or its gradient, is not finite from a step on."""

    name = "spoilt"
    from_step, what, steps = 3, "loss", 0

    def loss(self, encoder: Any, batch: Any) -> dict[str, Term]:
        terms = dict(super().loss(encoder, batch))
        if self.steps >= self.from_step:
            bad = {
                "loss": terms["clip"].value * float("nan"),
                "infinite": terms["clip"].value + float("inf"),
                # 0 in value, but the root's slope at 0 is infinite
                "gradient": (encoder.scale - encoder.scale.detach()).abs().sqrt(),
            }[self.what]
            terms["bad"] = Term(bad, 1.0)
        self.steps += 1
        return terms


@pytest.mark.parametrize(
    ("what", "named"),
    [("loss", "loss, bad"), ("infinite", "loss, bad"), ("gradient", "gradient_norm")],
)
def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_state(
    tiny: LoadedModel, tiny_clip: Path, run: Run, tmp_path: Path, what: str, named: str
) -> None:
    state = tmp_path / "spoilt.safetensors"
    method = Spoilt(NoViewSettings(), ClipObjective())
    method.what = what
    with pytest.raises(TrainingError) as error:
        run(tiny, method, state=state)
    assert f"step 3: {named} is not finite" in str(error.value)
    assert f"the state after 2 steps, stored in {state}" in str(error.value)
    assert "training.optimizer.lr" in str(error.value)
    assert all(tensor.isfinite().all() for tensor in weights(tiny).values())
    saved = checkpoint.read_progress(state)
    assert saved is not None and saved["progress"]["step"] == 2

    healthy = Clip(NoViewSettings(), ClipObjective())
    good, again = load(tiny_clip), load(tiny_clip)
    run(good, healthy, state=tmp_path / "good.safetensors")
    run(again, healthy, state=state)  # goes on from the good state
    assert changed(weights(good), again) == set()


@pytest.mark.parametrize("what", ["weights", "scale", "moments"])
def test_a_state_that_overflows_at_a_saving_step_is_not_saved(
    tiny: LoadedModel, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Loss and gradient of the step are finite: only what they lead to is not."""
    state, step = tmp_path / "state.safetensors", AmpOptimizer.step

    def overflowing(self: AmpOptimizer, rate: float) -> Tensor:
        norm, adamw = step(self, rate), self._optimizer
        scale = tiny.model.logit_scale
        weight = tiny.model.text_projection
        if adamw.state[weight]["step"] == 4:
            spoilt = {"weights": weight, "scale": scale, "moments": adamw.state[weight]["exp_avg"]}
            spoilt[what].data.view(-1)[0] = float("nan" if what == "scale" else "inf")
        return norm

    monkeypatch.setattr(AmpOptimizer, "step", overflowing)
    named = {"weights": "model/text_projection", "scale": "model/logit_scale"}
    with pytest.raises(TrainingError) as error:
        run(tiny, Clip(NoViewSettings(), ClipObjective()))
    message = str(error.value)
    assert "after 4 steps is not finite" in message and named.get(what, "exp_avg") in message
    assert f"the state after 2 steps, stored in {state}" in message and "\n" not in message
    saved = checkpoint.read_progress(state)
    assert saved is not None and saved["progress"]["step"] == 2


class Overflowing(Spoilt):
    """CLIP whose loss overflows at one step."""

    def loss(self, encoder: Any, batch: Any) -> dict[str, Term]:
        self.from_step = self.steps if self.steps == 3 else self.steps + 1
        return super().loss(encoder, batch)


def test_a_step_that_overflows_in_fp16_is_left_out(
    tiny: LoadedModel, run: Run, tmp_path: Path
) -> None:
    """On the CPU, whose fp16 only tests use; on a GPU it was not tried."""
    method = Overflowing(NoViewSettings(), ClipObjective())
    method.what = "infinite"
    progress = run(tiny, method, precision="fp16")
    assert progress.step == 6 and progress.counts["steps left out for overflow"] == 1
    assert ["loss" in point for point in progress.curve] == [True] * 3 + [False] + [True] * 2
    saved = checkpoint.read_progress(tmp_path / "state.safetensors")
    assert saved is not None and saved["loss_scale"]["scale"] == 2**15


def test_a_loss_that_stays_infinite_in_fp16_is_an_error(tiny: LoadedModel, run: Run) -> None:
    before = weights(tiny)
    method = Spoilt(NoViewSettings(), ClipObjective())
    method.from_step = 0
    with pytest.raises(TrainingError, match=r"step 16: loss, bad is not finite"):
        run(tiny, method, precision="fp16", epochs=8)
    assert changed(before, tiny) == set()


def test_a_bad_step_between_two_readings_is_named_and_never_saved(
    tiny: LoadedModel, run: Run, tmp_path: Path
) -> None:
    """The steps after it went on from the weights before it."""
    method = Overflowing(NoViewSettings(), ClipObjective())
    with pytest.raises(TrainingError, match=r"step 3: loss, bad is not finite"):
        run(tiny, method, log_every=6, save_every=6)
    assert all(tensor.isfinite().all() for tensor in weights(tiny).values())
    assert not (tmp_path / "state.safetensors").exists()


def test_losses_are_read_where_they_are_logged_and_not_at_each_step(
    tiny: LoadedModel, tiny_clip: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reading makes a GPU wait: six steps to one point of the curve need as many as two."""
    reads: list[str] = []
    for name in ("item", "tolist"):
        old = getattr(Tensor, name)

        def read(self: Tensor, name: str = name, old: Any = old) -> Any:
            reads.append(name)
            return old(self)

        monkeypatch.setattr(Tensor, name, read)
    # What the loader's process reads is on no device.
    run(tiny, workers=1, log_every=6, save_every=6)
    other, two = load(tiny_clip), tmp_path / "two.safetensors"
    six, reads[:] = reads.copy(), []
    run(other, workers=1, state=two, max_steps=2, log_every=2, save_every=2)
    assert six == reads
    assert "tolist" in six


@pytest.mark.parametrize("kind", ["fp32", "bf16", "fp16", "dropout"])
def test_a_run_cut_short_ends_as_one_that_was_not(
    tiny_clip: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def model() -> LoadedModel:
        loaded = load(tiny_clip)
        if kind == "dropout":
            last = loaded.model.ln_final
            loaded.model.ln_final = torch.nn.Sequential(last, torch.nn.Dropout(0.5))
        return loaded

    settings = {"log_every": 4, "precision": "fp32" if kind == "dropout" else kind}
    whole, cut, resumed = model(), model(), model()
    expected = run(whole, state=tmp_path / "whole.safetensors", **settings)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_after_save(2, patch)
        run(cut, save_every=1, **settings)
    torch.manual_seed(7)  # another place in torch's own stream
    before = torch.random.get_rng_state()
    assert run(resumed, **settings) == expected
    assert torch.equal(torch.random.get_rng_state(), before)
    assert changed(weights(whole), resumed) == set()
    assert len(changed(weights(model()), resumed)) > 10


def test_bf16_rounds_towers_but_not_losses(tiny: LoadedModel, run: Run) -> None:
    kinds, inside = [], []

    class Watch(Clip):
        def loss(self, encoder: Any, batch: Any) -> Any:
            images, texts = encoder.images(batch.images), encoder.texts(batch.texts)
            kinds.append((images @ texts.T).dtype)
            return super().loss(encoder, batch)

    tiny.model.ln_final.register_forward_pre_hook(
        lambda *_: inside.append(torch.is_autocast_enabled("cpu"))
    )
    run(tiny, Watch(NoViewSettings(), ClipObjective()), precision="bf16", max_steps=1)
    assert kinds == [torch.float32]
    assert inside == [True, True]
    assert {parameter.dtype for parameter in tiny.model.parameters()} == {torch.float32}


def test_clipping_bounds_the_gradient(tiny: LoadedModel, run: Run, recipe: Any) -> None:
    settings = replace(recipe().optimizer, clip_norm=1e-3)
    norms: list[float] = []

    class Watch(torch.optim.AdamW):
        def step(self, closure: Any = None) -> None:
            grads = [p.grad for group in self.param_groups for p in group["params"]]
            norms.append(float(torch.nn.utils.get_total_norm(grads)))
            super().step(closure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim, "AdamW", Watch)
        points: list[Point] = []
        run(tiny, points=points, optimizer=settings)
    assert norms == pytest.approx([1e-3] * 6, rel=1e-2)
    assert min(point["gradient_norm"] for point in points) > 1e-3
