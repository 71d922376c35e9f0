"""Images captioned by a chat server: what is sent, stored, asked again, rejected and told."""

import base64
import io
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.generation.recaption.conftest import recaptioned

from compo_pipeline.core.records import Recaption, Rejected
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.tables import Table
from compo_pipeline.data.readers.record import RawCaption
from compo_pipeline.generation.recaption.recaptioning import (
    Captioned,
    Recaptions,
    captioned_images,
    drawn,
)
from compo_pipeline.generation.recaption.settings import QUERY, RecaptionSettings

Photos = Callable[[int], dict[str, Captioned]]
SETTINGS = RecaptionSettings()
CAPTION = "The image shows a dog on a red sofa. It sleeps in the warm sun."


def image_of(body: dict[str, Any]) -> bytes:
    head, _, content = body["messages"][0]["content"][0]["image_url"]["url"].partition(",")
    assert head == "data:image/jpeg;base64"
    return base64.b64decode(content)


def good(turn: Any, number: int, body: dict[str, Any]) -> None:
    turn.say(CAPTION, usage={"prompt_tokens": 100, "completion_tokens": 20})


def test_captions_of_all_images(chat: Any, photos: Photos, run: Any) -> None:
    chat.script = good
    found = run(photos(3))
    assert [row.image for row in found.rows] == ["0.png", "1.png", "2.png"]
    row = found.rows[1]
    assert row.caption == "a dog on a red sofa. It sleeps in the warm sun."
    assert row.originals == ("old 1",)
    assert (row.captioner, row.model, row.prompt) == ("endpoint", "fake", QUERY)
    assert abs(time.time() - time.mktime(time.strptime(row.date[:10], "%Y-%m-%d"))) < 3 * 86_400
    assert found.report["openings"] == {"The image shows": 3}
    assert len({image_of(body) for _, _, body in chat.seen}) == 3
    assert chat.seen[0][2]["messages"][0]["content"][1] == {"type": "text", "text": QUERY}


