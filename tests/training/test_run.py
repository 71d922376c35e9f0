"""Whole runs: a killed one ends as one that was not, a finished one is not repeated."""

import io
import logging
import os
import signal
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.conftest import (
    equal,
    steps_done,
    train_both,
    train_with_threads,
    weights,
)

from compo_pipeline.core import remote
from compo_pipeline.methods.c2lip import C2lip, C2lipObjective
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.methods.clip import control_of
from compo_pipeline.methods.contract import Method, NoViewSettings, ViewContext
from compo_pipeline.methods.fsc_clip import FscClip, FscClipObjective, FscClipViews
from compo_pipeline.methods.registry import build
from compo_pipeline.methods.sparcl import Sparcl, SparclObjective
from compo_pipeline.methods.views import Mixture, write
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import read_record
from compo_pipeline.training import features
from compo_pipeline.training.checkpoint import FingerprintError
from compo_pipeline.training.inputs import TrainingInputs, fingerprint_of
from compo_pipeline.training.loop import Job, train
from compo_pipeline.training.optimisation import misfits
from compo_pipeline.training.settings import (
    LowRankSettings,
    MixtureSettings,
    OptimizerSettings,
)

CLIC = Clic(ClicViews(), ClicObjective())
PLAIN = control_of(CLIC)


def trained(
    plan: TrainingInputs, folder: Path, method: Method = CLIC, name: str = "clic", **settings: Any
) -> Path:
    """The checkpoint of a training in a folder, under other settings."""
    changed = replace(plan, settings=replace(plan.settings, **settings))
    train(changed, Job(method, name, folder), lambda _: None)
    return folder


FSC = FscClip(FscClipViews(), FscClipObjective(trains=("text",)))
C2LIP = C2lip(NoViewSettings(), C2lipObjective(trains=("text",), bias=-5.0))
# Its image tower trains: patches come fresh at each step.
C2LIP_BOTH = C2lip(NoViewSettings(), C2lipObjective(bias=-5.0))
ON_TOKENS = C2lip(NoViewSettings(), C2lipObjective(phrases="tokens", bias=-5.0))
# Both towers, by adapters, on random crops.
FSC_LORA = FscClip(FscClipViews(), FscClipObjective())
LORA = {"crop_scale": (0.5, 1.0), "lora": LowRankSettings(2)}


