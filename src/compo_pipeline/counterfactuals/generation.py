"""From captions to counterfactuals: edited captions, images of them, table rows, image folder.

Texts come first, all of them, then images. Each is stored under a key of everything it depends on,
so an interrupted run continues where it stopped, another caption editor gives new texts and, where
these differ, new images, and another image generator gives new images of the same texts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from filelock import FileLock, Timeout

from compo_pipeline.counterfactuals.contract import (
    CaptionEditor,
    EditedCaption,
    EditRequest,
    ImageFailure,
    ImageGenerator,
    ImageRequest,
    Role,
)
from compo_pipeline.counterfactuals.image_store import ImageStore, StoredFiles, published_path
from compo_pipeline.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.counterfactuals.tables import EDITED, FAILED, GENERATED, quarantine_rows
from compo_pipeline.run.engines import LOCAL, PrepareSettings, map_partitions
from compo_pipeline.run.progress import Meter
from compo_pipeline.run.seeding import digest
from compo_pipeline.storage.hashing import hash_of
from compo_pipeline.storage.records import Caption, Counterfactual, Parse, Rejected
from compo_pipeline.storage.stores import KeyValueStore
from compo_pipeline.storage.table_files import PART
from compo_pipeline.storage.tables import Table, grouped

ROLES: tuple[Role, ...] = ("negative", "positive")
_AT_ONCE = 4096  # edits that are in memory, with their parses
_STORED_TOGETHER = 256  # texts

_log = logging.getLogger(__name__)


class TextOutcome(NamedTuple):
    """Result of editing a caption: the text and its edit, or an empty text and the reason."""

    text: str
    detail: str


class Folders(NamedTuple):
    """Folder of the real images (`root`), and folder of the stored texts and images (`state`).

    The latter are of all runs.
    """

    root: Path
    state: Path


@dataclass(frozen=True, slots=True)
class Parser:
    """Function that parses sentences, with the name and version of its language model.

    `parse` maps (sample_id, sentence, text) to parses. Both give nothing for caption editors that
    read no parses.
    """

    language: str
    parse: Callable[[Iterable[tuple[str, int, str]]], Iterable[Parse]]


@dataclass(frozen=True, slots=True)
class Job:
    """One sentence of a caption row, to be edited in one role (negative or positive).

    `image_hash` is of the real image's bytes, so another image under the same name gets
    counterfactuals of its own.
    """

    row: Caption
    sentence: int
    role: Role
    image_hash: str

    @property
    def caption(self) -> str:
        """The sentence to edit, as text."""
        return self.row.sentences[self.sentence]

    def key(self, *parts: str | int) -> str:
        """Hash of the job and of further values, as key under which its result is stored."""
        named = (self.row.sample_id, self.sentence, self.role, self.caption, self.image_hash)
        return hash_of(*parts, *named)


@dataclass(frozen=True)
class Jobs(Iterable[Job]):
    """Iterable of edit jobs: one per role (negative, positive) for each row's first n sentences."""

    captions: Table[Caption]
    hashes: pa.ChunkedArray
    """Of each row's real image."""

    sentences: int | None
    """How many of a row are edited; None for all."""

    roles: tuple[Role, ...] = ROLES
    """Kinds of edits of each sentence."""

    def __len__(self) -> int:
        counts = np.asarray(pc.list_value_length(self.captions.column("sentences")))
        edited = counts if self.sentences is None else np.minimum(counts, self.sentences)
        return len(self.roles) * int(edited.sum())

    def __iter__(self) -> Iterator[Job]:
        for start in range(0, len(self.captions), PART):
            hashes = self.hashes.slice(start, PART).to_pylist()
            for row, image_hash in zip(self.captions[start : start + PART], hashes, strict=True):
                for sentence in range(len(row.sentences[: self.sentences])):
                    for role in self.roles:
                        yield Job(row, sentence, role, image_hash)


