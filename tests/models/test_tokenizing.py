"""Tokenizers from files, from the hub's cache and from the hub; what is missing is named."""

import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models import hub
from compo_pipeline.models.importing import with_tokenizer
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.sources import ModelSource
from compo_pipeline.models.tokenizing import Tokenize, tokenizer

transformers = pytest.importorskip("transformers")

REPOSITORY = "timm/ViT-B-16-SigLIP"
SIGLIP: dict[str, Any] = {
    "context_length": 8,
    "vocab_size": 48,
    "hf_tokenizer_name": REPOSITORY,
    "tokenizer_kwargs": {"clean": "canonicalize"},
}
TEXTS = ["A RED,  cube!", "a ox?"]
# Three special tokens, nine pieces, then the letters; </s> ends a text and fills it up.
IDS = [[4, 6, 8, 1, 1, 1, 1, 1], [4, 3, 26, 35, 1, 1, 1, 1]]


def plan(folder: Path | None = None, **record: Any) -> ModelSource:
    return ModelSource("tiny", folder, {}, {}, None, record)


def siglips(folder: Path | None) -> Tokenize:
    return tokenizer(plan(folder), SIGLIP)


def configured(folder: Path, text_cfg: dict[str, Any]) -> Tokenize:
    """The tokenizer that an import takes from a folder."""
    parts = ModelSource("tiny", None, {"text_cfg": {**text_cfg}}, {}, None, {})
    parts = with_tokenizer(parts, folder)
    return tokenizer(parts, parts.model_cfg["text_cfg"])


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """No network, and nobody waits for it; gives the empty cache of the hub's files."""

    def unreachable(*args: object, **kwargs: object) -> None:
        raise socket.gaierror("no such host")

    waits: list[float] = []
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    yield tmp_path / "hub"
    assert not waits


def keep(cache: Path, files: Path | None = None) -> None:
    """Leave a repository's files in the cache as the hub's library would."""
    folder = cache / f"models--{REPOSITORY.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    (snapshot / "open_clip_model.safetensors").touch()
    if files is not None:
        shutil.copytree(files, snapshot, dirs_exist_ok=True)


@pytest.mark.parametrize("relative", [False, True])
def test_a_local_folder(
    siglip_tokenizer: Path, monkeypatch: pytest.MonkeyPatch, cut_off: Path, relative: bool
) -> None:
    """Cleaned as open_clip says, cut and filled up to the model's length."""
    monkeypatch.chdir(siglip_tokenizer.parent)
    folder = Path(siglip_tokenizer.name) if relative else siglip_tokenizer
    tokenize = configured(folder, SIGLIP)
    assert tokenize(TEXTS).tolist() == IDS
    assert tokenize(["red " * 20]).tolist() == [[6] * 7 + [1]], "</s> stays where a text is cut"


def test_a_tokenizer_that_names_no_padding_is_refused(
    siglip_tokenizer: Path, tmp_path: Path
) -> None:
    shutil.copy(siglip_tokenizer / "tokenizer.json", tmp_path)
    described = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(described))
    with pytest.raises(SettingsError, match="does not say which token fills texts up"):
        configured(tmp_path, SIGLIP)


def test_open_clips_own_arguments_hold_for_local_files(tmp_path: Path) -> None:
    """CLIPA's: [SEP] is taken away, and nothing else is cleaned but spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {"[PAD]": 0, "[SEP]": 1, "[UNK]": 2, "Red": 3, ",": 4}
    inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing("$A [SEP]", special_tokens=[("[SEP]", 1)])
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", sep_token="[SEP]", unk_token="[UNK]"
    )
    wrapped.save_pretrained(tmp_path)
    text_cfg: dict[str, Any] = {"context_length": 4, "hf_tokenizer_name": "x"}
    stripped = {**text_cfg, "tokenizer_kwargs": {"strip_sep_token": True}}
    assert tokenizer(plan(tmp_path), stripped)([" Red,"]).tolist() == [[3, 4, 0, 0]]
    plain = tokenizer(plan(tmp_path), text_cfg)
    assert plain([" Red,"]).tolist() == [[3, 4, 1, 0]]


def with_sentinels(source: Path, folder: Path) -> Path:
    """The tokenizer with a hundred sentinels after its 48 pieces, as T5's own has."""
    shutil.copytree(source, folder)
    path = folder / "tokenizer_config.json"
    names = [f"<extra_id_{number}>" for number in range(100)]
    extra = {"extra_ids": 100, "additional_special_tokens": names}
    path.write_text(json.dumps(json.loads(path.read_text()) | extra))
    return folder


