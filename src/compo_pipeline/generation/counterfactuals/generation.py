"""From captions to counterfactuals: edited captions, images of them, table rows, image folder.

Texts come first, all of them, then images. The answers of language models are stored by their
clients, and images under a key of everything that they depend on, so an interrupted run continues
where it stopped, another caption editor gives new images where its texts differ, and another image
generator gives new images of the same texts.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compo_pipeline.core.files import atomic_file
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.core.progress import Meter
from compo_pipeline.core.records import Caption, Counterfactual, Parse, Rejected
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import PlainError
from compo_pipeline.core.table_files import LOCAL, PART, PrepareSettings, map_partitions
from compo_pipeline.core.tables import Table, grouped
from compo_pipeline.generation.counterfactuals.contract import (
    CaptionEditor,
    EditedCaption,
    EditRequest,
    ImageGenerator,
    ImageRequest,
    Role,
)
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings

if TYPE_CHECKING:
    from PIL.Image import Image


IMAGES = "images"
"""Folder of the stored images, below that of the state."""
ROLES: tuple[Role, ...] = ("negative", "positive")
_AT_ONCE = 4096  # edits that are in memory, with their parses
_SUFFIXES = {"jpeg": ".jpg", "png": ".png"}
_OPTIONS: dict[str, dict[str, int]] = {"jpeg": {"quality": 92, "subsampling": 0}, "png": {}}
_UNSAFE = re.compile(r"[^A-Za-z0-9-]+")
_READABLE = 40  # characters of a sample_id in a file's name


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
    """Hashes of each row's real image."""

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
    root: Path,
    state: Path,
    engine: PrepareSettings = LOCAL,
) -> tuple[Table[Counterfactual], Table[Rejected]]:
    """Edit captions and generate images: returns the table's rows and the quarantined ones.

    A few thousand edits are in memory at a time.

    Args:
        jobs: the edits to make.
        editor: edits captions.
        parser: parses them for the editor.
        generator: generator of images. None generates texts only.
        settings: settings of how images are stored.
        root: folder of the real images.
        state: folder of the stored images of all runs; `publish` links them.
        engine: edits captions, where the editor allows several processes.
    """
    edits = Table.spilled(_edits(jobs, editor, parser, engine), EditedCaption, state)
    images = _ImageGeneration(root, state, generator, settings) if generator else None
    if images:
        images.generate(zip(jobs, edits, strict=True), len(jobs))
    source = (editor.name, editor.settings_fingerprint, parser.language)
    rows = Table.spilled(_table_rows(jobs, edits, images, source, settings), Counterfactual, state)
    failed = quarantine_rows(rows, (job.row.image for job in jobs))
    return rows, Table.spilled(failed, Rejected, state)


def _table_rows(
    jobs: Jobs,
    edits: Iterable[EditedCaption],
    images: _ImageGeneration | None,
    text_source: tuple[str, str, str],
    settings: CounterfactualSettings,
) -> Iterator[Counterfactual]:
    """Rows of the table `counterfactuals`, one for each job."""
    generator = images.generator if images else None
    image_source = (generator.name, generator.settings_fingerprint) if generator else ("", "")
    fingerprint = digest(*text_source, *image_source, settings.seed, settings.format)
    for job, edit in zip(jobs, edits, strict=True):
        text, detail = edit.text, edit.detail
        state, path = EDITED if text else FAILED, ""
        if text and images:
            image = images.file_or_reason(job, text)
            if isinstance(image, Path):
                state = GENERATED
                path = published_path(job.row.sample_id, job.sentence, job.role, image)
            else:
                state, detail = FAILED, image
        yield Counterfactual(
            sample_id=job.row.sample_id,
            sentence=job.sentence,
            caption=job.caption,
            role=job.role,
            text=text,
            image=path,
            caption_editor=text_source[0],
            image_generator=image_source[0],
            fingerprint=f"{fingerprint:016x}"[:12],
            state=state,
            detail=detail,
        )


def _edits(
    jobs: Jobs, editor: CaptionEditor, parser: Parser, engine: PrepareSettings
) -> Iterator[EditedCaption]:
    """Yield the edit of each job: an empty text with the reason where there is none."""
    edit = partial(_edit_jobs, editor, parser)
    calls = grouped(jobs, _AT_ONCE)
    answers: Iterable[Iterable[EditedCaption]]
    if editor.concurrent and engine != LOCAL:
        answers = map_partitions(partial(_as_list, edit), calls, engine)
    else:
        answers = map(edit, calls)
    with Meter(len(jobs), "editing captions") as meter:
        for one in chain.from_iterable(answers):
            yield one
            meter.advance()


