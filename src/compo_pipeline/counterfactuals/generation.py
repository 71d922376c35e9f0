"""From captions to counterfactuals: edited captions, images of them, table rows, image folder.

Texts come first, all of them, then images. Each is stored under a key of everything it depends on,
so an interrupted run continues where it stopped, another caption editor gives new texts and, where
these differ, new images, and another image generator gives new images of the same texts.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from filelock import FileLock, Timeout

from compo_pipeline.counterfactuals.contract import (
    CaptionEditor,
    EditedCaption,
    EditFailure,
    EditRequest,
    GeneratedImage,
    ImageGenerator,
    ImageRequest,
    Role,
)
from compo_pipeline.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.counterfactuals.tables import EDITED, FAILED, GENERATED, quarantined
from compo_pipeline.progress import track
from compo_pipeline.records import Caption, Counterfactual, Parse, Rejected
from compo_pipeline.seeding import digest
from compo_pipeline.storage import KeyValueStore, atomic_file, atomic_folder

if TYPE_CHECKING:
    from PIL import Image

ROLES: tuple[Role, ...] = ("negative", "positive")
_REQUESTS_PER_CALL = 16_384  # their parses are in memory
_STORED_TOGETHER = 256  # texts
_SUFFIXES = {"jpeg": ".jpg", "png": ".png"}
_OPTIONS: dict[str, dict[str, int]] = {"jpeg": {"quality": 92, "subsampling": 0}, "png": {}}
_UNSAFE = re.compile(r"[^A-Za-z0-9-]+")
_READABLE = 40  # characters of a sample_id in a file's name

_log = logging.getLogger(__name__)


class TextOutcome(NamedTuple):
    """A text and the edit that made it, or no text and the reason."""

    text: str
    detail: str


class Folders(NamedTuple):
    """Folders: `root` of the real images, `images` of the published ones, and `state` of all
    texts and images of all runs, under any settings.
    """

    root: Path
    images: Path
    state: Path


@dataclass(frozen=True, slots=True)
class Parser:
    """A function from (sample_id, sentence, text) items to parses, and the name and version of
    its language model. Both are empty for caption editors that read no parses.
    """

    language: str
    parse: Callable[[Iterable[tuple[str, int, str]]], Iterable[Parse]]


@dataclass(frozen=True, slots=True)
class Job:
    """One edit to make: which sentence of which row, and its role.

    `image_hash` is of the real image's bytes, so another image under the same name gets
    counterfactuals of its own.
    """

    row: Caption
    sentence: int
    role: Role
    image_hash: str

    @property
    def caption(self) -> str:
        """The sentence to edit."""
        return self.row.sentences[self.sentence]

    def key(self, *parts: str | int) -> str:
        """Key of an answer: the job and everything else that the answer depends on."""
        named = (self.row.sample_id, self.sentence, self.role, self.caption, self.image_hash)
        return f"{digest(*parts, *named):016x}"


def generate(
    captions: Sequence[Caption],
    hashes: Mapping[str, str],
    editor: CaptionEditor,
    parser: Parser,
    generator: ImageGenerator | None,
    settings: CounterfactualSettings,
    folders: Folders,
) -> tuple[list[Counterfactual], list[Rejected]]:
    """All counterfactuals, and those that failed; images are published in `folders.images`.

    Args:
        captions: the rows that train.
        hashes: of real images, by path.
        editor: edits captions.
        parser: parses them for the editor.
        generator: generates images; None for texts alone.
        settings: how many sentences, and how images are stored.
        folders: where to read and write.
    """
    jobs = [
        Job(row, sentence, role, hashes[row.image])
        for row in captions
        for sentence in range(len(row.sentences[: settings.sentences]))
        for role in ROLES
    ]
    with _locked(folders.state):
        texts = _texts(jobs, editor, parser, folders.state, retry=settings.retry)
        images = _images(jobs, texts, generator, settings, folders) if generator else {}
        files = {n: image for n, image in images.items() if isinstance(image, Path)}
        paths = {
            n: published(jobs[n].row.sample_id, jobs[n].sentence, jobs[n].role, file)
            for n, file in files.items()
        }
        publish({paths[n]: file for n, file in files.items()}, folders.images)
    image_source = (generator.name, generator.settings_fingerprint) if generator else ("", "")
    fingerprint = digest(
        *(editor.name, editor.settings_fingerprint, parser.language, *image_source),
        *(settings.seed, settings.format),
    )
    rows = []
    for n, (job, (text, detail)) in enumerate(zip(jobs, texts, strict=True)):
        state = EDITED if text else FAILED
        if isinstance(image := images.get(n), str):
            state, detail = FAILED, image
        elif image:
            state = GENERATED
        rows.append(
            Counterfactual(
                sample_id=job.row.sample_id,
                sentence=job.sentence,
                caption=job.caption,
                role=job.role,
                text=text,
                image=paths.get(n, ""),
                caption_editor=editor.name,
                image_generator=image_source[0],
                fingerprint=f"{fingerprint:016x}"[:12],
                state=state,
                detail=detail,
            )
        )
    return rows, quarantined(rows, (job.row.image for job in jobs))


@contextmanager
def _locked(state: Path) -> Iterator[None]:
    """Lock of the state folder, which all runs on the same data share."""
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


def _texts(
    jobs: Sequence[Job], editor: CaptionEditor, parser: Parser, state: Path, *, retry: bool
) -> list[TextOutcome]:
    """The text of every job, or why there is none; only what is not stored is asked for.

    Failures that are not final are not stored: the next run asks again. With `retry`, stored
    failures are asked again, too.
    """
    store = KeyValueStore(state / "texts.sqlite", TextOutcome)
    source = ("text", editor.name, editor.settings_fingerprint, parser.language)
    keys = [job.key(*source) for job in jobs]
    texts = store.get(keys)
    pending = {
        key: job
        for key, job in zip(keys, jobs, strict=True)
        if key not in texts or (retry and not texts[key].text)
    }
    _log.info("%d of %d edited captions are stored already", len(jobs) - len(pending), len(jobs))
    answers = track(
        _edited(list(pending.values()), editor, parser), len(pending), "editing captions"
    )
    answered = zip(pending, answers, strict=True)
    while batch := list(islice(answered, _STORED_TOGETHER)):
        final = {}
        for key, answer in batch:
            if isinstance(answer, EditedCaption):
                texts[key] = final[key] = TextOutcome(answer.text, answer.detail)
            else:
                texts[key] = TextOutcome("", answer.reason)
                if answer.final:
                    final[key] = texts[key]
        store.put(final)
    return [texts[key] for key in keys]


def _edited(
    jobs: Sequence[Job], editor: CaptionEditor, parser: Parser
) -> Iterator[EditedCaption | EditFailure]:
    for start in range(0, len(jobs), _REQUESTS_PER_CALL):
        some = jobs[start : start + _REQUESTS_PER_CALL]
        parses = parser.parse((job.row.sample_id, job.sentence, job.caption) for job in some)
        yield from editor.edit(
            [
                EditRequest(job.row.sample_id, job.sentence, job.role, job.caption, parse)
                for job, parse in zip(some, parses, strict=True)
            ]
        )


def _images(
    jobs: Sequence[Job],
    texts: Sequence[TextOutcome],
    generator: ImageGenerator,
    settings: CounterfactualSettings,
    folders: Folders,
) -> dict[int, Path | str]:
    """The stored image of each job with a text, or why there is none, by the job's index."""
    store = ImageStore(folders.state / "images", settings.format)
    seed = settings.seed
    source = ("image", generator.name, generator.settings_fingerprint, seed, store.encoding)
    keys = {n: jobs[n].key(*source, text) for n, (text, _) in enumerate(texts) if text}
    failures = KeyValueStore(folders.state / "failures.sqlite", str)
    reasons = failures.get(keys.values())
    pending = {
        n: key
        for n, key in keys.items()
        if not store.path(key).exists() and (settings.retry or key not in reasons)
    }
    _log.info("%d of %d images are stored already", len(keys) - len(pending), len(keys))
    requests = [_image_request(jobs[n], texts[n].text, folders.root, seed) for n in pending]
    answers = track(generator.generate(requests), len(pending), "generating images")
    for key, answer in zip(pending.values(), answers, strict=True):
        if isinstance(answer, GeneratedImage):
            store.save(key, answer.image)
        else:
            reasons[key] = answer.reason
            failures.put({key: answer.reason})
    return {
        n: path if (path := store.path(key)).exists() else reasons[key] for n, key in keys.items()
    }


