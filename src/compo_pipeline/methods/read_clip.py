"""READ: reconstruction of another caption by a frozen decoder, and alignment of paraphrases.

Both are added to NegCLIP (READ-CLIP) or to FSC-CLIP. A trained linear map makes a state of each
caption's embedding, the only one that a frozen sequence-to-sequence model's decoder reads to write
another caption of the image. The map and the decoder are of the training alone.

Source: "Enhancing Compositional Reasoning in CLIP via Reconstruction and Alignment of Text
Descriptions" (arXiv 2510.16540), and its authors' code, which has the weights and one direction of
the alignment, of paraphrases with captions. The code reads the text tower's state before its
projection; here it is the embedding, with its root mean square at 1.

Shapes: m rows of a batch, L tokens of the decoder's texts, D width of the joint space.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from compo_pipeline.core.hashing import files_hash, files_in
from compo_pipeline.core.records import Caption, View
from compo_pipeline.core.settings import SettingsError, settings
from compo_pipeline.core.tables import Groups, Table
from compo_pipeline.core.untrusted import listed
from compo_pipeline.language.paraphrases import paraphrase
from compo_pipeline.methods.contract import (
    HEAD,
    Collated,
    Encoder,
    Example,
    LossTerms,
    Objective,
    Preprocessor,
    Sampler,
    Term,
    ViewContext,
)
from compo_pipeline.methods.fsc_clip import FscClip, FscClipObjective
from compo_pipeline.methods.negclip import NegClip, TextNegatives
from compo_pipeline.models import foreign
from compo_pipeline.models.settings import BASES, SHIPPED

_IGNORED = -100  # label of padding
_TOKENIZER, _MODEL = "AutoTokenizer", "AutoModelForSeq2SeqLM"
_WHAT = "a sequence-to-sequence model of transformers (model.safetensors) and its tokenizer"
_FILES = {".safetensors", ".json", ".model", ".txt"}  # of weights and tokenizers
_LONGEST = 77  # tokens that the decoder writes, as the authors' code has it


@settings
class ReadSettings:
    """Settings of READ: weights of its losses, and the decoder."""

    reconstruction: NonNegativeFloat = 0.1
    """Weight of the decoder's cross-entropy of another caption; 0 leaves it out, and loads no
    decoder."""

    alignment: NonNegativeFloat = 0.5
    """Weight of the contrast of paraphrases with captions; 0 leaves it out."""

    decoder: str | None = None
    """Folder, or name in the local cache of the hub, of a sequence-to-sequence model of
    transformers with its tokenizer, in safetensors (the paper: google/t5-v1_1-large). Null is the
    small one that ships with the package, which knows the captions of rendered scenes alone."""


class ReadBatch(NamedTuple):
    """READ batch: m images with captions and up to K negatives, and two more texts of each."""

    images: Tensor  # [m, 3, H, W], or [m] rows of features
    texts: Tensor  # [m, K + 1, T], the caption first
    valid: Tensor  # [m, K] bool: the negative exists
    paraphrases: Tensor  # [m, T]
    labels: Tensor  # [m, L], ids of the text to reconstruct; -100 is none


class Reconstruction(nn.Module):
    """The trained map of embeddings to states of a frozen decoder, and the decoder.

    The decoder is no part of the module's state: it is neither trained nor saved.
    """

    def __init__(self, width: int, decoder: Any) -> None:
        super().__init__()
        self._decoder = (decoder,)
        self.map = nn.Linear(width, decoder.config.d_model, bias=False, device=decoder.device)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Negative log-likelihood [m, 1] of labels [m, L], given embeddings [m, D]."""
        (decoder,) = self._decoder
        states = self.map(F.rms_norm(embeddings, embeddings.shape[-1:]))[:, None]
        shifted = decoder.prepare_decoder_input_ids_from_labels(labels)
        logits = decoder(encoder_outputs=(states,), decoder_input_ids=shifted).logits.float()
        losses = F.cross_entropy(logits.mT, labels, ignore_index=_IGNORED, reduction="none")
        return losses.sum(1, keepdim=True)


@cache
def _load(key: str, place: str, kind: str) -> Any:
    """Load the decoder or its tokenizer."""
    if kind == _TOKENIZER:
        return foreign.from_pretrained(kind, place, key, _WHAT)
    options = {"use_safetensors": True, "output_loading_info": True}
    decoder, report = foreign.from_pretrained(kind, place, key, _WHAT, **options)
    if missing := report["missing_keys"]:  # transformers draws them at random
        raise SettingsError(
            f"{key}: the weights in '{place}' lack {listed(sorted(missing))}; expected {_WHAT}"
        )
    return decoder


