"""Feature injection: the text's own positions stay, the padding becomes the image."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compo_pipeline.data.images.style import has_padding, inject

EOS = 9
IDS = torch.tensor(
    [
        [1, 5, EOS, EOS, EOS],  # padded with the end itself, as CLIP's tokenizer does
        [1, 5, 6, EOS, 0],  # padded with a token of its own
        [1, 5, 6, 7, EOS],  # fills all positions
        [1, 5, 6, 7, 8],  # cut off, without an end
        [EOS, 0, 3, EOS, 0],  # nothing but an end
    ]
)
BEHIND = torch.tensor(
    [
        [0, 0, 0, 1, 1],
        [0, 0, 0, 0, 1],
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 1, 1, 1, 1],
    ]
).bool()


def embeddings(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    prompt = torch.randn(5, 5, 3, generator=draw).to(dtype)
    return prompt, 7 * torch.randn(5, 3, generator=draw)


def test_positions_behind_the_first_end_are_the_image_and_no_others() -> None:
    prompt, image = embeddings()
    injected = inject(prompt, IDS, image, EOS)
    assert torch.equal(injected[~BEHIND], prompt[~BEHIND])
    assert torch.equal(injected[BEHIND], image[:, None].expand(5, 5, 3)[BEHIND])


def test_the_arguments_are_left_alone() -> None:
    prompt, image = embeddings()
    before = prompt.clone()
    inject(prompt, IDS, image, EOS)
    assert torch.equal(prompt, before)


def test_prompts_that_fill_all_positions_are_told() -> None:
    assert has_padding(IDS, EOS).tolist() == [True, True, False, False, True]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_prompts_type_is_kept(dtype: torch.dtype) -> None:
    prompt, image = embeddings(dtype)
    injected = inject(prompt, IDS, image, EOS)
    assert injected.dtype == dtype
    assert torch.equal(injected[0, 4], image[0].to(dtype))


@given(st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=1, max_size=5))
def test_against_a_loop(rows: list[list[int]]) -> None:
    ids = torch.tensor(rows)
    prompt = torch.randn(len(rows), 4, 2)
    image = torch.randn(len(rows), 2)
    expected = prompt.clone()
    for i, row in enumerate(rows):
        if 2 in row:
            for position in range(row.index(2) + 1, 4):
                expected[i, position] = image[i]
    assert torch.equal(inject(prompt, ids, image, 2), expected)
    changed = [2 in row and row.index(2) < 3 for row in rows]
    assert has_padding(ids, 2).tolist() == changed