def _edit_jobs(
    editor: CaptionEditor, parser: Parser, jobs: Sequence[Job]
) -> Iterator[EditedCaption]:
    """Yield the edit of each of some jobs."""
    parses = parser.parse((job.row.sample_id, job.sentence, job.caption) for job in jobs)
    requests = [
        EditRequest(job.row.sample_id, job.sentence, job.role, job.caption, parse)
        for job, parse in zip(jobs, parses, strict=True)
    ]
    for answer in editor.edit(requests):
        yield EditedCaption("", answer) if isinstance(answer, str) else answer


def _as_list(function: Callable[[Any], Iterable[Any]], argument: Any) -> list[Any]:
    """List of the values that a function yields, so that it can be sent between processes."""
    return list(function(argument))


class _ImageGeneration:
    """Generates images of edited captions, and stores each in a file named by its key."""

    def __init__(
        self, root: Path, state: Path, generator: ImageGenerator, settings: CounterfactualSettings
    ) -> None:
        self.generator, self._root, self._seed = generator, root, settings.seed
        self._folder, self._format = state / IMAGES, settings.format
        self._failures: dict[str, str] = {}
        source = generator.name, generator.settings_fingerprint, settings.seed
        self._source = ("image", *source, f"{self._format} {_OPTIONS[self._format]}")

    def generate(self, texts: Iterable[tuple[Job, EditedCaption]], count: int) -> None:
        """Generate the images of edited captions that are not stored yet.

        Args:
            texts: all jobs with their texts.
            count: number of images.
        """
        with Meter(count, "generating images") as meter:
            for some in grouped(texts, _AT_ONCE):
                pending = {
                    path: self._request(job, edit.text)
                    for job, edit in some
                    if edit.text and not (path := self._path(job, edit.text)).exists()
                }
                for _ in range(len(some) - len(pending)):
                    meter.advance()
                answers = self.generator.generate(list(pending.values())) if pending else ()
                for path, answer in zip(pending, answers, strict=True):
                    if isinstance(answer, str):
                        self._failures[path.stem] = answer
                    else:
                        save_image(answer, path, self._format)
                    meter.advance()

    def file_or_reason(self, job: Job, text: str) -> Path | str:
        """Image file of a job's edited text, or the reason why there is none."""
        path = self._path(job, text)
        return self._failures.get(path.stem) or path

    def _path(self, job: Job, text: str) -> Path:
        """File of the image of a job's edited text, whether it exists or not."""
        key = job.key(*self._source, text)
        return self._folder / key[:2] / f"{key}{_SUFFIXES[self._format]}"

    def _request(self, job: Job, text: str) -> ImageRequest:
        """The image generator's request for a job's edited text."""
        named = (job.row.sample_id, job.sentence, job.role)
        # 63 bits: some generators of random numbers refuse the sign bit. "picture" is part of the
        # seed.
        own_seed = digest(self._seed, "picture", *named) >> 1
        return ImageRequest(*named, text, self._root / job.row.image, own_seed)


def save_image(image: Image, path: Path, format_: str) -> None:
    """Write an image to a file, atomically: as JPEG of quality 92, or as PNG."""
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        image.convert("RGB").save(file, format_, **_OPTIONS[format_])


def published_path(sample_id: str, sentence: int, role: str, stored: Path) -> str:
    """Path of an image relative to the published folder, safe for any sample_id.

    It ends with the image's key: equal paths, equal images, in all runs. The key's first digits
    spread the files over 256 folders.
    """
    readable = _UNSAFE.sub("_", sample_id)[:_READABLE]
    return f"{stored.stem[:2]}/{role}-{sentence}-{readable}-{stored.name}"


def publish(paths: Sequence[str], state: Path) -> Path:
    """Make a new folder with exactly these images, and return it.

    Args:
        paths: published paths of the images; empty ones stand for none. Equal paths mean equal
            images.
        state: folder of the stored images, which are linked where possible, else copied.
    """
    state.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="published-", dir=state))
    for path in filter(None, paths):
        target = folder / path
        source = state / IMAGES / path[:2] / path.rpartition("-")[2]
        target.parent.mkdir(exist_ok=True)
        try:
            target.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, target)
    return folder


