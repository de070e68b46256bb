"""Continuing from a model: its weights, its tokeniser and its shape, and settings that contradict them."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from generation_samples import model_folder
from html_tags import Tags
from tiny_run import Ran, copy_of_store, direct_run, tiny_settings, train_in, write_texts

from flows.evaluate import evaluate_model
from model.checkpoint import load_weights
from storage.home import Home
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registry import Models, Registered, write_models
from storage.tables import read_rows
from storage.tombstones import Tombstone, Tombstones, write_tombstones
from tasks.core.progress import StageProgress
from tasks.core.run import Run
from tasks.core.settings import Settings, load_settings, parse_assignments
from tasks.curate.evalset import frozen_evalset
from tasks.evaluation.compare import compare_source
from tasks.registry.base import BaseError, check_base, with_base
from tasks.registry.models import ensure_training_run
from tasks.report.training import collect_training, training_page
from tasks.training.bundle import Bundle
from tasks.training.hugging_face import export_bundle
from tasks.training.telemetry import read_notes
from tasks.training.train import HISTORY_FILE

LLAMA = {"pos": "rope", "norm": "rmsnorm", "act": "swiglu", "attn_bias": False, "ffn_bias": False}
BITS = {name: f"val_sample/{name}_bits_per_byte" for name in ("replay", "own")}
STEPS = ("curate.validation_share=0.3", "train.max_steps=4", "train.batch_size=4")


@pytest.fixture
def bundle(tiny: Ran) -> Path:
    return tiny.folder(tiny.checkpoint)


@pytest.fixture
def run(tiny: Ran, tmp_path: Path) -> Iterator[Run]:
    """A run in a home of its own, without the model."""
    with direct_run(copy_of_store(tiny, tmp_path / "home", "train", "bundle")) as found:
        yield found


def settings_from(base: Path | str, *assignments: str) -> Settings:
    return load_settings(None, parse_assignments([*STEPS, f"train.base={base}", *assignments]))


def make_champion(run: Run, ref: ArtifactRef) -> None:
    made = Models({ref.digest: Registered(ref, ref, ref, version="1")}, {"champion": ref.digest})
    write_models(run.store, "default", made)


def first_loss(run: Run, checkpoint: ArtifactRef | None) -> float:
    assert checkpoint is not None
    rows = read_rows(run.store.folder(checkpoint) / HISTORY_FILE)
    return next(row["value"] for row in rows if row["metric"] == "train/loss" and row["step"] == 1)


@pytest.mark.parametrize("layout", ["ours", "hf"])
def test_a_training_goes_on_from_the_weights_and_with_the_tokeniser_of_its_base(
    run: Run, tiny: Ran, bundle: Path, tmp_path: Path, layout: str
) -> None:
    folder = bundle
    if layout == "hf":
        folder = tmp_path / "hf"
        export_bundle(bundle, folder)
    checkpoint = train_in(run, write_texts(tmp_path / "texts"), settings_from(folder))
    made, old = Bundle(run.store.folder(checkpoint)), Bundle(bundle)
    text = "the shepherd counts his sheep"
    assert made.tokenizer.encode([text])[0].tolist() == old.tokenizer.encode([text])[0].tolist()
    assert made.model_config == old.model_config
    assert [ref.stage for ref in manifest_of(run.store, checkpoint).input_refs("base")] == ["bundle"]
    anew = first_loss(tiny.run, tiny.checkpoint)
    assert first_loss(run, checkpoint) < anew - 0.5


def test_adapters_are_trained_beside_a_base(run: Run, bundle: Path, tmp_path: Path) -> None:
    settings = settings_from(bundle, "train.adapter=lora", "train.adapter_rank=2", 'train.adapter_targets=["v","proj"]')
    checkpoint = train_in(run, write_texts(tmp_path / "texts"), settings)
    folder = run.store.folder(checkpoint)
    before, after = Bundle(bundle).model.state_dict(), Bundle(folder).model.state_dict()
    changed = {name.split(".", 2)[2] for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == {"attention.v.weight", "attention.proj.weight"}
    assert not (folder / "adapter").exists()  # v alone is no layer of GPT-2's layout


def test_peft_opens_the_adapters_of_a_training(run: Run, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    import transformers

    base = model_folder(tmp_path / "base", shape=LLAMA)
    export_bundle(base, tmp_path / "hf")
    settings = settings_from(base, "train.adapter=dora", "train.adapter_rank=2")
    made = run.store.folder(train_in(run, write_texts(tmp_path / "texts"), settings))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    opened = peft.PeftModel.from_pretrained(theirs, made / "adapter").eval()
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        expected, found = opened(ids).logits, Bundle(made).model(ids)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert not torch.equal(found, Bundle(base).model(ids))


def test_adapters_without_a_base_are_refused(run: Run) -> None:
    settings = load_settings(None, parse_assignments([*STEPS, "train.adapter=lora"]))
    with pytest.raises(BaseError, match=r"train\.adapter=lora trains small matrices beside the weights of a base"):
        check_base(run, settings)


@pytest.mark.parametrize(
    ("assignments", "told"),
    [
        (["execution.sharding=fsdp", "execution.processes=2"], r"train\.adapter=lora is not sharded"),
        (['train.adapter_targets=["gate"]'], "names gate, which the network of"),
    ],
)
def test_adapters_that_do_not_fit_are_refused_at_once(
    run: Run, bundle: Path, assignments: list[str], told: str
) -> None:
    with pytest.raises(BaseError, match=told):
        check_base(run, settings_from(bundle, "train.adapter=lora", *assignments))


def test_a_base_is_read_with_a_context_below_its_window(run: Run, tmp_path: Path) -> None:
    base = model_folder(tmp_path / "base", shape={"pos": "rope", "max_seq_len": 64, "window": 48})
    settings = settings_from(base, "model.max_seq_len=32")
    assert with_base(settings, check_base(run, settings)).model.overrides["window"] == 32


def test_a_folder_with_the_name_of_a_registered_model_is_a_base_by_its_path(
    run: Run, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_champion(run, ArtifactRef("train", "key", "digest"))
    shutil.copytree(bundle, tmp_path / "champion")
    monkeypatch.chdir(tmp_path)
    found = check_base(run, settings_from("./champion"))
    assert found is not None and found.checkpoint.stage == "bundle"


def test_the_name_of_a_registered_model_wins_over_a_folder_of_that_name(
    tiny: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "champion").mkdir()
    monkeypatch.chdir(tmp_path)
    with direct_run(copy_of_store(tiny, tmp_path / "home")) as run:
        make_champion(run, tiny.checkpoint)
        found = check_base(run, settings_from("champion"))
    assert found is not None and found.checkpoint == tiny.checkpoint


def test_a_registered_model_is_a_base_by_its_artefact(tiny: Ran, bundle: Path) -> None:
    with direct_run(tiny.run.home) as run:
        found = check_base(run, settings_from(bundle))
        assert found is not None
        weights = load_weights(found.folder / "model.safetensors", Bundle(bundle).model_config).state_dict()
        assert all(torch.equal(weights[name], value) for name, value in Bundle(bundle).model.state_dict().items())


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("tokenizer.kind=bytes", r"has its own tokeniser, but tokenizer\.kind is set"),
        ("model.n_layer=3", r"model\.n_layer is 3, but the weights of the base have 1"),
        ("model.preset=tiny", "has its own network, but the preset tiny is set"),
    ],
)
def test_settings_that_contradict_the_base_are_refused(run: Run, bundle: Path, assignment: str, told: str) -> None:
    settings = settings_from(bundle, assignment)
    with pytest.raises(BaseError, match=told):
        check_base(run, settings)


@pytest.mark.parametrize(
    ("scaling", "fields"),
    [
        pytest.param("none", {"rope_factor": 1.0, "rope_original_len": None}, marks=pytest.mark.full),
        pytest.param("linear", {"rope_factor": 4.0, "rope_original_len": None}, marks=pytest.mark.full),
        ("yarn", {"rope_factor": 4.0, "rope_original_len": 16, "rope_ramp": (1.0, 32.0)}),
    ],
)
def test_a_rotary_base_is_trained_further_with_a_longer_context(
    scaling: str, fields: dict[str, Any], run: Run, tmp_path: Path
) -> None:
    base = model_folder(tmp_path / "base", shape={"pos": "rope", "max_seq_len": 16})
    settings = settings_from(base, "model.max_seq_len=64", f"model.rope_scaling={scaling}")
    made = Bundle(run.store.folder(train_in(run, write_texts(tmp_path / "texts"), settings)))
    old = Bundle(base)
    assert made.model_config == dataclasses.replace(old.model_config, max_seq_len=64, rope_scaling=scaling, **fields)
    moved = made.model.token_embedding.weight - old.model.token_embedding.weight
    assert 0 < moved.abs().max() < 0.1 < old.model.token_embedding.weight.std()


def test_a_stretched_base_is_stretched_from_the_context_before_any_scaling(run: Run, tmp_path: Path) -> None:
    scaled = {"pos": "rope", "max_seq_len": 32, "rope_scaling": "linear", "rope_factor": 2.0}
    folder = model_folder(tmp_path / "base", shape=scaled)
    settings = settings_from(folder, "model.max_seq_len=64", "model.rope_scaling=yarn")
    shape = with_base(settings, check_base(run, settings)).model.overrides
    assert (shape["rope_factor"], shape["rope_original_len"]) == (4.0, 16)


def test_a_base_of_learned_positions_keeps_its_context(run: Run, bundle: Path) -> None:
    with pytest.raises(BaseError, match="max_seq_len=64, but there are weights for max_seq_len=32 learned positions"):
        check_base(run, settings_from(bundle, "model.max_seq_len=64"))


def test_dropout_may_differ_from_the_base(run: Run, bundle: Path) -> None:
    settings = settings_from(bundle, "model.drop_resid=0.1", "model.n_layer=1")
    assert with_base(settings, check_base(run, settings)).model.overrides["drop_resid"] == 0.1


def test_a_folder_without_a_model_says_what_it_lacks(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(Exception, match=r"tokenizer\.json"):
        check_base(run, settings_from(tmp_path / "empty"))


def test_a_base_that_saw_forgotten_documents_is_noted(tiny: Ran, tmp_path: Path) -> None:
    with direct_run(copy_of_store(tiny, tmp_path / "home")) as run:
        make_champion(run, tiny.checkpoint)
        check_base(run, settings_from("champion"))
        assert run.notes == []
        seen = Tombstone("one", "sha256 of it", seen_by=(f"train/{tiny.checkpoint.key}",))
        write_tombstones(run.store, Tombstones({"one": seen, "two": Tombstone("two", "another")}))
        check_base(run, settings_from("champion"))
        (note,) = run.notes
    assert "was trained on 1 document(s) that were forgotten since, and so is every model based on it" in note


def test_without_a_base_nothing_is_looked_up(run: Run) -> None:
    assert check_base(run, tiny_settings()) is None


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Two folders, of which less is held out than a training samples."""
    write_texts(tmp_path / "texts" / "notes", range(20, 27))
    write_texts(tmp_path / "texts" / "general")
    return tmp_path / "texts"


