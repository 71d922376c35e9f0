"""Scorers on tiny random models: they give what transformers gives, once for each pair."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tests.chat_server import Chat

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.scorers import check_scorer, load_scorer
from compo_pipeline.evaluation.settings import EvaluationSettings, ListedModel
from compo_pipeline.evaluation.suite import score_suite
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.pages.report import MARKDOWN, SUITE, suite_page
from compo_pipeline.registry.settings import SigningSettings
from compo_pipeline.registry.verification import open_models

CPU, SETTINGS = torch.device("cpu"), EvaluationSettings(device="cpu", image_batch=3)
TEXTS = ("a red dog", "the cat sits near the mat")
CLASSES = {"flava": "FlavaForPreTraining", "blip_matching": "BlipForImageTextRetrieval"}


@pytest.fixture
def images(tmp_path: Path) -> list[Image.Image]:
    """Three images of noise, as `<number>.png` too."""
    found = []
    for number in range(3):
        noise = np.random.default_rng(number).integers(0, 255, (40, 48, 3), dtype=np.uint8)
        found.append(Image.fromarray(noise))
        found[-1].save(tmp_path / f"{number}.png")
    return found


def entry(folder: Path, scorer: Any) -> ListedModel:
    return ListedModel(f"local-dir:{folder}", scorer=scorer)


def network(folder: Path, kind: str) -> tuple[Any, Any]:
    made = getattr(transformers, CLASSES.get(kind, "AutoModelForImageTextToText"))
    processor = transformers.AutoProcessor.from_pretrained(folder)
    return made.from_pretrained(folder, dtype=torch.float32).eval(), processor


@pytest.mark.parametrize("kind", CLASSES)
def test_a_matching_head_gives_the_probability_of_transformers(
    kind: str, vision_model: Callable[[str], Path], images: list[Image.Image], tmp_path: Path
) -> None:
    scorer: Any = load_scorer(entry(vision_model(kind), "matching"), "m", CPU, tmp_path)
    model, processor = network(vision_model(kind), kind)
    wanted = []
    for image in images:
        for text in TEXTS:
            with torch.inference_mode():
                rows = processor(images=image, text=text, return_tensors="pt")
                found = model(**rows, **({"return_loss": False} if kind == "flava" else {}))
            logits = found.itm_score if kind == "blip_matching" else found.itm_logits
            wanted.append(float(logits.softmax(1)[0, 1]))
    pairs = [(image, text) for image in images for text in TEXTS]
    # Together, and so with padding.
    assert scorer.score(*zip(*pairs, strict=True)) == pytest.approx(wanted, abs=1e-5)
    assert np.std(wanted) > 1e-3


@pytest.mark.parametrize("kind", CLASSES)
def test_towers_have_the_cosines_of_transformers(
    kind: str, vision_model: Callable[[str], Path], images: list[Image.Image], tmp_path: Path
) -> None:
    """With towers, every protocol can be scored, text alone and retrieval included."""
    loaded: Any = load_scorer(entry(vision_model(kind), "contrastive"), "m", CPU, tmp_path)
    items = tuple(Item(str(n), f"{n}.png", TEXTS[:1], TEXTS[1:]) for n in range(3))
    task = Subtask("sugar_crepe", "swap_obj", ("image_to_text",), tmp_path, items)
    embedded = Embedder([task], SETTINGS)(loaded, "m")
    model, processor = network(vision_model(kind), kind)
    for number, image in enumerate(images):
        for text in TEXTS:
            with torch.inference_mode():
                rows = processor(images=image, text=text, return_tensors="pt")
                if kind == "flava":
                    logits = model(**rows, return_loss=False).contrastive_logits_per_image
                    wanted = logits / model.flava.logit_scale.exp()
                else:
                    wanted = model(**rows, use_itm_head=False).itm_score
            rows = [embedded.images.places_of([[str(tmp_path / f"{number}.png")]])]
            cosine = embedded.similarities(rows[0], embedded.texts.places_of([[text]]))
            assert cosine.item() == pytest.approx(wanted.item(), abs=1e-5)


@pytest.mark.parametrize("kind", ["llava", "qwen2_vl"])
def test_vqascore_is_the_probability_that_the_answer_begins_with_yes(
    kind: str, vision_model: Callable[[str], Path], images: list[Image.Image], tmp_path: Path
) -> None:
    scorer: Any = load_scorer(entry(vision_model(kind), "vqascore"), "m", CPU, tmp_path)
    model, processor = network(vision_model(kind), kind)
    wanted = []
    for image, text in zip(images, (*TEXTS, "a dog"), strict=True):
        question = f'Does this figure show "{text}"? Please answer yes or no.'
        turn = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}
        asked = processor.apply_chat_template([turn], add_generation_prompt=True)
        with torch.inference_mode():
            rows = processor(images=[image], text=[asked], return_tensors="pt")
            last = model(**rows).logits[0, -1].double().softmax(0)
        wanted.append(float(last[processor.tokenizer.convert_tokens_to_ids("Yes")]))
    assert scorer.score(images, (*TEXTS, "a dog")) == pytest.approx(wanted, rel=1e-3)
    assert len(set(wanted)) == 3


def yes_or_no(turn: Any, number: int, body: dict[str, Any]) -> None:
    """P("Yes") is .9 about cats and .2 about others."""
    assert body["logprobs"] and body["max_tokens"] == 1
    likely = "cat" in body["messages"][0]["content"][0]["text"]
    first = [
        {"token": "Yes", "logprob": math.log(0.9 if likely else 0.2)},
        {"token": "No", "logprob": math.log(0.05)},
        {"token": "yes", "logprob": -math.inf},
    ]
    choice = {"message": {"content": "Yes"}, "finish_reason": "length"}
    choice["logprobs"] = {"content": [{"token": "Yes", "top_logprobs": first}]}
    turn.reply(200, json.dumps({"choices": [choice]}))


@pytest.fixture
def tasks(images: list[Image.Image], tmp_path: Path) -> list[Subtask]:
    """Items with a text-only part, and retrieval over the same images."""
    items = tuple(
        Item(str(n), f"{n}.png", (f"a cat {n}", f"the cat {n}"), (f"a dog {n}",)) for n in range(3)
    )
    gone = Item("gone", "gone.png", ("a cat", "the cat"), ("a dog",))
    both, recall = ("image_to_text", "text_only"), ("retrieval",)
    return [
        Subtask("sugar_crepe_pp", "swap_att", both, tmp_path, (*items, gone)),
        Subtask("coco", "clic", recall, tmp_path, items),
    ]


def test_a_page_of_clip_and_scorers(
    vision_model: Callable[[str], Path],
    tiny_model: Callable[..., Path],
    tasks: list[Subtask],
    chat: Chat,
    tmp_path: Path,
) -> None:
    chat.script = yes_or_no
    server = {"url": chat.url, "model": "m", "max_requests": 4, "connections": 1}
    listed = {
        "CLIP": ListedModel(f"local-dir:{tiny_model(0)}"),
        "BLIP": entry(vision_model("blip_matching"), "matching"),
        "chat": parse(ListedModel, {"scorer": "vqascore", "endpoint": server}),
        "FLAVA": entry(vision_model("flava"), "contrastive"),
    }

    def run(**models: ListedModel) -> Any:
        opened = open_models(models or listed, "cpu", SigningSettings(), tmp_path / "stored")
        return score_suite(tasks, opened, SETTINGS, BenchmarksSettings(), tmp_path / "stored")

    # A run that stops has lost no answer, and asks each pair once.
    for _ in range(2):
        with pytest.raises(SettingsError, match=r"chat\.endpoint\.max_requests: 4 requests"):
            run()
    scores, suite = run()
    assert len(chat.seen) == 9
    assert run()[1] == suite and len(chat.seen) == 9

    itt = next(row for row in suite.rows if (row.metric, row.name) == ("itt", "swap_att"))
    assert itt.values["chat"].value == 100 and itt.items == 3 and itt.skipped == 1
    assert [each.model for each in itt.differences] == ["BLIP", "chat", "FLAVA"]
    (first,) = (r for r in scores if (r.model, r.metric, r.item) == ("chat", "itt", "0"))
    assert first.similarities == pytest.approx((0.9, 0.9, 0.2))
    # What a scorer cannot be asked is no value, and said.
    for metric in ("tot", "i2t_r1", "t2i_r5"):
        row = next(row for row in suite.rows if row.metric == metric)
        assert row.values.keys() == {"CLIP", "FLAVA"}
        assert [each.model for each in row.differences] == ["FLAVA"]
    (said,) = (line for line in suite.left_out if line.startswith("BLIP: not measured"))
    assert "TOT" in said and "retrieval" in said and "zero-shot" not in said
    page = str(suite_page(suite, "t", {}).files(SUITE, MARKDOWN)[SUITE])
    assert "not measured" in page

    blip = transformers.BlipForImageTextRetrieval.from_pretrained(vision_model("blip_matching"))
    cost = suite.models["BLIP"].cost
    assert cost is not None and cost.parameters[1] == pytest.approx(blip.num_parameters() / 1e6)

    # A scorer may be the baseline.
    _, suite = run(BLIP=listed["BLIP"], CLIP=listed["CLIP"])
    tot = next(row for row in suite.rows if row.metric == "tot")
    assert tot.values.keys() == {"CLIP"} and tot.differences == () and tot.items == 4
    suite_page(suite, "t", {})


def test_a_server_without_log_probabilities_is_refused(
    chat: Chat, images: list[Image.Image], tmp_path: Path
) -> None:
    chat.script = lambda turn, number, body: turn.say("Yes")
    settings = parse(
        ListedModel, {"scorer": "vqascore", "endpoint": {"url": chat.url, "model": "m"}}
    )
    scorer: Any = load_scorer(settings, "chat", CPU, tmp_path)
    with pytest.raises(SettingsError, match=r"chat\.endpoint: .* no log-probabilities"):
        scorer.score(images[:1], TEXTS[:1])
    filtered = {"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}
    chat.script = lambda turn, number, body: turn.reply(200, json.dumps(filtered))
    with pytest.raises(SettingsError, match="no answer about 'a cat': .*content_filter"):
        scorer.score(images[:1], ("a cat",))
    # Nothing is stored that a better server would not be asked for.
    chat.script = yes_or_no
    assert scorer.score(images[:1], TEXTS[:1]) == pytest.approx([0.2])


SERVER = {"url": "http://localhost/v1", "model": "m"}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"scorer": "vqa"}, "scorer: .*'contrastive', 'matching' or 'vqascore'"),
        ({"scorer": "matching"}, "name: the scorer matching takes local-dir:"),
        ({"scorer": "matching", "name": "hf-hub:a/b"}, "name: .*got 'hf-hub:a/b'"),
        ({"scorer": "matching", "endpoint": SERVER}, "endpoint: the scorer vqascore alone"),
        ({"endpoint": SERVER}, "endpoint: the scorer vqascore alone"),
        ({"scorer": "vqascore", "name": "local-dir:x", "endpoint": SERVER}, "name: the model is"),
        ({"scorer": "matching", "name": "local-dir:x", "pretrained": "y"}, "pretrained: "),
    ],
)
def test_settings_that_do_not_fit_are_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        parse(ListedModel, given, "m")


def test_folders_of_other_models_are_refused(
    vision_model: Callable[[str], Path], plant_code: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=r"expects flava or blip, got 'llava'"):
        check_scorer(entry(vision_model("llava"), "matching"))
    with pytest.raises(SettingsError, match=r"got 'flava' .*config\.json"):
        check_scorer(entry(vision_model("flava"), "vqascore"))
    with pytest.raises(SettingsError, match=r"expected a folder of transformers"):
        check_scorer(entry(tmp_path, "matching"))
    with pytest.raises(SettingsError, match=r"m\.name: .* has no chat template"):
        load_scorer(entry(vision_model("blip"), "vqascore"), "m", CPU, tmp_path)
    # A captioner has no matching head; transformers would draw a random one.
    with pytest.raises(SettingsError, match=r"m\.name: .*lacks weights of BlipForImageTextRetr"):
        load_scorer(entry(vision_model("blip"), "matching"), "m", CPU, tmp_path)


def test_without_transformers_a_scorer_says_how_to_install_it(
    vision_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compo_pipeline.models.foreign.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"transformers: pip install .*siglip"):
        check_scorer(entry(vision_model("llava"), "vqascore"))


def test_coca_is_scored_by_its_towers(tmp_path: Path, images: list[Image.Image]) -> None:
    import open_clip
    from safetensors.torch import save_file

    from compo_pipeline.methods.clip import ClipObjective
    from compo_pipeline.methods.contract import NoViewSettings
    from compo_pipeline.methods.registry import build
    from compo_pipeline.models.encoding import embed
    from compo_pipeline.models.loading import load
    from compo_pipeline.training.optimisation import misfits
    from compo_pipeline.training.settings import OptimizerSettings, TrainingSettings

    config = open_clip.get_model_config("coca_ViT-B-32")
    assert config is not None
    small = {"width": 32, "layers": 1}
    config["embed_dim"] = 16
    config["vision_cfg"] |= {**small, "image_size": 32, "patch_size": 16, "head_width": 16}
    config["text_cfg"] |= {**small, "heads": 2}
    config["multimodal_cfg"] |= {**small, "heads": 2, "dim_head": 16}
    torch.manual_seed(0)
    model = open_clip.CoCa(**{k: v for k, v in config.items() if k != "custom_text"}).eval()
    assert model.text_decoder.text_projection is not None
    torch.nn.init.normal_(model.text_decoder.text_projection)  # open_clip leaves memory as it was
    own = {"model_cfg": config, "preprocess_cfg": {"size": [32, 32]}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(own))
    save_file(model.state_dict(), tmp_path / "open_clip_model.safetensors")
    loaded = load(ListedModel(f"local-dir:{tmp_path}"))
    assert isinstance(loaded, LoadedModel)
    found = embed(loaded, images, TEXTS)
    pixels = torch.stack([loaded.preprocess(image) for image in images])
    with torch.inference_mode():
        assert torch.allclose(found[0], model.encode_image(pixels), atol=1e-6)
        assert torch.allclose(found[1], model.encode_text(loaded.tokenize(list(TEXTS))), atol=1e-6)
    recipe = TrainingSettings(optimizer=OptimizerSettings(1, 1, 1), batch_size=2, epochs=1)
    line = next(
        misfits(loaded.model, "x", build("clip", NoViewSettings(), ClipObjective()), recipe)
    )
    assert line.startswith("model.name: 'x' is a CoCa model")
