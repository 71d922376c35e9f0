"""What holds of every generator of one caption, whatever its rule."""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compo_pipeline.language.generated import Generator
from compo_pipeline.language.negclip import swap_phrases
from compo_pipeline.language.shuffles import shuffle_bigrams
from compo_pipeline.records import Parse

REORDERING = pytest.mark.parametrize(
    "generator",
    [swap_phrases, partial(swap_phrases, careful=True), shuffle_bigrams],
    ids=["negclip", "careful negclip", "bigram"],
)
ANY = {"data": st.data(), "seed": st.integers(0, 2**32)}


@REORDERING
@settings(max_examples=80)
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


@REORDERING
@settings(max_examples=80)
@given(**ANY)
def test_outside_the_spans_nothing_changes(
    generator: Generator,
    parses: st.SearchStrategy[Parse],
    data: st.DataObject,
    seed: int,
) -> None:
    parse = data.draw(parses)
    made = generator(parse, random.Random(seed))
    if made is None:
        return
    kept, rest, position = [], parse.text.casefold(), 0
    for start, end in made.spans:
        assert position <= start < end <= len(made.text)
        kept.append(made.text[position:start])
        position = end
    kept.append(made.text[position:])
    # The kept pieces stand in the source in this order: the first opens it, the last closes it.
    assert rest.startswith(kept[0].casefold()) and rest.endswith(kept[-1].casefold())
    for piece in kept:
        assert piece.casefold() in rest
        rest = rest[rest.index(piece.casefold()) + len(piece.casefold()) :]
