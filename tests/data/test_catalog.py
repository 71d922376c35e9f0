"""Tables on disk: rows come back as they were, and a broken save leaves the old file alone."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kedro.io import DatasetError

from compo_pipeline.core import records
from compo_pipeline.core.files import DamagedFileError
from compo_pipeline.data.catalog import FolderDataset, JsonDataset, PageDataset, RowsDataset

ROW_TYPES = (
    records.Caption,
    records.Fact,
    records.Rejected,
    records.Parse,
    records.Counterfactual,
    records.View,
    records.Score,
)


def caption(number: int, *sentences: str) -> records.Caption:
    return records.Caption(f"id{number}", "i", f"a/{number}.png", 3, 4, sentences, "test", "train")


@pytest.mark.parametrize("row_type", ROW_TYPES, ids=lambda row_type: row_type.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_any_rows_come_back_as_they_were(tmp_path_factory, row_type, data):
    # Parquet text is UTF-8: lone surrogates never reach a table.
    st.register_type_strategy(str, st.text(st.characters(codec="utf-8")))
    st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
    st.register_type_strategy(float, st.floats(allow_nan=False))
    rows = data.draw(st.lists(st.builds(row_type), max_size=3))
    path = tmp_path_factory.mktemp("rows") / "deeper" / "table.parquet"
    dataset = RowsDataset(filepath=str(path), row=row_type.__name__)
    dataset.save(rows)
    assert list(dataset.load()) == rows


def test_equal_rows_give_equal_bytes_and_no_flipped_bit_gives_other_rows(tmp_path):
    path = tmp_path / "t.parquet"
    dataset = RowsDataset(filepath=str(path), row="Caption")
    dataset.save(caption(number, "one.", "two.") for number in range(9))
    whole = path.read_bytes()
    dataset.save(dataset.load())
    assert path.read_bytes() == whole
    rows = list(dataset.load())
    for bit in random.Random(0).sample(range(len(whole) * 8), 400):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            assert list(dataset.load()) == rows  # the bit is of what nobody reads
        except (DatasetError, DamagedFileError) as error:
            assert "t.parquet is damaged" in str(error)


def test_a_json_file_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "value"
    for content in (b"", b'"a\xff', b'a\n1,"2'):
        path.write_bytes(content)
        with pytest.raises(DatasetError, match="value is damaged"):
            JsonDataset(filepath=str(path)).load()


def test_interrupted_save_keeps_the_old_table_and_leaves_no_rubbish(tmp_path):
    dataset = RowsDataset(filepath=str(tmp_path / "t.parquet"), row="Caption")
    dataset.save([caption(1, "kept.")])

    def interrupted():
        yield caption(2, "lost.")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dataset.save(interrupted())
    assert list(dataset.load()) == [caption(1, "kept.")]
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_table_of_another_type_is_refused_with_both_column_lists(tmp_path):
    path = str(tmp_path / "t.parquet")
    RowsDataset(filepath=path, row="Caption").save([caption(1)])
    with pytest.raises(
        DatasetError, match=r"a table of Score rows has the columns .*another version"
    ):
        RowsDataset(filepath=path, row="Score").load()


@pytest.mark.parametrize("name", ["Captoin", "schema", "Row"])
def test_unknown_row_type_is_refused(name):
    with pytest.raises(DatasetError, match=f"'{name}' of x.parquet is no row type"):
        RowsDataset(filepath="x.parquet", row=name)


def test_a_table_that_is_not_there_says_how_to_make_it(tmp_path):
    with pytest.raises(DatasetError, match=r"does not exist yet.*kedro run"):
        RowsDataset(filepath=str(tmp_path / "none.parquet"), row="Caption").load()


def test_a_folder_is_replaced_by_files_or_by_another_folder(tmp_path):
    dataset = FolderDataset(filepath=str(tmp_path / "views"))
    dataset.save({"a/b.txt": "old", "c": b"old"})
    assert (dataset.load() / "a" / "b.txt").read_text() == "old"
    made = tmp_path / "made"
    made.mkdir()
    (made / "d").write_text("new")
    dataset.save(made)
    dataset.save(dataset.load())  # filled where it belongs
    assert {file.name: file.read_text() for file in dataset.load().iterdir()} == {"d": "new"}
    assert not made.exists()


def test_a_page_replaces_an_older_one_but_nothing_else(tmp_path):
    dataset = PageDataset(filepath=str(tmp_path / "report"), page="test/page.html")
    for text in ("old", "new"):
        dataset.save({"test/page.html": text})
    assert dataset.preview() == "new"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    for filepath in ("mine", "report"):
        other = PageDataset(filepath=str(tmp_path / filepath), page="other.html")
        with pytest.raises(DatasetError, match=rf"{filepath} holds something else"):
            other.save({"other.html": "it was written"})
    assert (tmp_path / "mine" / "thesis.txt").is_file() and dataset.preview() == "new"


def test_a_url_in_the_place_of_a_path_is_refused() -> None:
    with pytest.raises(DatasetError, match=r"filepath must be local, got s3://.*dvc push"):
        JsonDataset(filepath="s3://bucket/a.json")
