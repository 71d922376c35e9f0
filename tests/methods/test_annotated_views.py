"""Views with texts of a table: of every method, and the choices of the authors' loaders."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from compo_pipeline.core.records import Annotation, Caption, Parse, View
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.data.annotations import (
    LAYOUTS,
    AnnotationColumns,
    Annotations,
    AnnotationSettings,
)
from compo_pipeline.methods.contract import Example, ImageInput, Method, ViewContext
from compo_pipeline.methods.registry import METHODS, build
from compo_pipeline.methods.views import FROM_TABLE, annotated_contents, long_view

TEXTS = {
    "a": ("A red cat sits on a mat.", "A cat on a mat."),
    "b": ("Two dogs run in a park.", "Dogs in a park."),
    "c": ("A man holds a blue cup.", "A man with a cup."),
}
NEGATIVES = {
    "a": ("A mat sits on a red cat.", "A red mat sits on a cat.", "A red dog sits on a mat."),
    "b": ("Two parks run in a dog.", "Two cats run in a park."),
    "c": ("A cup holds a blue man.",),
}
NEAR = {"a": ("b", "c"), "b": ("c", "a", "b"), "c": ("a",)}
TEXTUAL = ("negclip", "sneg", "ce_clip", "fsc_clip")


@pytest.fixture
def rows(caption: Callable[..., Caption]) -> list[Caption]:
    return [caption(name, *texts) for name, texts in TEXTS.items()]


def annotation(name: str, sentence: int = 0, **given: Any) -> Annotation:
    """What a table says of a sentence; negatives of one column unless it is said otherwise."""
    values: dict[str, Any] = {
        **dict.fromkeys(("negative_images", "positives", "positive_images", "phrases"), ()),
        "negatives": NEGATIVES[name],
        "neighbours": NEAR[name],
        **given,
    }
    columns = values.setdefault("negative_columns", (0,) * len(values["negatives"]))
    assert len(columns) == len(values["negatives"])
    return Annotation(record=0, sample_id=name, sentence=sentence, **values)


def context(
    found: Sequence[Annotation], *contents: str, epoch: int = 0, **given: Any
) -> ViewContext:
    """A context whose table has these contents, and no parse."""
    columns = given.setdefault("columns", {"caption": "text", "negatives": ["no"]})
    settings = parse(AnnotationSettings, {"file": "table.csv", **given}, FROM_TABLE)
    assert columns
    others = Annotations.from_rows(found, settings, frozenset(contents))
    return ViewContext({}, "", 5, epoch, annotations=others)


def method(name: str, **views: Any) -> Method:
    return build(name, views)


def drawn(name: str, rows: Sequence[Caption], given: ViewContext, **views: Any) -> list[View]:
    return list(method(name, **views).views(rows, given))


def origins(view: View) -> list[Mapping[str, Any] | None]:
    found: list[Mapping[str, Any] | None] = json.loads(view.provenance)["negatives"]
    return found


@pytest.mark.parametrize("epoch", range(2))
@pytest.mark.parametrize("name", TEXTUAL)
def test_a_negative_and_a_similar_image_are_drawn_as_neg_clip_draws_them(
    rows: list[Caption], name: str, epoch: int
) -> None:
    """`CsvDataset.__getitem__` of vinid/neg_clip, with the same random numbers: a negative, a row
    with a similar image, and a negative of that one.
    """
    every = [annotation(one) for one in TEXTS]
    given = context(every, "negatives", "neighbours", epoch=epoch)
    for row, view in zip(rows, drawn(name, rows, given), strict=True):
        theirs = given.rng("table", row)
        negative = theirs.choice(NEGATIVES[row.sample_id])
        near = theirs.choice(NEAR[row.sample_id])
        its_negative = theirs.choice(NEGATIVES[near])
        assert view.kind == "pair" and view.sample_ids == (row.sample_id, near)
        assert view.images == (row.image, f"{near}.png")
        assert view.positives == (row.sentences[0], TEXTS[near][0])
        assert view.negatives == (negative, its_negative)
        assert [one and one["generator"] for one in origins(view)] == ["table", "table"]
        assert [one and one["category"] for one in origins(view)] == ["no", "no"]


def test_the_batch_has_both_rows_of_a_pair(rows: list[Caption], reader: Any) -> None:
    """Images, captions and negatives as NegCLIP's training concatenates them, in any order."""
    every = [annotation(one, **({"neighbours": ()} if one == "c" else {})) for one in TEXTS]
    given = context(every, "negatives", "neighbours")
    clip = method("negclip")
    views = list(clip.views(rows, given))
    assert [view.kind for view in views] == ["pair", "pair", "single"]
    examples = [Example(row, view) for row, view in zip(rows, views, strict=True)]
    batch, counts = clip.collate(examples, 0, reader)
    expected = [
        (image, *(" ".join(text.lower().split()[:6]) for text in texts))
        for view in views
        for image, *texts in zip(view.images, view.positives, view.negatives, strict=True)
    ]
    shown = [one.paths[0] for one in reader.shown]
    got = [(image, *reader.texts(own)) for image, own in zip(shown, batch.texts, strict=True)]
    assert sorted(got) == sorted(expected)
    assert counts["rows"] == len(batch.images) == 5 and batch.valid.all()
    assert [image for example in examples for image in clip.images(example, 0)] == reader.shown
    assert all(isinstance(one, ImageInput) and len(one.paths) == 1 for one in reader.shown)