def history(run: Run, checkpoint: ArtifactRef) -> list[tuple[str, int, float]]:
    rows = read_rows(run.store.folder(checkpoint) / HISTORY_FILE)
    return [(row["metric"], row["step"], row["value"]) for row in rows]


def own_home(tiny: Ran, folder: Path) -> Home:
    """A home without the model and its evaluation set."""
    return copy_of_store(tiny, folder, "train", "bundle", "evalset")


def test_bits_per_byte_of_the_replay_set_are_measured_from_the_base_on(
    tiny: Ran, bundle: Path, texts: Path, tmp_path: Path
) -> None:
    home = own_home(tiny, tmp_path / "home")
    with direct_run(home) as run:
        plain = train_in(run, texts, settings_from(bundle))
        before = history(run, plain)
    with direct_run(home, refresh=["train"]) as run:
        found = train_in(run, texts, settings_from(bundle, "gates.replay=general"))
        after = history(run, found)
        assert found == plain, "neither the key nor the weights depend on it"
        assert [row for row in after if row[1] and row[0] not in BITS.values()] == before
        (base,), evalset = manifest_of(run.store, found).input_refs("base"), frozen_evalset(run)
        evaluations = [evaluate_model(run, one, evalset)[0] for one in (found, base)]
        pair = compare_source(run.store, *evaluations, source="general")
        assert pair is not None
        curve = {step: value for name, step, value in after if name == BITS["replay"]}
        assert list(curve) == [0, 1, 2, 3, 4]
        assert curve[0] == pytest.approx(pair.b.bits_per_byte, rel=1e-4)
        assert curve[4] == pytest.approx(pair.a.bits_per_byte, rel=1e-4)
        logged = run.tracking.client.get_metric_history(ensure_training_run(run, found), BITS["own"])
        assert [(point.step, point.value) for point in logged] == [row[1:] for row in after if row[0] == BITS["own"]]
        words = " ".join(Tags(training_page(collect_training(run.store, found), "fold")[0]).words)
        assert f"Replay set general: {curve[0]:.2f} → {curve[4]:.2f} bits per byte, forgotten " in words


