"""Weights and training states on disk: safetensors and JSON, written so that a kill leaves all or nothing.

A checkpoint is a directory step-00000200/ with model.safetensors, optimizer.safetensors (optimiser state,
step counters and random states) and state.json (everything else, and the sha256 of the other two). It is
written beside its place, flushed to the disk, and renamed into place; a directory whose digests do not agree
is never loaded. No pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .architecture import ModelConfig
from .transformer import Transformer

WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE = "model.safetensors", "optimizer.safetensors", "state.json"
_STEP_PREFIX, _TEMPORARY_PREFIX = "step-", ".unfinished-"
_OPTIMIZER_GROUP, _RANDOM_GROUP = "optimizer/", "random/"


@dataclass
class Checkpoint:
    """All that a training run needs to go on as if it had never stopped.

    Attributes:
        step: optimiser steps done.
        position: micro-batches read.
        weights: the model's state.
        optimizer: the optimiser's state as named tensors.
        random: states of the random generators, uint8.
        scaler: state of the fp16 loss scaler; empty for other precisions.
        identity: what the run was made of; it may only continue with the same.
        validation: digest of the sequences that the history's last validation losses were measured on; they shape
            no weights, so a run may continue with others.
        history: metric rows so far.
        torch_version, n_threads: what the numbers were computed with.
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
    torch_version: str = field(default_factory=lambda: str(torch.__version__))
    n_threads: int = field(default_factory=torch.get_num_threads)


_TENSOR_FIELDS = ("weights", "optimizer", "random")


def save_checkpoint(folder: Path | str, state: Checkpoint, *, keep: int = 2) -> Path:
    """Writes a checkpoint into the folder, then removes all but the newest few.

    Args:
        folder: holds the run's checkpoints; made if it is not there. One writer at a time.
        state: what to save.
        keep: number of checkpoints to keep, this one included.

    Returns:
        The checkpoint's directory.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{_STEP_PREFIX}{state.step:08d}"
    work = folder / f"{_TEMPORARY_PREFIX}{name}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    _write_tensors(work / WEIGHTS_FILE, state.weights)
    groups = {_OPTIMIZER_GROUP: state.optimizer, _RANDOM_GROUP: state.random}
    _write_tensors(
        work / OPTIMIZER_FILE,
        {group + key: tensor for group, tensors in groups.items() for key, tensor in tensors.items()},
    )
    record = {key: value for key, value in vars(state).items() if key not in _TENSOR_FIELDS}
    record["sha256"] = {file: _sha256(work / file) for file in (WEIGHTS_FILE, OPTIMIZER_FILE)}
    with (work / STATE_FILE).open("w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _fsync_folder(work)
    place = folder / name
    if place.exists():  # only a torn one can be here, because a run continues from the newest good one
        _discard(place)
    work.rename(place)
    _fsync_folder(folder)
    _prune(folder, state.step, keep)
    return place


def load_checkpoint(folder: Path | str) -> Checkpoint:
    """Reads a checkpoint, after checking its digests.

    Args:
        folder: a step-... directory, or a folder of them (then the newest good one is read).

    Raises:
        FileNotFoundError: the folder holds no good checkpoint.
        ValueError: the step-... directory is damaged.
    """
    folder = Path(folder)
    if folder.name.startswith(_STEP_PREFIX):
        place: Path | None = folder
        fault = _fault(folder)
        if fault:
            raise ValueError(f"checkpoint {folder} is damaged: {fault}; use an older one")
    else:
        place = latest_checkpoint(folder)
    if place is None:
        raise FileNotFoundError(f"no good checkpoint in {folder}; expected a directory {_STEP_PREFIX}00000001")
    record = json.loads((place / STATE_FILE).read_text(encoding="utf-8"))
    del record["sha256"]
    tensors = load_file(place / OPTIMIZER_FILE)
    return Checkpoint(
        weights=load_file(place / WEIGHTS_FILE),
        optimizer=_group(tensors, _OPTIMIZER_GROUP),
        random=_group(tensors, _RANDOM_GROUP),
        **record,
    )


def latest_checkpoint(folder: Path | str) -> Path | None:
    """The newest checkpoint whose digests agree, or None; leftovers of interrupted writes are removed."""
    folder = Path(folder)
    if not folder.is_dir():
        return None
    for leftover in folder.glob(f"{_TEMPORARY_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    return next((place for place in _newest_first(folder) if not _fault(place)), None)


def save_weights(path: Path | str, model: Transformer) -> None:
    """Writes the model's weights alone as one safetensors file; a tied head is stored once."""
    _write_tensors(Path(path), model.state_dict())


def load_weights(path: Path | str, config: ModelConfig, *, device: torch.device | str = "cpu") -> Transformer:
    """A network with weights from a safetensors file, in evaluation mode.

    Args:
        path: the file.
        config: the shape that the weights were made with.
        device: where to put the network.

    Raises:
        ValueError: the file is no safetensors file, or its tensors do not fit the configuration.
    """
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file ({error}); expected weights saved by save_weights") from error
    with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten; they must cost no random numbers
        model = Transformer(config)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"the weights in {path} do not fit the configuration: {error}; load them with the ModelConfig "
            f"they were saved with"
        ) from error
    return model.to(device).eval()


def differing_entry(saved: dict[str, str], wanted: dict[str, str]) -> str | None:
    """Says which entry of two identities differs first, or None if they agree."""
    for key in sorted(saved.keys() | wanted.keys()):
        if saved.get(key) != wanted.get(key):
            return f"{key!r} was {saved.get(key)!r} and is now {wanted.get(key)!r}"
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_STEP_PREFIX}*"), reverse=True)


def _fault(place: Path) -> str | None:
    """What is wrong with a checkpoint directory, or None."""
    try:
        digests = json.loads((place / STATE_FILE).read_text(encoding="utf-8"))["sha256"]
        for name in (WEIGHTS_FILE, OPTIMIZER_FILE):
            if _sha256(place / name) != digests[name]:
                return f"{name} does not have the sha256 that {STATE_FILE} recorded"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _prune(folder: Path, step: int, keep: int) -> None:
    """Keeps the newest few up to this step; a later one is torn, or the run would have started there."""
    current = f"{_STEP_PREFIX}{step:08d}"
    places = _newest_first(folder)
    kept = [place for place in places if place.name <= current][:keep]
    for place in places:
        if place not in kept:
            _discard(place)


def _discard(place: Path) -> None:
    """Removes a checkpoint; renamed first, so that a kill half-way leaves nothing that looks like one."""
    grave = place.with_name(f"{_TEMPORARY_PREFIX}old-{place.name}")
    shutil.rmtree(grave, ignore_errors=True)
    place.rename(grave)
    shutil.rmtree(grave)


def _group(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