def test_a_long_view_beside_pairs_has_the_negatives_of_one_row(
    rows: list[Caption], reader: Any
) -> None:
    every = [annotation(one) for one in TEXTS]
    clip = method("negclip")
    first, *others = clip.views(rows, context(every, "negatives", "neighbours"))
    views = [long_view(rows[0], first, ""), *others]
    examples = [Example(row, view) for row, view in zip(rows, views, strict=True)]
    batch, _ = clip.collate(examples, 0, reader)
    assert batch.valid.tolist() == [[False], *[[True]] * 4] and len(batch.images) == 5


def test_each_column_is_a_place_and_drawn_takes_from_all(rows: list[Caption]) -> None:
    """As DeGLA's `COM_COCO` takes all four of a list, and CE-CLIP's file has a column a kind."""
    four = ("One.", "Two.", "Three.", "Four.")
    columns = {"caption": "text", "negatives": ["relation", "noun", "verb"]}
    apart = annotation("a", negatives=four, negative_columns=(0, 0, 2, 2))
    (view, *_) = drawn("ce_clip", rows, context([apart], "negatives", columns=columns))
    assert view.negatives[0] in four[:2] and view.negatives[1] is None
    assert view.negatives[2] in four[2:]
    assert [one and one["category"] for one in origins(view)] == ["relation", None, "verb"]

    together = annotation("a", negatives=four)
    for drawn_, expected in ((4, four), (6, (*four, None, None))):
        (view, *others) = drawn("fsc_clip", rows, context([together], "negatives", drawn=drawn_))
        assert view.negatives == expected
        assert all(one.negatives == (None,) * drawn_ for one in others)
    seen = set()
    for epoch in range(20):
        given = context([together], "negatives", drawn=2, epoch=epoch)
        (view, *_) = drawn("negclip", rows, given)
        assert len(set(view.negatives)) == 2 and set(view.negatives) <= set(four)
        seen |= set(view.negatives)
    assert seen == set(four)


def test_records_of_one_caption_add_up(rows: list[Caption]) -> None:
    """A table with a record for each negative."""
    every = [annotation("a", negatives=(text,)) for text in NEGATIVES["a"]]
    (view, *_) = drawn("negclip", rows, context(every, "negatives", drawn=3))
    assert view.negatives == NEGATIVES["a"]


def test_svlc_rs_paraphrase_is_a_positive(rows: list[Caption]) -> None:
    every = [annotation("a", positives=("On a mat sits a red cat.",)), annotation("b")]
    first, second, third = drawn("svlc_r", rows, context(every, "negatives", "positives"))
    assert first.positives == (TEXTS["a"][0], "On a mat sits a red cat.")
    assert second.positives == (TEXTS["b"][0],) * 2
    assert first.negatives[0] in NEGATIVES["a"] and third.negatives == (None,)


def test_dacs_sentences_have_negatives_of_their_own(rows: list[Caption]) -> None:
    every = [annotation("a", sentence, negatives=(f"Not {sentence}.",)) for sentence in range(2)]
    for view in drawn("dac_mil", rows, context(every, "negatives")):
        own = TEXTS[view.sample_id]
        for text, negative in zip(view.positives, view.negatives, strict=True):
            place = own.index(text)
            assert negative == (f"Not {place}." if view.sample_id == "a" else None)
    assert method("dac_mil").annotated_sentences is None


