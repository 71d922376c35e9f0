"""C2LIP's pickle of noun phrases: read without running it, and what is made to harm."""

import pickle  # noqa: TID251 # files to refuse
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from compo_pipeline.configuration.settings import parse
from compo_pipeline.datasets.annotations import read
from compo_pipeline.datasets.phrases import Limits, import_phrases
from compo_pipeline.datasets.readers.record import SourceError
from compo_pipeline.storage import unpickle
from compo_pipeline.storage.annotations import AnnotationSettings
from compo_pipeline.storage.records import Caption

CAPTION = "shortLLA_captions"
LIMITS = Limits(gigabytes=0.25, seconds=20)
TEXTS = ["A red cat sits on a mat.", "Two dogs run in a park.", "Fog."]
PHRASES = [["A red cat", "mat"], ["Two dogs"], []]


def samples() -> dict[str, Any]:
    """As data_processing of SamsungLabs/concept_centric_clip writes them."""
    return {
        str(number): {
            "image_path": f"ab/cd/{number}.jpg",
            "image_url": "https://example.org/1.jpg",
            "sample_index": number,
            "captions": {CAPTION: text, "raw_caption": "cat", "longLLA_captions": "A long one."},
            "nounphrases": phrases,
        }
        for number, (text, phrases) in enumerate(zip(TEXTS, PHRASES, strict=True))
    }


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Any]:
    """Imports a pickle of these bytes; the result and the rows."""

    def run(content: bytes, caption: str = CAPTION, limits: Limits = LIMITS) -> Any:
        source, target = tmp_path / "file.pkl", tmp_path / "out.parquet"
        source.write_bytes(content)
        found = import_phrases(source, target, caption, limits)
        return found, pq.read_table(target).to_pylist()

    return run


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_captions_and_phrases_of_any_protocol(
    imported: Callable[..., Any], protocol: int, tmp_path: Path
) -> None:
    found, rows = imported(pickle.dumps(samples(), protocol))
    assert found.rows == 3 and found.unreadable == 0
    assert rows == [
        {
            "key": key,
            "image": sample["image_path"],
            "caption": sample["captions"][CAPTION],
            "phrases": sample["nounphrases"],
        }
        for key, sample in samples().items()
    ]
    captions = [
        Caption(f"train-{n}", f"{n}", f"images/ab/cd/{n}.jpg", 1, 1, (text,), "cc3m", "train")
        for n, text in enumerate(TEXTS)
    ]
    given = {"file": str(tmp_path / "out.parquet"), "layout": "c2lip"}
    settings = parse(AnnotationSettings, given, "views.from_table")
    joined = read(settings, frozenset({"phrases"}), captions, "views.from_table")
    assert [list(each.phrases) for each in joined] == PHRASES


def test_samples_of_another_shape_are_counted(imported: Callable[..., Any]) -> None:
    wrong = {
        "no dict": 3,
        "no caption": {"image_path": "a.jpg", "captions": {}, "nounphrases": []},
        "bytes": {"image_path": b"a.jpg", "captions": {CAPTION: "A"}, "nounphrases": []},
        "long": {
            "image_path": "a.jpg",
            "captions": {CAPTION: "A" * (unpickle.LONGEST + 1)},
            "nounphrases": [],
        },
        "many": {
            "image_path": "a.jpg",
            "captions": {CAPTION: "A"},
            "nounphrases": ["a"] * (unpickle.MOST + 1),
        },
        "surrogate": {"image_path": "a.jpg", "captions": {CAPTION: "A\ud800"}, "nounphrases": []},
    }
    found, rows = imported(pickle.dumps({**samples(), **wrong}))
    assert (found.rows, found.unreadable) == (3, len(wrong)) and len(rows) == 3
    assert found.examples == ("'no dict'", "'no caption'", "'bytes'")


def test_another_caption_can_be_named(imported: Callable[..., Any]) -> None:
    _, rows = imported(pickle.dumps(samples()), caption="raw_caption")
    assert {row["caption"] for row in rows} == {"cat"}
    with pytest.raises(SourceError, match="none of 3 samples has texts as .* captions.other"):
        imported(pickle.dumps(samples()), caption="other")


