"""Which phrases are asked of which images."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compo_pipeline.analysis.localisation import Located
from compo_pipeline.analysis.regions import Case, read
from compo_pipeline.configuration import SettingsError
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.images.decoding import Limits
from compo_pipeline.seeding import rng

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AttentionSettings:
    """The YAML key `attention`.

    Attributes:
        images: an image or a folder of images of one's own; null takes those of `split`.
        phrases: separated by ";", each asked of every one of these images.
        regions: file of COCO instances of the images; null is that of `split` among the data's
            annotations, and none for images of one's own.
        split: our name of the split whose regions are taken.
        limit: images that are measured, drawn at random; null for all.
        count: phrases that are drawn in figures, at random among those measured.
        seed: of both draws.
    """

    images: str | None = None
    phrases: str | None = None
    regions: str | None = None
    split: str = "test"
    limit: int | None = 1000
    count: int = 18
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what asks nothing."""
        if self.count < 0 or (self.limit is not None and self.limit < 1):
            raise ValueError(
                f"expected count >= 0 and limit >= 1 or null, got {self.count} and {self.limit}"
            )
        if self.images is None and self.phrases is not None:
            raise ValueError("phrases are asked of images of one's own: set images too")
        if self.images is not None and (self.phrases is None) == (self.regions is None):
            raise ValueError(
                'images of one\'s own: set phrases ("a red shirt; a grey horse"), or regions to '
                "a file of COCO instances that names things in them"
            )


def topic(settings: AttentionSettings) -> str:
    """A name of what is asked: one's own images do not take the place of a split's."""
    return settings.split if settings.images is None else "own"


def ask(settings: AttentionSettings, data: DataSettings) -> tuple[list[Case], Counter[str]]:
    """The cases of a run, and the number of phrases that cannot be asked, by reason.

    Raises:
        SettingsError: images or regions are not there, or there is nothing to ask.
    """
    skipped: Counter[str] = Counter()
    if settings.images is None:
        source = data.sources.get(settings.split)
        if source is None:
            raise SettingsError(
                f"attention.split: '{settings.split}' is none of {', '.join(data.sources)}; or set "
                "attention.images and attention.phrases to ask of images of your own"
            )
        regions = settings.regions or data.root / "annotations" / f"instances_{source}.json"
        cases, skipped = read(_place(str(regions)), data.root / source)
    elif settings.regions is not None:
        cases, skipped = read(_place(settings.regions), _place(settings.images))
    else:
        cases = _own(_place(settings.images), settings.phrases or "")
    if not cases:
        why = ", ".join(f"{reason}: {count}" for reason, count in skipped.items()) or "it is empty"
        raise SettingsError(f"attention.regions: no region of the file can be used ({why})")
    return _limited(cases, settings), skipped


def _place(told: str) -> Path:
    """A path as people write it: `~` is their home."""
    return Path(told).expanduser()


def _own(place: Path, told: str) -> list[Case]:
    """Every phrase of every image at a place; folders within it are left alone."""
    phrases = list(dict.fromkeys(phrase.strip() for phrase in told.split(";") if phrase.strip()))
    if not phrases:
        raise SettingsError(f"attention.phrases: no phrase in {told!r}")
    if place.is_dir():
        entries = [path for path in place.iterdir() if not path.name.startswith(".")]
        files = sorted(path for path in entries if path.is_file())
        if folders := len(entries) - len(files):
            log.warning("%s: %d folders in it are not looked into.", place, folders)
        if not files:
            raise SettingsError(f"attention.images: no files in the folder {place}")
    elif place.is_file():
        files = [place]
    else:
        raise SettingsError(
            f"attention.images: there is no file or folder {place} (seen from {Path.cwd()})"
        )
    return [Case(file.parent, file.name, phrase) for file in files for phrase in phrases]


def _limited(cases: Sequence[Case], settings: AttentionSettings) -> list[Case]:
    """The cases of as many images as are wanted, in their order."""
    images = sorted({case.image for case in cases})
    if settings.limit is None or len(images) <= settings.limit:
        return list(cases)
    kept = set(rng("attention", settings.seed).sample(images, settings.limit))
    log.info("%d of %d images are measured (attention.limit).", len(kept), len(images))
    return [case for case in cases if case.image in kept]


def limits(settings: AttentionSettings) -> Limits:
    """What is accepted as an image: one's own may be links, what a file names must lie below its
    folder.
    """
    return Limits(follow_symlinks=settings.phrases is not None)


def drawn(
    cases: Sequence[Case], rows: Sequence[Located], settings: AttentionSettings
) -> list[Case]:
    """The cases of the figures, in their order: a random draw of those without a problem."""
    broken = {(row.image, row.phrase) for row in rows if row.problem is not None}
    whole = [case for case in cases if (case.image, case.phrase) not in broken]
    count = min(settings.count, len(whole))
    places = rng("attention figures", settings.seed).sample(range(len(whole)), count)
    return [whole[place] for place in sorted(places)]
