"""Tables are lazy sequences of rows; large ones are memory-mapped, and computed part by part."""

from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from compo_pipeline.core import table_files
from compo_pipeline.core.files import DamagedFileError
from compo_pipeline.core.records import Caption
from compo_pipeline.core.table_files import Parts, write_rows
from compo_pipeline.core.tables import ById, Groups, Table, training_rows


def row(number: int, split: str = "train") -> Caption:
    texts = tuple(f"{number} {k} é" for k in range(number % 3))
    return Caption(f"s{number}", f"i{number // 2}", f"{number}.png", 4, 3, texts, "test", split)


ROWS = [row(number) for number in range(25)]


@pytest.fixture(params=["in memory", "mapped"])
def table(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Table[Caption]:
    """The rows in a file of several groups."""
    monkeypatch.setattr("compo_pipeline.core.tables.GROUP", 7)
    monkeypatch.setattr("compo_pipeline.core.tables.BATCH", 10)
    monkeypatch.setattr(table_files, "GROUP", 7)
    monkeypatch.setattr(table_files, "PART", 10)
    if request.param == "mapped":
        monkeypatch.setattr("compo_pipeline.core.tables._MAPPED", 0)
    write_rows(tmp_path / "t.parquet", iter(ROWS), Caption)
    opened = Table.open(tmp_path / "t.parquet", Caption)
    assert (tmp_path / "t.arrow").exists() == (request.param == "mapped")
    return opened


def test_a_table_is_a_sequence_of_its_rows(table: Table[Caption]) -> None:
    assert len(table) == 25 and list(table) == ROWS
    assert [table[place] for place in (0, 6, 7, 24, -1)] == [
        ROWS[place] for place in (0, 6, 7, 24, -1)
    ]
    assert list(table[5:22][2:]) == ROWS[7:22] and list(table[::-3]) == ROWS[::-3]
    with pytest.raises(IndexError):
        table[25]


def test_chosen_rows_are_a_table(table: Table[Caption], tmp_path: Path) -> None:
    chosen = table.take(np.array([24, 3, 3, 11, 0]))
    wanted = [ROWS[number] for number in (24, 3, 3, 11, 0)]
    assert list(chosen) == wanted and chosen[-2] == ROWS[11]
    assert list(table.where(np.arange(25) % 2 == 1)) == ROWS[1::2]
    assert chosen.column("sample_id").to_pylist() == [each.sample_id for each in wanted]
    assert chosen.codes("image_id").tolist() == [0, 1, 1, 2, 3]
    write_rows(tmp_path / "chosen.parquet", chosen, Caption)
    write_rows(tmp_path / "same.parquet", wanted, Caption)
    assert list(Table.open(tmp_path / "chosen.parquet", Caption)) == wanted
    # Equal rows give equal bytes, whether they were objects, batches of one table or of several.
    assert (tmp_path / "chosen.parquet").read_bytes() == (tmp_path / "same.parquet").read_bytes()
    places = table.places("image_id", pa.array(["i3", "none", "i0"]))
    assert places.tolist() == [6, -1, 0]


def test_rows_are_chosen_by_the_values_of_a_column(table: Table[Caption]) -> None:
    wanted = [each for each in ROWS if each.image_id in ("i3", "i0")]
    assert list(table.having("image_id", ("i3", "i0", "none"))) == wanted
    assert list(table[3:].having("image_id", ["i0"])) == []
    assert list(table[1:].having("image_id", ["i0"])) == [ROWS[1]]


def test_tables_are_joined(table: Table[Caption], tmp_path: Path) -> None:
    parts = [table[20:], table.take(np.array([4, 1])), Table.of([], Caption), table]
    joined = Table.joined(parts)
    assert list(joined) == [*ROWS[20:], ROWS[4], ROWS[1], *ROWS]
    assert joined[5] == ROWS[4] and joined[-1] == ROWS[24]
    write_rows(tmp_path / "joined.parquet", joined, Caption)
    assert list(Table.open(tmp_path / "joined.parquet", Caption)) == list(joined)
    write_rows(tmp_path / "same.parquet", list(joined), Caption)
    assert (tmp_path / "joined.parquet").read_bytes() == (tmp_path / "same.parquet").read_bytes()
    assert list(Table.joined(parts[2:3])) == []


def test_a_table_of_a_file_travels_to_a_process_without_rows(table: Table[Caption]) -> None:
    chosen = table.take(np.array([2, 1]))
    sent = ForkingPickler.dumps(chosen)
    assert len(sent) < 1000
    assert list(ForkingPickler.loads(sent)) == [ROWS[2], ROWS[1]]
    in_memory = ForkingPickler.dumps(Table.of(ROWS, Caption))
    assert list(ForkingPickler.loads(in_memory)) == ROWS


def test_equal_rows_have_one_fingerprint(table: Table[Caption]) -> None:
    assert table[:10].fingerprint == table[:10].fingerprint != table[1:11].fingerprint


def test_rows_by_id(table: Table[Caption]) -> None:
    by_id, groups = ById(table), Groups(table, "image_id")
    assert by_id["s13"] == ROWS[13] and "s25" not in by_id and dict(by_id)["s0"] == ROWS[0]
    assert groups["i3"] == ROWS[6:8] and groups.get("i99") is None
    assert [len(rows) for rows in groups.values()] == [2] * 12 + [1]
    twice = Table.of([ROWS[1], ROWS[2], ROWS[1]], Caption)
    assert len(Groups(twice)["s1"]) == 2 and ById(twice)["s1"] == ROWS[1]


def test_a_copy_of_other_rows_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compo_pipeline.core.tables._MAPPED", 0)
    file = tmp_path / "t.parquet"
    for rows in (ROWS, ROWS[:3]):
        write_rows(file, rows, Caption)
        assert list(Table.open(file, Caption)) == rows
    file.write_bytes(file.read_bytes().replace(b"s1", b"s9"))
    with pytest.raises(DamagedFileError):
        Table.open(file, Caption)


def test_spilled_rows_leave_no_file(tmp_path: Path) -> None:
    spilled = Table.spilled(iter(ROWS), Caption, tmp_path / "new")
    assert list(spilled) == ROWS and not list((tmp_path / "new").iterdir())


def test_a_killed_computation_loses_one_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "GROUP", 7)
    monkeypatch.setattr(table_files, "PART", 10)
    file, computed = tmp_path / "t.parquet", list[int]()

    def write(fail: int = -1, fingerprint: str = "a") -> None:
        def compute(part: range) -> list[Caption]:
            computed.append(part.start)
            if part.start == fail:
                raise KeyboardInterrupt
            return ROWS[part.start : part.stop]

        write_rows(file, Parts("computing", compute, 25, fingerprint), Caption)

    with pytest.raises(KeyboardInterrupt):
        write(fail=20)
    assert not file.exists()
    write()
    assert computed == [0, 10, 20, 20]
    assert list(Table.open(file, Caption)) == ROWS
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
    with pytest.raises(KeyboardInterrupt):
        write(fail=10)
    computed.clear()
    write(fingerprint="of other rows")
    assert computed == [0, 10, 20]


def test_rows_that_train_are_those_of_the_split_with_a_sentence() -> None:
    rows = [row(1, "val"), row(2), row(3), row(4)]
    assert list(training_rows(iter(rows), "train")) == [row(2), row(4)]
    with pytest.raises(
        ValueError, match=r"no valid caption is of the split 'test' .*'train', 'val'"
    ):
        training_rows(rows, "test")