# An epoch of as many rows as one source alone has, a third of them of two rows.
MIXTURE = Mixture({"many": 2.0, "few": 1.0}, 12, 0)
slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("method", "recipe_", "victim"),
    [
        (CLIC, {"workers": 0, "cache_features": True}, "control"),
        slow(CLIC, {"workers": 1}, "clic"),
        slow(CLIC, {"workers": 1, "mixture": MIXTURE}, "clic"),
        slow(FSC, {"workers": 0, "cache_features": True}, "control"),
        slow(FSC_LORA, {"workers": 1, **LORA}, "fsc_clip"),
        slow(C2LIP, {"workers": 0, "cache_features": True}, "control"),
        slow(C2LIP_BOTH, {"workers": 1}, "c2lip"),
    ],
    ids=[
        *("CLIC cached", "CLIC", "CLIC on two sources", "FSC-CLIP cached"),
        "FSC-CLIP by adapters",
        *("C2LIP cached", "C2LIP on both towers"),
    ],
)
def test_a_killed_run_ends_with_the_weights_of_one_that_was_not(
    plan: TrainingInputs,
    world: Any,
    tiny_clip: Path,
    tmp_path: Path,
    method: Method,
    recipe_: dict[str, Any],
    victim: str,
    imported: ForkServerContext,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = method.name
    mixture = (recipe_ := dict(recipe_)).pop("mixture", None)
    world = world.of_two_sources() if mixture else world
    views = world.drawn(method, tmp_path / "views", mixture=mixture)
    settings = replace(plan.settings, epochs=8, save_every=10, log_every=3, **recipe_)
    plan = replace(plan, captions=world.captions, views=views, settings=settings)
    whole = train_both(replace(plan, resume=tmp_path / "whole"), method)

    killed = torch.get_num_threads(), plan, method, victim, 18
    process = imported.Process(target=train_with_threads, args=killed)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (plan.resume / "folders" / victim).exists()

    with caplog.at_level(logging.INFO):
        resumed = train_both(plan, method)
    if victim == name:
        assert f"{name}: 10 of 24 steps are done" in caplog.text
    else:
        assert f"{name}: 24 of 24 steps are done" in caplog.text
        assert "control: 10 of 24 steps are done" in caplog.text
    for learner, folder in whole.items():
        assert equal(weights(resumed[learner]), weights(folder))
    tuned = weights(whole[name])
    assert not equal(tuned, weights(whole["control"])) and not equal(tuned, weights(tiny_clip))


def test_adapters_are_merged_into_the_checkpoint(plan: TrainingInputs, tmp_path: Path) -> None:
    """It has the base's weights by name; those that adapters do not touch are the base's own."""
    method = FscClip(FscClipViews(), FscClipObjective())
    plan = replace(plan, settings=replace(plan.settings, lora=LowRankSettings(2)))
    half = weights(trained(plan, tmp_path / "half", method, wise_ft=MixtureSettings(0.5)))
    assert steps_done(plan, method, "clic") == 6  # a mixture is made of the same trained weights
    tuned = weights(trained(plan, tmp_path / "whole", method))
    base = weights(Path(plan.model.name.removeprefix("local-dir:")))
    assert base.keys() == half.keys() == tuned.keys()
    moved = {name for name in base if not torch.equal(base[name], tuned[name])}
    assert moved == {
        name
        for name in base
        if "conv1" in name
        or name.endswith(("in_proj_weight", "out_proj.weight"))
        or ("mlp" in name and name.endswith("weight"))
    }
    for name in base:
        torch.testing.assert_close(half[name], (base[name] + tuned[name]) / 2)


@pytest.mark.parametrize("base", ["tiny_clip", "tiny_siglip"])
def test_labclips_map_resumes_and_is_merged_into_the_projection_of_texts(
    plan: TrainingInputs,
    world: Any,
    tmp_path: Path,
    base: str,
    request: pytest.FixtureRequest,
) -> None:
    learner = build("lab_clip", {}, {"trains": ["text"]})
    folder = request.getfixturevalue(base)
    views = world.drawn(learner, tmp_path / "views", epochs=1)
    optimizer = OptimizerSettings(lr=1e-2, lr_start=1e-3, lr_end=0.0, clip_norm=None)
    settings = replace(plan.settings, optimizer=optimizer, cache_features=True)
    model = ModelSettings(f"local-dir:{folder}")
    plan = replace(plan, settings=settings, views=views, model=model)
    job = Job(learner, "lab_clip", tmp_path / "whole")
    train(replace(plan, resume=tmp_path / "other"), job, lambda _: None)

    def stop(point: Mapping[str, Any]) -> None:
        if point["step"] == 3:
            raise KeyboardInterrupt

    job = Job(learner, "lab_clip", tmp_path / "resumed")
    with pytest.raises(KeyboardInterrupt):
        train(plan, job, stop)
    assert steps_done(plan, learner, "lab_clip") == 2
    train(plan, job, lambda _: None)
    before, found = weights(folder), weights(tmp_path / "whole")
    assert before.keys() == found.keys() and equal(found, weights(tmp_path / "resumed"))
    moved = {name for name in before if not before[name].equal(found[name])}
    assert moved and all("text_projection" in name for name in moved)


def test_labclip_is_refused_on_a_text_tower_without_a_projection(plan: TrainingInputs) -> None:
    model, method = load(plan.model).model, build("lab_clip", {}, {"trains": ["text"]})
    model.text_projection = None
    (told,) = misfits(model, "some base", method, plan.settings)
    assert told.startswith("model.name: the text tower of 'some base'") and "method=negclip" in told


@pytest.mark.parametrize(
    ("base", "frozen", "rank"),
    [
        ("tiny_clip", "text_projection", None),
        ("tiny_siglip", "text.text_projection.weight", None),
        ("tiny_clip", "visual", 2),
    ],
)
def test_labclip_is_refused_where_its_map_could_not_train_alone(
    plan: TrainingInputs,
    base: str,
    frozen: str,
    rank: int | None,
    request: pytest.FixtureRequest,
) -> None:
    model = load(request.getfixturevalue(base)).model
    settings = replace(plan.settings, frozen=(frozen,), lora=LowRankSettings(rank))
    (told,) = misfits(model, "", build("lab_clip", {}, {"trains": ["text"]}), settings)
    assert told.startswith("training.lora.rank: " if rank else "training.frozen: ")
    assert not [*misfits(model, "", build("negclip", {}, {}), settings)]


def test_a_stretched_base_is_trained_and_mixed(plan: TrainingInputs, tmp_path: Path) -> None:
    """The base in the mixture is the stretched one, and positions beyond 77 train."""
    long = replace(plan.model, context_length=248)
    text = "a red cat left of a dog " * 30
    captions = [replace(row, sentences=(text, *row.sentences[1:])) for row in plan.captions]
    plan = replace(plan, model=long, captions=captions)
    half = weights(trained(plan, tmp_path / "half", PLAIN, wise_ft=MixtureSettings(0.5)))
    tuned = weights(trained(plan, tmp_path / "tuned", PLAIN))
    base = load(long).model.state_dict()
    moved = tuned["positional_embedding"] - base["positional_embedding"]
    assert moved[100:200].abs().amax() > 0
    for name, tensor in base.items():
        torch.testing.assert_close(half[name], (tensor + tuned[name]) / 2)
    assert load(tmp_path / "half").context_length == 248


def test_a_finished_run_returns_at_once_and_another_is_refused(
    plan: TrainingInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No image is read again: all that is left is to write the checkpoint."""
    first = trained(plan, tmp_path / "first", cache_features=True)
    monkeypatch.setattr(features, "embed", lambda *_, **__: pytest.fail("images were embedded"))
    cached = replace(plan, settings=replace(plan.settings, cache_features=True))
    train(cached, Job(CLIC, "clic", tmp_path / "again"), lambda _: pytest.fail("a step was taken"))
    assert equal(weights(first), weights(tmp_path / "again"))
    with pytest.raises(FingerprintError, match=r"training.epochs: 2 -> 3"):
        trained(cached, tmp_path / "other", epochs=3)


def test_overwrite_starts_afresh(plan: TrainingInputs, tmp_path: Path) -> None:
    old = trained(plan, tmp_path / "old")
    elsewhere = replace(plan, resume=tmp_path / "elsewhere")
    fresh = trained(elsewhere, tmp_path / "fresh", epochs=1)
    over = trained(plan, tmp_path / "over", epochs=1, overwrite=True)
    over, fresh, old = map(weights, (over, fresh, old))
    assert equal(over, fresh) and not equal(over, old)


def test_the_control_takes_the_same_steps_over_the_same_rows(
    plan: TrainingInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learners: dict[str, Method] = {"clic": CLIC, "control": control_of(CLIC)}
    rows: dict[str, list[list[str]]] = {"clic": [], "clip": []}
    for method in (Clic, type(control_of(CLIC))):

        def collate(
            self: Any, examples: Any, step: int, reader: Any, old: Any = method.collate
        ) -> Any:
            if self in learners.values():  # CLIC's plain steps are collated by a CLIP of its own
                rows[self.name].append([row.caption.sample_id for row in examples])
            return old(self, examples, step, reader)

        monkeypatch.setattr(method, "collate", collate)
    curves = {}
    for name, learner in learners.items():
        curves[name] = train(plan, Job(learner, name, tmp_path / name), lambda _: None).curve
    assert rows["clic"] == rows["clip"] and len(rows["clic"]) == 6
    assert [point["lr"] for point in curves["clic"]] == [point["lr"] for point in curves["control"]]
    assert control_of(Clic(ClicViews(), ClicObjective(trains=("image", "text")))).trains == {
        "image",
        "text",
    }


def test_a_mixture_with_a_base_that_had_no_bias(
    plan: TrainingInputs, world: Any, tmp_path: Path
) -> None:
    """At ratio 0 all is the base's, and the bias what it started from."""
    plan = replace(plan, views=world.drawn(C2LIP, tmp_path / "views"))
    mixed = weights(trained(plan, tmp_path / "none", C2LIP, wise_ft=MixtureSettings(0.0)))
    base = weights(Path(plan.model.name.removeprefix("local-dir:")))
    assert mixed.pop("logit_bias").item() == -5.0
    assert base.keys() == mixed.keys()
    assert all(torch.equal(base[name], mixed[name]) for name in base)


# All of the tiny model's image tower but its projection.
TRUNK = tuple(
    f"visual.{part}"
    for part in (
        *("conv1", "class_embedding", "positional_embedding"),
        *("ln_pre", "transformer", "ln_post"),
    )
)


def test_a_projection_that_trains_alone_reads_images_that_were_embedded_once(
    plan: TrainingInputs, tiny_clip: Path, tmp_path: Path
) -> None:
    """Its weights are those of a run that encodes the images at each step."""
    method = Clic(ClicViews(), ClicObjective(trains=("image", "text")))
    plan = replace(plan, settings=replace(plan.settings, frozen=TRUNK))
    stored = replace(plan, features=tmp_path / "features", resume=tmp_path / "stored")
    found = weights(trained(stored, tmp_path / "cached", method, cache_features=True))
    expected, base = weights(trained(plan, tmp_path / "fresh", method)), weights(tiny_clip)
    for name in ("visual.proj", "text_projection"):
        torch.testing.assert_close(found[name], expected[name], atol=1e-4, rtol=0)
    moved = {
        name for name in base if name.startswith("visual.") and not found[name].equal(base[name])
    }
    assert moved == {"visual.proj"}


def test_the_checkpoint_tells_how_it_was_made(plan: TrainingInputs, tmp_path: Path) -> None:
    progress = train(plan, Job(CLIC, "clic", tmp_path / "clic"), lambda _: None)
    told = read_record(tmp_path / "clic")["training"]
    noted = {
        "method": "clic",
        "fingerprint": fingerprint_of(plan, CLIC),
        "wise_ft_ratio": 1.0,
        "counts": dict(progress.counts),
        "compute": plan.compute.facts(),
    }
    assert {name: told[name] for name in noted} == noted
    assert told["counts"]["rows"] == 24


def test_a_training_whose_storage_fails_ends_and_resumes(
    plan: TrainingInputs,
    world: Any,
    bucket: Any,
    tmp_path: Path,
) -> None:
    shard = io.BytesIO()
    with tarfile.open(fileobj=shard, mode="w") as tar:
        for path in sorted(world.root.glob("*.png")):
            tar.add(path, path.name)
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "0.tar").write_bytes(shard.getvalue())
    bucket.put({"set/0.tar": shard.getvalue()})
    mirror = remote.mirror(f"s3://{bucket.name}/set", tmp_path / "cache")
    remote.refresh(mirror)
    in_shard = replace(
        world, captions=[replace(row, image=f"0.tar/{row.image}") for row in world.captions]
    )
    recipe = replace(plan.settings, save_every=2, cache_features=False, workers=0)
    local = replace(
        plan,
        captions=in_shard.captions,
        views=in_shard.views(tmp_path / "views"),
        root=tmp_path / "local",
        settings=recipe,
    )
    stored = replace(local, root=mirror, resume=tmp_path / "stored")
    endpoint = os.environ["AWS_ENDPOINT_URL"]

    def reach(url: str) -> None:
        credentials = {"s3": {"endpoint_url": url}}
        remote.configure({"root": "s3://bucket/set"}, remote.RemoteSettings(), credentials)

    def fail(step: int, _: LoadedModel) -> None:
        if step == 2:
            (mirror / "0.tar").chmod(0)  # no longer in the cache
            reach("http://127.0.0.1:1")

    folder = tmp_path / "checkpoint"
    with pytest.raises(remote.RemoteError, match=r"set/0.tar: .*127.0.0.1:1"):
        train(stored, Job(CLIC, "clic", folder), lambda _: None, fail)
    reach(endpoint)
    assert steps_done(stored, CLIC, "clic") == 2
    train(stored, Job(CLIC, "clic", folder), lambda _: None)
    train(local, Job(CLIC, "clic", tmp_path / "whole"), lambda _: None)
    assert equal(weights(folder), weights(tmp_path / "whole"))


@pytest.mark.parametrize(
    "changes",
    [{"microbatch": 3, "gradient_checkpointing": True}, slow({"compile": True})],
    ids=["memory", "time"],
)
def test_what_saves_memory_or_time_changes_the_weights_by_rounding_alone(
    plan: TrainingInputs, tmp_path: Path, changes: dict[str, Any]
) -> None:
    # Adam would turn the rounding errors of a gradient of zero into whole steps.
    calm = replace(plan.settings, optimizer=replace(plan.settings.optimizer, eps=1e-2))
    method = Clic(ClicViews(), ClicObjective(trains=("image", "text")))
    plan = replace(plan, settings=calm)
    plain = weights(trained(plan, tmp_path / "plain", method))
    again = replace(plan, resume=tmp_path / "other")
    other = weights(trained(again, tmp_path / "out", method, **changes))
    assert all(torch.allclose(plain[key], other[key], atol=1e-5) for key in plain)


@pytest.mark.parametrize("rank", [None, 2])
def test_sparcls_scale_and_bias_stay_as_they_are(
    plan: TrainingInputs, world: Any, tiny_clip: Path, tmp_path: Path, rank: int | None
) -> None:
    """With adapters, and where the weights themselves train; so do the control's."""
    method = Sparcl(Sparcl.views_type(), SparclObjective(bias=-3.0))
    context = ViewContext({}, "hand", 0, 0, world.edits("s05.png"))
    write(method, world.captions, context, 2, tmp_path / "views")
    settings = replace(plan.settings, lora=LowRankSettings(rank))
    plan = replace(plan, settings=settings, views=tmp_path / "views")
    plan = replace(plan, counterfactual_images=world.root)
    base, tuned = (
        weights(tiny_clip),
        {name: weights(at) for name, at in train_both(plan, method).items()},
    )
    for found in tuned.values():
        assert found["logit_bias"].item() == -3.0
        assert found["logit_scale"].equal(base["logit_scale"])
    moved = {name for name in base if not base[name].equal(tuned["sparcl"][name])}
    assert any(name.startswith("visual.") for name in moved)
    assert any(name.startswith("transformer.") for name in moved)


@pytest.mark.slow
@pytest.mark.parametrize("method", [C2LIP_BOTH, ON_TOKENS, control_of(C2LIP_BOTH)])
def test_siglips_own_towers_learn_and_a_broken_run_goes_on(
    plan: TrainingInputs, world: Any, tiny_siglip: Path, tmp_path: Path, method: Method
) -> None:
    """Under C2LIP, on phrases and on pooled tokens, and its control."""
    optimizer = OptimizerSettings(lr=2e-3, lr_start=2e-4, lr_end=0.0, clip_norm=None)
    settings = replace(plan.settings, workers=1, crop_scale=(0.9, 1.0), optimizer=optimizer)
    views = world.drawn(C2LIP, tmp_path / "views", epochs=1)
    model = ModelSettings(f"local-dir:{tiny_siglip}")
    plan = replace(plan, settings=settings, views=views, model=model)
    losses: list[float] = []
    job = Job(method, method.name, tmp_path / "whole")
    train(replace(plan, resume=tmp_path), job, lambda point: losses.append(point["loss"]))

    def stop(point: Mapping[str, Any]) -> None:
        if point["step"] == 3:
            raise KeyboardInterrupt

    job = Job(method, method.name, tmp_path / "resumed")
    with pytest.raises(KeyboardInterrupt):
        train(plan, job, stop)
    assert steps_done(plan, method, method.name) == 2
    train(plan, job, lambda _: None)

    base, found = weights(tiny_siglip), weights(tmp_path / "whole")
    assert base.keys() == found.keys() and equal(found, weights(tmp_path / "resumed"))
    moved = {name for name in base if not base[name].equal(found[name])}
    assert {"visual.trunk.attn_pool.kv.weight", "text.text_projection.bias"} <= moved
    assert {"visual.trunk.patch_embed.proj.weight", "text.token_embedding.weight"} <= moved
    # Its own bias, and not the method's, is where it starts, and is trained.
    assert 0 < abs(found["logit_bias"].item() + 10.0) < 1
    assert len(losses) == 6 and sum(losses[-2:]) < sum(losses[:2])
    tokens = [load(folder).tokenize(["a red cat"]) for folder in (tiny_siglip, tmp_path / "whole")]
    assert tokens[0].equal(tokens[1])
