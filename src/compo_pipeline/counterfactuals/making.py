"""Captions to counterfactuals: requests asked, answers gathered, tables and folder written."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from filelock import FileLock, Timeout

from compo_pipeline.counterfactuals.generation import (
    Drawn,
    Edit,
    Parsing,
    images,
    texts,
    wanted,
)
from compo_pipeline.counterfactuals.images import ImageStore, publish, published
from compo_pipeline.counterfactuals.journal import Journal, Outcome
from compo_pipeline.counterfactuals.tables import quarantined, row
from compo_pipeline.records import Caption, Counterfactual, Rejected
from compo_pipeline.seeding import digest

if TYPE_CHECKING:
    from compo_pipeline.counterfactuals.editors.contract import Writer
    from compo_pipeline.counterfactuals.generators.contract import Maker
    from compo_pipeline.counterfactuals.settings import CounterfactualSettings

_log = logging.getLogger(__name__)


class Places(NamedTuple):
    """Folders: `root` of the real images, `images` of the published ones, and `state`, which
    keeps whatever was made, under any settings.
    """

    root: Path
    images: Path
    state: Path


def make(
    captions: Sequence[Caption],
    hashes: Mapping[str, str],
    asked: tuple[Writer, Parsing, Maker | None],
    settings: CounterfactualSettings,
    places: Places,
) -> tuple[list[Counterfactual], list[Rejected]]:
    """All counterfactuals and those that failed; images are published under `places.images`.

    Args:
        captions: the rows that train.
        hashes: of real images, by path.
        asked: who writes, from which parses, and who draws, None where nobody does.
        settings: how many sentences, and how images are kept.
        places: where things lie.
    """
    writer, parsing, maker = asked
    edits = wanted(captions, hashes, settings.sentences)
    drawn = dict[int, Drawn]()
    with _alone(places.state):
        with Journal(places.state / "texts.jsonl") as journal:
            told = texts(edits, writer, parsing, journal, retry=settings.retry)
        if maker is not None:
            drawn = _drawn(edits, told, maker, settings, places)
        files = {place: one.file for place, one in drawn.items() if one.file}
        images = {place: _path(edits[place], file) for place, file in files.items()}
        publish(((file, images[place]) for place, file in files.items()), places.images)
    hashed = (*_identity(writer), parsing.language, *_identity(maker))
    digested = f"{digest(*hashed, settings.seed, settings.format):016x}"[:12]
    by = (writer.name, maker.name if maker else "", digested)
    rows = [
        row(edit, text, drawn.get(place), images.get(place, ""), by)
        for place, (edit, text) in enumerate(zip(edits, told, strict=True))
    ]
    return rows, quarantined(rows, (edit.row.image for edit in edits))


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """One run at a time writes where all runs of the data keep what was made."""
    state.mkdir(parents=True, exist_ok=True)
    lock = FileLock(state / "in_use.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        _log.info("Waiting for another run that makes counterfactuals of the same data.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _drawn(
    edits: Sequence[Edit],
    told: Sequence[Outcome],
    maker: Maker,
    settings: CounterfactualSettings,
    places: Places,
) -> dict[int, Drawn]:
    """What became of the image of each edit that has a text, by the edit's place."""
    having = [place for place, outcome in enumerate(told) if outcome.text]
    store = ImageStore(places.state / "images", settings.format)
    with Journal(places.state / "failures.jsonl") as journal:
        found = images(
            [(edits[place], told[place].text) for place in having],
            maker,
            store,
            journal,
            places.root,
            settings.seed,
            retry=settings.retry,
        )
    return dict(zip(having, found, strict=True))


def _path(edit: Edit, file: Path) -> str:
    return published(edit.row.sample_id, edit.sentence, edit.role, file)


def _identity(one: Writer | Maker | None) -> tuple[str, str]:
    return (one.name, one.settings_hash) if one else ("", "")
