"""The offline editor on hand-made parses, on real captions, and on any text."""

import json
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from compo_pipeline.core.records import Parse
from compo_pipeline.generation.counterfactuals.contract import (
    EditedCaption,
    EditRequest,
    Opening,
    Role,
)
from compo_pipeline.generation.counterfactuals.editors.checks import reason_to_reject
from compo_pipeline.generation.counterfactuals.editors.rules import RuleEditor
from compo_pipeline.generation.counterfactuals.settings import RulesSettings

Tagged = Callable[[str], Parse]
Parsed = Callable[[str], Parse]
MAN, HORSE = "[ A/DET/DT man/NOUN/NN ]", "[ a/DET/DT horse/NOUN/NN ]"


def requests(parse: Parse, role: Role, count: int = 1) -> list[EditRequest]:
    return [EditRequest(str(number), 0, role, parse.text, parse) for number in range(count)]


def write(
    settings: RulesSettings, asked: list[EditRequest], seed: int = 0
) -> list[EditedCaption | str]:
    return list(RuleEditor(settings, "editor", Opening(seed)).edit(asked))


def test_each_rule(tagged: Tagged) -> None:
    caption = tagged(f"{MAN} riding/VERB/VBG {HORSE} _./PUNCT/.")
    (swapped,) = write(RulesSettings(negatives=("negclip",)), requests(caption, "negative"))
    assert isinstance(swapped, EditedCaption)
    assert swapped.text == "A horse riding a man."
    assert swapped.detail == "negclip, NN: man > horse"
    (within,) = write(RulesSettings(negatives=("swap",)), requests(caption, "negative"))
    assert isinstance(within, EditedCaption) and within.text == "A horse riding a man."
    replaced = write(RulesSettings(negatives=("replace",)), requests(caption, "negative", 30))
    assert len({one.text for one in replaced if isinstance(one, EditedCaption)}) > 5
    related = write(RulesSettings(negatives=("relation",)), requests(caption, "negative", 30))
    texts = {one.text for one in related if isinstance(one, EditedCaption)}
    assert "A horse riding a man." in texts and len(texts) > 3
    assert all("man" in text and "horse" in text for text in texts)
    (turned,) = write(RulesSettings(), requests(caption, "positive"))
    assert isinstance(turned, EditedCaption) and turned.text == "A horse being ridden by a man."


def test_order_of_rules(tagged: Tagged) -> None:
    caption = tagged(f"{MAN} riding/VERB/VBG {HORSE} _./PUNCT/.")
    asked = requests(caption, "negative", 60)

    def rules(settings: RulesSettings) -> set[str]:
        made = write(settings, asked)
        return {one.detail.split(",")[0] for one in made if isinstance(one, EditedCaption)}

    assert rules(RulesSettings(order="given")) == {"replace"}
    assert rules(RulesSettings(order="given", negatives=("swap", "replace"))) == {"swap_within"}
    assert rules(RulesSettings(order="drawn")) == {"replace", "negclip", "swap_within"}


def test_the_next_rule_where_one_finds_nothing(tagged: Tagged) -> None:
    # One thing and no relation: nothing for `replace`.
    caption = tagged("[ red/ADJ/JJ xyzzy/NOUN/NN ] _,/PUNCT/, [ blue/ADJ/JJ plugh/NOUN/NN ]")
    settings = RulesSettings(negatives=("negclip", "replace"), order="given")
    (made,) = write(settings, requests(tagged(f"{MAN} ./PUNCT/."), "negative"))
    assert made == "no rule finds anything to change"
    (made,) = write(settings, requests(caption, "negative"))
    assert isinstance(made, EditedCaption)


def test_equal_seeds_equal_texts(parsed: Parsed) -> None:
    captions = [parsed(text) for text in ("Two dogs near a red car.", "A man sits on a couch.")]
    asked = [one for caption in captions for one in requests(caption, "negative", 10)]
    made = write(RulesSettings(), asked)
    assert len(made) == len(asked)
    assert write(RulesSettings(), asked) == made
    assert write(RulesSettings(), asked[::-1]) == made[::-1]
    assert write(RulesSettings(), asked, seed=1) != made


def test_real_captions(shared: Path, parsed: Parsed) -> None:
    annotations = shared / "coco_mini" / "annotations" / "captions_val2017.json"
    rows = json.loads(annotations.read_text())["annotations"][:40]
    captions = [parsed(" ".join(row["caption"].split())) for row in rows]
    for role, least in (("negative", 36), ("positive", 10)):
        asked = [requests(caption, role)[0] for caption in captions]
        made = [one for one in write(RulesSettings(), asked) if isinstance(one, EditedCaption)]
        assert len(made) >= least


@settings(max_examples=30)
@given(data=st.data(), seed=st.integers(0, 99), role=st.sampled_from(["negative", "positive"]))
def test_any_text(
    parses: st.SearchStrategy[Parse], data: st.DataObject, seed: int, role: Role
) -> None:
    (request,) = requests(data.draw(parses), role)
    (made,) = write(RulesSettings(), [request], seed)
    if isinstance(made, EditedCaption):
        assert reason_to_reject(request, made.text) == ""
    else:
        assert made
