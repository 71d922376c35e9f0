"""Answers on disk: each there at once, the last of a key counting, half a line forgotten."""

from pathlib import Path

import pytest

from compo_pipeline.counterfactuals.journal import Journal, Outcome


def test_notes_are_on_disk_at_once_and_the_last_of_a_key_counts(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "notes.jsonl"
    with Journal(path) as journal:
        assert journal.get("a") is None
        journal.note("a", Outcome("", "no\nidea"))
        assert path.read_text() == '["a", "", "no\\nidea"]\n'
        journal.note("b", Outcome("ünï\u2028", ""))
        journal.note("a", Outcome("a text", "how"))
        assert journal.get("a") == journal["a"] == Outcome("a text", "how")
    with Journal(path) as journal:
        assert journal["a"] == Outcome("a text", "how")
        assert journal["b"] == Outcome("ünï\u2028", "")


@pytest.mark.parametrize("cut", range(1, 19))
def test_a_line_cut_off_is_forgotten_and_what_follows_is_read(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "notes.jsonl"
    with Journal(path) as journal:
        journal.note("a", Outcome("one", ""))
        journal.note("b", Outcome("two é", ""))
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(path) as journal:
        assert (journal.get("a"), journal.get("b")) == (Outcome("one", ""), None)
        journal.note("c", Outcome("three", ""))
    with Journal(path) as journal:
        assert journal["a"] == Outcome("one", "")
        assert journal["c"] == Outcome("three", "")


def test_a_broken_line_loses_nothing_but_itself(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_bytes(
        b'["a", "one", ""]\n\x00\x00\xff\n["half"]\n7\n[["b"], "x", ""]\n["b", "two", ""]\n'
    )
    with Journal(path) as journal:
        assert journal["a"].text == "one"
        assert journal["b"].text == "two"


def test_notes_are_taken_inside_with_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside `with` alone"):
        Journal(tmp_path / "notes.jsonl").note("a", Outcome("", ""))