def generate(
    jobs: Jobs,
    editor: CaptionEditor,
    parser: Parser,
    generator: ImageGenerator | None,
    settings: CounterfactualSettings,
    folders: Folders,
    engine: PrepareSettings = LOCAL,
) -> tuple[Table[Counterfactual], Table[Rejected], Iterable[tuple[str, Path]]]:
    """Edit captions and generate images: returns table rows, quarantined rows and image files.

    A few thousand edits are in memory at a time.

    Args:
        jobs: the edits to make.
        editor: edits captions.
        parser: parses them for the editor.
        generator: generates images; None for texts alone.
        settings: how images are stored, and what is tried again.
        folders: where to read and write.
        engine: edits captions, where the editor allows several processes.
    """
    with _state_lock(folders.state):
        texts = _CaptionEdits(folders.state, editor, parser)
        texts.edit(jobs, engine, retry=settings.retry)
        images = _ImageGeneration(folders, generator, settings) if generator else None
        if images:
            images.generate(texts.outcomes(jobs), len(jobs))
        rows = Table.spilled(
            _table_rows(texts, images, jobs, settings), Counterfactual, folders.state
        )
        failed = quarantine_rows(rows, (job.row.image for job in jobs))
        files = StoredFiles(rows, images.store) if images else ()
        return rows, Table.spilled(failed, Rejected, folders.state), files


def _table_rows(
    texts: _CaptionEdits,
    images: _ImageGeneration | None,
    jobs: Jobs,
    settings: CounterfactualSettings,
) -> Iterator[Counterfactual]:
    """Rows of the table `counterfactuals`, one for each job."""
    editor, language = texts.editor, texts.parser.language
    generator = images.generator if images else None
    image_source = (generator.name, generator.settings_fingerprint) if generator else ("", "")
    source = (editor.name, editor.settings_fingerprint, language, *image_source)
    fingerprint = digest(*source, settings.seed, settings.format)
    for some in grouped(texts.outcomes(jobs), _AT_ONCE):
        made = images.files_or_reasons(some) if images else [""] * len(some)
        for (job, (text, detail)), image in zip(some, made, strict=True):
            state, path = EDITED if text else FAILED, ""
            if isinstance(image, Path):
                state = GENERATED
                path = published_path(job.row.sample_id, job.sentence, job.role, image)
            elif image:
                state, detail = FAILED, image
            yield Counterfactual(
                sample_id=job.row.sample_id,
                sentence=job.sentence,
                caption=job.caption,
                role=job.role,
                text=text,
                image=path,
                caption_editor=editor.name,
                image_generator=image_source[0],
                fingerprint=f"{fingerprint:016x}"[:12],
                state=state,
                detail=detail,
            )


@contextmanager
def _state_lock(state: Path) -> Iterator[None]:
    """Context manager that holds the lock of the state folder, shared by runs on the same data."""
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


class _CaptionEdits:
    """Edits captions, and stores the texts by a hash of everything that a text depends on.

    Failures that are not final are not stored: the next run asks again.
    """

    def __init__(self, state: Path, editor: CaptionEditor, parser: Parser) -> None:
        self.editor, self.parser = editor, parser
        self._store = KeyValueStore(state / "texts.sqlite", TextOutcome)
        self._source = ("text", editor.name, editor.settings_fingerprint, parser.language)
        self._unanswered: dict[str, TextOutcome] = {}

    def edit(self, jobs: Jobs, engine: PrepareSettings, *, retry: bool) -> None:
        """Edit the captions without a stored text; with `retry`, also those with a failed edit."""
        with Meter(len(jobs), "editing captions") as meter:
            calls = grouped(self._jobs_to_edit(jobs, meter, retry), _AT_ONCE)
            edit = partial(_edit_jobs, self.editor, self.parser)
            answers: Iterable[Iterable[tuple[str, TextOutcome, bool]]]
            if self.editor.concurrent and engine != LOCAL:
                answers = map_partitions(partial(_as_list, edit), calls, engine)
            else:
                answers = map(edit, calls)
            for some in grouped(chain.from_iterable(answers), _STORED_TOGETHER):
                self._store.put({key: outcome for key, outcome, final in some if final})
                self._unanswered |= {key: outcome for key, outcome, final in some if not final}
                for _ in some:
                    meter.advance()

    def _jobs_to_edit(self, jobs: Jobs, meter: Meter, retry: bool) -> Iterator[tuple[str, Job]]:
        """Jobs without a stored text, with their keys; other jobs advance the progress meter."""
        for some in grouped(jobs, _AT_ONCE):
            keyed = {job.key(*self._source): job for job in some}
            known = self._store.get(keyed)
            for key, job in keyed.items():
                if key not in known or (retry and not known[key].text):
                    yield key, job
                else:
                    meter.advance()

    def outcomes(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, TextOutcome]]:
        """Yield each job with the outcome of its edit: a text or a reason."""
        for some in grouped(jobs, _AT_ONCE):
            keys = [job.key(*self._source) for job in some]
            known = self._store.get(keys)
            for key, job in zip(keys, some, strict=True):
                yield job, self._unanswered.get(key) or known[key]


