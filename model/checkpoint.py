"""Weights and training states on disk: safetensors and JSON, written so that a kill leaves all or nothing.

A checkpoint is a directory step-00000200/ with model.safetensors, optimizer.safetensors (optimiser state,
step counters and random states), history.jsonl (a metric row a line) and state.json (everything else, and the
sha256 of all four, taken while they are written). It is written beside its place, flushed to the disk, and renamed
into place; a directory whose digests do not agree is never loaded. No pickle.

Each checkpoint says which one was the best so far, so that no kill comes between a checkpoint and that word.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from .architecture import ModelConfig
from .tensor_file import write_tensors
from .transformer import Transformer

WEIGHTS_FILE, OPTIMIZER_FILE = "model.safetensors", "optimizer.safetensors"
HISTORY_FILE, STATE_FILE = "history.jsonl", "state.json"
_STEP_PREFIX, _TEMPORARY_PREFIX = "step-", ".unfinished-"
_TOLD = 4  # differences that a message names
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
        execution: what the numbers were computed with (torch, threads, device, ...); with another they may differ in
            the last bits.
        best_step: step of the checkpoint with the lowest validation loss so far; 0 if there was none.
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


_FIELDS_IN_FILES = ("weights", "optimizer", "random", "history")


def save_checkpoint(
    folder: Path | str, state: Checkpoint, *, keep: int = 2, history_lines: Sequence[str] | None = None
) -> Path:
    """Writes a checkpoint into the folder, then removes all but the newest few and the best.

    Args:
        folder: holds the run's checkpoints; made if it is not there. One writer at a time.
        state: what to save.
        keep: number of checkpoints to keep, this one included; the best one is kept beside them.
        history_lines: the history's rows as `history_line` gives them, where the caller has them already.

    Returns:
        The checkpoint's directory.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    place = _place(folder, state.step)
    work = folder / f"{_TEMPORARY_PREFIX}{place.name}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    groups = {_OPTIMIZER_GROUP: state.optimizer, _RANDOM_GROUP: state.random}
    lines = map(history_line, state.history) if history_lines is None else history_lines
    record = {key: value for key, value in vars(state).items() if key not in _FIELDS_IN_FILES}
    digests = {
        WEIGHTS_FILE: write_tensors(work / WEIGHTS_FILE, state.weights),
        OPTIMIZER_FILE: write_tensors(
            work / OPTIMIZER_FILE,
            {group + key: tensor for group, tensors in groups.items() for key, tensor in tensors.items()},
        ),
        HISTORY_FILE: _write_text(work / HISTORY_FILE, "".join(lines)),
        STATE_FILE: _record_digest(record),
    }
    _write_text(work / STATE_FILE, json.dumps({**record, "sha256": digests}, indent=1))
    _fsync_folder(work)
    if place.exists():  # only a torn one can be here, because a run continues from the newest good one
        _discard(place)
    work.rename(place)
    _fsync_folder(folder)
    _prune(folder, state, keep)
    return place


def history_line(row: dict[str, Any]) -> str:
    """A metric row as a line of JSON; floats come back as the same floats."""
    return f"{json.dumps(row)}\n"


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
    with (place / HISTORY_FILE).open(encoding="utf-8") as lines:
        history = [json.loads(line) for line in lines]
    return Checkpoint(
        weights=load_file(place / WEIGHTS_FILE),
        optimizer=_group(tensors, _OPTIMIZER_GROUP),
        random=_group(tensors, _RANDOM_GROUP),
        history=history,
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


def best_checkpoint(folder: Path | str) -> Path | None:
    """The checkpoint with the lowest validation loss of those up to the newest good one, or None without any.

    Raises:
        ValueError: it is damaged or gone, although the newest one names it.
    """
    newest = latest_checkpoint(folder)
    if newest is None:
        return None
    step = json.loads((newest / STATE_FILE).read_text(encoding="utf-8"))["best_step"]
    if not step:
        return None
    place = _place(Path(folder), step)
    fault = _fault(place)
    if fault:
        raise ValueError(
            f"the best checkpoint {place} is damaged: {fault}; the weights of {newest.name} are whole, or train anew"
        )
    return place


def discard_newer(place: Path) -> None:
    """Removes the checkpoints behind this one: they are damaged if it is the newest good one, and must not count."""
    for other in _newest_first(place.parent):
        if other.name > place.name:
            _discard(other)


def save_weights(path: Path | str, model: Transformer) -> None:
    """Writes the model's weights alone as one safetensors file; a tied head is stored once."""
    write_tensors(Path(path), model.state_dict())


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


def differences(saved: dict[str, str], wanted: dict[str, str]) -> str:
    """Says which entries of two identities differ, the first few of many; empty if they agree."""
    keys = [key for key in sorted(saved.keys() | wanted.keys()) if saved.get(key) != wanted.get(key)]
    told = [
        f"{key!r} {_was(saved, key)} and {'is now ' + repr(wanted[key]) if key in wanted else 'is not there any more'}"
        for key in keys[:_TOLD]
    ]
    more = [f"{len(keys) - _TOLD} more differ"] if len(keys) > _TOLD else []
    return "; ".join(told + more)


def _was(saved: dict[str, str], key: str) -> str:
    return f"was {saved[key]!r}" if key in saved else "was not there"


def _place(folder: Path, step: int) -> Path:
    return folder / f"{_STEP_PREFIX}{step:08d}"


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_STEP_PREFIX}*"), reverse=True)


def _fault(place: Path) -> str | None:
    """What is wrong with a checkpoint directory, or None."""
    try:
        record = json.loads((place / STATE_FILE).read_text(encoding="utf-8"))
        digests = record.pop("sha256")
        if _record_digest(record) != digests[STATE_FILE]:
            return f"{STATE_FILE} does not have the sha256 that it recorded"
        for name in (WEIGHTS_FILE, OPTIMIZER_FILE, HISTORY_FILE):
            if _sha256(place / name) != digests[name]:
                return f"{name} does not have the sha256 that {STATE_FILE} recorded"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _prune(folder: Path, state: Checkpoint, keep: int) -> None:
    """Keeps the best and the newest few up to this step; a later one is torn, or the run would have started there."""
    current = _place(folder, state.step)
    places = _newest_first(folder)
    newest = [place for place in places if place.name <= current.name][:keep]
    best = _place(folder, state.best_step)
    for place in places:
        if place not in newest and place != best:
            _discard(place)


def _discard(place: Path) -> None:
    """Removes a checkpoint; renamed first, so that a kill half-way leaves nothing that looks like one."""
    grave = place.with_name(f"{_TEMPORARY_PREFIX}old-{place.name}")
    shutil.rmtree(grave, ignore_errors=True)
    place.rename(grave)
    shutil.rmtree(grave)


def _group(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _write_text(path: Path, text: str) -> str:
    """Writes and flushes to the disk; returns the sha256 of the file's bytes."""
    data = text.encode()
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(data).hexdigest()


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _record_digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
