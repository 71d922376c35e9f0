"""Models load as open_clip loads them, and what does not fit together is refused."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tests.models.conftest import edit
from transformers import RobertaConfig

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models import sources
from compo_pipeline.models.cost import cost_of
from compo_pipeline.models.importing import ImportRequest, import_model
from compo_pipeline.models.loading import LoadedModel, export, give_bias, load, skeleton
from compo_pipeline.models.settings import ModelSettings, needs_network

TEXTS = ["a red cube", "a blue sphere left of a cat"]


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (48, 90, 3), dtype=np.uint8)
    return Image.fromarray(noise)


@pytest.fixture
def folder(tiny_clip: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model, to be spoilt."""
    return Path(shutil.copytree(tiny_clip, tmp_path / "model"))


def embeddings(model: LoadedModel, photo: Image.Image) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        image = model.model.encode_image(model.preprocess(photo)[None])
        return image, model.model.encode_text(model.tokenize(TEXTS))


XCIT = {
    "embed_dim": 192,
    "vision_cfg": {
        "timm_model_name": "xcit_nano_12_p8_224",
        "timm_model_pretrained": True,
        "timm_pool": "avg",
        "timm_proj": "linear",
        "image_size": 64,
    },
    "text_cfg": {"context_length": 77, "width": 128, "heads": 4, "layers": 2},
}


def test_timm_trunk_loads_without_a_download(
    tmp_path: Path, photo: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*args: object, **kwargs: object) -> None:
        raise AssertionError("a download was tried")

    monkeypatch.setattr("socket.socket.connect", no_network)
    offline = {**XCIT, "vision_cfg": {**XCIT["vision_cfg"], "timm_model_pretrained": False}}
    module = open_clip.CLIP(**offline).eval()
    halves = {k: v.half() if v.is_floating_point() else v for k, v in module.state_dict().items()}
    save_file(halves, tmp_path / "open_clip_model.safetensors")
    config = {"model_cfg": XCIT, "preprocess_cfg": {"resize_mode": "squash"}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))

    loaded = load(tmp_path)

    assert loaded.image_size == 64
    assert all(p.dtype == torch.float32 for p in loaded.model.parameters())
    assert loaded.preprocess(photo).shape == (3, 64, 64)
    torch.testing.assert_close(
        loaded.model.state_dict()["text_projection"], halves["text_projection"].float()
    )


def test_folder_gives_what_open_clip_gives(tiny_clip: Path, photo: Image.Image) -> None:
    loaded = load(tiny_clip)
    name = f"local-dir:{tiny_clip}"
    module, _, transform = open_clip.create_model_and_transforms(name)
    module.eval()

    image, text = embeddings(loaded, photo)

    assert torch.equal(loaded.preprocess(photo), transform(photo))
    assert torch.equal(loaded.tokenize(TEXTS), open_clip.get_tokenizer(name)(TEXTS))
    with torch.no_grad():
        assert torch.equal(image, module.encode_image(transform(photo)[None]))
        assert torch.equal(text, module.encode_text(loaded.tokenize(TEXTS)))
    assert (loaded.mean, loaded.std) == ((0.6, 0.5, 0.4), (0.3, 0.2, 0.1))
    assert (loaded.context_length, loaded.quick_gelu) == (77, False)
    assert not loaded.model.training


def test_random_weights_are_the_same_each_time(architectures: None) -> None:
    state = torch.random.get_rng_state()
    settings = ModelSettings(name="Tiny-16")
    first = load(settings)
    torch.rand(1)
    assert load(settings).fingerprint == first.fingerprint
    torch.random.set_rng_state(state)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused_by_name(folder: Path, value: float) -> None:
    file = folder / "open_clip_model.safetensors"
    state = load_file(file)
    state["visual.proj"][3, 1] = value
    save_file(state, file)
    with pytest.raises(SettingsError, match=r"open_clip_model\.safetensors .*visual\.proj"):
        load(folder)


