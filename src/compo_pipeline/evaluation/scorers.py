"""Models that are not CLIP-like, for benchmarks alone: towers of FLAVA and BLIP, and scorers.

A scorer reads an image and a text together: an image-text matching head, or a chat model that is
asked whether the image shows the text (VQAScore, Lin et al., ECCV 2024). Its pairs are scored once
and stored, so that a run that was stopped continues.

n pairs, m images, K texts, T tokens, W width of a tower, D of the joint space, V tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor, nn

from compo_pipeline.benchmarks.items import ImagePlace, Subtask
from compo_pipeline.core.compute import in_order
from compo_pipeline.core.hashing import files_hash, files_in, hash_of
from compo_pipeline.core.progress import track
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.stores import KeyValueStore
from compo_pipeline.core.untrusted import shown
from compo_pipeline.data.images.decoding import ImageError
from compo_pipeline.data.images.decoding import load as load_image
from compo_pipeline.evaluation.embed import Embedded, Tokens, Vectors, pixels_hash
from compo_pipeline.evaluation.scoring import score_model
from compo_pipeline.evaluation.settings import EvaluationSettings, ListedModel
from compo_pipeline.generation.chat.endpoint import Ask, Endpoint, NoAnswer, request_body
from compo_pipeline.generation.chat.settings import EndpointSettings
from compo_pipeline.generation.recaption.captioners import (
    NO_SAMPLING,
    chat_text,
    data_uri,
    load_generator,
)
from compo_pipeline.models import foreign
from compo_pipeline.models.cost import ModelCost, millions
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.settings import LOCAL_PREFIX

QUESTION = 'Does this figure show "{}"? Please answer yes or no.'
"""VQAScore's question (github.com/linzhiqiu/t2v_metrics)."""
ANSWER = "Yes"
CHAT_FOLDER = "vqascore"
"""Folder beside the stored embeddings with the answers of servers."""
_TOP = 20  # tokens whose log-probabilities a server sends, at most
_MAX_SIDE = 1024  # of an image that is sent
_MOST_TOKENS = {"flava": 77, "blip": 512}  # of a text: FLAVA's pretraining, BLIP's positions
_CLASSES = {"flava": "FlavaForPreTraining", "blip": "BlipForImageTextRetrieval"}
# Parts of FLAVA that score no pair, which a folder may lack.
_UNUSED = ("image_codebook.", "mim_head.", "mlm_head.", "mmm_", "global_contrastive_head.")

Ints = NDArray[np.int64]


@runtime_checkable
class Scorer(Protocol):
    """A model that scores pairs of an image and a text."""

    @property
    def name(self) -> str:
        """Name in logs and reports."""

    @property
    def fingerprint(self) -> str:
        """Hash of all that the scores depend on."""

    @property
    def cost(self) -> ModelCost | None:
        """Number of parameters. None where it is not known."""

    def score(self, images: Sequence[Image], texts: Sequence[str]) -> list[float]:
        """Score of each of n pairs. The higher it is, the better the text fits the image.

        Raises:
            SettingsError: a pair has no score.
        """


def check_scorer(model: ListedModel) -> tuple[Path, str]:
    """Folder of a local scorer, and its type.

    Raises:
        SettingsError: the folder holds no model that can score so, or transformers is not
            installed.
    """
    foreign.require_transformers()
    folder = Path(model.name.removeprefix(LOCAL_PREFIX))
    config = folder / "config.json"
    if not config.is_file():
        raise SettingsError(
            f"expected a folder of transformers with config.json, model.safetensors and the "
            f"processor's files, got '{folder}'"
        )
    foreign.refuse_code(folder, str(folder))
    kind = str(foreign.read_object(config).get("model_type"))
    if model.scorer == "vqascore":
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as KNOWN,
        )

        expected = "a model of images and text to text, such as llava or qwen2_vl"
        expected += " (the authors' CLIP-FlanT5 is not in transformers)"
    else:
        KNOWN, expected = _CLASSES, "flava or blip"
    if kind not in KNOWN:
        raise SettingsError(
            f"the scorer {model.scorer} expects {expected}, got {kind!r} (model_type in {config})"
        )
    return folder, kind


