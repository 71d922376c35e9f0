"""A bias for models that were trained without one."""

from pathlib import Path

import open_clip
import pytest
import torch

from compo_pipeline.models.loading import export, give_bias, load


def test_a_softmax_trained_model_gets_the_bias_and_keeps_its_scale(tiny_clip: Path) -> None:
    plain = load(tiny_clip)
    before = plain.model.logit_scale.item()
    given = give_bias(plain, -30.0)
    assert dict(given.model.named_parameters())["logit_bias"].item() == -30.0
    assert given.model.logit_scale.item() == before
    assert given.config["model_cfg"]["init_logit_bias"] == -30.0
    assert "init_logit_bias" not in plain.config["model_cfg"]


def test_a_model_with_a_bias_keeps_it(tiny_clip: Path) -> None:
    first = give_bias(load(tiny_clip), -30.0)
    assert give_bias(first, -10.0) is first
    assert first.model.logit_bias.item() == -30.0


def test_the_bias_survives_an_export_and_open_clip_reads_it(
    tiny_clip: Path, tmp_path: Path
) -> None:
    given = give_bias(load(tiny_clip), -30.0)
    with torch.no_grad():
        given.model.logit_bias.add_(1.5)
    folder = export(given, tmp_path / "exported")
    again = load(folder)
    assert again.model.logit_bias.item() == pytest.approx(-28.5)
    assert give_bias(again, -10.0).model.logit_bias.item() == pytest.approx(-28.5)
    theirs = open_clip.create_model(f"local-dir:{folder}")
    assert theirs.logit_bias.item() == pytest.approx(-28.5)
