"""READ on NegCLIP and FSC-CLIP: the texts of a view, both losses, and the decoder's folder."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.methods.conftest import Embeddings
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.modeling_outputs import BaseModelOutput

from compo_pipeline.core.records import Caption, Parse
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.losses.negclip import negclip
from compo_pipeline.methods.contract import HEAD, ViewContext
from compo_pipeline.methods.read_clip import ReadBatch, ReadClip
from compo_pipeline.methods.registry import build
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import SHIPPED
from compo_scenes import scenes_base

DECODER = scenes_base() / "decoder"
TEXTS = ["A red cat sits on a brown dog.", "There is a small ball.", "A dog."]


def built(**read: Any) -> ReadClip:
    found = build("read_clip", {}, {"read": read})
    assert isinstance(found, ReadClip)
    return found


def test_a_view_has_another_caption_of_its_image_and_a_paraphrase(
    caption: Callable[..., Caption], tagged: Callable[[str], Parse]
) -> None:
    """Of an image with one caption, that of the rule is both; without either, its own."""
    rows = [
        caption("one", "A cat and a dog.", image="shared"),
        caption("two", "Two animals sit.", image="shared"),
        caption("alone", "A cat and a dog."),
        caption("bare", "Nothing."),
    ]
    pair = "[ A/DET/DT cat/NOUN/NN ] and/CCONJ/CC [ a/DET/DT dog/NOUN/NN ] _./PUNCT/."
    parses = {"one": tagged(pair), "alone": tagged(pair)}
    parses |= {"two": tagged("Two/NUM/CD animals/NOUN/NNS sit/VERB/VBP _./PUNCT/.")}
    parses |= {"bare": tagged("Nothing/PRON/NN _./PUNCT/.")}
    swapped, drawn = "A dog and a cat.", [set[str](), set[str](), set[str](), set[str]()]
    for seed in range(20):
        for number, view in enumerate(built().views(rows, ViewContext(parses, "", seed, 0))):
            own, target, other = view.positives
            assert own == rows[number].sentences[0]
            drawn[number] |= {f"target: {target}", f"other: {other}"}
    assert drawn[0] == {
        *("target: Two animals sit.", "other: Two animals sit.", f"other: {swapped}")
    }
    assert drawn[2] == {f"target: {swapped}", f"other: {swapped}"}
    assert drawn[3] == {"target: Nothing.", "other: Nothing."}


def test_the_losses_are_transformers_own_and_the_papers(tiny_clip: Path) -> None:
    """Reconstruction: the cross-entropy of the library's model, which ignores the padding."""
    method, tiny = built(), load(tiny_clip)
    method.extend(tiny.model, SHIPPED)
    model = AutoModelForSeq2SeqLM.from_pretrained(DECODER).float().eval()
    width, m = 16, 3
    draw = torch.Generator().manual_seed(0)
    texts = F.normalize(torch.randn(3 * m, width, generator=draw), dim=-1)
    head = getattr(tiny.model, HEAD)
    head.map = torch.nn.Linear(width, model.config.d_model, bias=False)
    encoder: Any = Embeddings(texts[:m].roll(1, 0), texts, 4.0)
    encoder.head = head
    tokenizer = AutoTokenizer.from_pretrained(DECODER)
    ids = tokenizer(TEXTS, padding=True, return_tensors="pt")
    labels = ids["input_ids"].masked_fill(ids["attention_mask"] == 0, -100)
    tokens = torch.arange(3 * m).view(-1, 1)
    valid = torch.ones(m, 1, dtype=torch.bool)
    pairs = tokens[: 2 * m].view(m, 2, 1)
    batch = ReadBatch(torch.arange(m), pairs, valid, tokens[2 * m :], labels)
    terms = method.loss(encoder, batch)

    captions, paraphrases = texts[: 2 * m : 2], texts[2 * m :]
    own = negclip(encoder.image_table, captions, texts[1 : 2 * m : 2], valid[:, 0], encoder.scale)
    assert terms["negclip"].value.item() == pytest.approx(own.item(), rel=1e-6)
    states = head.map(captions * width**0.5)[:, None]
    read = model(encoder_outputs=BaseModelOutput(states), labels=labels)
    assert terms["reconstruction"].value.item() == pytest.approx(read.loss.item(), rel=1e-5)
    wanted = 0.0
    for row in range(m):
        shares = (4.0 * captions @ paraphrases[row]).exp()
        wanted -= float((shares[row] / shares.sum()).log()) / m
    assert terms["alignment"].value.item() == pytest.approx(wanted, rel=1e-5)
    assert [terms[name].weight for name in ("reconstruction", "alignment")] == [0.1, 0.5]


def test_the_shipped_decoder_reads_one_vector() -> None:
    """From its encoder's mean state it writes captions of scenes that it was not trained on."""
    model = AutoModelForSeq2SeqLM.from_pretrained(DECODER).float().eval()
    ids = AutoTokenizer.from_pretrained(DECODER)(
        ["A large red ball next to a green box.", "There is a striped star above a pink moon."],
        padding=True,
        return_tensors="pt",
    )
    there = ids["attention_mask"][..., None]
    states = model.get_encoder()(ids["input_ids"], ids["attention_mask"]).last_hidden_state
    mean = F.rms_norm((states * there).sum(1, keepdim=True), states.shape[-1:])
    labels = ids["input_ids"].masked_fill(there[..., 0] == 0, -100)
    right = model(encoder_outputs=BaseModelOutput(mean), labels=labels).loss
    wrong = model(encoder_outputs=BaseModelOutput(mean.flip(0)), labels=labels).loss
    assert right < 0.3 and wrong > 4 * right


def test_a_decoder_that_is_not_whole_is_an_error_of_one_line(tmp_path: Path) -> None:
    """Transformers would draw a missing layer at random, and make a tokenizer without words."""
    for name, removed, changes in (
        ("empty", "*", None),
        ("pickle", "model.safetensors", None),
        ("layer", "", {"num_decoder_layers": 3}),
        ("tokenizer", "tokenizer*", None),
        ("list", "", []),
    ):
        folder = copytree(DECODER, tmp_path / name)
        for file in folder.glob(removed) if removed else ():
            file.unlink()
        if changes is not None:
            config = folder / "config.json"
            found = {**json.loads(config.read_text()), **changes} if changes else changes
            config.write_text(json.dumps(found))
        line = rf"^read_clip\.objective\.read\.decoder: [^\n]*'{folder}'[^\n]*$"
        with pytest.raises(SettingsError, match=line):
            built(decoder=str(folder)).check_base("")
    built(decoder=str(folder), reconstruction=0).check_base("")


def test_a_rule_that_is_listed_again_draws_again(
    caption: Callable[..., Caption], tagged: Callable[[str], Parse]
) -> None:
    parse = tagged(
        "[ A/DET/DT red/ADJ/JJ cat/NOUN/NN ] sits/VERB/VBZ on/ADP/IN "
        "[ a/DET/DT brown/ADJ/JJ dog/NOUN/NN ] _./PUNCT/."
    )
    rows, drawn = [caption("one", parse.text)], list[tuple[str | None, ...]]()
    for seed in range(5):
        context = ViewContext({"one": parse}, "", seed, 0)
        once, thrice = (
            next(build("read_clip", {"generators": ["negclip"] * n}).views(rows, context))
            for n in (1, 3)
        )
        assert thrice.negatives[:1] == once.negatives
        drawn.append(thrice.negatives)
    assert any(len(set(negatives)) > 1 for negatives in drawn)
