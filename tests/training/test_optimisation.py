"""The schedules of the authors' code, what decays, and what trains."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from open_clip.hf_model import HFTextEncoder
from open_clip_train.scheduler import cosine_lr

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models import lora
from compo_pipeline.models.encoding import image_projection
from compo_pipeline.models.loading import LoadedModel, give_bias, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training.optimisation import (
    adamw,
    freeze,
    learning_rate,
    projection_alone,
    refuse_long_warmup,
)
from compo_pipeline.training.settings import OptimizerSettings

PAPER = OptimizerSettings(lr=1e-6, lr_start=1e-7, lr_end=1e-8, warmup=0.2)


def test_the_schedule_of_clics_code() -> None:
    """AmitPeleg/CLIC utils/train_utils.py, cosine_scheduler: equal intervals, then a cosine."""
    cosine = 1e-8 + (1e-6 - 1e-8) / 2 * (1 + np.cos(np.pi * np.arange(120) / 120))
    expected = np.concatenate([np.linspace(1e-7, 1e-6, 30), cosine])
    rates = [learning_rate(step, 150, PAPER) for step in range(150)]
    np.testing.assert_allclose(rates, expected, rtol=1e-12)


@pytest.mark.parametrize("warmup", [1, 2, 50])
def test_the_schedule_of_open_clip(warmup: int) -> None:
    """FSC-CLIP and C2LIP train by it; their `lr_start` is the rate of its first step."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    adjust = cosine_lr(optimizer, 5e-6, warmup, 300)
    recipe = OptimizerSettings(lr=5e-6, lr_start=5e-6 / warmup, lr_end=0.0, warmup_steps=warmup)
    for step in range(300):
        adjust(step)
        rate = optimizer.param_groups[0]["lr"]
        assert learning_rate(step, 300, recipe) == pytest.approx(rate, rel=1e-12)


def test_matrices_decay_and_nothing_else_does(tiny: LoadedModel) -> None:
    freeze(tiny.model, {"image", "text"})
    decaying, others = adamw(tiny.model, PAPER).param_groups
    names = {parameter: name for name, parameter in tiny.model.named_parameters()}
    decayed = {names[parameter] for parameter in decaying["params"]}
    spared = {names[parameter] for parameter in others["params"]}
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert decayed | spared == set(names.values())
    assert {"text_projection", "token_embedding.weight", "visual.proj"} <= decayed
    assert {"logit_scale", "ln_final.weight", "ln_final.bias", "visual.class_embedding"} <= spared
    assert {name for name in decayed if name.endswith("bias") or "ln_" in name} == set()
    assert (decaying["betas"], decaying["eps"]) == ((0.9, 0.98), 1e-8)


def test_scale_and_bias_stay_where_a_method_says_so(tiny: LoadedModel) -> None:
    model = give_bias(tiny, -5.0).model
    freeze(model, {"text"}, scale=False)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained and not trained & {"logit_scale", "logit_bias"}
    freeze(model, {"text"})
    assert model.logit_scale.requires_grad and model.logit_bias.requires_grad


def test_a_frozen_name_keeps_its_parameters_out_of_training(tiny: LoadedModel) -> None:
    freeze(tiny.model, {"text"})
    whole = {name for name, p in tiny.model.named_parameters() if p.requires_grad}
    freeze(tiny.model, {"text"}, frozen=("token_embedding", "transformer.resblocks.0"))
    rest = {name for name, p in tiny.model.named_parameters() if p.requires_grad}
    out = whole - rest
    assert "token_embedding.weight" in out and "positional_embedding" in rest
    assert out - {"token_embedding.weight"} == {
        name for name in whole if name.startswith("transformer.resblocks.0.")
    }


def test_a_frozen_name_that_the_model_lacks_is_refused_with_the_nearest(tiny: LoadedModel) -> None:
    with pytest.raises(
        SettingsError, match=r"training\.frozen: .*'token_embeding'.*token_embedding"
    ):
        freeze(tiny.model, {"text"}, frozen=("token_embeding",))
    # Half a name is no module's.
    with pytest.raises(SettingsError, match="token_emb"):
        freeze(tiny.model, {"text"}, frozen=("token_emb",))


def test_a_warm_up_as_long_as_the_training_is_refused() -> None:
    recipe = OptimizerSettings(lr=1.0, lr_start=0.0, lr_end=0.0, warmup=0.2, warmup_steps=50)
    refuse_long_warmup(51, recipe)
    with pytest.raises(SettingsError, match=r"^training\.optimizer\.warmup_steps: .* 50 steps"):
        refuse_long_warmup(50, recipe)
    refuse_long_warmup(1, replace(recipe, warmup_steps=None))


@pytest.mark.parametrize("frozen", [(), ("visual.trunk",)], ids=["adapters", "frozen trunk"])
def test_batch_norms_whose_weights_are_frozen_keep_their_means(frozen: tuple[str, ...]) -> None:
    """The base's convolutional stem has some; in training mode each batch would move them."""
    loaded = load(ModelSettings())
    if not frozen:
        lora.attach(loaded.model, 2, loaded.name, {"image", "text"}, 0)
    freeze(loaded.model, {"image", "text"}, frozen=frozen)
    before = {name: value.clone() for name, value in loaded.model.named_buffers()}
    assert any(name.endswith("running_mean") for name in before)
    loaded.model.encode_image(torch.randn(2, 3, 64, 64))
    assert all(before[name].equal(value) for name, value in loaded.model.named_buffers())


def test_parts_of_siglip_s_text_tower_are_frozen_by_their_names_in_clip_s(
    tiny_siglip: Path,
) -> None:
    model = load(tiny_siglip).model
    freeze(
        model, {"image", "text"}, frozen=["token_embedding", "text.ln_final", "visual.trunk.norm"]
    )
    kept = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert kept == {
        "text.token_embedding.weight",
        "text.ln_final.weight",
        "text.ln_final.bias",
        *(name for name, _ in model.named_parameters() if name.startswith("visual.trunk.norm.")),
    }


@pytest.mark.parametrize("tower", ["tiny_clip", "tiny_siglip"])
def test_the_projection_of_an_image_tower_trains_alone(
    request: pytest.FixtureRequest, tower: str
) -> None:
    """open_clip's transformer has no trunk by that name, timm's has."""
    model = load(request.getfixturevalue(tower)).model
    projection = image_projection(model)
    assert projection is not None
    freeze(model, {"image"}, frozen=["visual.trunk"], scale=False)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    names = {name for name, _ in model.named_parameters()}
    assert trained == {name for name in names if f"{name}.".startswith(f"{projection[1]}.")}
    assert projection_alone(model, ["visual.trunk"]) and not projection_alone(model, [])


def test_the_token_embedding_of_a_hugging_face_tower_is_frozen() -> None:
    """By transformers' own account of which part that is."""
    transformers = pytest.importorskip("transformers")
    tower = HFTextEncoder(
        "unused",
        8,
        transformers.RobertaConfig(
            vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2
        ),
        pooler_type="mean_pooler",
        proj_type="linear",
    )
    model = torch.nn.Module()
    model.text = tower
    freeze(model, {"text"}, frozen=["token_embedding"])
    kept = [p for p in model.parameters() if not p.requires_grad]
    assert len(kept) == 1 and kept[0] is tower.transformer.get_input_embeddings().weight
