"""The shipped text decoder: a small T5 that writes a caption of a scene from one vector.

`python -m compo_scenes.base_model.decoder` trains it again. READ-CLIP's reconstruction reads its
decoder through a single state; pretrained ones know photographs' language, this one that of scenes.
The encoder is trained with it, to give it vectors to read, and is shipped because a T5 has one.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from compo_pipeline.core.progress import Meter
from compo_pipeline.core.seeding import rng
from compo_scenes import scenes_base
from compo_scenes.captions import sentences
from compo_scenes.world import World

SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
SCENES, STEPS, BATCH, RATE, WARMUP = 20_000, 2_500, 128, 3e-3, 100
WIDTH = 96


def captions(seed: int) -> list[str]:
    """First sentences of training scenes, the same for the same seed."""
    scenes = islice(World().scenes(seed, "train", "decoder"), SCENES)
    return [sentences(scene, rng(seed, "decoder", n))[0] for n, scene in enumerate(scenes)]


def tokenizer_of(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte pairs of the captions, so that any text has ids."""
    pairs = ByteLevelBPETokenizer(add_prefix_space=True)
    pairs.train_from_iterator(texts, vocab_size=512, special_tokens=list(SPECIAL.values()))
    end = SPECIAL["eos_token"]
    ended = TemplateProcessing(single=f"$A {end}", special_tokens=[(end, pairs.token_to_id(end))])
    pairs._tokenizer.post_processor = ended
    return PreTrainedTokenizerFast(tokenizer_object=pairs._tokenizer, **SPECIAL)


def loss_of(model: T5ForConditionalGeneration, ids: Tensor) -> Tensor:
    """Cross-entropy of captions that the decoder writes from the mean state of the encoder."""
    there = (ids != model.config.pad_token_id)[..., None]
    states = model.get_encoder()(ids, attention_mask=there[..., 0]).last_hidden_state
    pooled = F.rms_norm((states * there).sum(1, keepdim=True), states.shape[-1:])
    shifted = model.prepare_decoder_input_ids_from_labels(ids)
    logits = model(encoder_outputs=(pooled,), decoder_input_ids=shifted).logits
    loss: Tensor = F.cross_entropy(logits.mT, ids, ignore_index=model.config.pad_token_id)
    return loss


def train(seed: int = 0) -> tuple[T5ForConditionalGeneration, PreTrainedTokenizerFast]:
    """Train the decoder on captions of scenes, with the encoder that feeds it."""
    texts = captions(seed)
    tokenizer = tokenizer_of(texts)
    ids = tokenizer(texts, padding=True, return_tensors="pt")["input_ids"]
    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=WIDTH,
        d_kv=24,
        d_ff=2 * WIDTH,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    model = T5ForConditionalGeneration(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, total_steps=STEPS, pct_start=WARMUP / STEPS
    )
    with Meter(STEPS, "training the decoder") as meter:
        for _ in range(STEPS):
            loss = loss_of(model, ids[torch.randint(len(ids), (BATCH,))])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            meter.advance(loss=loss.item())
    return model.eval(), tokenizer


if __name__ == "__main__":
    trained, tokenizer = train()
    folder: Path = scenes_base() / "decoder"
    trained.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