def test_a_resumed_training_goes_on_with_the_replay_set_that_it_began_with(
    tiny: Ran, bundle: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = "execution.checkpoint_minutes=0"
    first, other = (settings_from(bundle, f"gates.replay={name}", saving) for name in ("general", "notes"))
    with direct_run(own_home(tiny, tmp_path / "undisturbed")) as run:
        expected = history(run, train_in(run, texts, first))
    home, shown = own_home(tiny, tmp_path / "interrupted"), StageProgress.update

    def end(self: StageProgress, done: float, total: float, note: str = "") -> None:
        shown(self, done, total, note)
        if self.name == "train" and done == 3:
            raise RuntimeError("the end")

    with monkeypatch.context() as patches, direct_run(home) as run, pytest.raises(RuntimeError, match="the end"):
        patches.setattr(StageProgress, "update", end)
        train_in(run, texts, first)
    with direct_run(home) as run:
        resumed = train_in(run, texts, other)
        assert manifest_of(run.store, resumed).counts["resumed_from"] == 2
        assert history(run, resumed) == expected


def test_too_little_held_out_text_of_the_replay_set_is_told_instead_of_a_curve(
    run: Run, bundle: Path, texts: Path
) -> None:
    found = train_in(run, texts, settings_from(bundle, "gates.replay=elsewhere"))
    (event,) = [event for event in read_notes(run.store.folder(found)).events if event.kind == "replay"]
    assert "has 0 sequences with text of elsewhere and" in event.message
    assert not {name for name, *_ in history(run, found)} & set(BITS.values())
    assert "No curve of forgetting" in training_page(collect_training(run.store, found), "fold")[0]
