"""The data hash changes with any byte, and with nothing else."""

import hashlib
from dataclasses import replace
from pathlib import Path

from compo_pipeline.images.decoding import DecodedImage
from compo_pipeline.quality import manifest

A = DecodedImage("train/a.jpg", "aa", 5, 1, None, 4, 3)
B = DecodedImage("train/b.jpg", "bb", 7, 1, "truncated: cut off", 0, 0)
GONE = DecodedImage("train/c.jpg", "", 0, 0, "missing: no file", 0, 0)


def test_files_count_and_hash(tmp_path: Path) -> None:
    (tmp_path / "captions.json").write_bytes(b"{}")
    digest = hashlib.sha256(b"{}").hexdigest()
    found = manifest.of(tmp_path, ["captions.json"], {p.path: p for p in (B, A, GONE)})
    listing = f"{digest}  captions.json\naa  train/a.jpg\nbb  train/b.jpg\n"
    assert found == {
        "data_hash": hashlib.sha256(listing.encode()).hexdigest(),
        "count": 3,
        "bytes": 14,
        "files": {"captions.json": digest, "train/a.jpg": "aa", "train/b.jpg": "bb"},
    }


def test_the_order_of_reading_does_not_matter_a_byte_does(tmp_path: Path) -> None:
    def data_hash(*images: DecodedImage) -> str:
        return str(manifest.of(tmp_path, [], {p.path: p for p in images})["data_hash"])

    assert data_hash(A, B) == data_hash(B, A) == data_hash(A, B, GONE)
    assert data_hash(A, B) != data_hash(A, replace(B, sha256="cc"))
    assert data_hash(A) != data_hash(replace(A, path="train/z.jpg"))