class Runs:
    """Unpickles by running a command."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, (f"touch {self._file}",)


CRASH = "SIGSEGV|RecursionError|none of 1 samples"  # as Python's version has it
LARGEST = {
    "image_path": "a" * unpickle.LONGEST,
    "captions": {CAPTION: "c" * unpickle.LONGEST},
    "nounphrases": ["p" * unpickle.LONGEST] * unpickle.MOST,
}
HARMFUL: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "reduce": (lambda file: pickle.dumps({"a": Runs(file)}), "it names 'posix.system'"),
    "protocol 0": (
        lambda file: f"cos\nsystem\n(S'touch {file}'\ntR.".encode(),
        "it names 'os.system'",
    ),
    "inst": (lambda file: f"(S'touch {file}'\nios\nsystem\n.".encode(), "it names 'os.system'"),
    "builtin": (
        lambda file: f"cbuiltins\nexec\n(S'open({str(file)!r}, \"w\")'\ntR.".encode(),
        "it names 'builtins.exec'",
    ),
    "class": (lambda file: pickle.dumps({"a": Path(file)}), "it names '.*Path'"),
    "extension": (lambda file: b"\x80\x02\x82\x01.", "unregistered extension code 1"),
    "persistent id": (lambda file: b"\x80\x02]Q.", "persistent"),
    "setstate": (lambda file: b"\x80\x02]}b.", "AttributeError"),
    "called list": (lambda file: b"\x80\x02])R.", "TypeError"),
    "memo": (lambda file: b"\x80\x02]r\xff\xff\xff\x7f.", r"memory than it may have \(0.25 GB"),
    "length": (lambda file: b"\x80\x04\x8e" + b"\xff" * 7 + b"\x0f.", "memory|truncated|exceeds"),
    "number": (lambda file: b"I" + b"9" * 1_000_000 + b"\n.", "ValueError"),
    "nested lists": (lambda file: b"]" * 300_000 + b"a" * 299_999 + b".", "holds a list"),
    "nested keys": (lambda file: b"\x80\x02})" + b"\x85" * 2_000_000 + b"K\x01s.", CRASH),
    "truncated": (lambda file: pickle.dumps(samples())[:200], "truncated"),
    "empty": (lambda file: b"", "EOFError"),
    "no pickle": (lambda file: b"caption,phrases\n", "UnpicklingError"),
    "repeated": (
        lambda file: pickle.dumps({number: LARGEST for number in range(30_000)}),  # noqa: C420
        "its texts repeat",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMFUL)
def test_nothing_runs_and_one_line_says_why(
    imported: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    content, expected = HARMFUL[name]
    harmed, limits = tmp_path / "harmed", Limits(0.25 if name != "repeated" else 0.05, 30)
    with pytest.raises(SourceError, match=expected) as error:
        imported(content(harmed), limits=limits)
    assert "\n" not in error.value.message and "file.pkl: " in error.value.message
    assert not harmed.exists() and not (tmp_path / "out.parquet").exists()


def test_the_payloads_do_run_elsewhere(tmp_path: Path) -> None:
    """So that the test above could fail: the same bytes harm a plain `pickle.loads`."""
    for name in ("reduce", "protocol 0", "inst", "builtin"):
        harmed = tmp_path / name.replace(" ", "_")
        code = "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"
        content, _ = HARMFUL[name]
        subprocess.run([sys.executable, "-c", code], input=content(harmed), check=False)
        assert harmed.exists()


# A minute of opcodes on a fast processor, in little memory: sets of one number of four megabytes,
# which is hashed each time.
ENDLESS = (
    b"\x80\x04\x8b"
    + (4_000_000).to_bytes(4, "little")
    + b"\x7f" * 4_000_000
    + b"q\x000"
    + b"\x8f(h\x00\x900" * 60_000
    + b"]."
)


def test_reading_ends_in_time(imported: Callable[..., Any]) -> None:
    content = ENDLESS
    with pytest.raises(SourceError, match=r"more than 1 seconds \(--seconds\)"):
        imported(content, limits=Limits(0.5, 1))


def test_the_limit_of_processor_time_ends_reading_by_its_own_signal(tmp_path: Path) -> None:
    """Whichever clock is first, the message is the same: SIGKILL would not tell its reason."""
    file = tmp_path / "file.pkl"
    file.write_bytes(ENDLESS)
    command = [sys.executable, "-I", "-S", unpickle.__file__, str(file), CAPTION, str(2**29), "1"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGXCPU
