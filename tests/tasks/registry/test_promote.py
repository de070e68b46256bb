"""Promotion: the better model gets the name, the worse one another, and asking again moves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_run import Ran, copy_of_store, direct_run, run_whole, tiny_settings

from flows.promote import promote_model
from storage.registry import MODEL_NAME, Models, Registry, read_models
from storage.tables import read_columns
from tasks.core.run import Run
from tasks.evaluation.gates import Outcome, Verdict
from tasks.evaluation.tables import read_metrics
from tasks.registry.promote import DECIDES, Promotion, decide, prepare_bundle, requirements
from tasks.report.gates import model_card
from tasks.report.wording import plain


def verdicts(bits: Outcome = "passed", other: Outcome = "passed") -> list[Verdict]:
    return [Verdict("bits_per_byte", bits, 0.0, 0.0, "bits"), Verdict("worst_slice", other, 0.0, 0.0, "a slice")]


@pytest.mark.parametrize(
    ("judged", "has_champion", "same", "withdrawn", "wins", "reason"),
    [
        (verdicts("skipped", "skipped"), False, False, "", True, "it is the first model (2.0000 bits per byte)"),
        (verdicts("skipped", "failed"), False, False, "", False, "a slice"),
        (verdicts(), True, False, "", True, "bits"),
        (verdicts("failed"), True, False, "", False, "bits"),
        (verdicts("not_comparable"), True, False, "", False, "bits"),
        (verdicts("failed", "failed"), True, False, "", False, "bits; a slice"),
        (verdicts("failed"), True, True, "", True, "it is the champion already (2.0000 bits per byte)"),
        (verdicts(), True, False, "it swears", False, "it was taken back: it swears"),
    ],
    ids=[
        "no-champion",
        "no-champion-bad-corpus",
        "better",
        "worse",
        "not-comparable",
        "worse-twice",
        "the-champion",
        "taken-back",
    ],
)
def test_gates_decide(
    judged: list[Verdict], has_champion: bool, same: bool, withdrawn: str, wins: bool, reason: str
) -> None:
    assert decide(judged, 2.0, has_champion, same, withdrawn) == (wins, reason)


@dataclass
class Names:
    """The registry after a promotion."""

    done: Promotion
    versions: int
    aliases: dict[str, str]
    tags: dict[str, str]
    card: str
    record: Models


@dataclass
class History:
    """Results of successive promotions."""

    tiny: Names
    tiny_again: Names
    worse: Names
    worse_again: Names
    better: Names
    better_again: Names
    tiny_later: Names


def read_names(run: Run, done: Promotion) -> Names:
    registry = Registry(run.tracking, "default")
    found = registry.client.search_model_versions(f"name = '{MODEL_NAME}'")
    model = registry.client.get_registered_model(MODEL_NAME)
    version = registry.by_digest().get(done.version.checkpoint.digest)
    assert version is not None
    aliases = {name: str(number) for name, number in model.aliases.items()}
    card = registry.client.get_model_version(MODEL_NAME, version.version).description or ""
    return Names(done, len(found), aliases, version.tags, card, read_models(run.store, "default"))


@pytest.fixture(scope="module")
def history(tiny: Ran, tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    home = copy_of_store(tiny, tmp_path_factory.mktemp("promotion") / "home")

    def step(*assignments: str) -> Names:
        ran = run_whole(home, tiny_source, tiny_settings(*assignments))
        assert ran.checkpoint is not None
        with direct_run(home) as run:
            done, _ = promote_model(run, ran.checkpoint, ran.evaluation)
            return read_names(run, done)

    worse, better = ("train.max_steps=2",), ("train.max_steps=80", "train.lr=0.01")
    yield History(step(), step(), step(*worse), step(*worse), step(*better), step(*better), step())


def test_the_first_model_is_champion(history: History) -> None:
    assert (history.tiny.versions, history.tiny.aliases) == (1, {"champion": "1"})
    assert (history.tiny.done.alias, history.tiny.done.moved) == ("champion", True)


def test_a_worse_model_is_challenger_and_the_champion_stays(history: History) -> None:
    assert (history.worse.versions, history.worse.aliases) == (2, {"champion": "1", "challenger": "2"})
    assert (history.worse.done.alias, history.worse.done.moved) == ("challenger", True)
    assert "not fewer" in history.worse.done.reason


def test_a_better_model_is_champion_and_the_old_one_previous(history: History) -> None:
    assert history.better.versions == 3
    assert history.better.aliases == {"champion": "3", "previous": "1", "challenger": "2"}
    assert (history.better.done.alias, history.better.done.moved) == ("champion", True)


@pytest.mark.parametrize("name", ["tiny", "worse", "better"])
def test_promoting_again_changes_nothing(history: History, name: str) -> None:
    once, again = getattr(history, name), getattr(history, f"{name}_again")
    assert (again.versions, again.aliases, again.tags) == (once.versions, once.aliases, once.tags)
    assert (again.card, again.record) == (once.card, once.record)
    assert again.done.verdicts == once.done.verdicts
    assert not again.done.moved
    assert again.done.alias == once.done.alias


def test_a_former_champion_does_not_come_back(history: History) -> None:
    assert history.tiny_later.versions == 3
    assert history.tiny_later.aliases["champion"] == "3"
    assert history.tiny_later.done.alias == "challenger"


def test_a_version_says_what_it_was_made_from_and_how_good_it_is(history: History, tiny: Ran) -> None:
    assert tiny.checkpoint is not None
    assert tiny.metrics is not None
    tags = history.tiny.tags
    assert tags["sheepfold.checkpoint_digest"] == tiny.checkpoint.digest
    assert tags["sheepfold.evalset"] == tiny.prepared.evalset.digest
    assert float(tags["sheepfold.bits_per_byte"]) == pytest.approx(tiny.metrics[DECIDES], abs=1e-6)
    assert "it is the first model" in tags["sheepfold.verdict"]


def test_verdicts_and_their_numbers_stand_in_tags_and_card(history: History) -> None:
    worse, better = history.worse, history.better
    assert worse.tags["sheepfold.gates"] == "failed: bits_per_byte"
    assert better.tags["sheepfold.gates"] == "passed"
    for names in (worse, better):
        bits = next(item for item in names.done.verdicts if item.gate == "bits_per_byte")
        assert names.tags["sheepfold.gate.bits_per_byte"] == f"{bits.verdict}: {bits.number:.6g} (limit 0)"
        assert plain(bits.sentence, 400) in names.card
        assert names.tags["sheepfold.verdict"] == bits.sentence
    assert history.tiny.tags["sheepfold.gate.bits_per_byte"] == "skipped"


def test_a_version_is_found_by_what_it_was_made_from(history: History, tiny: Ran) -> None:
    tags = history.tiny.tags
    assert tags["sheepfold.dataset"] == tiny.prepared.dataset.digest
    assert tags["sheepfold.tokenizer"] == tiny.prepared.tokenizer.digest
    assert tags["sheepfold.base"] == "none"
    assert int(tags["sheepfold.parameters"]) > 1_000


def test_the_card_says_what_it_is_how_good_judged_how_made_from_what_and_what_it_cannot(history: History) -> None:
    heads = [line for line in history.better.card.splitlines() if line.startswith("#")]
    assert heads[0] == "## Language model of 1 layers, width 32, context 32"
    assert heads[1:] == ["### Evaluation", "### Gates", "### Data", "### Limits", "### Use", "### Lineage"]
    assert "parameters" in history.better.card
    assert history.better.done.version.checkpoint.key in history.better.card


def test_what_quantisation_costs_is_measured_where_a_gate_asks_for_it(tiny: Ran, tmp_path: Path) -> None:
    home = copy_of_store(tiny, tmp_path / "home")
    settings = tiny_settings("gates.max_quantisation_loss=0.5", "gates.quantisation=q4_0")
    assert tiny.checkpoint is not None and tiny.evaluation is not None
    with direct_run(home) as run:
        done, _ = promote_model(run, tiny.checkpoint, tiny.evaluation, settings)
        figures = {
            made.settings["weights"]: read_metrics(run.store, made.ref) for made in run.store.manifests("evaluate")
        }
    (found,) = (item for item in done.verdicts if item.gate == "quantisation_loss")
    own, rounded = (figures[weights]["val/bits_per_byte"] for weights in ("", "q4_0"))
    assert found.verdict == "passed" and found.number == pytest.approx(rounded / own - 1)
    assert found.number != 0 and f"in q4_0 the model has {rounded:.4f}" in found.sentence


def test_the_card_leads_to_the_pages_of_what_trained_it(tiny: Ran) -> None:
    assert tiny.checkpoint is not None and tiny.evaluation is not None
    links = {"the flow run in Prefect": "http://127.0.0.1:4200/runs/flow-run/1"}
    card = model_card(tiny.run.store, tiny.checkpoint, tiny.evaluation, verdicts(), "sheepfold-other", links)
    assert "[the flow run in Prefect](http://127.0.0.1:4200/runs/flow-run/1)" in card
    assert "models:/sheepfold-other@champion" in card


def test_the_store_records_the_models_in_order_and_their_aliases(history: History) -> None:
    record, made = history.tiny_later.record, (history.tiny, history.worse, history.better)
    digests = [names.done.version.checkpoint.digest for names in made]
    assert list(record.models) == digests
    assert record.aliases == {alias: digests[int(n) - 1] for alias, n in history.tiny_later.aliases.items()}
    assert record.models[digests[0]].tags.items() <= history.tiny_later.tags.items()


def test_a_bundle_holds_the_weights_and_the_code_and_nothing_of_the_store(tiny: Ran, tmp_path: Path) -> None:
    assert tiny.checkpoint is not None
    folder = prepare_bundle(tiny.folder(tiny.checkpoint), tmp_path / "bundle")
    names = {path.name for path in folder.iterdir()}
    assert names == {"model.safetensors", "config.json", "tokenizer.json", "token_counts.parquet", "code"}
    assert {path.name for path in (folder / "code").iterdir()} == {"__init__.py", "model", "tasks"}
    assert not list(folder.rglob("__pycache__"))
    assert len(read_columns(folder / "token_counts.parquet", ["token"])["token"]) > 4


def test_requirements_pin_releases_that_an_index_knows() -> None:
    assert all("==" in line and "+" not in line for line in requirements())
