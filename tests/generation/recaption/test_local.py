"""The captioner with a model of its own, on tiny random ones: it writes what transformers does."""

import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.vision_models import KINDS

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.images.decoding import Limits
from compo_pipeline.generation.chat.answers import Answer
from compo_pipeline.generation.chat.endpoint import NoAnswer
from compo_pipeline.generation.recaption.captioners import LocalCaptioner, Question, shown_image
from compo_pipeline.generation.recaption.settings import LocalCaptionerSettings, RecaptionSettings

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
KEY = r"recaption\.transformers"
PROMPT = "describe the image"
TOKENS = 12
SIZES = [(64, 48), (48, 90), (33, 33)]


@pytest.fixture
def captioner(tmp_path: Path) -> Callable[..., LocalCaptioner]:
    def make(folder: Path, prompt: str = PROMPT, **own: Any) -> LocalCaptioner:
        settings = RecaptionSettings(prompt=prompt)
        given = {"max_tokens": TOKENS, "batch_size": 2, **own}
        local = LocalCaptionerSettings(folder=str(folder), **given)
        return LocalCaptioner(settings, local, tmp_path / "state")

    return make


@pytest.fixture
def questions(tmp_path: Path) -> Callable[[LocalCaptioner], list[Question]]:
    images = [Image.effect_noise(SIZES[0], 60), Image.new("RGB", SIZES[1], "red")]
    images.append(Image.linear_gradient("L").resize(SIZES[2]))
    for number, image in enumerate(images):
        image.convert("RGB").save(tmp_path / f"{number}.png")

    def make(captioner: LocalCaptioner) -> list[Question]:
        return [
            Question(
                captioner.key(str(n)),
                str(n),
                partial(shown_image, tmp_path, f"{n}.png", Limits(), 1024),
            )
            for n in range(len(images))
        ]

    return make


@cache
def loaded(folder: Path) -> tuple[Any, Any]:
    network = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
    return transformers.AutoProcessor.from_pretrained(folder), network


