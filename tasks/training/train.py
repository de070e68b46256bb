"""The stage `train`: trains the network on a dataset and logs to one MLflow run.

Checkpoints are in the stage's scratch folder. A killed training resumes from the last one in the same MLflow run,
without duplicate or missing points.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from model.callbacks import TrainingStopped, stoppable
from storage.atomic import write_file
from storage.digest import sha256_file, sha256_json
from storage.errors import UserError
from storage.lineage import location_of, manifest_of
from storage.manifest import ArtifactRef, Manifest
from storage.schemas import COUNTS_FILE, HISTORY, TOKENS_FILE
from storage.store import Store
from storage.tables import read_rows, write_table
from storage.tracking import CORPUS_TAG, Tracking
from tasks.core.machine import describe_device, threads_each
from tasks.core.settings import AUTO, ExecutionSettings, ModelSettings, TrainSettings
from tasks.core.stage import Work, stage
from tasks.lineage.training_data import first_paths, name_documents
from tasks.tokens.extend import parts_of_new_ids
from tasks.tokens.index import groups_of, load_index
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE, load_tokenizer
from tasks.training.bundle import CHAT_FILE, CONFIG_FILE, WEIGHTS_FILE
from tasks.training.launch import ADAPTER_FILE, Job, launch, settled, train_job
from tasks.training.telemetry import TELEMETRY_FILE, Sampler, Watch, curve_names, first_ids, sync_journal

if TYPE_CHECKING:
    from model.data import Group
    from tasks.core.run import Run

logger = logging.getLogger("sheepfold")

HISTORY_FILE = "history.parquet"
ATTEMPT_FILE = "attempt"  # in the scratch folder; a refreshed training has another one
ADAPTER_FOLDER = "adapter"
ATTEMPT_MODE = "attempt"  # entry of the manifest
REPLAY_FILE = "replay"  # in the scratch folder
REPLAY_MODE = "replay"  # entry of the manifest of a training with a curve of forgetting
PRESET_BATCH = 8  # default batch size, in sequences
COUNTED_AT_ONCE = 2**16  # sequences counted at once
EVALUATION_SHARE = 0.05  # of the minutes, at most
VALIDATION_SAMPLE = 128  # sequences; the whole evaluation set is measured by the stage `evaluate`
FEWEST_REPLAYED = 8  # sequences of this sample with text of the replay set, and with other text, for a curve


@dataclass(frozen=True)
class TrainStageSettings:
    """Settings that determine the weights: complete fields of `model.ModelConfig` and `model.TrainConfig`.

    `sampling` are the default fields of `model.config.Sampling` for this model.
    """

    model: dict[str, Any]
    train: dict[str, Any]
    sampling: dict[str, Any] = field(default_factory=dict)


def model_config(settings: ModelSettings, vocab_size: int) -> dict[str, Any]:
    """Return the complete network configuration of a preset with its overrides."""
    from model.presets import preset

    return preset(settings.preset, vocab_size, **settings.overrides).to_dict()


def vocab_size_of(run: Run, tokenizer: ArtifactRef) -> int:
    """Return the number of ids of a tokeniser."""
    return int(load_tokenizer(run.store.folder(tokenizer) / TOKENIZER_FILE).vocab_size)


def recorded_sampling(preset: str) -> dict[str, Any]:
    """Return the fields of `model.config.Sampling` that the recipe of a preset states."""
    from model.presets import RECIPES

    stated = {name.partition("."): value for name, value in RECIPES.get(preset, {}).items()}
    return {leaf: value for (section, _, leaf), value in stated.items() if section == "generate"}


def train_config(
    settings: TrainSettings, network: dict[str, Any], device: str, max_steps: int, **suggested: Any
) -> dict[str, Any]:
    """Return the complete training configuration of a network for a number of steps.

    Defaults: ten evaluations, fewer where they would take more than a twentieth of the minutes; small batches, because
    in a short training more steps help more than less noisy ones; the precision of the device; and a learning rate
    that falls with the width, from 0.004 for the smallest networks to GPT-2's 0.0006, or the published peak of the
    schedule "noam".

    Args:
        device: `cpu` or `cuda`.
        suggested: fields of `model.TrainConfig` that override the defaults, and are overridden by the settings.
    """
    from model.config import TrainConfig
    from model.schedule import noam_peak

    defaults = {
        "eval_every": max(1, math.ceil(max_steps / 10)),
        "batch_size": PRESET_BATCH,
        "lr": round(min(4e-3, 0.5 / network["d_model"]), 6),
    }
    precision = _device_precision(device) if settings.precision == AUTO else settings.precision
    values = {**defaults, **suggested, **settings.overrides, "precision": precision}
    found = TrainConfig.from_dict({**values, "max_steps": max_steps, "seed": settings.seed})
    if found.schedule == "noam" and "lr" not in settings.overrides:
        found = replace(found, lr=noam_peak(network["d_model"], found.warmup))
    if found.minutes and "eval_every" not in settings.overrides:
        # in steps; reading a sequence takes about a third of the time of learning from it
        costs = VALIDATION_SAMPLE / (3 * found.batch_size * found.grad_accum)
        found = replace(found, eval_every=max(found.eval_every, math.ceil(costs / EVALUATION_SHARE)))
    return found.to_dict()


def _device_precision(device: str) -> str:
    if device == "cpu":
        return "fp32"  # known without torch, which takes seconds to import
    import torch

    from model.guards import best_precision

    return best_precision(torch.device(device))


def training_sentence(settings: TrainStageSettings, device: str) -> str:
    """Return a summary of a training: parameters, device, precision, optimiser, steps, batch and learning rate.

    Args:
        device: `cpu` or `cuda`.
    """
    from model import ModelConfig, TrainConfig, count_parameters

    plan = TrainConfig.from_dict(settings.train)
    steps = f"about {plan.minutes:g} minutes" if plan.minutes else f"{plan.max_steps:,} steps"
    rise = f" after {plan.warmup:,} steps of warm-up" if plan.warmup_ratio or plan.warmup_steps else ""
    if plan.warmup >= plan.max_steps:
        rise += " (longer than the training)"
    return (
        f"{count_parameters(ModelConfig.from_dict(settings.model))['total']:,} parameters on {device} in "
        f"{plan.precision} by {plan.optimizer}: {steps} in batches of {plan.batch_size * plan.grad_accum} "
        f"sequences, schedule {plan.schedule} with a peak learning rate of {plan.lr:.3g}{rise}"
    )


def steps_of_tokens(
    max_tokens: int,
    train: dict[str, Any],
    labels: np.ndarray,
    groups: Sequence[Group],
    most: int,
) -> int:
    """Return the fewest steps that train on `max_tokens` tokens in the order of the trainer.

    Args:
        train: a complete training configuration.
        labels: (n,) number of labels of each training sequence.
        groups: reads per epoch of the sequences.
        most: upper bound of the steps.

    Raises:
        UserError: the sequences have no labels.
    """
    from model.data import Order

    in_all = sum(group.reads // group.count * int(labels[group.first :][: group.count].sum()) for group in groups)
    if not labels.any():
        raise UserError(
            f"train.max_tokens is {max_tokens}, but the training documents have no token to predict: add documents"
        )
    order = Order(groups, train["seed"])
    epochs, left = 0, max_tokens
    if not any(group.reads % group.count for group in groups):  # then every epoch reads the same sequences
        epochs, left = divmod(max_tokens, in_all)
    sequences = epochs * order.epoch_size
    per_step = train["batch_size"] * train["grad_accum"]
    while left > 0 and sequences < most * per_step:
        so_far = np.cumsum(labels[order.at(np.arange(sequences, sequences + COUNTED_AT_ONCE))])
        place = int(np.searchsorted(so_far, left))
        sequences += min(place + 1, COUNTED_AT_ONCE)
        left -= int(so_far[min(place, COUNTED_AT_ONCE - 1)])
    return min(-(-sequences // per_step), most)


def steps_of_epochs(max_epochs: float, train: dict[str, Any], sequences: int) -> int:
    """Return the largest number of steps within `max_epochs` epochs; at least one.

    Args:
        sequences: sequences per epoch.
    """
    return max(1, math.floor(max_epochs * sequences / (train["batch_size"] * train["grad_accum"])))


def most_steps(run: Run, settings: TrainSettings, train: dict[str, Any], dataset: ArtifactRef) -> int:
    """Return the steps of `max_epochs` epochs."""
    return steps_of_epochs(settings.max_epochs, train, manifest_of(run.store, dataset).counts["train_reads"])


def steps_of(run: Run, settings: TrainSettings, train: dict[str, Any], dataset: ArtifactRef, fitting: int) -> int:
    """Return the number of steps from `max_steps`, `max_tokens` or the minutes of the settings.

    Args:
        train: configuration of the training, without steps.
        fitting: steps that fit the minutes.
    """
    if settings.max_steps:
        return settings.max_steps
    most = most_steps(run, settings, train, dataset)
    if settings.max_tokens:
        folder = run.store.folder(dataset)
        return steps_of_tokens(settings.max_tokens, train, load_index(folder, "train").labels, groups_of(folder), most)
    return min(most, fitting)


def shard_folders(work: Work, dataset: ArtifactRef) -> dict[str, Path]:
    """Return the folders of a dataset's token shards, by key."""
    return {ref.key: work.folder(ref) for ref in manifest_of(work.store, dataset).input_refs("tokens")}