EDITED, GENERATED, FAILED = "edited", "generated", "failed"
NO_TEXT, NO_IMAGE = "no_text", "no_image"
_REASONS = 5  # in an error
# What differs between failures of one reason: quoted texts and file names, and numbers.
_PARTICULAR = re.compile(r"""(?<![^\s(])(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|\d+(?:\.\d+)?""")


class TooManyFailures(PlainError, ValueError):
    """Error: a larger share of the edits failed than `tolerated_share` allows."""


def quarantine_rows(rows: Iterable[Counterfactual], images: Iterable[str]) -> Iterator[Rejected]:
    """Rows of the quarantine table, from the failed rows, with real image and reason.

    Args:
        rows: rows of the table.
        images: path of each row's real image.
    """
    for number, (row, image) in enumerate(zip(rows, images, strict=True)):
        if row.state == FAILED:
            yield Rejected(
                row=number,
                sample_id=row.sample_id,
                image=image,
                rule=_quarantine_rule(row),
                detail=f"{row.role} of sentence {row.sentence}: {row.detail}",
            )


def _quarantine_rule(row: Counterfactual) -> str:
    """Quarantine rule that a failed row broke: `no_image`, or `no_text`."""
    return NO_IMAGE if row.text else NO_TEXT


def summary(rows: Sequence[Counterfactual]) -> dict[str, Any]:
    """JSON summary of the table: edits by role and state, failures by rule, editor, generator."""
    counts = Counter((row.role, row.state, _quarantine_rule(row)) for row in rows)
    states, rules = Counter[tuple[str, str]](), Counter[str]()
    for (role, state, rule), times in counts.items():
        states[role, state] += times
        if state == FAILED:
            rules[rule] += times
    return {
        "edits": len(rows),
        "caption_editor": rows[0].caption_editor if rows else "",
        "image_generator": rows[0].image_generator if rows else "",
        "fingerprint": rows[0].fingerprint if rows else "",
        "failed": rules.total(),
        "failed_share": rules.total() / len(rows) if rows else 0.0,
        "roles": {
            role: {state: states[role, state] for state in (EDITED, GENERATED, FAILED)}
            for role in sorted({role for role, _ in states})
        },
        "rules": dict(rules),
    }


class FailureReason(NamedTuple):
    """A reason of failed edits in a role: common text, an example in full, and the count."""

    role: str
    reason: str
    example: str
    times: int


def failure_reasons(rows: Iterable[Counterfactual]) -> list[FailureReason]:
    """Counted reasons of failed edits, most frequent first.

    Quotes and numbers are ignored.
    """
    times, examples = Counter[tuple[str, str]](), dict[tuple[str, str], str]()
    for row in rows:
        if row.state == FAILED:
            reason = row.role, _PARTICULAR.sub("...", row.detail)
            times[reason] += 1
            examples.setdefault(reason, row.detail)
    found = [FailureReason(*reason, examples[reason], count) for reason, count in times.items()]
    return sorted(found, key=lambda reason: -reason.times)


def refuse_too_many(rows: Sequence[Counterfactual], tolerated: float, preview: Path) -> None:
    """Raise an error if too large a share of the edits failed.

    Args:
        rows: rows of the table.
        tolerated: largest share of failed edits in either role. It is an error if all edits fail.
        preview: the folder of the preview page.

    Raises:
        TooManyFailures: more failed; with the most frequent reasons.
    """
    edits = Counter(row.role for row in rows)
    failures = Counter(row.role for row in rows if row.state == FAILED)
    for role, count in sorted(edits.items()):
        failed = failures[role]
        share = failed / count
        if failed < count and share <= tolerated:
            continue
        reasons = [one for one in failure_reasons(rows) if one.role == role][:_REASONS]
        allowed = f"counterfactuals.tolerated_share allows {tolerated:.1%}"
        if share <= tolerated:
            allowed = "expected one at least that did not"
        raise TooManyFailures(
            f"counterfactuals: {failed} of {count} {role} edits failed ({share:.1%}), {allowed}:\n"
            + "\n".join(f"  {one.times} times, as: {one.example}" for one in reasons)
            + f"\nThe table counterfactuals_quarantine holds each with its reason, {preview} shows "
            "some; fix the settings of the caption editor or the image generator, and run again"
            + ("." if share <= tolerated else ", or raise counterfactuals.tolerated_share.")
        )