def greedy(folder: Path, kind: str, image: Image.Image, text: str = "") -> str:
    """What transformers writes about one image."""
    processor, network = loaded(folder)
    given: dict[str, Any] = {"text": text} if text else {}
    if kind == "florence2":
        given = {"text": text or "<MORE_DETAILED_CAPTION>"}
    elif kind != "blip":
        parts = [{"type": "image", "image": image}, {"type": "text", "text": PROMPT}]
        rows = processor.apply_chat_template(
            [{"role": "user", "content": parts}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        written = network.generate(**rows, max_new_tokens=TOKENS, do_sample=False)
        new = written[:, rows["input_ids"].shape[1] :]
        return str(processor.batch_decode(new, skip_special_tokens=True)[0]).strip()
    rows = processor(images=image, return_tensors="pt", **given)
    written = network.generate(**rows, max_new_tokens=TOKENS, do_sample=False, num_beams=1)
    return str(processor.decode(written[0], skip_special_tokens=True)).strip()


@pytest.mark.parametrize("kind", KINDS)
def test_captions_are_those_of_transformers(
    vision_model: Any, captioner: Any, questions: Any, kind: str
) -> None:
    """In batches of two; transformers writes about one image at a time."""
    folder = vision_model(kind)
    own = captioner(folder)
    asked = questions(own)
    answers = list(own.ask(asked))
    expected = [greedy(folder, kind, question.load()) for question in asked]
    assert [answer.text for answer in answers] == expected
    assert all(expected) and len(set(expected)) > 1
    assert all(answer.date for answer in answers)
    assert set(own.answers.get(question.key for question in asked)) == {q.key for q in asked}


@pytest.mark.parametrize(("kind", "text"), [("blip", "a dog"), ("florence2", "<CAPTION>")])
def test_a_text_for_models_that_follow_no_instructions(
    vision_model: Any, captioner: Any, questions: Any, kind: str, text: str
) -> None:
    folder = vision_model(kind)
    own = captioner(folder, text=text)
    asked = questions(own)[:1]
    (answer,) = own.ask(asked)
    assert answer.text == greedy(folder, kind, asked[0].load(), text)
    assert own.prompt == text and captioner(folder).prompt != text
    assert asked[0].key != questions(captioner(folder))[0].key


@pytest.mark.parametrize("kind", ["blip", "florence2", "llava"])
def test_answers_that_reach_the_limit_are_cut(
    vision_model: Any, captioner: Any, questions: Any, kind: str
) -> None:
    """A text that goes on with a higher limit was cut off by the lower one."""
    folder = vision_model(kind)
    long, short = captioner(folder, max_tokens=40), captioner(folder, max_tokens=3)
    whole = list(long.ask(questions(long)))
    parts = list(short.ask(questions(short)))
    for one, other in zip(parts, whole, strict=True):
        assert one.cut or one.text == other.text
    assert any(one.cut for one in parts)


def test_an_image_that_is_gone_has_no_answer(
    vision_model: Any, captioner: Any, questions: Any, tmp_path: Path
) -> None:
    own = captioner(vision_model("llava"))
    asked = questions(own)
    (tmp_path / "1.png").unlink()
    first, gone, last = own.ask(asked)
    assert isinstance(gone, NoAnswer) and "missing" in str(gone)
    assert isinstance(first, Answer) and isinstance(last, Answer)


def test_an_image_that_the_processor_refuses_has_no_answer(
    vision_model: Any, captioner: Any, questions: Any, tmp_path: Path
) -> None:
    """Qwen's takes no image of more than 200 times its height; the others of its batch have one."""
    own = captioner(vision_model("qwen2_vl"), batch_size=3)
    asked = questions(own)
    whole = list(own.ask(asked))
    Image.new("RGB", (900, 1), "red").save(tmp_path / "1.png")
    first, refused, last = own.ask(asked)
    assert isinstance(refused, NoAnswer) and "aspect ratio" in str(refused)
    assert [first.text, last.text] == [whole[0].text, whole[2].text]


def test_keys_cover_what_changes_an_answer(
    vision_model: Any, captioner: Any, tmp_path: Path
) -> None:
    folder = vision_model("llava")
    own = captioner(folder).key("image")
    assert own == captioner(folder, batch_size=1).key("image")
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    assert captioner(copy).key("image") == own
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    others = [
        captioner(folder).key("other"),
        captioner(folder, max_tokens=5).key("image"),
        captioner(folder, prompt="what is it").key("image"),
        captioner(folder, dtype="bfloat16").key("image"),
        captioner(copy).key("image"),
    ]
    assert len({own, *others}) == 6


def test_a_chat_without_a_template_is_refused(
    vision_model: Any, captioner: Any, questions: Any, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(vision_model("llava"), tmp_path / "bare"))
    (folder / "chat_template.jinja").unlink()
    own = captioner(folder)
    with pytest.raises(SettingsError, match=rf"{KEY}\.folder: .*has no chat template"):
        list(own.ask(questions(own)))


@pytest.mark.parametrize("content", ['{"model_type": "gpt2"}', "{}"])
def test_other_models_are_refused(captioner: Any, tmp_path: Path, content: str) -> None:
    with pytest.raises(SettingsError, match=rf"{KEY}\.folder: expected a folder with config"):
        captioner(tmp_path / "nothing")
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(SettingsError, match=rf"{KEY}\.folder: expected .* blip, florence2, llava"):
        captioner(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "processor_config.json"])
def test_code_of_the_folder_is_not_run(
    vision_model: Any,
    captioner: Any,
    plant_code: Callable[[Path, str], Path],
    tmp_path: Path,
    file: str,
) -> None:
    folder = Path(shutil.copytree(vision_model("llava"), tmp_path / "foreign"))
    marker = plant_code(folder, file)
    with pytest.raises(SettingsError, match=rf"{KEY}\.folder: .*{file}: auto_map"):
        captioner(folder)
    assert not marker.exists()


def test_only_safetensors_are_read(
    vision_model: Any, captioner: Any, questions: Any, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(vision_model("llava"), tmp_path / "pickled"))
    state = transformers.AutoModelForImageTextToText.from_pretrained(folder).state_dict()
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(SettingsError, match=rf"{KEY}\.folder: cannot load"):
        own = captioner(folder)
        list(own.ask(questions(own)))
