"""Convert an open_clip model's tokenizer and image transform to Hugging Face's formats.

K texts, T tokens.
"""

from __future__ import annotations

import string
from typing import Any

from open_clip.tokenizer import SimpleTokenizer, get_clean_fn

from compo_pipeline.models.loading import LoadedModel

# No attention mask: a text tower without a causal mask reads the padding too, and one with a causal
# mask pools before it.
_INPUTS = ["input_ids"]
START, END = "<|startoftext|>", "<|endoftext|>"
# What open_clip's cleaning (ftfy, then HTML entities, twice) changes in real captions.
_REPAIRED = (
    ("[\u02bc\u2018-\u201b]", "'"),
    ("[\u201c-\u201f]", '"'),
    ("&amp;", "&"),
    ("&amp;", "&"),
    ("&quot;|&#34;", '"'),
    ("&#0?39;|&apos;", "'"),
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&nbsp;", " "),
)


def image_processor(preprocess: dict[str, Any]) -> Any:
    """The CLIPImageProcessor of transformers for an open_clip preprocessing configuration."""
    from PIL.Image import Resampling
    from transformers import CLIPImageProcessor

    height, width = preprocess["size"]
    square = {"height": height, "width": width}
    mode = preprocess["resize_mode"]
    size = {
        "squash": square,
        "shortest": {"shortest_edge": height},
        "longest": {"max_height": height, "max_width": width},
    }[mode]
    bilinear = preprocess["interpolation"] == "bilinear"
    return CLIPImageProcessor(
        size=size,
        do_center_crop=mode != "squash",  # pads smaller images, too
        crop_size=square,
        resample=Resampling.BILINEAR if bilinear else Resampling.BICUBIC,
        image_mean=list(preprocess["mean"]),
        image_std=list(preprocess["std"]),
    )


def tokenizer(loaded: LoadedModel) -> Any:
    """Convert a model's tokenizer to transformers, including open_clip's cleaning of texts.

    A tokenizer without a tokenizer.json (sentencepiece's own) is given as it is.
    """
    from transformers import PreTrainedTokenizerFast

    built, inner = _build_tokenizer(loaded), _wrapped_tokenizer(loaded)
    if built is None:
        inner.model_max_length, inner.model_input_names = loaded.context_length, _INPUTS
        return inner
    if inner is None:
        roles = {"bos_token": START, "eos_token": END, "unk_token": END, "pad_token": END}
    else:
        tokens = inner.special_tokens_map.items()
        roles = {name: token for name, token in tokens if isinstance(token, str)}
        roles["padding_side"] = inner.padding_side
    fast: Any = PreTrainedTokenizerFast
    return fast(
        tokenizer_object=built,
        model_max_length=loaded.context_length,
        model_input_names=_INPUTS,
        **roles,
    )


def fast_tokenizer(loaded: LoadedModel) -> Any:
    """Object of the library `tokenizers` that gives a model's token ids [K, T], or None."""
    built, inner = _build_tokenizer(loaded), _wrapped_tokenizer(loaded)
    if built is None:
        return None
    pad, token = (0, "!") if inner is None else (inner.pad_token_id, inner.pad_token)
    built.enable_truncation(loaded.context_length)
    built.enable_padding(length=loaded.context_length, pad_id=pad, pad_token=token)
    return built


def _wrapped_tokenizer(loaded: LoadedModel) -> Any:
    """The transformers tokenizer that open_clip wraps, or None for CLIP's own tokenizer."""
    tokenize: Any = loaded.tokenize
    return None if isinstance(tokenize, SimpleTokenizer) else tokenize.tokenizer


def _build_tokenizer(loaded: LoadedModel) -> Any:
    """Object of the library `tokenizers` for a model, without truncation and padding, or None."""
    inner = _wrapped_tokenizer(loaded)
    if inner is None:
        return _clip_tokenizer(loaded)
    return _cleaning_tokenizer(loaded) if inner.is_fast else None


def _clip_tokenizer(loaded: LoadedModel) -> Any:
    """CLIP's tokenizer for the library `tokenizers`, built from open_clip's words and merges."""
    from transformers import CLIPTokenizer

    own: Any = loaded.tokenize
    vocabulary = {word: place for word, place in own.encoder.items() if place < own.sot_token_id}
    vocabulary |= {START: own.sot_token_id, END: own.eot_token_id}
    built = CLIPTokenizer(vocab=vocabulary, merges=list(own.bpe_ranks)).backend_tokenizer
    built.normalizer = _cleaning_normalizer("lower")
    return built


def _cleaning_tokenizer(loaded: LoadedModel) -> Any:
    """Tokenizer of the library `tokenizers` that cleans texts first, if its wrapper does."""
    from tokenizers import Tokenizer, normalizers

    wrapper: Any = loaded.tokenize
    built = Tokenizer.from_str(wrapper.tokenizer.backend_tokenizer.to_str())
    kinds = ("whitespace", "lower", "canonicalize")
    kind = next((kind for kind in kinds if wrapper.clean_fn is get_clean_fn(kind)), None)
    if kind is None:
        return built
    after = [] if built.normalizer is None else [built.normalizer]
    built.normalizer = normalizers.Sequence([_cleaning_normalizer(kind), *after])
    return built


def _cleaning_normalizer(kind: str) -> Any:
    """Normalizer (of `tokenizers`) for a kind of open_clip's text cleaning, save rare repairs."""
    from tokenizers import Regex, normalizers

    steps: list[Any] = [normalizers.Replace(Regex(found), by) for found, by in _REPAIRED]
    steps.append(normalizers.NFC())
    if kind == "canonicalize":
        steps.append(normalizers.Replace("_", " "))
        marks = "".join(f"\\{mark}" for mark in string.punctuation)
        steps.append(normalizers.Replace(Regex(f"[{marks}]"), ""))
    if kind != "whitespace":
        steps.append(normalizers.Lowercase())
    steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps)