def _edit_jobs(
    editor: CaptionEditor, parser: Parser, jobs: Sequence[tuple[str, Job]]
) -> Iterator[tuple[str, TextOutcome, bool]]:
    """Yield for each job its key, the outcome of its edit, and whether the outcome is final."""
    parses = parser.parse((job.row.sample_id, job.sentence, job.caption) for _, job in jobs)
    requests = [
        EditRequest(job.row.sample_id, job.sentence, job.role, job.caption, parse)
        for (_, job), parse in zip(jobs, parses, strict=True)
    ]
    for (key, _), answer in zip(jobs, editor.edit(requests), strict=True):
        if isinstance(answer, EditedCaption):
            yield key, TextOutcome(answer.text, answer.detail), True
        else:
            yield key, TextOutcome("", answer.reason), answer.final


def _as_list(function: Callable[[Any], Iterable[Any]], argument: Any) -> list[Any]:
    """List of the values that a function yields, so that it can be sent between processes."""
    return list(function(argument))


class _ImageGeneration:
    """Generates images of edited captions, and stores image files and failure reasons."""

    def __init__(
        self, folders: Folders, generator: ImageGenerator, settings: CounterfactualSettings
    ) -> None:
        self.generator, self._root, self._seed = generator, folders.root, settings.seed
        self._retry = settings.retry
        self.store = ImageStore(folders.state / "images", settings.format)
        self._failures = KeyValueStore(folders.state / "failures.sqlite", str)
        source = generator.name, generator.settings_fingerprint, settings.seed
        self._source = ("image", *source, self.store.encoding)

    def generate(self, texts: Iterable[tuple[Job, TextOutcome]], count: int) -> None:
        """Generate the images of edited captions that are not stored yet.

        Args:
            texts: all jobs with their texts.
            count: how many there are.
        """
        with Meter(count, "generating images") as meter:
            for some in grouped(texts, _AT_ONCE):
                keyed = {self._key(*one): one for one in some if one[1].text}
                failed = {} if self._retry else self._failures.get(keyed)
                pending = {
                    key: self._request(job, outcome.text)
                    for key, (job, outcome) in keyed.items()
                    if key not in failed and not self.store.path(key).exists()
                }
                for _ in range(len(some) - len(pending)):
                    meter.advance()
                answers = self.generator.generate(list(pending.values())) if pending else ()
                for key, answer in zip(pending, answers, strict=True):
                    if isinstance(answer, ImageFailure):
                        self._failures.put({key: answer.reason})
                    else:
                        self.store.save(key, answer)
                    meter.advance()

    def files_or_reasons(self, texts: Sequence[tuple[Job, TextOutcome]]) -> list[Path | str]:
        """Image file or failure reason of each job; empty for a job without an edited text."""
        keys = [self._key(*one) if one[1].text else "" for one in texts]
        paths = {key: path for key in keys if key and (path := self.store.path(key)).exists()}
        reasons = self._failures.get(key for key in keys if key and key not in paths)
        return [paths.get(key) or reasons[key] if key else "" for key in keys]

    def _key(self, job: Job, outcome: TextOutcome) -> str:
        """Key under which the image of a job's edited text is stored."""
        return job.key(*self._source, outcome.text)

    def _request(self, job: Job, text: str) -> ImageRequest:
        """The image generator's request for a job's edited text."""
        named = (job.row.sample_id, job.sentence, job.role)
        # 63 bits: some generators of random numbers refuse the sign bit. "picture" is part of the
        # seed.
        own_seed = digest(self._seed, "picture", *named) >> 1
        return ImageRequest(*named, text, self._root / job.row.image, own_seed)
