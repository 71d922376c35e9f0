"""A hash of files that reads pieces of large ones."""

from pathlib import Path

from compo_pipeline.file_identity import identity


def test_names_sizes_and_contents_count_places_do_not(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"a" * 10)
    other.write_bytes(b"a" * 10)
    own = identity([("name", one)])
    assert len(own) == 16 and own == identity([("name", other)])
    other.write_bytes(b"a" * 9 + b"b")
    longer = tmp_path / "longer"
    longer.write_bytes(b"a" * 11)
    others = [identity([("name", other)]), identity([("name", longer)]), identity([("n", one)])]
    assert len({own, *others}) == 4


def test_of_large_files_pieces_from_end_to_end_are_read(tmp_path: Path) -> None:
    size = 9_000_000
    file = tmp_path / "large"
    hashes = set()
    for place in (None, 0, 1, 2):
        content = bytearray(size)
        if place is not None:  # as weights differ: everywhere a little
            content[place * size // 3 : place * size // 3 + 300_000] = b"x" * 300_000
        file.write_bytes(content)
        hashes.add(identity([("large", file)]))
    assert len(hashes) == 4
