"""Promotion decides by the evidence in the folders of two versions, and by nothing else."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import mlflow
import pyarrow.parquet as pq
import pytest
from mlflow.entities.model_registry import ModelVersion

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.core.records import Score, ScoredItem, to_table
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED
from compo_pipeline.evaluation.evaluate import ScoresFingerprint
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry import verification
from compo_pipeline.registry.evidence import Evidence, read_evidence, read_tables, write_evidence
from compo_pipeline.registry.promotion import Decision, promote
from compo_pipeline.registry.settings import Gate, GateRule, PromotionSettings, SigningSettings

IMAGES = 24
SAME = {"checkpoint_sha256": "c" * 64, "precision": "fp32"}
UNSIGNED = SigningSettings()
RULE = GateRule("hold", figure="sugar_crepe_pp/itt/swap_att", by=100)


class Pair(NamedTuple):
    """Two registered versions; `seal` completes one whose files were changed."""

    champion: ModelVersion
    challenger: ModelVersion
    seal: Callable[..., ModelVersion]


class Scored(NamedTuple):
    """Folder, tags and scores of a version."""

    folder: Path
    tags: dict[str, str]
    scores: list[Score]


@pytest.fixture(scope="module")
def subtask(choices: Callable[[int], Subtask]) -> Subtask:
    return choices(IMAGES)


@pytest.fixture(scope="module")
def slices(subtask: Subtask) -> dict[tuple[str, str, str], tuple[str, ...]]:
    """Every second item is red."""
    return {
        (subtask.benchmark, subtask.name, item.item): (("attribute=red",) if place % 2 else ())
        for place, item in enumerate(subtask.items)
    }


@pytest.fixture(scope="module")
def files(
    subtask: Subtask,
    slices: Mapping[tuple[str, str, str], tuple[str, ...]],
    tiny_model: Callable[..., Path],
    scored_files: Callable[..., tuple[dict[str, str], list[Score]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Scored]:
    """Of a challenger and of a champion, both fine-tuned from one base."""
    base = tiny_model(seed=1)
    found = {}
    for seed, alias in ((2, "champion"), (3, "challenger")):
        folder = tmp_path_factory.mktemp(alias)
        written = scored_files(subtask, base, tiny_model(seed=seed), folder, slices, **SAME)
        found[alias] = Scored(folder, *written)
    return found


@pytest.fixture
def pair(
    configure: Callable[[str], None],
    files: dict[str, Scored],
    sealed: Callable[..., ModelVersion],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Pair:
    """Versions with copies of the files, and their aliases."""
    configure("evidence")
    client = mlflow.MlflowClient()
    name = f"evidence-{abs(hash(request.node.name))}"
    client.create_registered_model(name)
    made = {}
    for alias, own in files.items():
        folder = shutil.copytree(own.folder, tmp_path / alias)
        tags = {**own.tags, **SAME}
        version = client.create_model_version(
            name, str(folder), tracking.open_run("made", {}), tags=tags, description="A card."
        )
        client.set_registered_model_alias(name, alias, version.version)
        made[alias] = sealed(version)
    return Pair(**made, seal=sealed)


def export_of(version: ModelVersion) -> Path:
    (folder,) = (Path(version.source) / "artifacts").iterdir()
    return folder


def decided(version: ModelVersion, rule: GateRule = RULE) -> Decision:
    gate = Gate(version=1, rules={"itt": rule}, items=IMAGES // 2)
    return promote(version.name, "challenger", PromotionSettings(gate=gate), UNSIGNED)


def refusal(version: ModelVersion, rule: str) -> str:
    """The finding of a refusal by this rule alone."""
    decision = decided(version)
    (check,) = decision.checks
    assert (decision.outcome, check.rule) == ("refused", rule), check
    assert "\n" not in check.finding
    return check.finding


def without_champion(version: ModelVersion) -> None:
    mlflow.MlflowClient().delete_registered_model_alias(version.name, "champion")


def right(scores: list[Score], model: str) -> float:
    """Per cent of the items that a model has right, by its similarities."""
    own = [score.similarities for score in scores if score.model == model]
    assert len(own) == IMAGES
    return 100 * sum(min(first, second) > wrong for first, second, wrong in own) / len(own)


@pytest.fixture
def no_models(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model or opening an image is an error."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing may be loaded")

    monkeypatch.setattr(verification, "load", refuse)
    monkeypatch.setattr("PIL.Image.open", refuse)
    monkeypatch.setattr("compo_pipeline.language.parsing.parses_of", refuse)


@pytest.mark.usefixtures("no_models")
@pytest.mark.parametrize("against", ["champion", "base"])
def test_the_figures_are_those_of_the_evidence(
    pair: Pair, files: dict[str, Scored], against: str
) -> None:
    if against == "base":
        without_champion(pair.challenger)
    decision = decided(pair.challenger)
    assert decision.outcome == "promoted", decision
    numbers = decision.checks[0].numbers
    opponents = {"champion": ("champion", "clic"), "base": ("challenger", "base")}
    alias, model = opponents[against]
    assert numbers.challenger == pytest.approx(right(files["challenger"].scores, "clic"))
    assert numbers.opponent == pytest.approx(right(files[alias].scores, model))
    assert numbers.items == IMAGES


@pytest.mark.usefixtures("no_models")
def test_rules_about_slices_need_no_parser(pair: Pair) -> None:
    red = replace(RULE, slice="attribute=red")
    decision = decided(pair.challenger, red)
    assert decision.checks[0].numbers is not None
    assert decision.checks[0].numbers.items == IMAGES // 2
    # It is the champion now.
    mlflow.MlflowClient().set_registered_model_alias(
        pair.champion.name, "challenger", pair.champion.version
    )
    decision = decided(pair.champion, replace(RULE, slice="length=*"))
    assert decision.outcome == "refused"
    assert "evaluation.slices" in decision.checks[0].finding


def record(of: ModelVersion, /, **changes: Any) -> None:
    path = export_of(of) / "evidence" / "evidence.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("field", "value"), [("items", "0" * 16), ("settings", {"device": "cuda"})]
)
def test_versions_that_were_scored_differently_are_refused(
    pair: Pair, field: str, value: Any
) -> None:
    champion = pair.champion
    (scored,) = read_evidence(export_of(champion)).scored
    record(champion, scored=[asdict(replace(scored, **{field: value}))])
    pair.seal(champion)
    finding = refusal(champion, "evidence")
    assert f"versions 2 and 1 were not scored in the same way (sugar_crepe_pp: {field})" in finding
    assert "kedro run --pipeline=rescore --params registration.rescore=champion" in finding
    assert "registration.rescore=challenger" in finding
    # Its own base was scored as it was.
    without_champion(champion)
    assert decided(champion).outcome == "promoted"


def test_a_benchmark_that_one_version_lacks_is_refused(pair: Pair) -> None:
    champion = pair.champion
    scored = read_evidence(export_of(champion)).scored
    further = ScoresFingerprint("winoground", "i", "m", "c", {})
    record(champion, scored=[asdict(each) for each in (*scored, further)])
    further_rows(champion)
    pair.seal(champion)
    assert "(winoground: scored for one of them alone)" in refusal(champion, "evidence")


def further_rows(version: ModelVersion) -> None:
    """Add scores on Winoground, of which no item could be scored."""
    path = export_of(version) / "evidence" / "scores.parquet"
    rows = list(Table(Score, pq.read_table(path)))
    place = ("winoground", "all", "text", "0", "0.png", (), None, "missing")
    rows += [Score(model, *place) for model in ("version", "base")]
    pq.write_table(to_table(rows, Score), path)
    item = ScoredItem("winoground", "all", "0", ())
    items_become(version, lambda items: [*items, item])


@pytest.mark.parametrize("alias", ["champion", "challenger"])
def test_scores_of_other_weights_are_refused(pair: Pair, alias: str) -> None:
    """As those of a checkpoint that is registered in half precision."""
    version: ModelVersion = getattr(pair, alias)
    record(version, version="e" * 64)
    pair.seal(version)
    finding = refusal(version, "evidence")
    assert f"version {version.version} has scores of other weights" in finding
    assert f"registration.rescore={alias}" in finding


def test_scores_of_another_base_are_refused(pair: Pair) -> None:
    challenger = pair.challenger
    record(challenger, base="e" * 64)
    pair.seal(challenger)
    assert decided(challenger).outcome == "promoted", "its base is not asked for"
    without_champion(challenger)
    mlflow.MlflowClient().set_registered_model_alias(
        challenger.name, "challenger", challenger.version
    )
    assert "scores of another base" in refusal(challenger, "evidence")


def test_a_version_that_does_not_name_its_base_is_not_compared_with_it(pair: Pair) -> None:
    challenger = pair.challenger
    without_champion(challenger)
    mlflow.MlflowClient().delete_model_version_tag(
        challenger.name, challenger.version, "base_fingerprint"
    )
    pair.seal(challenger)
    assert "scores of another base" in refusal(challenger, "evidence")


def test_evidence_of_another_version_is_refused(pair: Pair) -> None:
    """Even with digests that fit."""
    one, other = (export_of(version) / "evidence" for version in pair[:2])
    kept = other.with_name("kept")
    for source, target in ((one, kept), (other, one), (kept, other)):
        source.rename(target)
    assert "evidence.json was changed" in refusal(pair.champion, "files")
    for version in pair[:2]:
        pair.seal(version, forge=True)
    assert "scores of other weights" in refusal(pair.champion, "evidence")


def rows_become(version: ModelVersion, change: Callable[[Score], Score | None]) -> None:
    path = export_of(version) / "evidence" / "scores.parquet"
    rows = [change(score) for score in Table(Score, pq.read_table(path))]
    pq.write_table(to_table([row for row in rows if row is not None], Score), path)


def items_become(version: ModelVersion, change: Callable[[list[ScoredItem]], Any]) -> None:
    path = export_of(version) / "evidence" / "items.parquet"
    items = list(Table(ScoredItem, pq.read_table(path)))
    pq.write_table(to_table(change(items), ScoredItem), path)


def columns_become(version: ModelVersion, change: Callable[[Any], Any]) -> None:
    path = export_of(version) / "evidence" / "scores.parquet"
    pq.write_table(change(pq.read_table(path)), path)


def numbered(table: Any) -> Any:
    """A column of another type."""
    return table.set_column(0, "model", [list(range(table.num_rows))])


def without_values(table: Any) -> Any:
    place = table.schema.get_field_index("benchmark")
    column = table["benchmark"].to_pylist()
    return table.set_column(place, "benchmark", [[None, *column[1:]]])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda version: (export_of(version) / "evidence/scores.parquet").write_bytes(b"PAR1"),
            "scores.parquet is damaged",
        ),
        (lambda version: columns_become(version, numbered), "has the columns"),
        (lambda version: columns_become(version, without_values), "'benchmark' lacks values"),
        (lambda version: record(version, more=1), "evidence.json"),
    ],
)
def test_evidence_that_cannot_be_read_names_its_file(
    pair: Pair, change: Callable[[ModelVersion], object], named: str
) -> None:
    change(pair.challenger)
    pair.seal(pair.challenger, forge=True)
    finding = refusal(pair.challenger, "files")
    assert named in finding and f"{pair.challenger.name} version 2 is not the model" in finding


def test_tables_of_many_equal_names_can_be_read(tmp_path: Path) -> None:
    """Whatever is written must not look like a file that names more rows than it can hold."""
    items = [
        ScoredItem("many", f"{subtask}", f"{item}", ())
        for subtask in range(300)
        for item in range(200)
    ]
    scores = [
        Score("m", "many", item.subtask, "accuracy", item.item, "0.png", (0.5, 0.25), True, None)
        for item in items
    ]
    scored = (ScoresFingerprint("many", "i", "m", "c", {}),)
    evidence = Evidence("v", "b", scored, {}, ())
    write_evidence(tmp_path, evidence, {FINE_TUNED: scores, BASE: scores}, items)
    assert read_evidence(tmp_path) == evidence
    assert len(read_tables(tmp_path)[0]) == len(items)


def test_with_keys_evidence_must_be_the_signed_one(
    pair: Pair, key_pair: Callable[[str], SigningSettings]
) -> None:
    keys = key_pair("evidence")
    for version in pair[:2]:
        pair.seal(version, keys)
    public = SigningSettings(keys.public_key)
    challenger, gate = pair.challenger, Gate(version=1, rules={"itt": RULE}, items=IMAGES)
    settings = PromotionSettings(gate=gate, dry_run=True)
    assert promote(challenger.name, "challenger", settings, public).outcome == "promoted"
    better = {"similarities": (0.3, 0.2, 0.1), "correct": True}
    rows_become(challenger, lambda row: replace(row, **better) if row.model == "version" else row)
    (check,) = promote(challenger.name, "challenger", settings, public).checks
    assert check.rule == "files" and "evidence/scores.parquet" in check.finding