def load_scorer(
    model: ListedModel, name: str, device: torch.device, store: Path
) -> LoadedModel | Scorer:
    """Load the model of a list entry that names a scorer.

    Args:
        model: the entry.
        name: its name in the list, for errors.
        device: device where the weights go.
        store: folder for the answers of a server.

    Raises:
        SettingsError: there is no such model.
    """
    if model.endpoint is not None:
        return EndpointVQA(model.endpoint, f"{name}.endpoint", store / CHAT_FOLDER)
    try:
        folder, kind = check_scorer(model)
    except SettingsError as error:
        raise SettingsError(f"{name}.name: {error.message}") from None
    key, own = f"{name}.name", f"{model.name} {model.scorer}"
    fingerprint = hash_of(files_hash(files_in(folder)), model.scorer, device.type)
    if model.scorer == "vqascore":
        network, processor, missing = load_generator(folder, key)
    else:
        network, processor, missing = foreign.load_transformers(
            folder, key, f"a {kind} model", _CLASSES[kind], "float32"
        )
    if lacking := sorted(each for each in missing if not each.startswith(_UNUSED)):
        raise SettingsError(
            f"{key}: '{folder}' lacks weights of {type(network).__name__} (such as {lacking[0]}); "
            "choose a checkpoint that was trained for it"
        )
    network.to(device)
    cost = ModelCost((0.0, millions(network)))
    if model.scorer == "contrastive":
        return _load_towers(network, processor, kind, own, fingerprint)
    if model.scorer == "matching":
        return MatchingHead(network, processor, kind, own, fingerprint, cost)
    return LocalVQA(network, processor, key, own, fingerprint, cost)