def test_cs_clips_caption_has_the_tables_negative(
    rows: list[Caption], parse: Callable[[str, str], Parse]
) -> None:
    tagged = "A/DET red/ADJ cat/NOUN sits/VERB on/ADP a/DET mat/NOUN ./PUNCT"
    parses = {name: parse(name, tagged) for name in TEXTS}
    given = context([annotation("a")], "negatives")._replace(parses=parses)
    views = drawn("cs_clip", rows, given)
    assert views[0].negatives[0] in NEGATIVES["a"] and views[1].negatives[0] is None


def test_clic_on_single_images_and_on_composites(rows: list[Caption]) -> None:
    further = ("It purrs.", "It is day.", "A mat lies there.")
    every = [annotation(one, positives=further) for one in TEXTS]
    given = context(every, "negatives", "positives")
    for view in drawn("clic", rows, given, images="single", swap="within"):
        own = TEXTS[view.sample_id][0]
        assert view.positives[:2] == (own, own) and set(view.positives[2:]) == set(further)
        assert view.negatives[0] in NEGATIVES[view.sample_id]
    for view in drawn("clic", rows, given, swap="within"):
        other = TEXTS[view.sample_ids[1]][0]
        assert view.negatives[0] is not None and other in view.negatives[0]
        rest = view.negatives[0].replace(other, "").strip()
        assert rest in NEGATIVES[view.sample_id]
    swapped = method("clic").annotations, method("clic", swap="within").annotations
    assert swapped == (("positives",), ("positives", "negatives"))


def test_c2lips_phrases_are_those_of_its_loader(rows: list[Caption]) -> None:
    """`CC3m_NP_PKL_Dataset` and its processor of shards: the list, or the caption without one."""
    lists = {"a": ("red cat", "a mat", "a sofa"), "b": ()}
    every = [annotation(name, phrases=phrases) for name, phrases in lists.items()]
    views = drawn("c2lip", rows, context(every, "phrases"))
    for view in views:
        expected = list(lists.get(view.sample_id, ())) or [TEXTS[view.sample_id][0]]
        assert list(view.phrases) == expected
        spans = list(zip(view.phrase_spans[::2], view.phrase_spans[1::2], strict=True))
        for phrase, (start, end) in zip(view.phrases, spans, strict=True):
            there = view.positives[0][start:end]
            assert there.lower() == (phrase.lower() if phrase != "a sofa" else "")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_refuses_what_it_has_no_use_for(name: str) -> None:
    """Each content alone: it is used, or refused by its key."""
    own = method(name)
    contents: dict[str, Any] = {
        "negatives": ["x"],
        "positives": ["x"],
        **dict.fromkeys(("negative_images", "positive_images", "phrases", "neighbours"), "x"),
    }
    for content, column in contents.items():
        columns = {"caption": "text", content: column}
        given = parse(AnnotationSettings, {"file": "t.csv", "columns": columns}, FROM_TABLE)
        if content in own.annotations:
            assert annotated_contents(own, given) == {content}
            continue
        key = "file" if METHODS[name].counterfactuals else f"columns.{content}"
        with pytest.raises(SettingsError, match=rf"^{FROM_TABLE}\.{key}: .*{name}"):
            annotated_contents(own, given)
    assert annotated_contents(own, AnnotationSettings()) == frozenset()


def test_of_a_layout_what_has_a_use_is_read() -> None:
    negclip, svlc_r, c2lip = map(method, ("negclip", "svlc_r", "c2lip"))
    given = AnnotationSettings("t.tsv", "neg_clip")
    assert annotated_contents(negclip, given) == {"negatives", "neighbours"}
    assert annotated_contents(svlc_r, given) == {"negatives"}
    with pytest.raises(
        SettingsError, match=r"^views.from_table.layout: .*c2lip .*expected phrases"
    ):
        annotated_contents(c2lip, given)
    assert set(LAYOUTS["sparcl"].contents) >= annotated_contents(
        svlc_r, AnnotationSettings("t.csv", "sparcl")
    )
    assert AnnotationColumns().contents == ()