def _image_request(job: Job, text: str, root: Path, seed: int) -> ImageRequest:
    named = (job.row.sample_id, job.sentence, job.role)
    # 63 bits: some random number generators refuse the sign bit. "picture" is part of the seed.
    own_seed = digest(seed, "picture", *named) >> 1
    return ImageRequest(*named, text, root / job.row.image, own_seed)


class ImageStore:
    """Images by key; a file in the store is complete."""

    def __init__(self, folder: Path, format_: str) -> None:
        self._folder, self._format = folder, format_

    @property
    def encoding(self) -> str:
        """Format and options, which a file depends on beside its image."""
        return f"{self._format} {_OPTIONS[self._format]}"

    def path(self, key: str) -> Path:
        """The file of an image, existing or not."""
        return self._folder / key[:2] / f"{key}{_SUFFIXES[self._format]}"

    def save(self, key: str, image: Image.Image) -> None:
        """Write an image atomically."""
        with atomic_file(self.path(key)) as temporary, temporary.open("wb") as file:
            image.convert("RGB").save(file, self._format, **_OPTIONS[self._format])


def published(sample_id: str, sentence: int, role: str, stored: Path) -> str:
    """Path of an image below the published folder, safe for any sample_id.

    It ends with the image's key: equal paths, equal images, in all runs. The key's first digits
    spread the files over 256 folders.
    """
    readable = _UNSAFE.sub("_", sample_id)[:_READABLE]
    return f"{stored.stem[:2]}/{role}-{sentence}-{readable}-{stored.name}"


def publish(images: Mapping[str, Path], folder: Path) -> None:
    """Put exactly these images into a folder, which is replaced as a whole unless it holds them.

    Args:
        images: the file of each path below the folder; linked where possible, else copied.
        folder: the published folder. Equal paths mean equal images, so a folder of these paths is
            left alone: another process may be reading it.
    """
    stored = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    if folder.is_dir() and stored == images.keys():
        return
    with atomic_folder(folder) as partial:
        for relative, source in images.items():
            target = partial / relative
            target.parent.mkdir(exist_ok=True)
            try:
                target.hardlink_to(source)
            except OSError:
                shutil.copyfile(source, target)
