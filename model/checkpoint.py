"""Weights and checkpoints on disk as safetensors and JSON, written atomically and without pickle.

A checkpoint is a directory step-00000200/ with model.safetensors, optimizer.safetensors (optimiser state, step counters
and random states), history.jsonl (a metric row per line) and state.json (everything else, and the sha256 of all files).
It is written to a temporary directory, flushed to the disk and renamed; a directory with a wrong digest is never
loaded.

With a sharded network each rank writes and reads its own part, in files shard-*.safetensors that replace the first two
(torch.distributed.checkpoint in its Hugging Face format, because its default format has pickled metadata). Both kinds
are loaded by any number of ranks, sharded or not.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .architecture import ModelConfig
from .distributed import SINGLE, Ranks
from .transformer import Transformer

WEIGHTS_FILE, OPTIMIZER_FILE = "model.safetensors", "optimizer.safetensors"
HISTORY_FILE, STATE_FILE = "history.jsonl", "state.json"
_STEP_PREFIX, _TEMPORARY_PREFIX = "step-", ".unfinished-"
Empty = Callable[[str, torch.Size, torch.dtype], Tensor]
_PREFIXES = {
    "optimizer": "optimizer/",
    "random": "random/",
    "weights": "",
}  # of tensor names; the last matches the rest


@dataclass
class Checkpoint:
    """Complete state of a training at one step.

    Attributes:
        step: optimiser steps done.
        position: micro-batches read.
        weights: the model's state.
        optimizer: the optimiser's state as named tensors.
        random: states of the random generators, uint8.
        scaler: state of the fp16 loss scaler; empty for other precisions.
        identity: settings and data of the run; a run resumes only with the same.
        validation: digest of the validation sequences of the last validation losses; a run may resume with others,
            because they do not affect the weights.
        history: metric rows so far.
        execution: versions, device, threads and kernels; with others the results may differ in the last bits.
        best_step: step of the checkpoint with the lowest validation loss, which is kept; 0 for none.
    """

    step: int
    position: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]
    scaler: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, str] = field(default_factory=dict)
    validation: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)
    execution: dict[str, str] = field(default_factory=dict)
    best_step: int = 0


def save_checkpoint(
    folder: Path | str, state: Checkpoint, *, keep: int = 2, ranks: Ranks = SINGLE, sharded: bool = False
) -> Path:
    """Write a checkpoint into the folder, then remove all but the newest few and the best.

    Args:
        folder: holds the run's checkpoints; created if missing. One writer at a time.
        state: the state to save.
        keep: number of checkpoints to keep, this one included; the best one is kept in addition.
        ranks: every rank calls; the first writes everything that is not sharded.
        sharded: weights and optimiser state are DTensors, and each rank writes its part.

    Returns:
        The checkpoint's directory; on the first rank it is complete.

    Raises:
        OSError: it cannot be written; older checkpoints stay.
    """
    folder = Path(folder)
    place = _place(folder, state.step)
    work = folder / f"{_TEMPORARY_PREFIX}{place.name}"
    if ranks.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
    named = {
        group: {prefix + key: one for key, one in vars(state)[group].items()} for group, prefix in _PREFIXES.items()
    }
    if sharded:
        digests = _save_shards(work, {key: one for group in named.values() for key, one in group.items()}, ranks)
    if not ranks.is_first:
        return place
    if not sharded:
        files = {WEIGHTS_FILE: named["weights"], OPTIMIZER_FILE: named["optimizer"] | named["random"]}
        for name, tensors in files.items():
            save_file({key: one.detach().contiguous() for key, one in tensors.items()}, work / name)
        digests = {name: _flushed_sha256(work / name) for name in files}
    (work / HISTORY_FILE).write_text("".join(f"{json.dumps(row)}\n" for row in state.history), encoding="utf-8")
    record = {key: value for key, value in vars(state).items() if key not in (*_PREFIXES, "history")}
    digests |= {HISTORY_FILE: _flushed_sha256(work / HISTORY_FILE), STATE_FILE: _record_digest(record)}
    (work / STATE_FILE).write_text(json.dumps({**record, "sha256": digests}, indent=1), encoding="utf-8")
    _flushed_sha256(work / STATE_FILE)
    fsync_path(work)
    if place.exists():  # it is incomplete, because a run resumes from the newest good one
        _discard(place)
    work.rename(place)
    fsync_path(folder)
    newest = [other for other in _newest_first(folder) if other.name <= place.name][:keep]
    for other in _newest_first(folder):  # a later one is damaged, or the run would have resumed from it
        if other not in newest and other != _place(folder, state.best_step):
            _discard(other)
    return place


def _save_shards(work: Path, tensors: dict[str, Tensor], ranks: Ranks) -> dict[str, str]:
    """Write this rank's part of the tensors. Returns the sha256 of the files of all ranks."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter  # imported here: it takes seconds
    from torch.distributed.checkpoint.state_dict_saver import save

    save(tensors, storage_writer=HuggingFaceStorageWriter(str(work), save_distributed=True))
    name = f"shard-{ranks.rank + 1:05d}-model-00001-of-00001.safetensors"  # the writer's naming
    digest = torch.frombuffer(bytearray.fromhex(_flushed_sha256(work / name)), dtype=torch.uint8)
    return {
        name.replace(f"{ranks.rank + 1:05d}", f"{rank:05d}", 1): bytes(found["digest"].tolist()).hex()
        for rank, found in enumerate(ranks.gather({"digest": digest}), 1)
    }