def test_fingerprints_tell_towers_and_preprocessing_apart(folder: Path) -> None:
    before = load(folder)
    weights = folder / "open_clip_model.safetensors"
    state = load_file(weights)

    state["text_projection"] += 1
    save_file(state, weights)
    text_changed = load(folder)
    state["visual.proj"] += 1
    save_file(state, weights)
    image_changed = load(folder)

    assert text_changed.image_fingerprint == before.image_fingerprint
    assert text_changed.fingerprint != before.fingerprint
    edit(folder, "preprocess_cfg", "resize_mode", "shortest")
    found = {model.image_fingerprint for model in (before, image_changed, load(folder))}
    assert len(found) == 3


@pytest.mark.parametrize(
    ("name", "hint"), [("scene-base", "'scenes-base'"), ("VIT-B-32-quickgel", "-quickgelu'")]
)
def test_unknown_name_is_answered_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(SettingsError, match=rf"model\.name: '{name}'.*did you mean.*{hint}"):
        load(ModelSettings(name=name))


@pytest.mark.parametrize(
    ("name", "tag", "right"),
    [
        ("ViT-B-32", "openai", "ViT-B-32-quickgelu"),
        ("ViT-B-32-quickgelu", "laion2b_s34b_b79k", "ViT-B-32"),
        ("ViT-B-32-quickgelu", "datacomp_s_s13m_b4k", "ViT-B-32"),
    ],
)
def test_tag_of_the_other_activation_is_refused(name: str, tag: str, right: str) -> None:
    with pytest.raises(SettingsError, match=rf"quick_gelu.*set model\.name to '{right}'"):
        load(ModelSettings(name=name, pretrained=tag))


def test_checkpoint_of_the_other_activation_is_refused(
    tiny_clip: Path, architectures: None
) -> None:
    settings = ModelSettings(name="Tiny-16-quickgelu", pretrained=str(tiny_clip))
    with pytest.raises(SettingsError, match=r"quick_gelu=False.*set model\.name to 'Tiny-16'"):
        load(settings)
    right = load(replace(settings, name="Tiny-16"))
    assert right.mean == (0.6, 0.5, 0.4), "the preprocessing comes with the weights"


def test_bare_weights_must_say_their_activation(
    tiny_clip: Path, tmp_path: Path, architectures: None, imported_model: Callable[..., LoadedModel]
) -> None:
    bare = shutil.copy(tiny_clip / "open_clip_model.safetensors", tmp_path / "weights.safetensors")
    asked = rf"import-model Tiny-16 <folder> --weights {bare} with --quick-gelu .* --no-quick-gelu"
    with pytest.raises(SettingsError, match=asked):
        load(ModelSettings(name="Tiny-16", pretrained=str(bare)))
    with pytest.raises(SettingsError, match="set SOURCE to 'Tiny-16-quickgelu'"):
        imported_model("Tiny-16", weights=str(bare), quick_gelu=True)
    assert torch.equal(
        imported_model("Tiny-16", weights=str(bare), quick_gelu=False).model.state_dict()[
            "visual.proj"
        ],
        load(tiny_clip).model.state_dict()["visual.proj"],
    )


def test_other_architecture_is_refused_in_short(folder: Path) -> None:
    edit(folder, "model_cfg", "embed_dim", 8)
    with pytest.raises(SettingsError) as refusal:
        load(folder)
    message = str(refusal.value)
    assert "visual.proj [16, 16] for [16, 8]" in message
    assert "\n" not in message and len(message) < 800