class _Read(TextNegatives):
    """What READ adds to a method with hard negatives: views, batches and loss terms."""

    annotations = ("negatives", "positives")
    """Fields of an external table that views can use: negatives, positives as paraphrases."""

    @property
    def _settings(self) -> ReadSettings:
        own: ReadSettings = self.objective.read
        return own

    @property
    def _decoder(self) -> tuple[str, str]:
        """Key of the setting, and the folder or name."""
        place = self._settings.decoder or str(BASES[SHIPPED]() / "decoder")
        return f"{self.name}.objective.read.decoder", place

    @property
    def files(self) -> Mapping[str, str]:
        """Hash of the decoder's files, and of its tokenizer's."""
        if not self._settings.reconstruction:
            return {}
        from transformers.utils import cached_file  # seconds

        place = _load(*self._decoder, _MODEL).name_or_path
        config = cached_file(place, "config.json", local_files_only=True)
        return {"decoder": files_hash(files_in(Path(config).parent, _FILES))}

    def check_base(self, name: str) -> None:
        """Load the decoder and its tokenizer; the shipped one is for the shipped base alone."""
        if not self._settings.reconstruction:
            return
        if self._settings.decoder is None and name != SHIPPED:
            raise SettingsError(
                f"{self.name}.objective.read.decoder: the shipped decoder knows captions of scenes "
                f"alone, for the base {SHIPPED}, not '{name}'; expected the folder of another one "
                "(the paper: google/t5-v1_1-large), or a weight of 0 at reconstruction"
            )
        tokenizer, decoder = _load(*self._decoder, _TOKENIZER), _load(*self._decoder, _MODEL)
        ids = tokenizer("a red cat")["input_ids"]
        # Of a folder without a tokenizer's files transformers makes an empty one.
        if not ids or tokenizer.unk_token_id in ids or max(ids) >= decoder.config.vocab_size:
            key, place = self._decoder
            raise SettingsError(
                f"{key}: the tokenizer in '{place}' has no words of the model; expected {_WHAT}"
            )

    def extend(self, model: nn.Module, name: str) -> Callable[[], None]:
        """Add the map and the decoder; the function that it returns removes them."""
        if not self._settings.reconstruction:
            return super().extend(model, name)
        self.check_base(name)
        shared: Any = model
        device = shared.logit_scale.device
        decoder = _load(*self._decoder, _MODEL).float().eval().requires_grad_(False)
        with torch.no_grad():
            some = torch.ones(1, shared.context_length, dtype=torch.long, device=device)
            width = shared.encode_text(some).shape[-1]
        model.add_module(HEAD, Reconstruction(width, decoder.to(device)))
        return lambda: delattr(model, HEAD)

    def sampler(self, captions: Sequence[Caption], context: ViewContext) -> Sampler:
        """A function from a caption to its view: with another caption, and a paraphrase.

        The first is another one of the image, the second one of these, of the table or the rule;
        either is the caption itself where there is none. In place of the first stands a paraphrase
        where the image has no other caption.
        """
        draw = super().sampler(captions, context)
        of_image = Groups(Table.of(captions, Caption), "image_id")

        def view(caption: Caption) -> View | None:
            drawn, rng = draw(caption), context.rng("read", caption)
            own = caption.sentences[0]
            others = [row.sentences[0] for row in of_image[caption.image_id]]
            if "positives" in context.annotations.contents:
                written = [*context.annotations.positives(caption.sample_id)]
            else:
                made = paraphrase(context.parses[caption.sample_id], rng)
                written = [made.text] if made else []
            others = [text for text in others if text != own]
            target, other = (
                rng.choice(some or [own]) for some in (others or written, others + written)
            )
            return replace(drawn, positives=(own, target, other)) if drawn else None

        return view

    def collate(
        self, examples: Sequence[Example], step: int, preprocessor: Preprocessor
    ) -> Collated:
        """Batch of images, captions, hard negatives, paraphrases and texts to reconstruct."""
        (images, texts, valid), counts = super().collate(examples, step, preprocessor)
        # A long view has its whole caption in all places.
        _, targets, others = zip(*(example.view.positives for example in examples), strict=True)
        paraphrases = preprocessor.tokens([text.lower() for text in others])
        own = (paraphrases == texts[:, 0]).all(-1)
        labels = torch.empty(len(targets), 0, dtype=torch.long)
        if self._settings.reconstruction:
            tokenizer = _load(*self._decoder, _TOKENIZER)
            padded = {"padding": True, "truncation": True, "max_length": _LONGEST}
            found = tokenizer(list(targets), return_tensors="pt", **padded)
            labels = found["input_ids"].masked_fill(found["attention_mask"] == 0, _IGNORED)
        batch = ReadBatch(images, texts, valid, paraphrases, labels)
        return Collated(batch, {**counts, "rows without a paraphrase": int(own.sum())})

    def further_terms(self, encoder: Encoder, batch: ReadBatch, captions: Tensor) -> LossTerms:
        """Reconstruction of another caption, a mean over tokens, and alignment of paraphrases."""
        own, terms = self._settings, {}
        if own.reconstruction:
            losses, tokens = encoder.head(captions, batch.labels), batch.labels != _IGNORED
            terms["reconstruction"] = Term(losses.sum() / tokens.sum(), own.reconstruction)
        if own.alignment:
            logits = encoder.scale * encoder.texts(batch.paraphrases) @ captions.T
            target = torch.arange(len(logits), device=logits.device)
            terms["alignment"] = Term(F.cross_entropy(logits, target), own.alignment)
        return terms


@settings
class ReadClipObjective(Objective):
    """Settings of READ-CLIP's training: READ's losses and decoder, and trained towers."""

    read: ReadSettings = ReadSettings()
    """Losses and decoder of READ."""


class ReadClip(_Read, NegClip):
    """The READ-CLIP method: NegCLIP, and reconstruction and alignment of texts."""

    name = "read_clip"
    objective_type = ReadClipObjective


@settings
class ReadFscClipObjective(FscClipObjective):
    """Settings of FSC-CLIP with READ: also READ's losses and decoder."""

    read: ReadSettings = ReadSettings()
    """Losses and decoder of READ."""


class ReadFscClip(_Read, FscClip):
    """FSC-CLIP, and READ's reconstruction and alignment of texts."""

    name = "read_fsc_clip"
    objective_type = ReadFscClipObjective