def load_checkpoint(folder: Path | str) -> Checkpoint:
    """Read a checkpoint, after checking its digests.

    Args:
        folder: a step-... directory, or a folder of them (then the newest good one is read).

    Raises:
        FileNotFoundError: the folder holds no good checkpoint.
        ValueError: the step-... directory is damaged.
    """
    folder = Path(folder)
    if not folder.name.startswith(_STEP_PREFIX):
        place = latest_checkpoint(folder)
        if place is None:
            raise FileNotFoundError(f"no good checkpoint in {folder}; expected a directory {_STEP_PREFIX}00000001")
        return read_checkpoint(place)
    if fault := _fault(folder):
        raise ValueError(f"checkpoint {folder} is damaged: {fault}; use an older one")
    return read_checkpoint(folder)


def read_checkpoint(place: Path, empty: Empty | None = None) -> Checkpoint:
    """Read a step-... directory whose digests were checked.

    Args:
        place: the directory.
        empty: allocates a tensor of a name, size and dtype; of a DTensor only this rank's part is read, and every rank
            calls. None reads whole tensors.
    """
    record = json.loads((place / STATE_FILE).read_text(encoding="utf-8"))
    del record["sha256"]
    with (place / HISTORY_FILE).open(encoding="utf-8") as lines:
        history = [json.loads(line) for line in lines]
    groups: dict[str, dict[str, Tensor]] = {group: {} for group in _PREFIXES}
    for name, tensor in _load_tensors(place, empty).items():
        group = next(group for group, prefix in _PREFIXES.items() if name.startswith(prefix))
        groups[group][name.removeprefix(_PREFIXES[group])] = tensor
    return Checkpoint(**{**record, **groups, "history": history})


def _load_tensors(place: Path, empty: Empty | None) -> dict[str, Tensor]:
    if empty is None and (place / WEIGHTS_FILE).exists():
        return load_file(place / WEIGHTS_FILE) | load_file(place / OPTIMIZER_FILE)
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(place))
    saved: dict[str, Any] = reader.read_metadata().state_dict_metadata
    empty_of = empty or (lambda name, size, dtype: torch.empty(size, dtype=dtype))
    tensors = {name: empty_of(name, one.size, one.properties.dtype) for name, one in saved.items()}
    load(tensors, storage_reader=reader, no_dist=empty is None)
    return tensors


def latest_checkpoint(folder: Path | str) -> Path | None:
    """Return the newest checkpoint whose digests agree, or None."""
    return next((place for place in _newest_first(Path(folder)) if not _fault(place)), None)


