"""Tiny random models of images to text, one of each kind, as transformers saves them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

WORDS = "a the dog cat mat on red big two sits near and of photo what shows describe image".split()
CHAT = (
    "{% for turn in messages %}{{ turn['role'] }} : {% for part in turn['content'] %}"
    "{% if part['type'] == 'image' %}PLACE{% else %} {{ part['text'] }}{% endif %}{% endfor %} "
    "{% endfor %}{% if add_generation_prompt %}assistant :{% endif %}"
)
_SIDE = 32


def write(kind: str, folder: Path) -> Path:
    """A folder with config, weights and processor of a model of this kind."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, processor = _KINDS[kind]()
    # Small weights would leave little to choose between tokens, and little of the image.
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(12)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _tokenizer(special: list[str], more: dict[str, str] | None = None, **named: str) -> Any:
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [*special, *WORDS, *(f"w{number}" for number in range(19)), "Yes"]
    inner = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, special[-1]))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"unk_token": special[-1], "extra_special_tokens": more or {}} | named
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    made.add_special_tokens({"additional_special_tokens": special})
    return made


def _clip_images() -> Any:
    import transformers

    side = {"height": _SIDE, "width": _SIDE}
    return transformers.CLIPImageProcessor(
        size={"shortest_edge": _SIDE}, crop_size=side, do_center_crop=True
    )


def _llama(vocabulary: int) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
        "max_position_embeddings": 512,
    }  # fmt: skip


def _blip(head: str = "BlipForConditionalGeneration") -> tuple[Any, Any]:
    import transformers

    words = _tokenizer(
        ["[BOS]", "[SEP]", "[PAD]", "[CLS]", "[UNK]"],
        bos_token="[BOS]", sep_token="[SEP]", pad_token="[PAD]", cls_token="[CLS]",
    )  # fmt: skip
    text = {
        "vocab_size": len(words), "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "encoder_hidden_size": 16,
        "max_position_embeddings": 64, "bos_token_id": 0, "sep_token_id": 1, "pad_token_id": 2,
        "eos_token_id": 1, "projection_dim": 16,
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": _SIDE, "patch_size": 16, "projection_dim": 16,
        "initializer_range": 0.02,
    }  # fmt: skip
    config = transformers.BlipConfig(text_config=text, vision_config=vision, projection_dim=16)
    images = transformers.BlipImageProcessor(size={"height": _SIDE, "width": _SIDE})
    return (
        getattr(transformers, head)(config),
        transformers.BlipProcessor(images, words),
    )


def _flava() -> tuple[Any, Any]:
    import transformers

    words = _tokenizer(["[PAD]", "[CLS]", "[SEP]", "[UNK]"], pad_token="[PAD]", cls_token="[CLS]")
    size = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }  # fmt: skip
    config = transformers.FlavaConfig(
        text_config={**size, "vocab_size": len(words), "max_position_embeddings": 64},
        image_config={**size, "image_size": _SIDE, "patch_size": 16},
        multimodal_config=size,
        hidden_size=16, projection_dim=16, init_codebook=False,
    )  # fmt: skip
    side = {"height": _SIDE, "width": _SIDE}
    images = transformers.FlavaImageProcessor(size=side, crop_size=side)
    return transformers.FlavaForPreTraining(config), transformers.FlavaProcessor(images, words)


def _florence2() -> tuple[Any, Any]:
    import transformers

    words = _tokenizer(
        ["<s>", "</s>", "<pad>", "<image>", "<unk>"],
        {"image_token": "<image>"}, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
    )  # fmt: skip
    text = {
        "model_type": "bart", "vocab_size": len(words), "d_model": 16, "encoder_layers": 1,
        "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 256,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "decoder_start_token_id": 1,
        "forced_eos_token_id": 1,
    }  # fmt: skip
    vision = {
        "depths": [1, 1], "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1],
        "patch_prenorm": [False, True], "embed_dim": [8, 16], "num_heads": [2, 2],
        "num_groups": [2, 2], "window_size": 4, "projection_dim": 16,
    }  # fmt: skip
    config = transformers.Florence2Config(
        text_config=text, vision_config=vision, image_token_id=3, is_encoder_decoder=True
    )
    images = _clip_images()
    images.image_seq_length = (_SIDE // 8) ** 2 + 1
    return (
        transformers.Florence2ForConditionalGeneration(config),
        transformers.Florence2Processor(images, words),
    )


def _llava() -> tuple[Any, Any]:
    import transformers

    words = _tokenizer(
        ["<s>", "</s>", "<pad>", "<image>", "<unk>"],
        bos_token="<s>", eos_token="</s>", pad_token="<pad>",
    )  # fmt: skip
    vision = {
        "model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": _SIDE, "patch_size": 16,
        "projection_dim": 16,
    }  # fmt: skip
    config = transformers.LlavaConfig(
        text_config={"model_type": "llama", **_llama(len(words))},
        vision_config=vision,
        image_token_index=3,
        image_seq_length=4,
        vision_feature_layer=-1,
    )
    processor = transformers.LlavaProcessor(
        _clip_images(), words, patch_size=16, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=CHAT.replace("PLACE", "<image>"),
    )  # fmt: skip
    return transformers.LlavaForConditionalGeneration(config), processor


def _qwen(version: str) -> tuple[Any, Any]:
    import transformers

    place = "<|vision_start|><|image_pad|><|vision_end|>"
    special = ["<s>", "<|im_end|>", "<pad>", "<|vision_start|>", "<|vision_end|>"]
    words = _tokenizer(
        [*special, "<|image_pad|>", "<|video_pad|>", "<unk>"],
        bos_token="<s>", eos_token="<|im_end|>", pad_token="<pad>",
    )  # fmt: skip
    tokens = {"vision_start_token_id": 3, "vision_end_token_id": 4}
    tokens |= {"image_token_id": 5, "video_token_id": 6}
    rope = {"type": "mrope", "mrope_section": [1, 1, 2], "rope_type": "default"}
    text = {**_llama(len(words)), "rope_parameters": rope | {"rope_theta": 10_000.0}}
    vision = {"depth": 1, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2}
    if version == "Qwen2VL":
        vision |= {"embed_dim": 16, "hidden_size": 16, "mlp_ratio": 2}
    else:
        vision |= {"hidden_size": 16, "out_hidden_size": 16, "intermediate_size": 32}
        vision |= {"window_size": 56, "fullatt_block_indexes": [0]}
    config = getattr(transformers, f"{version}Config")(
        text_config=text, vision_config=vision, **tokens
    )
    sides = {"shortest_edge": 28 * 28, "longest_edge": 84 * 84}
    processor = getattr(transformers, f"{version}Processor")(
        transformers.Qwen2VLImageProcessor(size=sides), words,
        transformers.Qwen2VLVideoProcessor(size=sides),
        chat_template=CHAT.replace("PLACE", place),
    )  # fmt: skip
    return getattr(transformers, f"{version}ForConditionalGeneration")(config), processor


_KINDS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "blip": _blip,
    "florence2": _florence2,
    "llava": _llava,
    "qwen2_vl": lambda: _qwen("Qwen2VL"),
    "qwen2_5_vl": lambda: _qwen("Qwen2_5_VL"),
}
KINDS = tuple(_KINDS)
_KINDS |= {"flava": _flava, "blip_matching": lambda: _blip("BlipForImageTextRetrieval")}
