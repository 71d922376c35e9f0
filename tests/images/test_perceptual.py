"""Near-duplicates by their perceptual hashes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compo_pipeline.images.perceptual import NEAR_BITS, near_maximum


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=8),
    st.lists(st.lists(st.integers(0, 63), max_size=6), max_size=30),
    st.randoms(use_true_random=False),
)
def test_the_search_by_bands_finds_all_pairs(hashes, flips, random):
    """Hashes beside others that differ in up to six of their bits, compared pair by pair."""
    for bits in flips:
        changed = random.choice(hashes)
        for bit in bits:
            changed ^= 1 << bit
        hashes.append(changed)
    distinct = sorted(set(hashes))
    values = np.array([[random.randint(-1, 5) for _ in range(2)] for _ in distinct])
    expected = [
        [
            max(
                int(values[place, column])
                for place, other in enumerate(distinct)
                if (own ^ other).bit_count() <= NEAR_BITS
            )
            for column in range(2)
        ]
        for own in distinct
    ]
    assert near_maximum(np.array(distinct, np.uint64), values).tolist() == expected
