"""Exchanged phrases and shuffled word pairs."""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language

from compo_pipeline.core.records import Parse
from compo_pipeline.language.editing import Generated, Generator
from compo_pipeline.language.parsing import parse
from compo_pipeline.language.reordering import shuffle_bigrams, swap_phrases

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


def test_words(tagged: Tagged) -> None:
    (made,) = every_swap(tagged("a/DET cat/NOUN/NN on/ADP a/DET mattress/NOUN/NN _./PUNCT"))
    assert made == Generated("a mattress on a cat.", "negclip", "NN", ("cat", "mattress"))


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


Shuffle = Callable[[str], set[Generated | None]]


@pytest.fixture(scope="session")
def shuffled(compo_en: Language) -> Shuffle:
    """Every outcome that a hundred seeds give."""

    def draw(text: str) -> set[Generated | None]:
        (parsed,) = parse(compo_en, [("id", 0, text)])
        return {shuffle_bigrams(parsed, random.Random(seed)) for seed in range(100)}

    return draw


def shuffled_texts(made: set[Generated | None]) -> set[str | None]:
    return {one.text if one else None for one in made}


@pytest.mark.parametrize(
    ("source", "outcomes"),
    [
        ("a dog eats grass", {"eats grass a dog"}),
        (
            "a dog eats green grass today",
            {
                "a dog grass today eats green",
                "eats green a dog grass today",
                "eats green grass today a dog",
                "grass today a dog eats green",
                "grass today eats green a dog",
            },
        ),
        ("a dog runs", {"runs a dog"}),
        ("A dog eats grass?!", {"Eats grass a dog?!"}),
        ("a man, a dog", {"a dog, a man"}),
        ('a sign reads "stop here" today', None),
        ("a red-haired man sleeps", {"man sleeps a red-haired"}),
        ("two dogs' bowls, 50%", {"bowls 50% two, dogs'"}),
        ("a  dog\nsleeps well", {"sleeps  well\na dog"}),
    ],
)
def test_outcomes(shuffled: Shuffle, source: str, outcomes: set[str] | None) -> None:
    made = shuffled_texts(shuffled(source))
    if outcomes is not None:
        assert made <= outcomes | {None} and made & outcomes
    else:
        assert all(text is not None and text.count('"') == 2 for text in made)


def test_pairs_stay_and_never_keep_their_order(shuffled: Shuffle) -> None:
    orders = {" ".join(order) for order in permutations(("a b", "c d", "e f", "g"))}
    made = shuffled_texts(shuffled("a b c d e f g"))
    assert made <= orders - {"a b c d e f g"}
    assert len(made) > 15


@pytest.mark.parametrize("source", ["", "dogs", "two dogs", "Two dogs.", "a dog a dog", "... !"])
def test_nothing_to_shuffle(source: str, shuffled: Shuffle) -> None:
    assert shuffled(source) == {None}


def test_words_of_a_shuffle(shuffled: Shuffle) -> None:
    assert shuffled("A dog sleeps.") == {
        Generated("Sleeps a dog.", "bigram", "pairs", ("A dog", "sleeps"))
    }


def test_permutations_are_drawn_alike(compo_en: Language) -> None:
    (parsed,) = parse(compo_en, [("id", 0, "one two three four five six")])
    drawn = Counter(shuffle_bigrams(parsed, random.Random(seed)).text for seed in range(1000))
    assert len(drawn) == 5 and all(150 < count < 250 for count in drawn.values())


REORDERING = pytest.mark.parametrize(
    "generator",
    [swap_phrases, partial(swap_phrases, careful=True), shuffle_bigrams],
    ids=["negclip", "careful negclip", "bigram"],
)
ANY = {"data": st.data(), "seed": st.integers(0, 2**32)}


@REORDERING
@given(**ANY)
def test_the_words_stay_and_their_order_does_not(
    generator: Generator,
    parses: st.SearchStrategy[Parse],
    written_words: Callable[..., Counter[str]],
    data: st.DataObject,
    seed: int,
) -> None:
    parse = data.draw(parses)
    made = generator(parse, random.Random(seed))
    assert made == generator(parse, random.Random(seed))
    if made is None:
        return
    assert made.text.casefold() != parse.text.casefold()
    assert written_words(made.text) == written_words(parse.text)
    assert len(made.words) > 1
    assert all(word in parse.text for word in made.words)
