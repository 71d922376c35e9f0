"""NegCLIP's swap: hand-made cases. What holds for any text is in test_generated.py."""

import random
from collections import Counter
from collections.abc import Callable

import pytest
from spacy.language import Language

from compo_pipeline.language.generated import Generated
from compo_pipeline.language.negclip import swap_phrases
from compo_pipeline.language.parsing import parse
from compo_pipeline.records import Parse

Tagged = Callable[[str], Parse]


def every_swap(parse: Parse) -> set[Generated]:
    made = {swap_phrases(parse, random.Random(seed)) for seed in range(100)}
    return {one for one in made if one is not None}


def texts(parse: Parse) -> set[str]:
    return {one.text for one in every_swap(parse)}


@pytest.mark.parametrize(
    ("source", "category", "text"),
    [
        ("a/DET cat/NOUN/NN on/ADP a/DET mat/NOUN/NN", "NN", "a mat on a cat"),
        ("cats/NOUN/NNS on/ADP mats/NOUN/NNS", "NNS", "mats on cats"),
        ("a/DET red/ADJ cat/NOUN/NN by/ADP old/ADJ me/PRON", "ADJ", "a old cat by red me"),
        ("slowly/ADV walk/VERB then/ADV", "ADV", "then walk slowly"),
        ("he/PRON runs/VERB and/CCONJ she/PRON sits/VERB", "verb phrase", "he sits and she runs"),
        (
            "[ the/DET red/ADJ cat/NOUN/NN ] on/ADP [ an/DET old/ADJ mats/NOUN/NNS ]",
            "noun phrase",
            "an old mats on the red cat",
        ),
    ],
)
def test_each_kind(tagged: Tagged, source: str, category: str, text: str) -> None:
    assert (category, text) in {(one.category, one.text) for one in every_swap(tagged(source))}


def test_words_and_spans(tagged: Tagged) -> None:
    (made,) = every_swap(tagged("a/DET cat/NOUN/NN on/ADP a/DET mattress/NOUN/NN _./PUNCT"))
    assert made == Generated(
        "a mattress on a cat.", "negclip", "NN", ("cat", "mattress"), ((2, 10), (16, 19))
    )


def test_verb_phrases_take_their_adverbs_and_auxiliaries(tagged: Tagged) -> None:
    source = "he/PRON was/AUX sitting/VERB and/CCONJ quietly/ADV is/AUX reading/VERB aloud/ADV"
    assert "he quietly is reading and was sitting aloud" in texts(tagged(source))


def test_a_verb_may_stand_before_the_adverbs(tagged: Tagged) -> None:
    source = "he/PRON tries/VERB slowly/ADV to/PART sits/VERB now/ADV being/AUX seen/VERB it/PRON"
    swaps = every_swap(tagged(source))
    assert {one.words for one in swaps if one.category == "verb phrase"} == {
        ("tries", "sits now being seen")
    }


def test_noun_phrases_of_two_tokens_stay(tagged: Tagged) -> None:
    source = "[ a/DET cats/NOUN/NNS ] on/ADP [ the/DET old/ADJ mat/NOUN/NN ]"
    assert every_swap(tagged(source)) == set()


def test_a_kind_is_drawn_as_often_however_many_pairs_it_has(tagged: Tagged) -> None:
    cats = " on/ADP ".join(f"{word}/NOUN/NN" for word in ("cat", "dog", "cow", "pig", "hen"))
    parse = tagged(f"red/ADJ {cats} in/ADP old/ADJ sheds/NOUN/NNS")
    drawn = Counter(swap_phrases(parse, random.Random(seed)).category for seed in range(1000))
    assert drawn.keys() == {"NN", "ADJ"} and 430 < drawn["ADJ"] < 570


def test_a_kind_is_drawn_no_less_often_for_pairs_of_equal_words(tagged: Tagged) -> None:
    cats = " on/ADP ".join(f"{word}/NOUN/NN" for word in ("cat",) * 5 + ("dog",))
    parse = tagged(f"red/ADJ {cats} in/ADP old/ADJ sheds/NOUN/NNS")
    drawn = Counter(swap_phrases(parse, random.Random(seed)).category for seed in range(1000))
    assert 430 < drawn["ADJ"] < 570


def test_equal_words_make_no_pair(tagged: Tagged) -> None:
    assert every_swap(tagged("cat/NOUN/NN on/ADP Cat/NOUN/NN")) == set()
    assert every_swap(tagged("running/VERB")) == set()


def test_phrases_that_read_the_same_when_exchanged_make_none(tagged: Tagged) -> None:
    source = "[ very/ADV very/ADV very/ADV ] [ very/ADV very/ADV very/ADV very/ADV ]"
    assert every_swap(tagged(source)) == set()


def test_the_capital_that_opens_a_sentence_stays(tagged: Tagged) -> None:
    assert texts(tagged('"/PUNCT _Cats/NOUN/NN _"/PUNCT eat/AUX fish/NOUN/NN')) == {
        '"Fish" eat cats'
    }
    assert texts(tagged("TVs/NOUN/NN near/ADP cats/NOUN/NN")) == {"Cats near TVs"}
    assert texts(
        tagged("[ The/DET red/ADJ cat/NOUN/NNS ] by/ADP [ Tom/PROPN 's/PART hat/NOUN/NN ]")
    ) == {"Tom 's hat by the red cat"}


def test_pieces_of_one_written_word_stay_together(tagged: Tagged) -> None:
    assert every_swap(tagged("ca/VERB _n't/PART run/VERB")) == set()
    source = "red/ADJ _-/PUNCT _haired/VERB old/ADJ"
    assert texts(tagged(source)) == {"old-haired red"}


def test_on_captions(compo_en: Language) -> None:
    source = "A black dog chases the small cat past two big red cars."
    (caption,) = parse(compo_en, [("id", 0, source)])
    made = texts(caption)
    assert "A black cat chases the small dog past two big red cars." in made
    assert "The small cat chases a black dog past two big red cars." in made
    assert "A small dog chases the black cat past two big red cars." in made
