"""Where texts differ, word by word."""

import pytest

from compo_pipeline.presentation.text_differences import marked


@pytest.mark.parametrize(
    ("text", "others", "pieces"),
    [
        ("a blue cat", ["a red cat"], [("a ", False), ("blue", True), (" cat", False)]),
        ("A cat", ["a CAT"], [("A cat", False)]),
        ("don't go", ["do go"], [("don't", True), (" go", False)]),
        ("a b c", ["x y z", "a b d"], [("a b ", False), ("c", True)]),
        ("on the mat, a cat.", ["a cat."], [("on the mat,", True), (" a cat.", False)]),
        ("a cat", ["a red cat"], [("a cat", False)]),
        ("", ["a cat"], []),
    ],
)
def test_marks(text: str, others: list[str], pieces: list[tuple[str, bool]]) -> None:
    assert list(marked(text, others)) == pieces
    assert "".join(piece for piece, _ in marked(text, others)) == text