def best_checkpoint(folder: Path | str, step: int) -> Path:
    """Return the checkpoint of the step with the lowest validation loss, after checking its digests.

    Raises:
        ValueError: it is damaged or missing.
    """
    place = _place(Path(folder), step)
    if fault := _fault(place):
        newest = latest_checkpoint(folder)
        remedy = f"use the intact weights of {newest.name}, or train anew" if newest else "train anew"
        raise ValueError(f"the best checkpoint {place} is damaged: {fault}; {remedy}")
    return place


def newest_to_continue(folder: Path) -> Path | None:
    """Return `latest_checkpoint`, and remove interrupted writes and later, damaged checkpoints.

    Only the folder's single writer may call it.
    """
    for leftover in folder.glob(f"{_TEMPORARY_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    place = latest_checkpoint(folder)
    for other in _newest_first(folder) if place else ():
        if place and other.name > place.name:
            _discard(other)
    return place


def save_weights(path: Path | str, model: Transformer) -> None:
    """Write the model's weights as one safetensors file, flushed to the disk; a tied head is stored once."""
    save_file({name: one.contiguous() for name, one in model.state_dict().items()}, path)
    _flushed_sha256(Path(path))


def load_weights(
    path: Path | str,
    config: ModelConfig,
    *,
    device: torch.device | str = "cpu",
    new_rows: Sequence[tuple[int, Sequence[int]]] = (),
) -> Transformer:
    """Return a network with weights from a safetensors file, in evaluation mode.

    Args:
        path: the file.
        config: configuration of the saved network.
        device: device of the returned network.
        new_rows: ids whose rows of embedding and head begin as the mean of the rows of other ids; the saved network may
            have fewer rows than the configuration.

    Raises:
        ValueError: the file is not a safetensors file, or its tensors do not fit the configuration.
    """
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file ({error}); expected a file of save_weights") from error
    if new_rows:
        _add_rows(weights, config.padded_vocab_size, new_rows)
    with torch.random.fork_rng(devices=[]):  # initialisation must not advance the caller's generator
        model = Transformer(config)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"the weights in {path} do not fit the configuration: {error}; load them with the ModelConfig "
            f"they were saved with"
        ) from error
    return model.to(device).eval()


def _add_rows(weights: dict[str, Tensor], n_rows: int, new_rows: Sequence[tuple[int, Sequence[int]]]) -> None:
    """Give embedding and head `n_rows` rows, of which the new ones are means of others."""
    for name in {"token_embedding.weight", "untied_head.weight", "head_bias"} & weights.keys():
        old = weights[name]
        weights[name] = torch.cat([old, old.new_zeros(n_rows - len(old), *old.shape[1:])])
        for index, parts in new_rows:
            weights[name][index] = old[list(parts)].float().mean(0)


def _place(folder: Path, step: int) -> Path:
    return folder / f"{_STEP_PREFIX}{step:08d}"


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_STEP_PREFIX}*"), reverse=True)


def _fault(place: Path) -> str | None:
    """Return a description of the damage of a checkpoint directory, or None."""
    try:
        record = json.loads((place / STATE_FILE).read_text(encoding="utf-8"))
        digests = record.pop("sha256")
        if _record_digest(record) != digests.pop(STATE_FILE):
            return f"{STATE_FILE} does not have its recorded sha256"
        for name, digest in digests.items():
            if _sha256(place / name) != digest:
                return f"{name} does not have the sha256 recorded in {STATE_FILE}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _discard(place: Path) -> None:
    # renamed first, so that an interrupted removal leaves no directory with the name of a checkpoint
    discarded = place.with_name(f"{_TEMPORARY_PREFIX}old-{place.name}")
    shutil.rmtree(discarded, ignore_errors=True)
    place.rename(discarded)
    shutil.rmtree(discarded)


def _flushed_sha256(path: Path) -> str:
    """Flush a file to the disk. Returns the sha256 of its bytes."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return _sha256(path)


def fsync_path(path: Path) -> None:
    """Flush a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _record_digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
