"""Safe decoding of untrusted image files: the one decoder of training, evaluation and pages.

Only common still formats are opened (Pillow would hand others to outside programs), an image's
size is read from its header before a pixel is decoded, and nothing outside the data's root is
ever touched. What every image becomes is 8-bit RGB, by the rules of `compo_decoding`; besides:

- EXIF orientation is applied: widths, heights and pixels are those of the upright image; unless
  `Limits.exif` says otherwise.
- Of a HEIC file (extra `heic`) the primary image counts.
- An array of numpy (`.npy`) is 8-bit [height, width, 3] in BGR, as OpenCV writes frames of videos.

A name may end in a W3C media fragment, `123.jpg#xywh=10,20,30,40`: the image is the box of that
left edge, top edge, width and height, in pixels of the upright image, black where the box is
outside of it. A name may lead into a tar archive or a Parquet file: `0.tar/000012.jpg`
(`core/archives.py`).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from io import SEEK_END, BufferedReader, BytesIO
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from PIL import Image, UnidentifiedImageError

from compo_decoding import FORMATS, UnsupportedPixels, upright_rgb
from compo_pipeline.core import archives, remote
from compo_pipeline.core.settings import pip_install
from compo_pipeline.core.untrusted import OutsideRoot, path_below, shown

# By the brands in its first bytes; an AVIF file may have mif1, too.
_HEIF = re.compile(rb".{4}ftyp(?!.*avi[fs])(?:hei|hev|mif1|msf1)", re.DOTALL)
DECODING = 1
"""Version of decoding: raised where a file gives other pixels or another error than before."""
_CROP = "#xywh="
_BOX = re.compile(r"(-?\d{1,9}),(-?\d{1,9}),(-?\d{1,9}),(-?\d{1,9})", re.ASCII)
PILLOW_LIMIT = 178_956_970
"""Pillow refuses images of more pixels by itself."""

_START = 64  # bytes that tell arrays and HEIF files from others


class ImageError(ValueError):
    """Error about an image file that cannot be used, with the reason as a code.

    `reason` is one of missing, out_of_root, empty, not_an_image, oversized, unsupported, truncated,
    corrupt, no_crop.
    """

    def __init__(self, reason: str, detail: str) -> None:
        """Keep the reason apart from its detail."""
        super().__init__(f"{reason}: {detail}")
        self.reason, self._detail = reason, detail

    def __reduce__(self) -> tuple[type[ImageError], tuple[str, str]]:
        return ImageError, (self.reason, self._detail)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for accepted image files (pixels, links), and whether EXIF orientation is applied.

    Args:
        max_pixels: the most pixels an image may have, by its header.
        follow_symlinks: whether a link may lead out of the data's root.
        exif: whether EXIF orientation is applied.
    """

    max_pixels: int = 50_000_000
    follow_symlinks: bool = False
    exif: bool = True


ACCEPTED = Limits(PILLOW_LIMIT, follow_symlinks=True)
"""Of images that ingest accepted under its own limits."""


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """Hash, size in pixels and error of an image file that was decoded.

    `error` is None for an image that decodes; `sha256` is of the file's bytes, empty where there is
    no file; sizes are 0 where they could not be read.
    """

    path: str
    sha256: str
    bytes: int
    error: str | None
    width: int
    height: int


def crop_name(name: str, x: int, y: int, width: int, height: int) -> str:
    """Name of a crop of an image: the image's name with the crop box in pixels appended."""
    return f"{name}{_CROP}{x},{y},{width},{height}"


def file_name(name: str) -> str:
    """Name of an image's file: the image's name without the crop box at its end."""
    return name.partition(_CROP)[0]


def is_file_name(name: str) -> bool:
    """Whether an image's name is that of a whole file: no crop, and no member of an archive."""
    return file_name(name) == name and not archives.split_member(name)[1]


def locate(root: Path, relative: str, limits: Limits) -> Path:
    """Path of an image's file, or of the archive that holds it, which must be below the root.

    Raises:
        ImageError: it is outside the root (out_of_root), or there is no such file (missing).
    """
    relative = file_name(relative)
    archive, member = archives.split_member(relative)
    try:
        path = path_below(root, relative, follow_symlinks=limits.follow_symlinks)
        found = path.is_file()
        if member and not found and (whole := root / archive).is_file():
            path, found = whole, member in archives.scan(whole).members
    except OutsideRoot as error:
        raise ImageError("out_of_root", str(error)) from error
    except (OSError, ValueError) as error:  # names too long, null characters
        raise ImageError("missing", f"{shown(relative)}: {error}") from error
    if not found:
        hint = "; folders are parted by /, not \\" if "\\" in relative else ""
        raise ImageError("missing", f"no file at {shown(relative)}{hint}")
    return path


def is_there(root: Path, relative: str, limits: Limits) -> bool:
    """Whether the file of an image exists below the root, or in an archive there."""
    try:
        locate(root, relative, limits)
    except ImageError:
        return False
    return True


