"""Where a training's features come from: memory, a store on disk, or the frozen image tower."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import torch

from compo_pipeline.methods.contract import Method
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.run.compute import Compute
from compo_pipeline.training.features import Features, FeatureStore, embed
from compo_pipeline.training.fingerprint import TRAINING
from compo_pipeline.training.images import ImageRows, Images
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.optimisation import projection_alone
from compo_pipeline.training.preprocessing import ModelPreprocessor
from compo_pipeline.training.ranks import ALONE, Ranks

log = logging.getLogger(__name__)


class FeatureSource:
    """Provides precomputed image features to trainings on the same inputs; embeds each once.

    Args:
        inputs: data, base model and recipe.
        compute: where and in which precision images are embedded.
        ranks: processes that embed together.
    """

    def __init__(self, inputs: TrainingInputs, compute: Compute, ranks: Ranks) -> None:
        self._inputs, self._compute, self._ranks = inputs, compute, ranks
        self._features = self._empty_features(pooled=False)

    def serves(self, method: Method, loaded: LoadedModel) -> bool:
        """Whether a method can train on precomputed features, and the settings cache them.

        Its image tower, or all of it but the projection, must be frozen.
        """
        if not self._inputs.settings.cache_features:
            return False
        if "image" in method.trains and not self._trains_projection_alone(method, loaded):
            log.info(
                "%s trains more of the image tower than its projection: images are not embedded "
                "before training.",
                method.name,
            )
            return False
        return True

    def features_of(
        self, images: Images, method: Method, loaded: LoadedModel, preprocessor: ModelPreprocessor
    ) -> Features:
        """Features of at least the given images, with patch tokens if the method uses them.

        They are read from the inputs' `features`, and stored there.
        """
        pooled, patches = self._trains_projection_alone(method, loaded), method.uses_patches
        if pooled != self._features.pooled or (patches and self._features.patches is None):
            self._features = self._empty_features(pooled=pooled)
        patches = patches or self._features.patches is not None
        kind = {"patches": patches, "pooled": pooled}
        inputs, device = self._inputs, self._compute.device
        # Processes of other hosts may have other stores.
        if inputs.features is None or self._ranks.world > 1:
            self._embed_missing(images, loaded, preprocessor, kind)
        elif missing := images.without(self._features.rows):
            inputs_key = (inputs.data_hash, str(TRAINING))
            key = (loaded.image_fingerprint, *inputs_key, self._compute.precision, device.type)
            store = FeatureStore(inputs.features, key, device=device, **kind)
            with store.locked():
                stored = store.read(missing.keys)
                if len(stored.rows):
                    log.info("%d of %d images are embedded already.", len(stored.rows), len(images))
                self._features = self._features.join(stored)
                fresh = self._embed_missing(images, loaded, preprocessor, kind)
                if fresh is not None:
                    store.add(fresh)
        return self._features

    def _empty_features(self, *, pooled: bool) -> Features:
        """Features of zero images, to which computed features are joined."""
        return Features(ImageRows(), torch.empty(0, device=self._compute.device), pooled=pooled)

    def _trains_projection_alone(self, method: Method, loaded: LoadedModel) -> bool:
        """Whether a method trains the image projection, and nothing else of the image tower."""
        settings = self._inputs.settings
        if "image" not in method.trains or settings.lora.rank is not None or method.uses_patches:
            return False
        return projection_alone(loaded.model, settings.frozen)

    def _embed_missing(
        self,
        images: Images,
        loaded: LoadedModel,
        preprocessor: ModelPreprocessor,
        kind: Mapping[str, bool],
    ) -> Features | None:
        """Embed the images without features, and return the new ones; None if none is missing."""
        missing = images.without(self._features.rows)
        if not missing:
            return None
        # Few images are embedded by every process, many by each its share.
        ranks = self._ranks if len(missing) >= self._ranks.world else ALONE
        own = embed(
            missing[ranks.share(len(missing))],
            loaded,
            preprocessor,
            compute=self._compute,
            workers=self._inputs.settings.workers,
            **kind,
        )
        fresh = replace(
            own,
            rows=ImageRows(missing.keys),
            values=ranks.gather(own.values, len(missing)),
            patches=None if own.patches is None else ranks.gather(own.patches, len(missing)),
        )
        self._features = self._features.join(fresh)
        return fresh