def test_pickle_that_would_run_code_is_refused(
    tiny_clip: Path, tmp_path: Path, architectures: None, imported_model: Callable[..., LoadedModel]
) -> None:
    class Attack:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "run"),)

    torch.save({"state_dict": Attack()}, tmp_path / "weights.pt")
    shutil.copy(tiny_clip / "open_clip_config.json", tmp_path)  # says the activation
    with pytest.raises(SettingsError, match=r"weights\.pt is not a plain state dict"):
        load(ModelSettings("Tiny-16", str(tmp_path / "weights.pt")))
    with pytest.raises(SettingsError, match="not a plain state dict"):
        imported_model("Tiny-16", weights=str(tmp_path / "weights.pt"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [{}, [1], {"state_dict": {"a": "b"}}, {"state_dict": 1}])
def test_a_pickle_without_tensors_is_refused(tiny_clip: Path, tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "open_clip_pytorch_model.bin")
    shutil.copy(tiny_clip / "open_clip_config.json", tmp_path)
    with pytest.raises(SettingsError, match=r"model\.bin: expected tensors by name"):
        load(tmp_path)


def test_a_folder_with_a_pickle_loads_as_open_clip_loads_it(
    tiny_clip: Path, tmp_path: Path
) -> None:
    state = load_file(tiny_clip / "open_clip_model.safetensors")
    prefixed = {f"module.{name}": tensor for name, tensor in state.items()}
    torch.save({"epoch": 3, "state_dict": prefixed}, tmp_path / "open_clip_pytorch_model.bin")
    shutil.copy(tiny_clip / "open_clip_config.json", tmp_path)
    found = load(tmp_path).model.state_dict()
    model = open_clip.create_model(f"local-dir:{tmp_path}")
    assert all(torch.equal(found[name], each) for name, each in model.state_dict().items())


def test_a_fine_tuned_folder_is_named_with_its_lineage(tiny_clip: Path, tmp_path: Path) -> None:
    """The weights that it began as are another model than the folder's."""
    base, tuned = load(tiny_clip), tmp_path / "tuned"
    export(base, tuned, metadata={"training": {"method": "clic"}, "dataset": "coco"})
    settings = ModelSettings(name=f"local-dir:{tuned}")
    assert load(settings).name == f"local-dir:{tuned} (clic on coco, from {base.name})"
    assert load(tuned).name == base.name, "a checkpoint of a run"
    assert load(ModelSettings(name=f"local-dir:{tiny_clip}")).name == base.name


def test_truncated_weights_are_refused(folder: Path) -> None:
    weights = folder / "open_clip_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(SettingsError, match=r"safetensors is not a readable safetensors file"):
        load(folder)


def test_folder_without_a_model_is_refused(tmp_path: Path, tiny_clip: Path) -> None:
    with pytest.raises(SettingsError, match=r"no open_clip_config\.json in"):
        load(tmp_path)
    shutil.copy(tiny_clip / "open_clip_config.json", tmp_path)
    with pytest.raises(SettingsError, match="no weights in"):
        load(tmp_path)


def test_smaller_vocabulary_than_the_tokenizer_is_refused(folder: Path) -> None:
    edit(folder, "model_cfg.text_cfg", "vocab_size", 1000)
    with pytest.raises(SettingsError, match="tokenizer has 49408 tokens, the model embeds 1000"):
        load(folder)


def test_other_tokenizer_than_recorded_is_refused(folder: Path) -> None:
    (folder / "compo.json").write_text(
        json.dumps({"quick_gelu": False, "tokenizer_fingerprint": "0" * 64})
    )
    with pytest.raises(SettingsError, match="other token ids than the one it was exported with"):
        load(folder)


def test_failed_download_says_which_file_to_provide(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError("no route to host\nand a long story")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    monkeypatch.setattr("open_clip.pretrained.download_pretrained", unreachable)
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(SettingsError) as tag:
        load(ModelSettings(name="ViT-B-32-quickgelu", pretrained="openai"))
    assert "timm/vit_base_patch32_clip_224.openai" in str(tag.value)
    assert "import-model ViT-B-32-quickgelu <folder> --weights <file> --quick-g" in str(tag.value)
    with pytest.raises(SettingsError, match=r"model\.name=local-dir:<folder>"):
        load(ModelSettings(name="hf-hub:someone/model"))


@pytest.fixture
def pickled(tiny_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A repository of open_clip's configuration and weights in .bin; what is asked for of it."""
    files = ["open_clip_config.json", "open_clip_pytorch_model.bin", "README.md"]
    folder, asked = tmp_path / "snapshot", []
    folder.mkdir()
    shutil.copy(tiny_clip / files[0], folder)

    def fetch(repository: str, allow_patterns: list[str], **given: object) -> str:
        asked.extend(allow_patterns)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *a, **k: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    return asked


@pytest.mark.parametrize("command", [False, True])
def test_a_repository_without_safetensors_is_told_what_to_do(
    pickled: list[str], command: bool, tmp_path: Path
) -> None:
    name = "hf-hub:someone/model"
    with pytest.raises(SettingsError) as caught:
        if command:
            import_model(ImportRequest(name), tmp_path / "new")
        else:
            load(ModelSettings(name=name))
    told = str(caught.value)
    assert told.startswith(f"{'SOURCE' if command else 'model.name'}: {name} has no weights that")
    assert "\n" not in told
    assert "no weights that are fetched: expected open_clip_*.safetensors" in told
    assert "compo-pipeline import-model <folder with its configuration>" in told
    # Pickled files are not even fetched.
    assert pickled and not any(name.endswith((".bin", ".pt")) for name in pickled)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (ModelSettings(), False),
        (ModelSettings(pretrained="openai"), False),
        (ModelSettings(name="ViT-B-32-quickgelu", pretrained="openai"), True),
        (ModelSettings(name="ViT-B-16-SigLIP", pretrained="weights/siglip.safetensors"), True),
        (ModelSettings(name="ViT-B-16-SigLIP", pretrained="webli"), True),
        (ModelSettings(name="local-dir:models/own"), False),
        (ModelSettings(name="hf-hub:someone/model"), True),
    ],
)
def test_needs_network(settings: ModelSettings, expected: bool) -> None:
    assert needs_network(settings) is expected


@pytest.mark.parametrize("folder", ["tiny_clip", "tiny_siglip"])
def test_a_skeleton_has_the_parts_of_the_weights_file_and_no_weights(
    folder: str, request: pytest.FixtureRequest
) -> None:
    place: Path = request.getfixturevalue(folder)
    module = skeleton("tiny", sources.folder_source(place, "tiny").model_cfg)
    stored = load_file(place / "open_clip_model.safetensors")
    assert {name: value.shape for name, value in module.state_dict().items()} == {
        name: value.shape for name, value in stored.items()
    }
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}