class Towers(nn.Module):
    """The two towers of FLAVA or BLIP, with the methods of open_clip's models.

    Args:
        network: FlavaForPreTraining or BlipForImageTextRetrieval.
        kind: flava or blip.
        padding: id of the token behind a text.
    """

    def __init__(self, network: Any, kind: str, padding: int) -> None:
        super().__init__()
        self.padding = padding
        if kind == "flava":
            own = network.flava
            self.visual, self.text = own.image_model, own.text_model
            self.image_projection, self.text_projection = own.image_projection, own.text_projection
        else:
            self.visual, self.text = network.vision_model, network.text_encoder
            self.image_projection, self.text_projection = network.vision_proj, network.text_proj

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Image embeddings [m, D] of pixels [m, 3, H, W]."""
        states = self.visual(pixel_values=pixels).last_hidden_state
        embeddings: Tensor = self.image_projection(states[:, 0])
        return embeddings

    def encode_text(self, tokens: Tensor) -> Tensor:
        """Text embeddings [K, D] of token ids [K, T]."""
        mask = (tokens != self.padding).long()
        longest = int(mask.sum(dim=1).max())
        states = self.text(tokens[:, :longest], attention_mask=mask[:, :longest]).last_hidden_state
        embeddings: Tensor = self.text_projection(states[:, 0])
        return embeddings


def _load_towers(
    network: Any, processor: Any, kind: str, name: str, fingerprint: str
) -> LoadedModel:
    """Two towers as a model that is embedded and scored as CLIP is."""
    images, tokenizer = processor.image_processor, processor.tokenizer
    length = _most_tokens(network, kind)

    def tokenize(texts: list[str], context_length: int = length) -> Tensor:
        given = {"padding": "max_length", "truncation": True, "max_length": context_length}
        ids: Tensor = tokenizer(list(texts), return_tensors="pt", **given)["input_ids"]
        return ids

    def preprocess(image: Image) -> Tensor:
        pixels: Tensor = images(images=image, return_tensors="pt")["pixel_values"][0]
        return pixels

    return LoadedModel(
        name=name,
        model=Towers(network, kind, tokenizer.pad_token_id).eval(),
        preprocess=preprocess,
        tokenize=tokenize,
        image_size=0,
        mean=tuple(images.image_mean),
        std=tuple(images.image_std),
        context_length=length,
        quick_gelu=False,
        image_fingerprint=f"{fingerprint} images",
        fingerprint=fingerprint,
        config={},
    )


def _most_tokens(network: Any, kind: str) -> int:
    """Number of tokens of the longest text that a model reads."""
    return min(_MOST_TOKENS[kind], int(network.config.text_config.max_position_embeddings))


@dataclass(frozen=True)
class MatchingHead:
    """The image-text matching head of FLAVA or BLIP: the probability that the text matches."""

    network: Any
    processor: Any
    kind: str
    name: str
    fingerprint: str
    cost: ModelCost

    @torch.inference_mode()
    def score(self, images: Sequence[Image], texts: Sequence[str]) -> list[float]:
        """Probability of a match of each of n pairs."""
        longest = _most_tokens(self.network, self.kind)
        limit = {"padding": True, "truncation": True, "max_length": longest}
        rows = self.processor(images=list(images), text=list(texts), return_tensors="pt", **limit)
        rows = rows.to(self.network.device)
        if self.kind == "flava":
            # Its head reads what is masked in pretraining; here nothing is.
            rows |= {"input_ids_masked": rows["input_ids"], "return_loss": False}
        # BLIP makes its mask of the image on the default device.
        with self.network.device:
            found = self.network(**rows)
        logits = found.itm_score if self.kind == "blip" else found.itm_logits  # [n, 2]
        return [float(each) for each in logits.double().softmax(dim=1)[:, 1]]


class LocalVQA:
    """VQAScore of a model in a folder: the probability that its answer begins with "Yes"."""

    def __init__(
        self, network: Any, processor: Any, key: str, name: str, fingerprint: str, cost: ModelCost
    ) -> None:
        self.network, self.processor, self.name, self.cost = network, processor, name, cost
        self.fingerprint = hash_of(fingerprint, QUESTION, ANSWER)
        tokenizer = processor.tokenizer
        self._yes = tokenizer.encode(ANSWER, add_special_tokens=False)[0]
        if self._yes == tokenizer.unk_token_id:
            raise SettingsError(f"{key}: the model's tokenizer does not know the answer '{ANSWER}'")

    @torch.inference_mode()
    def score(self, images: Sequence[Image], texts: Sequence[str]) -> list[float]:
        """Probability of "Yes" for each of n pairs."""
        asked = [chat_text(self.processor, QUESTION.format(text)) for text in texts]
        rows = self.processor(images=list(images), text=asked, padding=True, return_tensors="pt")
        rows = rows.to(self.network.device, self.network.dtype)  # integers stay as they are
        one_token = {"max_new_tokens": 1, "do_sample": False, "num_beams": 1, **NO_SAMPLING}
        answers = self.network.generate(
            **rows, **one_token, output_logits=True, return_dict_in_generate=True
        )
        chances = answers.logits[0].double().softmax(dim=-1)  # [n, V]
        return [float(each) for each in chances[:, self._yes]]


class EndpointVQA:
    """VQAScore of a chat model on a server: the probability that its answer begins with "Yes".

    It is 0 where "Yes" is not among the 20 likeliest tokens, as in the authors' code.
    """

    cost: ClassVar[ModelCost | None] = None

    def __init__(self, settings: EndpointSettings, key: str, store: Path) -> None:
        self._settings, self._key, self.name = settings, key, f"{settings.model} vqascore"
        self._endpoint = Endpoint(settings, key=key, cache=store / "endpoint.sqlite")
        self.fingerprint = hash_of(settings.url, self._request_body(""))

    def _request_body(self, text: str, *parts: Mapping[str, Any]) -> dict[str, Any]:
        """JSON body of the question about a text, with the parts that hold the image."""
        asked = {"type": "text", "text": QUESTION.format(text)}
        body = request_body(self._settings, [{"role": "user", "content": [asked, *parts]}], 0)
        wanted = {"max_tokens": 1, "logprobs": True, "top_logprobs": _TOP}
        return {**body, **wanted, **self._settings.more}

    def score(self, images: Sequence[Image], texts: Sequence[str]) -> list[float]:
        """Probability of "Yes" for each of n pairs."""
        found = []
        pairs = zip(images, texts, strict=True)
        for text, each in zip(texts, self._endpoint.each(self._ask_one, pairs), strict=True):
            if isinstance(each, NoAnswer):
                raise SettingsError(
                    f"{self._key}: no answer about {shown(text)}: {each}; answers so far are "
                    "stored: run it again, or leave the benchmark out"
                )
            found.append(each)
        return found

    def _ask_one(self, ask: Ask, pair: tuple[Image, str]) -> float:
        image, text = pair
        small = image.copy()
        small.thumbnail((_MAX_SIDE, _MAX_SIDE))
        part = {"type": "image_url", "image_url": {"url": data_uri(small)}}
        key = hash_of(self.fingerprint, pixels_hash(image), text)
        answer = ask(key, self._request_body(text, part))
        if answer.refusal:
            raise NoAnswer(answer.refusal)
        return sum(math.exp(chance) for token, chance in answer.first if token.strip() == ANSWER)


@dataclass(frozen=True, eq=False)
class PairScores(Embedded):
    """Scores of pairs of an image and a text, in place of embeddings.

    Attributes:
        scores: score of each pair by the number of its image, then of its text. Without scores,
            all are 0.
        asked: the pairs that were asked for, in blocks.
    """

    scores: tuple[Ints, NDArray[np.float64]] | None
    asked: list[Ints]
    unmeasured: ClassVar[Mapping[str, str]] = {
        "text_only": "text-only accuracy, TOT (it takes no text alone)",
        "retrieval": "retrieval (it would score every image with every caption)",
        "zero_shot": "zero-shot classification (it would score every image with every prompt)",
    }

    def similarities(self, images: Ints, texts: Ints) -> NDArray[np.floating]:
        """Scores of images and texts, given by their numbers in arrays that broadcast."""
        pairs = images * len(self.texts.index) + texts
        if self.scores is None:
            self.asked.append(np.unique(pairs))
            return np.zeros(pairs.shape)
        known, values = self.scores
        return values[known.searchsorted(pairs)]


def score_pairs(
    scorer: Scorer,
    name: str,
    subtasks: Sequence[Subtask],
    settings: EvaluationSettings,
    store: Path | None,
) -> PairScores:
    """Score every pair that the protocols of the subtasks compare, once.

    Args:
        scorer: the scorer.
        name: its name in progress lines.
        subtasks: everything that will be scored.
        settings: number of pairs scored at a time, threads that decode.
        store: folder of stored scores; None stores none.

    Raises:
        SettingsError: no image can be read, or a pair has no score.
    """
    places = {
        f"{place[0]}/{place[1]}": place
        for task in subtasks
        for item in task.items
        for place in task.image_locations(item)
    }
    texts = list(dict.fromkeys(text for task in subtasks for text in task.texts()))
    number = {text: row for row, text in enumerate(texts)}
    own = Tokens(torch.arange(len(texts))[:, None], np.zeros(len(texts), np.bool_), number)
    words = Vectors(np.empty((len(texts), 0), np.float32), number)
    # The protocols themselves say which pairs they need.
    paths = {path: row for row, path in enumerate(places)}
    trial = PairScores(Vectors(np.empty((0, 0), np.float32), paths), {}, words, own, None, [])
    score_model(subtasks, trial, name)
    wanted: dict[str, list[str]] = {}
    names = list(places)
    for pair in np.unique(np.concatenate(trial.asked)).tolist():
        image, text = divmod(pair, len(texts))
        wanted.setdefault(names[image], []).append(texts[text])

    known = KeyValueStore(store / "pairs.sqlite", float) if store else None
    rows: dict[str, int] = {}  # of distinct images, by the hash of their pixels
    index: dict[str, int] = {}
    unreadable: dict[str, str] = {}
    found: dict[int, float] = {}
    waiting: dict[int, tuple[str, Image, str]] = {}

    def flush() -> None:
        stored = known.get([key for key, *_ in waiting.values()]) if known else {}
        new = {at: each for at, each in waiting.items() if each[0] not in stored}
        found.update({at: stored[key] for at, (key, *_) in waiting.items() if key in stored})
        if new:
            _, images, chosen = zip(*new.values(), strict=True)
            scores = scorer.score(images, chosen)
            if not np.isfinite(scores).all():
                raise SettingsError(f"model: a score of '{name}' is not finite")
            found.update(zip(new, scores, strict=True))
            if known:
                known.put({key: found[at] for at, (key, *_) in new.items()})
        waiting.clear()

    chosen = {path: places[path] for path in wanted}
    images = _decode(chosen, settings.workers, 2 * settings.image_batch)
    for path, image in track(images, len(chosen), f"{name}: scoring pairs of images"):
        if isinstance(image, str):
            unreadable[path] = image
            continue
        pixels = pixels_hash(image)
        index[path] = rows.setdefault(pixels, len(rows))
        for text in wanted[path]:
            at = index[path] * len(texts) + number[text]
            if at not in found:
                key = hash_of(scorer.fingerprint, pixels, text)
                waiting[at] = key, image, text
            if len(waiting) == settings.image_batch:
                flush()
    flush()
    if not index:
        path, why = next(iter(unreadable.items()))
        raise SettingsError(f"benchmarks.images: no image can be read (such as {path}: {why})")
    keys = np.array(sorted(found), dtype=np.int64)
    scores = keys, np.array([found[key] for key in keys.tolist()])
    vectors = Vectors(np.empty((len(rows), 0), np.float32), index)
    return PairScores(vectors, unreadable, words, own, scores, [])


def _decode(
    places: Mapping[str, ImagePlace], workers: int, ahead: int
) -> Iterator[tuple[str, Image | str]]:
    """Yield the path of each image, and the image, or why it cannot be read."""

    def decode(place: ImagePlace) -> Image | str:
        try:
            return load_image(*place)
        except ImageError as error:
            return str(error)

    pool = ThreadPoolExecutor(workers)
    yield from zip(places, in_order(pool, decode, places.values(), ahead), strict=True)
