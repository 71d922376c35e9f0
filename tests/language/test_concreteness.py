"""Words drawn by their concreteness, by every generator; without a table as before."""

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.language.concreteness import (
    Concreteness,
    ConcretenessSettings,
    draw,
    load,
)
from compo_pipeline.language.reordering import swap_phrases
from compo_pipeline.language.replacements import replacer
from compo_pipeline.language.swaps import swap_across, swap_within
from compo_pipeline.language.units import foil, units
from compo_pipeline.storage.records import Parse

SOURCE = (
    "[ A/DET/DT brown/ADJ/JJ dog/NOUN/NN ] near/ADP/IN [ an/DET/DT old/ADJ/JJ horse/NOUN/NN ] "
    "in/ADP/IN [ the/DET/DT city/NOUN/NN ]"
)
# All but certain: nothing else weighs as much as a millionth.
NOUNS = Concreteness({"dog": 5.0, "horse": 5.0, "cat": 5.0, "idea": 1.0}, power=12.0, least=1.0)


@pytest.fixture
def parse(tagged: Callable[[str], Parse]) -> Parse:
    return tagged(SOURCE)


def table(folder: Path, text: str) -> ConcretenessSettings:
    (folder / "ratings.csv").write_text(text)
    return ConcretenessSettings(str(folder / "ratings.csv"), power=1.0)


@pytest.mark.parametrize("header", ["word,rating", "Word,Conc.M"])
def test_ratings_of_a_table(tmp_path: Path, header: str) -> None:
    ratings = load(table(tmp_path, f"{header}\ndog,4.0\nIdea,2.0\nred dog,3.0\n"), "key")
    assert ratings is not None
    for texts, weight in (
        (["Dog"], 4.0),
        (["dogs"], 4.0),
        (["idea"], 2.0),
        (["zzz"], 2.0),
        (["a brown dog"], 4.0),
        (["red dog"], 3.0),
        (["dog", "idea"], 8.0),
    ):
        assert math.exp(ratings.log_weight(texts)) == pytest.approx(weight)
    drawn = Counter(
        draw(random.Random(n), ["dog", "idea"], lambda o: [o], ratings) for n in range(600)
    )
    assert drawn["dog"] / 600 == pytest.approx(2 / 3, abs=0.06)


@pytest.mark.parametrize("power", [0.0, 1e6])
def test_any_power_can_be_drawn_by(power: float) -> None:
    ratings = Concreteness({"dog": 5.0, "idea": 2.0}, power, least=2.0)
    drawn = {draw(random.Random(n), ["dog", "idea"], lambda o: [o], ratings) for n in range(20)}
    assert drawn == ({"dog"} if power else {"dog", "idea"})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("word,rating\ndog,none\n", r"row 2, rating: expected a number above 0, got 'none'"),
        ("word,rating\ndog,1\ncat,0\n", "row 3, rating"),
        ("word,value\ndog,1\n", r"expected rows with the columns word, rating"),
        ("word,rating\n", r"expected rows with the columns word, rating"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=rf"negclip\.views\.concreteness\.table: .*{problem}"):
        load(table(tmp_path, text), "negclip.views.concreteness")
    with pytest.raises(SettingsError, match=r"key\.table: .*missing"):
        load(ConcretenessSettings("missing.csv"), "key")


def test_without_a_table_the_stream_is_that_of_a_plain_choice() -> None:
    one, other = random.Random(0), random.Random(0)
    assert load(ConcretenessSettings(), "key") is None
    assert draw(one, "abcdef", lambda o: [o], None) == other.choice("abcdef")
    assert one.random() == other.random()


@pytest.mark.parametrize("careful", [True, False])
def test_swaps_take_concrete_words(parse: Parse, careful: bool) -> None:
    for seed in range(20):
        drawing = {"careful": careful, "concreteness": NOUNS}
        within = swap_within(parse, random.Random(seed), **drawing)  # type: ignore[arg-type]
        across = swap_across(parse, _other(parse), random.Random(seed), **drawing)  # type: ignore[arg-type]
        phrases = swap_phrases(parse, random.Random(seed), **drawing)  # type: ignore[arg-type]
        assert within and set(within.words) <= {"dog", "horse"}
        assert across and across.words[0] in ("dog", "horse") and across.words[1] == "cat"
        assert phrases and all(set(text.split()) & {"dog", "horse"} for text in phrases.words)


def _other(parse: Parse) -> Parse:
    """The same with a cat and a plan, and no word of the first nouns."""
    words = tuple({"dog": "cat", "horse": "plan", "city": "aim"}.get(w, w) for w in parse.words)
    offsets, text = [], ""
    for word in words:
        text += " " if text else ""
        offsets.append(len(text))
        text += word
    return replace(parse, text=text, words=words, offsets=tuple(offsets))


def test_replacements_and_foils_change_concrete_words(parse: Parse) -> None:
    rated = replace(replacer(), concreteness=NOUNS)
    relation = next(unit for unit in units(parse) if unit.category == "relation")
    for seed in range(20):
        replaced = rated(parse, random.Random(seed))
        assert replaced and replaced.words[0] in ("dog", "horse")
        made = foil(parse, relation, random.Random(seed), rated)
        assert made and made.words[0] in ("dog", "horse")
