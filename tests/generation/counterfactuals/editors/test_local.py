"""The editor with a model of its own, on a tiny random one; what it says is nonsense."""

import gc
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.generation.chat.answers import Answer
from compo_pipeline.generation.counterfactuals.contract import (
    EditedCaption,
    EditRequest,
    Opening,
)
from compo_pipeline.generation.counterfactuals.editors.llm import (
    TransformersEditor,
    _decode,
    _prompt,
)
from compo_pipeline.generation.counterfactuals.settings import EditorLocalSettings

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
KEY = "counterfactuals.transformers"
TEMPLATE = "{% for turn in messages %}{{ turn['content'] }} {% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random GPT-2 of 40 words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", "<eos>", "a", "the", "dog", "cat", "mat", "on", "in", "red", "big", "two"]
    words += ["cats", "dogs", "sits", "near", "and"]
    words += [f"w{number}" for number in range(40 - len(words))]
    inner = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("model")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", eos_token="<eos>"
    )
    tokenizer.save_pretrained(folder)
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=1024, n_embd=16, n_layer=1, n_head=2,
        bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def editor(model: Path, tmp_path: Path) -> Callable[..., TransformersEditor]:
    def make(seed: int = 0, cache: str = "answers", **settings: Any) -> TransformersEditor:
        given = {"folder": str(model), "max_tokens": 6, "batch_size": 3}
        own = EditorLocalSettings(**{**given, **settings})
        return TransformersEditor(own, KEY, Opening(seed, state=tmp_path / cache))

    return make


@pytest.fixture
def captions(bare_request: Callable[..., EditRequest]) -> list[EditRequest]:
    words = (
        "a dog on a mat",
        "two dogs",
        "the big red cat sits near a dog",
        "a cat",
        "the cat sits on a big red mat",
    )
    return [bare_request(text, sample_id=text) for text in words]


class Scripted:
    """Stands for the model: right answers but for some captions."""

    def __init__(self, *wrong: str) -> None:
        self.wrong, self.batches = wrong, []

    def __call__(self, requests: list[EditRequest]) -> list[Any]:
        self.batches.append([one.caption for one in requests])
        return [
            Answer(
                one.caption
                if one.caption in self.wrong
                else one.caption.replace("dog", "bear").replace("cat", "bear"),
                False,
            )
            for one in requests
        ]


def test_one_answer_each_in_order(editor: Any, captions: list[EditRequest]) -> None:
    together = editor()._generate_answers(captions)
    assert [editor()._generate_answers([one])[0] for one in captions] == together
    made = list(editor().edit(captions))
    assert len(made) == len(captions)
    failed = [one for one in made if isinstance(one, str)]
    assert failed and all(one.startswith("asked once") for one in failed)


def test_a_refused_answer_fails_its_caption_alone(editor: Any, captions: list[EditRequest]) -> None:
    own = editor()
    own._generate_answers = model = Scripted("a cat")
    made = list(own.edit(captions))
    assert [isinstance(one, EditedCaption) for one in made] == [True, True, True, False, True]
    assert model.batches == [[one.caption for one in captions[at : at + 3]] for at in (0, 3)]
    assert made[1] == EditedCaption("two bears", "attempt 1")


def test_a_second_run_asks_nothing(editor: Any, captions: list[EditRequest]) -> None:
    own = editor()
    own._generate_answers = Scripted("a cat")
    made = list(own.edit(captions))
    again = editor()
    again._generate_answers = None
    assert list(again.edit(captions)) == made
    changed = editor(max_tokens=5)
    changed._generate_answers = None
    with pytest.raises(TypeError):
        list(changed.edit(captions))


def test_the_model_is_let_go_with_the_last_answer(editor: Any, captions: list[EditRequest]) -> None:
    own = editor()
    answers = own.edit(captions)
    next(answers)
    loaded = weakref.ref(own._local.loaded[0])
    assert loaded() is not None
    list(answers)
    gc.collect()
    assert loaded() is None


def test_equal_captions_are_asked_for_once(editor: Any, captions: list[EditRequest]) -> None:
    own = editor()
    own._generate_answers = model = Scripted()
    made = list(own.edit([captions[0], captions[0], captions[1]]))
    assert model.batches == [[captions[0].caption, captions[1].caption]]
    assert made[0] == made[1]


def test_the_prompt_and_the_end_of_an_answer(editor: Any, captions: list[EditRequest]) -> None:
    _, tokenizer = editor()._local.loaded
    cat, end = 5, 1
    assert _decode([cat, cat, end, end], tokenizer, False) == Answer("cat cat", False)
    assert _decode([cat] * 4, tokenizer, True).cut
    assert _prompt(captions[0], tokenizer).endswith("Caption: a dog on a mat\nEdited:")
    tokenizer.decode = lambda row, skip_special_tokens: "\na cat\nCaption: a dog"
    assert _decode([cat] * 4, tokenizer, True) == Answer("a cat", False)
    tokenizer.chat_template = TEMPLATE
    asked = _prompt(captions[0], tokenizer)
    assert asked.endswith(" a dog on a mat ") and "Caption:" not in asked


def test_settings_fingerprint(editor: Any, model: Path, tmp_path: Path) -> None:
    own = editor().settings_fingerprint
    assert own == editor(batch_size=1, cache="other").settings_fingerprint
    other = tmp_path / "model"
    other.mkdir()
    for path in model.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    assert editor(folder=str(other)).settings_fingerprint == own
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    changed = [editor(folder=str(other)), editor(max_tokens=5)]
    assert len({own, *(one.settings_fingerprint for one in changed)}) == 3


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_of_the_folder_is_not_run(
    model: Path,
    editor: Callable[..., TransformersEditor],
    captions: list[EditRequest],
    plant_code: Callable[[Path, str], Path],
    tmp_path: Path,
    file: str,
) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "foreign"))
    marker = plant_code(folder, file)
    with pytest.raises(SettingsError, match=rf"{KEY}\.folder: .*{file}: auto_map"):
        list(editor(folder=str(folder)).edit(captions))
    assert not marker.exists()


def test_weights_that_are_cut_off(
    editor: Callable[..., TransformersEditor],
    captions: list[EditRequest],
    model: Path,
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(model, tmp_path / "cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:3000])
    with pytest.raises(SettingsError, match=rf"{KEY}\.folder: cannot load a causal"):
        list(editor(folder=str(folder)).edit(captions))