def run_name(settings: TrainStageSettings, corpus: str) -> str:
    """Return the name of a training's MLflow run: corpus, preset or number of parameters, minutes or steps.

    Args:
        corpus: name of the corpus; empty if unknown.
    """
    from model import PRESETS, ModelConfig, count_parameters
    from model.presets import preset

    network = settings.model
    shape = _without_dropout(network)
    presets = (name for name in PRESETS if _without_dropout(preset(name, network["vocab_size"]).to_dict()) == shape)
    size = f"{count_parameters(ModelConfig.from_dict(network))['total']:,} parameters"
    plan = settings.train
    budget = f"{plan['minutes']:g} minutes" if plan.get("minutes") else f"{plan['max_steps']:,} steps"
    parts = (corpus, next(presets, size), budget)
    return " · ".join(part for part in parts if part)


def _without_dropout(network: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a network that its weights depend on."""
    return {name: value for name, value in network.items() if not name.startswith("drop_")}


def _ensure_run(
    tracking: Tracking,
    store: Store,
    key: str,
    settings: TrainStageSettings,
    tags: Mapping[str, str],
    attempt: str,
    dataset: ArtifactRef,
) -> str:
    params = {f"{part}.{name}": value for part, values in asdict(settings).items() for name, value in values.items()}
    run_id = tracking.ensure_run(key, run_name(settings, tags.get(CORPUS_TAG, "")), params, tags, attempt)
    tracking.log_dataset(run_id, "dataset", dataset.digest, location_of(store, dataset), "training")
    return run_id


def sync_run(tracking: Tracking, store: Store, manifest: Manifest, tags: dict[str, str]) -> str:
    """Complete the MLflow run of a finished training from its artefact; returns the run's id.

    Only missing values are written.
    """
    settings, folder = TrainStageSettings(**manifest.settings), store.folder(manifest.ref)
    (dataset,) = manifest.input_refs("dataset")
    run_id = _ensure_run(tracking, store, manifest.key, settings, tags, manifest.modes.get(ATTEMPT_MODE, ""), dataset)
    points = [(row["metric"], row["step"], row["value"]) for row in read_rows(folder / HISTORY_FILE)]
    tracking.log_missing(run_id, [*points, *sync_journal(tracking, run_id, folder)])
    tracking.finish(run_id)
    return run_id


def sampler_of(work: Work, dataset: ArtifactRef, tokenizer: ArtifactRef, network: Any) -> Sampler:
    """Return a sampler that completes the beginnings of training documents; of conversations it draws nothing.

    Their beginnings are questions behind the words of a template, in which a forgotten document would not be found.
    """
    index = load_index(work.folder(dataset), "train")
    folders = shard_folders(work, dataset)
    known = load_tokenizer(work.folder(tokenizer) / TOKENIZER_FILE)
    is_chat = any((folder / CHAT_FILE).is_file() for folder in folders.values())
    prompts = [] if is_chat else first_ids(index, folders, known, network.max_seq_len)
    return Sampler(known, prompts, network.vocab_size)


def new_rows_of(work: Work, base: ArtifactRef, tokenizer: ArtifactRef) -> list[tuple[int, list[int]]]:
    """Return the ids that a tokeniser has beyond its base's, with the ids that they replace."""
    before, known = (load_tokenizer(work.folder(ref) / TOKENIZER_FILE) for ref in (base, tokenizer))
    return parts_of_new_ids(before, known)


def framing_of(store: Store, dataset: ArtifactRef) -> dict[str, bool]:
    """Return `bos` and `eos`: True if the documents of a dataset begin or end with these ids."""
    shards = manifest_of(store, dataset).input_refs("tokens")
    written = manifest_of(store, shards[0]).settings  # all shards of a dataset are made with the same settings
    return {name: bool(written.get(name, True)) for name in ("bos", "eos")}


def _replay_fields(work: Work, dataset: ArtifactRef, replay: str, watch: Watch) -> dict[str, Any]:
    """Return the fields of `Job` for the curve of forgetting; none, with an event, if the sample has too little text.

    Args:
        replay: source, or first folders of paths; empty for no curve.
    """
    if not replay:
        return {}
    index = load_index(work.folder(dataset), "validation", VALIDATION_SAMPLE)
    folders = shard_folders(work, dataset)
    if any((folder / CHAT_FILE).is_file() for folder in folders.values()):
        told = "forgetting is not measured while a model learns from conversations: the gate base_loss does, on texts"
        watch.event(0, "replay", told)
        return {}
    owners = np.empty(len(index.shard), dtype=object)
    sizes = np.zeros((2, len(owners)))  # bytes and lost bytes of the labels of each piece
    for number, key in enumerate(index.shards):
        rows = np.flatnonzero(index.shard == number)
        table = pq.read_table(folders[key] / TOKENS_FILE)
        found = table.take(np.searchsorted(table["offset"].to_numpy(), index.start[rows], side="right") - 1)
        owners[rows] = found["doc_id"].to_pylist()
        share = index.piece_labels[rows] / np.maximum(1, found["length"].to_numpy() - 1)
        sizes[:, rows] = share * [found[name].to_numpy() for name in ("n_bytes", "lost_bytes")]
    paths = first_paths(work.store, dataset, set(owners))
    inside = np.array([paths.get(owner, "").startswith(f"{replay}/") for owner in owners], dtype=bool)
    sides = (inside, ~inside)
    counts = [int(np.logical_or.reduceat(side, index.offsets[:-1]).sum()) for side in sides]
    if min(counts) < FEWEST_REPLAYED:
        watch.event(
            0,
            "replay",
            f"forgetting is not measured: the validation sample has {counts[0]} sequences with text of {replay} and "
            f"{counts[1]} with other text, expected at least {FEWEST_REPLAYED} of each",
        )
        return {}
    work.modes[REPLAY_MODE] = replay
    return {
        "replay": inside.tolist(),
        "replay_sizes": [tuple(np.rint(sizes[:, side].sum(axis=1)).astype(int).tolist()) for side in sides],
    }


def _kept(path: Path, value: str) -> str:
    """Return the content of a file in the scratch folder, written first if it is missing, so that a resume reads it."""
    if not path.exists():
        write_file(path, value.encode())
    return path.read_text(encoding="utf-8")


def _write_adapter(weights: Path, folder: Path, settings: TrainStageSettings, base: ArtifactRef) -> None:
    """Write the adapters, which the weights of the artefact have, for `peft`."""
    from safetensors.torch import load_file

    from model import ModelConfig, TrainConfig
    from model.hf import write_peft
    from model.hf_config import LayoutError

    network, plan = ModelConfig.from_dict(settings.model), TrainConfig.from_dict(settings.train)
    try:
        write_peft(load_file(weights), folder, network, plan, base.digest)
    except LayoutError as error:
        logger.warning("the adapters are in the weights, but not in a file of their own for peft: %s", error)


@stage(
    "train",
    version=7,
    tables={HISTORY_FILE: HISTORY, TELEMETRY_FILE: HISTORY},
    unkeyed=("execution", "tags", "replay"),
)
def train(
    work: Work,
    settings: TrainStageSettings,
    *,
    dataset: ArtifactRef,
    tokenizer: ArtifactRef,
    base: ArtifactRef | None = None,
    execution: ExecutionSettings | None = None,
    tags: Mapping[str, str] | None = None,
    replay: str = "",
) -> str:
    """Train the network, from the weights of a base if given; the artefact is a bundle.

    Args:
        execution: processes, compilation and sharding.
        tags: tags of the MLflow run.
        replay: source, or first folders of paths, of the held-out documents whose bits per byte are measured from step
            0 on, beside those of the rest; empty measures none.
    """
    began = time.monotonic()
    import torch

    from model import ModelConfig, NonFiniteLoss, OutOfMemory, count_parameters
    from model.checkpoint import load_weights

    network = ModelConfig.from_dict(settings.model)
    work.seed(settings.train["seed"])
    logger.info("train: %s", training_sentence(settings, work.machine.device))
    tags, minutes = dict(tags or {}), settings.train.get("minutes", 0.0)
    device, size = work.machine.device, count_parameters(network)["total"]
    execution = settled(execution or ExecutionSettings(), device, settings.train, minutes, size)
    tracking = Tracking(work.home)
    work.modes[ATTEMPT_MODE] = _kept(work.scratch / ATTEMPT_FILE, uuid.uuid4().hex)
    run_id = _ensure_run(tracking, work.store, work.key, settings, tags, work.modes[ATTEMPT_MODE], dataset)
    sampler = sampler_of(work, dataset, tokenizer, network)
    documents_of = partial(name_documents, work.store, dataset)
    precision, processes = settings.train["precision"], execution.processes
    watch = Watch(work, tracking, run_id, network, precision, processes, sampler, documents_of)
    replayed = _kept(work.scratch / REPLAY_FILE, replay)
    if replayed != replay:
        logger.warning("train: gates.replay=%s holds for the next training; this one has %r", replay, replayed)
    job = Job(
        settings.model,
        settings.train,
        execution.fields(),
        device=work.machine.device,
        threads=threads_each(processes),
        deterministic=work.machine.deterministic,
        dataset=str(work.folder(dataset)),
        shards={key: str(folder) for key, folder in shard_folders(work, dataset).items()},
        validation_sample=VALIDATION_SAMPLE,
        **_replay_fields(work, dataset, replayed, watch),
        checkpoints=str(work.scratch / "checkpoints"),
        identity={"dataset": dataset.digest, "tokenizer": tokenizer.digest, "settings": sha256_json(settings)},
        began=began,
        initial_weights="" if base is None else str(work.folder(base) / WEIGHTS_FILE),
        new_rows=[] if base is None else new_rows_of(work, base, tokenizer),
    )
    stop = threading.Event()
    compute = partial(train_job, job, work.scratch, watch, stop)
    if processes > 1:
        compute = partial(launch, job, processes, work.scratch / "ranks", watch, stop)
    with watch.watching():
        try:
            result = stoppable(compute, stop)
            watch.finish(load_weights(result.weights, network), result.steps)
        except (NonFiniteLoss, OutOfMemory) as error:
            found = error.suspects or error.indices if isinstance(error, NonFiniteLoss) else []
            raise UserError(f"the training stopped: {error} {documents_of(found)}".rstrip()) from error
        except BaseException as interruption:
            if isinstance(interruption.__cause__, TrainingStopped):
                logger.warning("%s", interruption.__cause__)
            raise
    watch.journal.write(work.out)
    shutil.copyfile(result.weights, work.out / WEIGHTS_FILE)
    # the form of the chats that were learnt, else that of the base
    forms = [
        folder / CHAT_FILE
        for folder in (*shard_folders(work, dataset).values(), *([work.folder(base)] if base else []))
    ]
    if form := next(filter(Path.is_file, forms), None):
        shutil.copyfile(form, work.out / CHAT_FILE)
    if base is not None and settings.train.get("adapter", "none") != "none":
        _write_adapter(result.weights.with_name(ADAPTER_FILE), work.out / ADAPTER_FOLDER, settings, base)
    framing = framing_of(work.store, dataset)
    config = {**asdict(settings), "tokenizer": tokenizer.digest, **framing}
    (work.out / CONFIG_FILE).write_text(json.dumps(config, indent=1, sort_keys=True))
    shutil.copyfile(work.folder(tokenizer) / TOKENIZER_FILE, work.out / TOKENIZER_FILE)
    shutil.copyfile(work.folder(dataset) / COUNTS_FILE, work.out / COUNTS_FILE)
    rows = [
        {"step": row["step"], "metric": name, "value": value}
        for row in result.history
        for name, value in curve_names(row).items()
        if name != "step"
    ]
    write_table(work.out / HISTORY_FILE, HISTORY, rows)
    work.counts["rows"] = result.steps
    work.counts["resumed_from"] = result.resumed_from
    work.tools["torch"] = torch.__version__
    work.tools["device"] = describe_device(work.machine.device)
    weights = sha256_file(work.out / WEIGHTS_FILE)
    return sha256_json({"weights": weights, "config": config})