def open_file(root: Path, relative: str, limits: Limits) -> BufferedReader | BytesIO:
    """Open an image's file for reading, or a buffer of its bytes if it is in an archive.

    Raises:
        ImageError: as `locate`, or the archive does not hold all of the image (truncated).
    """
    path = locate(root, relative, limits)
    name = file_name(relative)
    if path == root / name:
        return remote.open_file(path)
    _, member = archives.split_member(name)
    try:
        return BytesIO(archives.read(path, member))
    except ValueError as error:
        raise ImageError("truncated", f"{shown(name)}: {error}") from error


def source_name(root: Path, relative: str, limits: Limits) -> str:
    """File name of an image, or the original name stored in a Parquet file, which may be empty.

    Raises:
        ImageError: as `open_file`.
    """
    name = file_name(relative)
    path = locate(root, relative, limits)
    if path == root / name:
        return name
    try:
        return archives.source_name(path, archives.split_member(name)[1])
    except ValueError as error:
        raise ImageError("truncated", f"{shown(name)}: {error}") from error


def load(root: Path, relative: str, limits: Limits) -> Image.Image:
    """Load an image as RGB, rotated by its EXIF orientation (if `Limits.exif`) and cropped.

    Raises:
        ImageError: with the reason why it cannot be used.
    """
    with open_file(root, relative, limits) as file:
        return _crop_by_name(_decode(file, limits), relative, limits)


def inspect(root: Path, relative: str, limits: Limits) -> DecodedImage:
    """Hash and decode an image file once.

    An error becomes a field of the result.
    """
    digest, size = "", 0
    try:
        with open_file(root, relative, limits) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.seek(0, SEEK_END)
            file.seek(0)
            width, height = _crop_by_name(_decode(file, limits), relative, limits).size
    except ImageError as error:
        return DecodedImage(relative, digest, size, str(error), 0, 0)
    except OSError as error:
        return DecodedImage(relative, digest, size, f"missing: {error.strerror}", 0, 0)
    return DecodedImage(relative, digest, size, None, width, height)


def _decode(file: IO[bytes], limits: Limits) -> Image.Image:
    """Decode an open image file to upright RGB.

    Its header is checked before its pixels.
    """
    start = file.read(_START)
    file.seek(0)
    try:
        if start.startswith(npy.MAGIC_PREFIX):
            return _decode_npy(file, limits)
        heif = _HEIF.match(start) is not None
        if heif:
            _register_heif()
        image: Image.Image = Image.open(file, formats=("HEIF",) if heif else FORMATS)
        _refuse_oversized(image.width, image.height, limits)
        return upright_rgb(image, exif=limits.exif)
    except ImageError:
        raise
    except UnsupportedPixels as error:
        raise ImageError("unsupported", str(error)) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError("oversized", str(error)) from error
    except UnidentifiedImageError as error:
        raise _unidentified_error(file) from error
    except Exception as error:
        # Decoders raise whatever broken bytes lead them to: SyntaxError, struct.error, ...
        reason = "truncated" if "truncated" in str(error).lower() else "corrupt"
        raise ImageError(reason, f"{type(error).__name__}: {error}") from error


def _register_heif() -> None:
    """Let Pillow read HEIC and HEIF files, by the optional package pillow-heif."""
    try:
        from pillow_heif import register_heif_opener
    except ModuleNotFoundError:
        raise ImageError("unsupported", f"HEIC needs {pip_install('heic')}") from None
    register_heif_opener()


def _crop_by_name(image: Image.Image, name: str, limits: Limits) -> Image.Image:
    """Crop an image to the box at the end of its name, if any, with black outside the image."""
    _, cropped, box = name.partition(_CROP)
    if not cropped:
        return image
    numbers = _BOX.fullmatch(box)
    if numbers is None:
        raise ImageError("no_crop", f"{shown(name)}: expected {_CROP}x,y,width,height in pixels")
    x, y, width, height = map(int, numbers.groups())
    if width <= 0 or height <= 0:
        raise ImageError("no_crop", f"{shown(name)} has no pixel")
    _refuse_oversized(width, height, limits)
    return image.crop((x, y, x + width, y + height))


def _decode_npy(file: IO[bytes], limits: Limits) -> Image.Image:
    """Decode the image array of a numpy file (`.npy`, format 1.0), which may not hold objects."""
    npy.read_magic(file)
    shape, _, dtype = npy.read_array_header_1_0(file)
    if dtype != np.uint8 or len(shape) != 3 or shape[2] != 3 or 0 in shape:
        raise ImageError("unsupported", f"{dtype} {shape}, expected uint8 (height, width, 3)")
    _refuse_oversized(shape[1], shape[0], limits)
    file.seek(0)
    return Image.fromarray(np.load(file, allow_pickle=False)[:, :, ::-1].copy())


def _refuse_oversized(width: int, height: int, limits: Limits) -> None:
    """Refuse an image with more pixels than the limits allow."""
    if width * height > limits.max_pixels:
        raise ImageError("oversized", f"{width} x {height} pixels, allowed are {limits.max_pixels}")


def _unidentified_error(file: IO[bytes]) -> ImageError:
    """The error for a file that Pillow cannot identify: the file is empty, or no image."""
    file.seek(0)
    if not file.read(1):
        return ImageError("empty", "the file has no bytes")
    return ImageError("not_an_image", f"not one of {', '.join(FORMATS)}")
