"""Who shares a composite with whom: another image of the same orientation."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from compo_pipeline.images.composites import orientation
from compo_pipeline.records import Caption, Parse
from compo_pipeline.seeding import rng

CANDIDATES = 5
DRAWS = 4 * CANDIDATES  # at most, to find as many that differ


class Partners:
    """Draws partners for anchors; the same captions in any order give the same partners."""

    def __init__(
        self,
        captions: Sequence[Caption],
        parses: Mapping[str, Parse],
        kind: Literal["random", "shared_noun"],
        seed: int,
    ) -> None:
        self.captions = sorted(captions, key=lambda caption: caption.sample_id)
        self.parses, self.kind, self.seed = parses, kind, seed
        self._of_orientation: dict[str, list[int]] = defaultdict(list)
        self._of_noun: dict[tuple[str, str], list[int]] = defaultdict(list)
        for row, caption in enumerate(self.captions):
            turned = orientation(caption.width, caption.height)
            self._of_orientation[turned].append(row)
            if kind == "shared_noun":
                for noun in self._nouns(caption):
                    self._of_noun[turned, noun].append(row)

    def _nouns(self, caption: Caption) -> list[str]:
        parse = self.parses[caption.sample_id]
        words = zip(parse.words, parse.upos, strict=True)
        return sorted({word.lower() for word, upos in words if upos == "NOUN"})

    def draw(self, anchor: Caption, random_: random.Random) -> Caption | None:
        """A partner, None where no other image has the anchor's orientation.

        With `shared_noun` an anchor keeps up to five candidates, the same in every epoch; an
        anchor that shares no noun with any other image gets a random partner.
        """
        turned = orientation(anchor.width, anchor.height)
        if self.kind == "shared_noun" and (candidates := self._candidates(anchor, turned)):
            return random_.choice(candidates)
        return self._other(anchor, self._of_orientation[turned], random_)

    def _candidates(self, anchor: Caption, turned: str) -> list[Caption]:
        """Up to five other images whose first sentences share a noun with the anchor's."""
        keeps = rng(self.seed, "candidates", anchor.sample_id)
        pools = [self._of_noun[turned, noun] for noun in self._nouns(anchor)]
        found: dict[str, Caption] = {}
        for _ in range(DRAWS if pools else 0):
            other = self._other(anchor, keeps.choice(pools), keeps)
            if other is not None:
                found.setdefault(other.image_id, other)
            if len(found) == CANDIDATES:
                break
        return list(found.values())

    def _other(
        self, anchor: Caption, pool: Sequence[int], random_: random.Random
    ) -> Caption | None:
        """One of a pool that shows another image. A few draws nearly always find one; else the
        pool is looked through.
        """
        for _ in range(8):
            other = self.captions[random_.choice(pool)]
            if other.image_id != anchor.image_id:
                return other
        others = [row for row in pool if self.captions[row].image_id != anchor.image_id]
        return self.captions[random_.choice(others)] if others else None
