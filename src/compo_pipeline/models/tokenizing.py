"""A model's tokenizer: CLIP's own, files of Hugging Face's kind, or a repository of the hub.

The hub is the last resort, and is given up after ten seconds without an answer.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from open_clip import SimpleTokenizer
from open_clip.tokenizer import HFTokenizer

from compo_pipeline.configuration import SettingsError, pip_install
from compo_pipeline.models import foreign, hub
from compo_pipeline.models.sources import ModelSource
from compo_pipeline.models.weights import tokenizer_fingerprint

Tokenize = Callable[[list[str]], torch.Tensor]

_TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
# Files of a Hugging Face tokenizer; it needs one of the vocabularies.
_VOCABULARIES = (_TOKENIZER, "*.model", "vocab.json", "vocab.txt")
_FILES = (*_VOCABULARIES, _CONFIG, "special_tokens_map.json", "added_tokens.json", "merges.txt")
# Names of the files that transformers writes for a tokenizer.
TOKENIZER_FILES = (
    _TOKENIZER,
    _CONFIG,
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
)
_NEEDED = (
    f"{_TOKENIZER} (or spiece.model, for which the package sentencepiece is needed), {_CONFIG} "
    "and, if it has one, special_tokens_map.json"
)
# SigLIP's texts are filled up with </s> (big_vision: pad_value=1), though <pad> is a token too.
_ENDS = {"pad_token": "</s>", "eos_token": "</s>"}
_OF_SIGLIP = ("timm/ViT-B-16-SigLIP", "timm/ViT-B-16-SigLIP-i18n-256")
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def tokenizer(plan: ModelSource, configured: str | None, text_cfg: dict[str, Any]) -> Tokenize:
    """The tokenizer of a model, noted in `text_cfg` for an export.

    Args:
        plan: of the model.
        configured: `model.tokenizer`: a folder of tokenizer files, or a tokenizer.json.
        text_cfg: open_clip's; its `tokenizer_kwargs` and context length hold for any tokenizer.

    Raises:
        SettingsError: the tokenizer cannot be had, or is not the model's; the message names the
            files to provide and the key.
    """
    if configured is None and not text_cfg.get("hf_tokenizer_name"):
        length, given = text_cfg.get("context_length", 77), text_cfg.get("tokenizer_kwargs", {})
        tokenize = _clips_own(json.dumps([length, given]))
    else:
        tokenize = _hugging_face(plan, configured, text_cfg)
    _check(plan, tokenize, text_cfg)
    return tokenize  # type: ignore[no-any-return]


@lru_cache(maxsize=4)
def _clips_own(settings: str) -> Any:
    """open_clip's tokenizer of a context length and further settings, as JSON.

    Shared by the models of a process: reading its vocabulary takes as long as loading a small one.
    """
    length, given = json.loads(settings)
    return SimpleTokenizer(context_length=length, **given)


def _hugging_face(plan: ModelSource, configured: str | None, text_cfg: dict[str, Any]) -> Any:
    """open_clip's wrapper around a tokenizer from files."""
    if find_spec("transformers") is None:
        raise SettingsError(
            f"model '{plan.name}': its tokenizer needs the package transformers: "
            f"{pip_install('siglip')}"
        )
    repository = text_cfg.get("hf_tokenizer_name")
    source = _source(plan, configured, repository)
    foreign.refuse_code(source, f"model '{plan.name}'")
    try:
        with _as_folder(source, _ENDS if repository in _OF_SIGLIP else {}) as folder:
            tokenize = HFTokenizer(
                str(folder),
                context_length=text_cfg.get("context_length", 77),
                tokenizer_mode=text_cfg.get("tokenizer_mode"),
                trust_remote_code=False,
                **text_cfg.get("tokenizer_kwargs", {}),
            )
    except Exception as error:
        # The tokenizers' own reader raises a bare Exception on a broken file.
        reason = f"{source} could not be read ({type(error).__name__}: {hub.first_line(error)})"
        raise _missing(plan, reason, repository) from error
    if tokenize.tokenizer.pad_token is None:
        raise SettingsError(
            f"model '{plan.name}': {source} does not say which token fills texts up; put its "
            f"{_CONFIG} (pad_token) beside it"
        )
    # An open_clip configuration without this entry means CLIP's own tokenizer.
    text_cfg["hf_tokenizer_name"] = repository or source.resolve().name
    return tokenize