def test_images_are_small_jpeg_files_without_metadata(chat: Any, run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "a camera"  # turned by a quarter
    exif.get_ifd(0x8825)[1] = "N"
    image = Image.new("RGB", (400, 200), "red")
    image.paste("blue", (0, 0, 200, 200))
    secret = b"<x:xmpmeta>secret place</x:xmpmeta>"
    image.save(folder / "a.jpg", exif=exif, comment=b"secret", xmp=secret, icc_profile=b"secret")
    chat.script = good
    settings = replace(SETTINGS, max_side=100)
    run({"a.jpg": Captioned("train-0", ())}, settings)
    sent = image_of(chat.seen[0][2])
    for trace in (b"Exif", b"secret", b"camera", b"xmp"):
        assert trace in (folder / "a.jpg").read_bytes() and trace not in sent
    shown = Image.open(io.BytesIO(sent))
    assert (shown.format, shown.size) == ("JPEG", (50, 100))
    assert not shown.getexif()
    top, bottom = shown.getpixel((25, 10)), shown.getpixel((25, 90))
    assert top[2] > 200 > top[0] and bottom[0] > 200 > bottom[2]


@pytest.mark.parametrize(
    ("settings", "endpoint"),
    [
        ({"prompt": "What is it?"}, {}),
        ({"max_side": 40}, {}),
        ({}, {"model": "other"}),
        ({}, {"temperature": 0.5}),
        ({}, {"max_tokens": 9}),
        ({}, {"more": {"top_p": 0.5}}),
    ],
)
def test_other_settings_ask_again(
    chat: Any, photos: Photos, run: Any, settings: dict[str, Any], endpoint: dict[str, Any]
) -> None:
    chat.script = good
    run(photos(1))
    run(photos(1), replace(SETTINGS, **settings), **endpoint)
    assert len(chat.seen) == 2


def test_other_limits_and_another_address_ask_nothing(chat: Any, photos: Photos, run: Any) -> None:
    chat.script = lambda turn, number, body: turn.say("A dog sleeps on a qwxzk sofa.")
    assert len(run(photos(1)).rows) == 1
    found = run(photos(1), replace(SETTINGS, known_words=1.0), url=f"{chat.url}/", timeout=9.0)
    assert len(chat.seen) == 1
    assert found.report["rejected"] == {"unknown_words": 1}


def test_an_image_of_other_bytes_is_asked_about_again_and_equal_ones_once(
    chat: Any, photos: Photos, run: Any, tmp_path: Path
) -> None:
    chat.script = good
    sources = photos(2)
    (tmp_path / "photos" / "1.png").write_bytes((tmp_path / "photos" / "0.png").read_bytes())
    found = run(sources)
    assert len(chat.seen) == 1 and len(found.rows) == 2
    Image.new("RGB", (48, 32), "white").save(tmp_path / "photos" / "1.png")
    run(sources)
    assert len(chat.seen) == 2


def test_what_is_rejected_says_why(chat: Any, photos: Photos, run: Any, tmp_path: Path) -> None:
    sources = photos(5)
    (tmp_path / "photos" / "4.png").write_bytes(b"no image")
    colours = {number: (number, 7 * number) for number in range(5)}

    def script(turn: Any, number: int, body: dict[str, Any]) -> None:
        pixel = Image.open(io.BytesIO(image_of(body))).getpixel((5, 5))
        which = min(colours, key=lambda n: abs(pixel[0] - n) + abs(pixel[1] - 7 * n))
        answers = {0: CAPTION, 1: "I'm sorry, I can't help with that.", 2: ""}
        turn.reply(400, "too odd") if which == 3 else turn.say(answers[which])

    chat.script = script
    found = run(sources)
    assert [row.image for row in found.rows] == ["0.png"]
    rejected = {row.image: (row.rule, row.detail) for row in found.rejected}
    assert {image: rule for image, (rule, _) in rejected.items()} == {
        "1.png": "refusal", "2.png": "empty", "3.png": "no_answer", "4.png": "unreadable",
    }  # fmt: skip
    assert "400: too odd" in rejected["3.png"][1]
    assert rejected["4.png"][1].startswith("not_an_image: ")
    assert found.report["images"] == 5 and sum(found.report["rejected"].values()) == 4


def test_an_image_without_an_answer_is_counted_and_asked_about_later(
    chat: Any, photos: Photos, run: Any
) -> None:
    sources = photos(4)
    fates: dict[bytes, bool] = {}

    def script(turn: Any, number: int, body: dict[str, Any]) -> None:
        lost = fates.setdefault(image_of(body), len(fates) == 2)
        turn.reply(503, "busy") if lost else good(turn, number, body)

    chat.script = script
    found = run(sources, connections=1)
    assert found.report["rejected"] == {"no_answer": 1} and len(found.rows) == 3
    chat.script = good
    assert len(run(sources).rows) == 4
    times = Counter(image_of(body) for _, _, body in chat.seen)
    assert times == {image: 1 + lost for image, lost in fates.items()}


def test_a_key_that_is_missing_is_told_before_the_first_request(
    chat: Any, photos: Photos, run: Any
) -> None:
    with pytest.raises(SettingsError, match=r"recaption\.endpoint\.key_variable: .*'NO_SUCH_KEY'"):
        run(photos(1), key_variable="NO_SUCH_KEY")
    assert chat.seen == []


def test_no_more_requests_than_may_be_sent(chat: Any, photos: Photos, run: Any) -> None:
    chat.script = good
    with pytest.raises(SettingsError, match=r"recaption\.endpoint\.max_requests: 3 requests"):
        run(photos(5), max_requests=3, connections=2)
    assert len(chat.seen) == 3
    assert len(run(photos(5), max_requests=3, connections=2).rows) == 5
    assert len(chat.seen) == 5


def test_no_more_connections_than_are_allowed(
    chat: Any, photos: Photos, run: Any, lock: threading.Lock
) -> None:
    together, most, three = Counter[str](), [], threading.Barrier(3)

    def script(turn: Any, number: int, body: dict[str, Any]) -> None:
        with lock:
            together["now"] += 1
            most.append(together["now"])
        three.wait(60)
        time.sleep(0.02)
        with lock:
            together["now"] -= 1
        good(turn, number, body)

    chat.script = script
    run(photos(12), connections=3)
    assert max(most) == 3


def test_a_kill_repeats_no_more_requests_than_connections(
    chat: Any, photos: Photos, run: Any, tmp_path: Path, imported: ForkServerContext
) -> None:
    sources, connections = photos(40), 4
    reached, killed = threading.Event(), threading.Event()

    def script(turn: Any, number: int, body: dict[str, Any]) -> None:
        if number >= 17:
            reached.set()
            killed.wait(60)
        good(turn, number, body)

    chat.script = script
    given = tmp_path, chat.url, sources, None, None
    worker = imported.Process(target=recaptioned, args=given, kwargs={"connections": connections})
    worker.start()
    try:
        assert reached.wait(300)
    finally:
        worker.kill()
        worker.join()
        killed.set()
    assert 17 < len(chat.seen) < len(sources)
    found = run(sources, connections=connections)
    assert len(found.rows) == len(sources)
    times = Counter(image_of(body) for _, _, body in chat.seen)
    assert len(times) == len(sources)
    assert times.total() - len(sources) <= connections


def record(number: int, text: str, split: str = "train", *more: str) -> RawCaption:
    image = f"{number}.png"
    return RawCaption(f"{split}-{number}-{text}", image, image, (text,), more, split)


RECORDS = [
    record(0, "one", "train", "two"),
    record(0, "two", "train", "one"),
    record(1, "three"),
    record(1, "three"),
    Rejected(-1, "x", "", "unparseable", "no image"),
    record(2, "", "test"),
    record(0, "four", "test"),
]


def test_the_images_of_records() -> None:
    found = captioned_images(RECORDS, None)
    assert found == {
        "0.png": Captioned("train-0-one", ("one", "two", "four")),
        "1.png": Captioned("train-1-three", ("three",)),
        "2.png": Captioned("test-2-", ()),
    }
    assert list(captioned_images(RECORDS, ["test"])) == ["2.png", "0.png"]


def test_a_draw_does_not_depend_on_the_other_images(photos: Photos) -> None:
    sources = photos(30)
    some = drawn(sources, 10)
    assert len(some) == 10 and list(some) == [path for path in sources if path in some]
    fewer = {path: source for path, source in sources.items() if path in some}
    assert drawn(fewer, 10) == some


def table(*numbers: int) -> Table[Recaption]:
    rows = [
        Recaption(f"{n}.png", "h", f"A new caption {n}.", ("one", "two"), "e", "m", "p", "d")
        for n in numbers
    ]
    return Table.of(rows, Recaption)


def gone(number: int, rule: str) -> Rejected:
    return Rejected(-1, f"train-{number}", f"{number}.png", rule, "found")


def test_records_get_recaptions_and_nothing_is_lost() -> None:
    rejected = [gone(1, "refusal"), gone(2, "unreadable")]
    captions = Recaptions(table(0), rejected, SETTINGS, None)
    found = list(captions.replaced(RECORDS))
    assert found == [
        replace(RECORDS[0], own=("A new caption 0.",), further=()),
        Rejected(-1, "train-1-three", "1.png", "recaption", "refusal: found"),
        RECORDS[4],
        RECORDS[5],
        replace(RECORDS[6], own=("A new caption 0.",)),
    ]
    report = captions.report()
    assert report == {"recaptioned": 2, "merged": 2, "rejected": 1, "unreadable": 1}
    assert sum(report.values()) == sum(isinstance(each, RawCaption) for each in RECORDS)


def test_an_image_that_nobody_asked_about_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"recaption: nothing was asked about 1\.png"):
        list(Recaptions(table(0), [], SETTINGS, None).replaced(RECORDS))


def test_the_fingerprint_is_that_of_the_captions() -> None:
    def fingerprint(rows: Table[Recaption]) -> str:
        return Recaptions(rows, [], SETTINGS, None).fingerprint

    own = fingerprint(table(0, 1))
    later = Table.of([replace(row, date="later") for row in table(0, 1)], Recaption)
    other = Table.of([replace(row, caption="Other.") for row in table(0, 1)], Recaption)
    assert own == fingerprint(later)
    assert len({own, fingerprint(other), fingerprint(table(0))}) == 3