def test_operations_of_a_text_tower_of_transformers_are_counted(tmp_path: Path) -> None:
    width, inner, tokens, joint = 32, 64, 77, 24
    shape = {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 2}
    RobertaConfig(vocab_size=64, intermediate_size=inner, **shape).save_pretrained(tmp_path)
    image = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16}
    text = {"hf_model_name": str(tmp_path), "hf_proj_type": "mlp", "hf_pooler_type": "mean_pooler"}
    module = skeleton("tiny", {"embed_dim": joint, "vision_cfg": image, "text_cfg": text})
    layer = tokens * (4 * width**2 + 2 * width * inner) + 2 * tokens**2 * width
    middle = (width + joint) // 2
    expected = 2 * (layer + width * middle + middle * joint)
    assert cost_of(module, tokens).gflops[1] == pytest.approx(expected / 1e9)


def test_a_softmax_trained_model_gets_the_bias_and_keeps_its_scale(tiny_clip: Path) -> None:
    plain = load(tiny_clip)
    before = plain.model.logit_scale.item()
    given = give_bias(plain, -30.0)
    assert dict(given.model.named_parameters())["logit_bias"].item() == -30.0
    assert given.model.logit_scale.item() == before
    assert given.config["model_cfg"]["init_logit_bias"] == -30.0
    assert "init_logit_bias" not in plain.config["model_cfg"]


def test_the_bias_survives_an_export_and_open_clip_reads_it(
    tiny_clip: Path, tmp_path: Path
) -> None:
    given = give_bias(load(tiny_clip), -30.0)
    with torch.no_grad():
        given.model.logit_bias.add_(1.5)
    folder = export(given, tmp_path / "exported")
    again = load(folder)
    assert again.model.logit_bias.item() == pytest.approx(-28.5)
    assert give_bias(again, -10.0).model.logit_bias.item() == pytest.approx(-28.5)
    theirs = open_clip.create_model(f"local-dir:{folder}")
    assert theirs.logit_bias.item() == pytest.approx(-28.5)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vision_cfg": {"act_kwarg": 1}}, r"model\.config: .*act_kwarg .*mean 'act_kwargs'"),
        ({"vision_cfg": 5}, r"model\.config: model_cfg\.vision_cfg: expected a mapping"),
        ({"quick_gelu": True}, "quick_gelu=True, but the weights"),
    ],
)
def test_changes_of_a_configuration_are_checked(
    tiny_clip: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(SettingsError, match=named):
        load(ModelSettings(f"local-dir:{tiny_clip}", config=changes))
