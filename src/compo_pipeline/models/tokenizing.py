"""A model's tokenizer: CLIP's own, files of Hugging Face's kind, or a repository of the hub.

The hub is the last resort, and is given up after ten seconds without an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from open_clip import SimpleTokenizer
from open_clip.tokenizer import HFTokenizer

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models import foreign, hub
from compo_pipeline.models.encoding import text_lengths
from compo_pipeline.models.sources import ModelSource
from compo_pipeline.models.weights import tokenizer_fingerprint

Tokenize = Callable[[list[str]], torch.Tensor]

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
# Files of a Hugging Face tokenizer; it needs one of the vocabularies.
_VOCABULARIES = (TOKENIZER_FILE, "*.model", "vocab.json", "vocab.txt")
_FILES = (
    *_VOCABULARIES,
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
)
_NEEDED = (
    f"{TOKENIZER_FILE} (or spiece.model, for which the package sentencepiece is needed), "
    f"{TOKENIZER_CONFIG} and, if it has one, special_tokens_map.json"
)
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def tokenizer(plan: ModelSource, text_cfg: Mapping[str, Any]) -> Tokenize:
    """Load a model's tokenizer: a callable from texts to token ids.

    Args:
        plan: plan of the model.
        text_cfg: `text_cfg` of open_clip's configuration. Its `tokenizer_kwargs` and context
            length hold for any tokenizer.

    Raises:
        SettingsError: the tokenizer cannot be had, or is not the model's; the message names the
            files to provide.
    """
    if text_cfg.get("hf_tokenizer_name"):
        tokenize = _hugging_face_tokenizer(plan, text_cfg)
    else:
        length, given = text_cfg.get("context_length", 77), text_cfg.get("tokenizer_kwargs", {})
        tokenize = _clip_tokenizer(json.dumps([length, given]))
    _check_tokenizer(plan, tokenize, text_cfg)
    return tokenize  # type: ignore[no-any-return]


@lru_cache(maxsize=4)
def _clip_tokenizer(settings: str) -> Any:
    """open_clip's own CLIP tokenizer with these settings, given as JSON, cached per process.

    Shared by the models of a process: reading its vocabulary takes as long as loading a small one.
    """
    length, given = json.loads(settings)
    return SimpleTokenizer(context_length=length, **given)


def _hugging_face_tokenizer(plan: ModelSource, text_cfg: Mapping[str, Any]) -> Any:
    """open_clip's wrapper around a Hugging Face tokenizer, loaded from a folder or the hub."""
    repository = str(text_cfg["hf_tokenizer_name"])
    folder = plan.folder or _tokenizer_from_hub(plan, repository)
    if not holds_tokenizer(folder):
        raise _missing_tokenizer(plan, f"{folder} holds no tokenizer", repository)
    foreign.refuse_code(folder, f"model '{plan.name}'")
    given = dict(text_cfg.get("tokenizer_kwargs", {}))
    if raw := given.get("clean") == "none":  # which open_clip does not know
        del given["clean"]
    try:
        tokenize = HFTokenizer(
            str(folder),
            context_length=text_cfg.get("context_length", 77),
            tokenizer_mode=text_cfg.get("tokenizer_mode"),
            trust_remote_code=False,
            **given,
        )
    except Exception as error:
        # The tokenizers' own reader raises a bare Exception on a broken file.
        reason = f"{folder} could not be read ({hub.reason(error)})"
        raise _missing_tokenizer(plan, reason, repository) from error
    if raw:
        tokenize.clean_fn = str
    if tokenize.tokenizer.pad_token is None:
        raise SettingsError(
            f"model '{plan.name}': {folder} does not say which token fills texts up; put its "
            f"{TOKENIZER_CONFIG} (pad_token) beside it"
        )
    return tokenize


def lost_tokens(tokenize: Any, texts: Sequence[str], ids: torch.Tensor) -> torch.Tensor:
    """Number of tokens of each text that truncation to the context length cuts off [K].

    Args:
        tokenize: open_clip tokenizer.
        texts: K texts.
        ids: token ids of the texts [K, T].
    """
    lost = torch.zeros(len(texts), dtype=torch.long)
    padding = int(tokenize([""])[0, -1])
    wide, rows = ids, _may_be_truncated(ids, padding).nonzero().flatten()
    long = [texts[row] for row in rows.tolist()]
    while _may_be_truncated(wide, padding).any():
        wide = tokenize(long, context_length=2 * wide.shape[1])
    if long:
        lost[rows] = text_lengths(wide, padding) - text_lengths(ids[rows], padding)
    return lost


def _may_be_truncated(ids: torch.Tensor, padding: int) -> torch.Tensor:
    """Mask [K] of the texts that may be truncated, by their last two token ids.

    SigLIP's tokenizer ends a cut text with what is padding, too.
    """
    return (ids[:, -2:] != padding).any(dim=1)


def holds_tokenizer(folder: Path) -> bool:
    """Whether a folder has the vocabulary of a Hugging Face tokenizer."""
    return any(any(folder.glob(pattern)) for pattern in _VOCABULARIES)


def _tokenizer_from_hub(plan: ModelSource, repository: str) -> Path:
    """Local folder with a hub repository's tokenizer, downloaded if it is not in the cache."""
    try:
        return hub.folder(repository, _FILES, holds_tokenizer)
    except Exception as error:
        reason = f"no download ({hub.reason(error)})"
        raise _missing_tokenizer(plan, reason, repository) from error


def _missing_tokenizer(plan: ModelSource, reason: str, repository: str) -> SettingsError:
    """The error to raise if a model's tokenizer is not available.

    It names the files to provide.
    """
    return SettingsError(
        f"model '{plan.name}': its tokenizer is not there: {reason}. Provide {_NEEDED} from the "
        f"repository {repository} in a folder and use compo-pipeline import-model <model> "
        "<new folder> --tokenizer <folder>"
    )


def _check_tokenizer(plan: ModelSource, tokenize: Any, text_cfg: Mapping[str, Any]) -> None:
    """Raise an error if a tokenizer has more tokens than the model, or other ids than recorded."""
    rows = int(text_cfg.get("vocab_size", 49408))
    words = (
        len(tokenize.encoder)
        if hasattr(tokenize, "encoder")
        else _embedding_rows(tokenize.tokenizer)
    )
    if words > rows:
        raise SettingsError(
            f"model '{plan.name}': the tokenizer has {words} tokens, the model embeds {rows}; "
            "import it with its own (compo-pipeline import-model, --tokenizer)"
        )
    recorded = plan.record.get("tokenizer_fingerprint")
    if recorded is not None and recorded != tokenizer_fingerprint(tokenize):
        raise SettingsError(
            f"model '{plan.name}': its tokenizer gives other token ids than the one it was "
            "exported with; restore its files"
        )


def _embedding_rows(inner: Any) -> int:
    """Number of rows that a tokenizer needs in a model's token embedding.

    T5's hundred sentinels, which SigLIP's tokenizer carries along beyond its model's rows, are
    written by no text.
    """
    roles = {getattr(inner, f"{role}_token_id", None) for role in _ROLES}
    special = {place for place, token in inner.added_tokens_decoder.items() if token.special}
    return 1 + int(max(set(inner.get_vocab().values()) - (special - roles)))
