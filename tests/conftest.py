"""Fixtures shared by all tests."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The first example of a test may import half a library: no deadline. The same examples each time.
settings.register_profile("project", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("project")

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def project() -> Path:
    """The project's root folder."""
    return PROJECT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Development data beside the checkout: real COCO images, benchmark files, a treebank.

    The project works without it; tests that want it are skipped, visibly.
    """
    folder = PROJECT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("development data (../shared/data) is not on this machine")
    return folder


TINY: dict[str, Any] = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


@pytest.fixture(scope="session")
def tiny_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random CLIP that runs in milliseconds, as open_clip would write it."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("tiny_clip")
    preprocess = {"mean": [0.6, 0.5, 0.4], "std": [0.3, 0.2, 0.1], "resize_mode": "squash"}
    config = {"model_cfg": TINY, "preprocess_cfg": {"size": [32, 32], **preprocess}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = open_clip.CLIP(**TINY)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a random CLIP of short texts; the towers differ by seed and by image_seed."""
    import torch
    from open_clip.model import CLIP
    from safetensors.torch import save_file

    config: dict[str, Any] = {**TINY, "text_cfg": {**TINY["text_cfg"], "context_length": 16}}

    def write(seed: int, image_seed: int = 0) -> Path:
        folder = tmp_path_factory.mktemp("model")
        torch.manual_seed(seed)
        state = CLIP(**config).state_dict()
        torch.manual_seed(image_seed)
        visual = {k: v for k, v in CLIP(**config).state_dict().items() if k.startswith("visual.")}
        tensors = {k: v.clone().contiguous() for k, v in {**state, **visual}.items()}
        header = {"format": "pt", "quick_gelu": "false"}
        save_file(tensors, folder / "open_clip_model.safetensors", metadata=header)
        written = {"model_cfg": config, "preprocess_cfg": {}}
        (folder / "open_clip_config.json").write_text(json.dumps(written))
        return folder

    return write


PIECES = ("▁", "▁a", "▁the", "▁red", "▁blue", "▁cube", "▁sphere", "▁left", "▁of")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


@pytest.fixture(scope="session")
def siglip_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small tokenizer built as SigLIP's is: T5's pieces, filled up with </s>."""
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(piece, -2.0) for piece in PIECES] + [(letter, -9.0) for letter in LETTERS]
    inner = Tokenizer(models.Unigram(pieces, unk_id=2))
    space = {"replacement": "▁", "prepend_scheme": "always"}
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**space)]
    )
    inner.decoder = decoders.Metaspace(**space)
    inner.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    folder = tmp_path_factory.mktemp("siglip_tokenizer")
    inner.save(str(folder / "tokenizer.json"))
    roles = {"eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "additional_special_tokens": []}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **roles}))
    return folder


@pytest.fixture(scope="session")
def tiny_siglip(tmp_path_factory: pytest.TempPathFactory, siglip_tokenizer: Path) -> Path:
    """Folder of open_clip's ViT-B-16-SigLIP, shrunk, with random weights and a small tokenizer."""
    import open_clip
    import torch
    from open_clip.model import CustomTextCLIP
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("tiny_siglip")
    config = open_clip.get_model_config("ViT-B-16-SigLIP")
    small = {"timm_model_name": "test_vit3", "image_size": 160}
    config |= {"embed_dim": 96, "vision_cfg": {**config["vision_cfg"], **small}}
    config["text_cfg"] |= {"vocab_size": 64, "width": 32, "heads": 2, "layers": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = CustomTextCLIP(**{k: v for k, v in config.items() if k != "custom_text"})
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    half = [0.5, 0.5, 0.5]
    preprocess = {"size": [160, 160], "mean": half, "std": half, "resize_mode": "squash"}
    written = {"model_cfg": config, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(written))
    for path in siglip_tokenizer.iterdir():
        shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="session")
def mlflow_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project folder with an MLflow store; one for all tests, its database takes seconds.

    The experiment is `compo`; what a test logs, later tests see.
    """
    import mlflow

    from compo_pipeline.registry import tracking

    folder = tmp_path_factory.mktemp("project with a space")
    tracking.configure(tracking.TrackingSettings(), folder)
    yield folder
    mlflow.set_tracking_uri(None)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder with the same code and configuration, and data of its own."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "src").mkdir()
    for name in ("pyproject.toml", "conf", "src/compo_pipeline"):
        (folder / name).symlink_to(PROJECT / name)
    return folder
