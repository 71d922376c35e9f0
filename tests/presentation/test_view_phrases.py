"""Phrases of views, marked and counted."""

from compo_pipeline.presentation.view_phrases import PhraseTally, marked, tally, whole
from compo_pipeline.records import View


def view(caption: str, *spans: int) -> View:
    phrases = tuple(caption[start:end] for start, end in zip(spans[::2], spans[1::2], strict=True))
    return View("a", "single", ("a",), (), None, (caption,), (), phrases, spans, (), "{}")


def test_pieces_of_a_caption() -> None:
    pieces = [("A cat", 1), (" sees ", 0), ("a dog", 2), (".", 0)]
    assert list(marked(view("A cat sees a dog.", 0, 5, 11, 16))) == pieces
    assert list(marked(view("a cat", 0, 5))) == [("a cat", 1)]
    assert list(marked(view("a cat", 2, 5))) == [("a ", 0), ("cat", 1)]


def test_a_caption_that_is_its_own_only_phrase() -> None:
    assert whole(view("A cat.", 0, 5)) and whole(view(' "Cat"!', 2, 5))
    assert not whole(view("A cat.", 2, 5)) and not whole(view("A cat, 2.", 0, 5))
    assert not whole(view("cat dog", 0, 3, 4, 7)) and not whole(view("cat"))


def test_what_is_told_of_an_epoch() -> None:
    views = [view("A cat, a dog", 0, 5, 7, 12), view("a cat", 0, 5), view("nothing")]
    assert tally(views) == PhraseTally(2, 1.5, 1, 2, (("a cat", 2), ("a dog", 1)))
    assert tally(views[2:]) is None