def test_sentinels_beyond_the_models_rows_are_no_words(
    siglip_tokenizer: Path, tmp_path: Path
) -> None:
    """SigLIP embeds 32000 pieces and its tokenizer knows 32100."""
    folder = with_sentinels(siglip_tokenizer, tmp_path / "sentinels")
    tokenize: Any = siglips(folder)
    assert len(tokenize.tokenizer) == 148
    assert tokenize(TEXTS).tolist() == IDS
    with pytest.raises(SettingsError, match="has 48 tokens, the model embeds 47"):
        tokenizer(plan(folder), {**SIGLIP, "vocab_size": 47})


def test_a_sentencepiece_model_gives_its_own_ids(siglip_tokenizer: Path, tmp_path: Path) -> None:
    """Ligatures and wide letters included, which its normalisation rules resolve."""
    sentencepiece = pytest.importorskip("sentencepiece")
    corpus = ["a red cube on the left", "two small blue spheres", "the café of a dog, fine"] * 9
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus),
        model_prefix=str(tmp_path / "spiece"),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
    )
    shutil.copy(siglip_tokenizer / "tokenizer_config.json", tmp_path)
    tokenize = tokenizer(plan(tmp_path), {**SIGLIP, "vocab_size": 60, "context_length": 40})
    plain = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    for text in ("a red cube", "two cafés left of ﬁne ｓpheres"):
        ids = plain.encode(text)
        assert tokenize([text])[0].tolist() == ids + [1] * (40 - len(ids))


@pytest.mark.parametrize("vocabulary", [None, "spiece.model"])
def test_missing_files_are_named_with_the_command(tmp_path: Path, vocabulary: str | None) -> None:
    """The folder that the model came in is empty, or not readable."""
    folder = tmp_path / "files"
    folder.mkdir()
    if vocabulary:
        (folder / vocabulary).write_bytes(b"nothing")
    with pytest.raises(SettingsError) as refusal:
        siglips(folder)
    message = str(refusal.value)
    problem = "could not be read" if vocabulary else "holds no tokenizer"
    assert f"model 'tiny': its tokenizer is not there: {folder} {problem}" in message
    for named in ("tokenizer.json (or spiece.model, ", "tokenizer_config.json", REPOSITORY):
        assert named in message
    assert message.endswith("import-model <model> <new folder> --tokenizer <folder>")


def test_a_path_that_leads_nowhere_is_no_repository(cut_off: Path) -> None:
    with pytest.raises(SettingsError, match=r"no folder tokenizers/siglip \(seen from /"):
        configured(Path("tokenizers/siglip"), SIGLIP)


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_without_the_hub_the_files_to_fetch_are_named_at_once(
    cut_off: Path, monkeypatch: pytest.MonkeyPatch, offline: bool, weights: bool
) -> None:
    """No host answers, or none may be asked; the model's weights alone may be in the cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    if weights:
        keep(cut_off)
    with pytest.raises(SettingsError) as refusal:
        siglips(None)
    message = str(refusal.value)
    assert "no download (" in message
    assert (
        f"tokenizer_config.json and, if it has one, special_tokens_map.json from the repository "
        f"{REPOSITORY} in a folder and use compo-pipeline import-model" in message
    )


def test_a_silent_hub_is_given_up(cut_off: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the question and never answers."""
    monkeypatch.undo()
    monkeypatch.setattr("compo_pipeline.models.hub._TIMEOUT", 0.2)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cut_off))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        elsewhere = partialmethod(huggingface_hub.HfApi.__init__, endpoint=address)
        monkeypatch.setattr(huggingface_hub.HfApi, "__init__", elsewhere)
        # Else the test would wait as long as the client.
        giving_up = threading.Timer(60, silent.close)
        giving_up.start()
        try:
            with pytest.raises(SettingsError, match="no download .*Timeout"):
                siglips(None)
            assert giving_up.is_alive()
        finally:
            giving_up.cancel()


def test_a_cached_tokenizer_needs_no_hub(cut_off: Path, siglip_tokenizer: Path) -> None:
    keep(cut_off, siglip_tokenizer)
    assert siglips(None)(TEXTS).tolist() == IDS


def test_cached_weights_need_no_hub(cut_off: Path) -> None:
    """Whatever else of their repository is not there: a listing of it may name more."""
    keep(cut_off)
    found = hub.cached_file(REPOSITORY, ("pytorch_model.bin", "open_clip_model.safetensors"))
    assert found is not None and found.name == "open_clip_model.safetensors"
    assert hub.cached_file(REPOSITORY, ("pytorch_model.bin",)) is None
    with pytest.raises(SettingsError, match="its tokenizer is not there"):  # but the weights are
        load(ModelSettings("ViT-B-16-SigLIP", "webli"))
