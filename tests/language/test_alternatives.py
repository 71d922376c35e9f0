"""Alternatives from a WordNet of a dozen words, written as WordNet's own files are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from compo_pipeline.core.records import Parse
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.language.alternatives import (
    WordNetCousins,
    open_wordnet,
)
from compo_pipeline.language.lexicon import load_lexicon
from compo_pipeline.language.replacements import Replacer

if TYPE_CHECKING:
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

nltk = pytest.importorskip("nltk")
# nltk misses translations, which nobody here asks for.
pytestmark = pytest.mark.filterwarnings("ignore:The multilingual functions")
FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
NOTHING: frozenset[str] = frozenset()
BACK = {"@": "~", "!": "!", "&": "&", "+": "+"}


class Synset(NamedTuple):
    """`links` are (pointer symbol, name of another synset); frames are verb frames."""

    pos: str
    words: str
    links: tuple[tuple[str, str], ...] = ()
    frames: tuple[int, ...] = ()


SYNSETS = {
    "animal": Synset("n", "animal"),
    "pet": Synset("n", "pet", (("@", "animal"),)),
    "dog": Synset("n", "dog domestic_dog", (("@", "pet"),)),
    "cat": Synset("n", "cat", (("@", "pet"),)),
    "goose": Synset("n", "goose", (("@", "pet"),)),
    "fish": Synset("n", "water_dog", (("@", "pet"),)),
    "kelpie": Synset("n", "kelpie", (("@", "pet"),)),
    "kale": Synset("n", "kale", (("@", "pet"),)),  # has no plural in the lexicon
    "laika": Synset("n", "Laika", (("@", "pet"),)),
    "wild": Synset("n", "wild_animal", (("@", "animal"),)),
    "wolf": Synset("n", "wolf", (("@", "wild"),)),
    "person": Synset("n", "person"),
    "rogue": Synset("n", "rogue", (("@", "person"),)),
    "cad": Synset("n", "cad dog", (("@", "rogue"),)),  # another sense of dog
    "knave": Synset("n", "knave", (("@", "rogue"),)),
    "puppy": Synset("n", "puppy", (("@", "dog"), ("@", "pet"))),
    "attribute": Synset("n", "attribute"),
    "color": Synset("n", "color", (("@", "attribute"),)),
    "redness": Synset("n", "red redness", (("@", "color"),)),
    "blueness": Synset("n", "blue", (("@", "color"),)),
    "move": Synset("v", "move", frames=(2,)),
    "swim": Synset("v", "swim", (("@", "move"),), (2,)),
    "walk": Synset("v", "walk", (("@", "move"),), (2,)),
    "push": Synset("v", "push", (("@", "move"),), (8,)),
    "pull": Synset("v", "pull", (("@", "move"), ("!", "push")), (8,)),
    "burst": Synset("v", "burst_forth blow_up", (("@", "push"),), (8,)),
    "tear": Synset("v", "tear", (("@", "push"),), (8,)),
    "garment": Synset("n", "garment"),
    "cape": Synset("n", "cape", (("@", "garment"),)),
    "weeds": Synset("n", "widow's_weeds", (("@", "garment"),)),
    "coat": Synset("n", "coat_of_mail", (("@", "garment"),)),
    "large": Synset("a", "large", (("!", "small"),)),
    "small": Synset("a", "small"),
    "huge": Synset("a", "huge", (("&", "large"),)),
    "red": Synset("a", "red", (("+", "redness"),)),
    "blue": Synset("a", "blue", (("+", "blueness"),)),
}


def write(folder: Path) -> None:
    """The files that nltk reads, with byte offsets."""
    links = {name: list(synset.links) for name, synset in SYNSETS.items()}
    for name, synset in SYNSETS.items():
        for symbol, other in synset.links:
            links[other].append((BACK[symbol], name))

    def line(name: str, offsets: dict[str, int]) -> str:
        synset = SYNSETS[name]
        words = synset.words.split()
        fields = [f"{offsets.get(name, 0):08d}", "00", synset.pos, f"{len(words):02x}"]
        fields += [part for word in words for part in (word, "0")]
        fields.append(f"{len(links[name]):03d}")
        for symbol, other in links[name]:
            lexical = "0101" if symbol in "!+" else "0000"
            fields += [symbol, f"{offsets.get(other, 0):08d}", SYNSETS[other].pos, lexical]
        if synset.pos == "v":
            fields.append(f"{len(synset.frames):02d}")
            fields += [part for frame in synset.frames for part in ("+", f"{frame:02d}", "00")]
        return " ".join(fields) + " | a gloss  \n"

    offsets: dict[str, int] = {}
    for pos in FILES:
        position = 0
        for name in (name for name, synset in SYNSETS.items() if synset.pos == pos):
            offsets[name] = position
            position += len(line(name, offsets))
    for pos, file in FILES.items():
        names = [name for name, synset in SYNSETS.items() if synset.pos == pos]
        (folder / f"data.{file}").write_text("".join(line(name, offsets) for name in names))
        senses: dict[str, list[str]] = {}
        for name in names:
            for word in SYNSETS[name].words.split():
                senses.setdefault(word.lower(), []).append(f"{offsets[name]:08d}")
        index = [
            f"{word} {pos} {len(found)} 0 {len(found)} 0 {' '.join(found)}  \n"
            for word, found in senses.items()
        ]
        (folder / f"index.{file}").write_text("".join(sorted(index)))
        (folder / f"{file}.exc").write_text("geese goose\n" if pos == "n" else "swam swim\n")
    (folder / "lexnames").write_text("00\tnoun.all\t1\n")
    # Sense keys: lemma%part of speech:file:id, with the number of times the sense was met.
    (folder / "cntlist.rev").write_text(
        "animal%1:00:00:: 1 9\ncat%1:00:00:: 1 25\ngoose%1:00:00:: 1 3\n"
    )
    (folder / "index.sense").write_text("")


@contextmanager
def opened(folder: Path) -> Iterator[WordNetCorpusReader]:
    """The reader of a corpus in a folder, found and loaded as nltk does it for its users."""
    from nltk.corpus.reader.wordnet import WordNetCorpusReader
    from nltk.corpus.util import LazyCorpusLoader

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nltk.data, "path", [str(folder)])
        patch.setattr(
            nltk.corpus, "wordnet", LazyCorpusLoader("wordnet", WordNetCorpusReader, None)
        )
        yield open_wordnet("views.source")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WordNetCorpusReader]:
    folder = tmp_path_factory.mktemp("nltk_data")
    corpus = folder / "corpora" / "wordnet"
    corpus.mkdir(parents=True)
    write(corpus)
    with opened(folder) as made:
        yield made


@pytest.fixture(scope="module")
def cousins(reader: WordNetCorpusReader) -> WordNetCousins:
    return WordNetCousins(reader)


def words(source: WordNetCousins, *word: str) -> set[str]:
    return {one.word for one in source.alternatives(*word, NOTHING)}


def test_a_name_of_several_words_inflects_its_head(cousins: WordNetCousins) -> None:
    assert {"bursting forth", "blowing up"} <= words(cousins, "tear", "VERB", "VBG")


def test_cousins_of_all_senses_weighted_by_their_counts(cousins: WordNetCousins) -> None:
    # "wolf" is a cousin, "knave" a sibling of another sense of "dog"; "domestic dog" is a name of
    # the same sense.
    found = {one.word: one.weight for one in cousins.alternatives("dog", "NOUN", "NN", NOTHING)}
    assert found == {
        "cat": 25,
        "goose": 3,
        "water dog": 1,
        "kelpie": 1,
        "kale": 1,
        "Laika": 1,
        "puppy": 1,
        "wolf": 1,
        "knave": 1,
    }


def test_every_sense_has_antonyms_or_cousins(cousins: WordNetCousins) -> None:
    assert words(cousins, "large", "ADJ", "JJ") == {"small"}
    assert words(cousins, "huge", "ADJ", "JJ") == set()  # its own lemmas have no antonym
    assert words(cousins, "red", "ADJ", "JJ") == {"blue"}  # by the nouns that both come from
    assert words(cousins, "pushes", "VERB", "VBZ") == {"pulls"}


def test_any_preposition_replaces_another_and_numbers_stay(cousins: WordNetCousins) -> None:
    lexicon = load_lexicon()
    others = {name for name, upos in lexicon.lemmas if upos == "ADP"} - {"on"}
    assert words(cousins, "on", "ADP", "IN") == others
    assert words(cousins, "two", "NUM", "CD") == set()


def test_a_determiner_is_an_attribute_as_in_the_authors_code(
    cousins: WordNetCousins, tagged: Callable[[str], Parse]
) -> None:
    from random import Random

    parse = tagged("[ a/DET/DT dog/NOUN/NN ] and/CCONJ/CC [ a/DET/DT cat/NOUN/NN ]")
    assert Replacer(cousins.alternatives)(parse, Random(0)) is None
    assert Replacer(cousins.alternatives, determiners=True)(parse, Random(0)) is not None


def test_the_corpus_is_not_installed(tmp_path: Path) -> None:
    with (
        pytest.raises(SettingsError, match=r"views.source.*nltk.downloader wordnet"),
        opened(tmp_path),
    ):
        pass