@contextmanager
def _as_folder(source: Path, roles: Mapping[str, str]) -> Iterator[Path]:
    """A folder of tokenizer files; of a single file, one that names the tokens of these roles."""
    if source.is_dir():
        yield source
        return
    with TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(source, folder / _TOKENIZER)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **roles}
        (folder / _CONFIG).write_text(json.dumps(config), encoding="utf-8")
        yield folder


def _source(plan: ModelSource, configured: str | None, repository: str | None) -> Path:
    """The folder or file of the tokenizer; downloaded where nothing else is configured."""
    if configured is None:
        if plan.folder is None:
            return _from_hub(plan, str(repository))
        source = plan.folder
    else:
        source = Path(configured)
    if source.name == _TOKENIZER and (source.parent / _CONFIG).is_file():
        source = source.parent
    if not source.exists():
        raise _missing(plan, f"there is no {source} (seen from {Path.cwd()})", repository)
    if source.is_dir() and not _holds_tokenizer(source):
        raise _missing(plan, f"{source} holds no tokenizer", repository)
    return source


def _holds_tokenizer(folder: Path) -> bool:
    return any(any(folder.glob(pattern)) for pattern in _VOCABULARIES)


def _from_hub(plan: ModelSource, repository: str) -> Path:
    """Folder of a repository's tokenizer in the local cache, fetched if it is not there yet."""
    found = hub.cached(repository, _FILES)
    if found is None or not _holds_tokenizer(found):
        try:
            found = hub.download(repository, _FILES)
        except Exception as error:
            reason = f"no download ({type(error).__name__}: {hub.first_line(error)})"
            raise _missing(plan, reason, repository) from error
    if not _holds_tokenizer(found):
        raise _missing(plan, f"{repository} holds no tokenizer", repository)
    return found


def _missing(plan: ModelSource, reason: str, repository: str | None) -> SettingsError:
    whence = f" from the repository {repository}" if repository else ""
    return SettingsError(
        f"model '{plan.name}': its tokenizer is not there: {reason}. Provide {_NEEDED}{whence} in "
        "a folder and set model.tokenizer=<folder>"
    )


def _check(plan: ModelSource, tokenize: Any, text_cfg: Mapping[str, Any]) -> None:
    rows = int(text_cfg.get("vocab_size", 49408))
    words = len(tokenize.encoder) if hasattr(tokenize, "encoder") else _words(tokenize.tokenizer)
    if words > rows:
        raise SettingsError(
            f"model '{plan.name}': the tokenizer has {words} tokens, the model embeds {rows}; set "
            "model.tokenizer to the tokenizer that it was trained with"
        )
    recorded = plan.record.get("tokenizer_fingerprint")
    if recorded is not None and recorded != tokenizer_fingerprint(tokenize):
        raise SettingsError(
            f"model '{plan.name}': its tokenizer gives other token ids than the one it was "
            "exported with; set model.tokenizer to null or to that tokenizer's folder"
        )


def _words(inner: Any) -> int:
    """How many rows of an embedding a tokenizer asks for.

    T5's hundred sentinels, which SigLIP's tokenizer carries along beyond its model's rows, are
    written by no text.
    """
    roles = {getattr(inner, f"{role}_token_id", None) for role in _ROLES}
    special = {place for place, token in inner.added_tokens_decoder.items() if token.special}
    return 1 + int(max(set(inner.get_vocab().values()) - (special - roles)))
