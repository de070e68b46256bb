"""The stage `suggest`: network, context, batch and steps for a corpus, a device and a time.

Each shape of a ladder is timed for a few steps on the device, in as many processes and as compiled as the training will
be; the one for which `tasks.training.law` expects the fewest bits per byte is suggested. Measured once and kept: asking
again gives the same answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.digest import sha256_json
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from tasks.core.machine import describe_device, detect_device, memory_bytes, threads_each
from tasks.core.settings import (
    AUTO,
    PROPOSED,
    ExecutionSettings,
    ModelSettings,
    TrainSettings,
    networks_of,
    proposed_beside,
)
from tasks.core.stage import Work, stage
from tasks.report.wording import table
from tasks.training.launch import BYTES_PER_PARAMETER, SHARE_OF_MEMORY, Job, settled, time_steps
from tasks.training.law import expected_ratio
from tasks.training.train import model_config, train_config, vocab_size_of

if TYPE_CHECKING:
    from tasks.core.run import Run
    from tasks.core.settings import Settings

SUGGESTION_FILE = "suggestion.json"
# A small text is soon learnt by heart: then the weights before that are taken. Half of ten evaluations are at the
# highest rate, which alone should not end a training.
PATIENCE = 6
# A text that is read this often is learnt with dropout and more decay. At 7.5 passes dropout still cost bits per byte,
# at 15 it saved them (docs/guides/training.md).
MANY_PASSES = 10.0
DROPOUT = {"drop_resid": 0.2, "drop_ffn": 0.2}
MORE_DECAY = 10.0  # times the usual one, where the gradient has no part in it
DECOUPLED = ("adamw", "muon")
SUGGESTED = ("batch_size", "patience", "weight_decay", *PROPOSED)  # fields of a training that a suggestion decides
START_SECONDS = 8.0  # of a training go to the start of its processes, measured on two cores
SHARE_OF_STEPS = 0.96  # of the rest; evaluations and checkpoints take the remainder
MIN_STEPS = 20  # of the first plan, however few the minutes are
WORTHWHILE_STEPS = 200  # a network that takes fewer has not learnt what it could
SHORTEST = 64  # context
LONGEST = {"cpu": 256, "cuda": 1024}
TOKENS_PER_STEP = {"cpu": 2048, "cuda": 32768}
TOKENS_PER_PARAMETER = 20  # where steps or tokens are given and no time (Hoffmann et al. 2022)


@dataclass(frozen=True)
class SuggestSettings:
    """A request. Counts are rounded to powers of two, so that a corpus may grow a little and the answer stays.

    Another machine is asked anew.
    """

    minutes: float  # to be spent; 0 where steps or tokens are given
    tokens: int  # of the training text; 0 where the shape is given, for which they do not matter
    document_tokens: int  # of a typical document; likewise
    max_epochs: float  # most passes over the training text; likewise
    read_tokens: int  # that the training will read, where that is given instead of minutes; else 0
    regularise: bool  # False where a dropout or a weight decay is given
    shapes: dict[str, dict[str, Any]]  # the networks to choose from, as fields of `model.ModelConfig` by name
    train: dict[str, dict[str, Any]]  # for each of them, fields of `model.TrainConfig`
    device: str  # its kind, threads, torch version, and how steps are computed where that is not the plain way


@dataclass(frozen=True)
class Candidate:
    """One shape, and what is expected of it."""

    name: str
    parameters: int
    body: int  # of these in the blocks
    step_seconds: float | None = None  # of one optimiser step, measured; None where it was not tried
    steps: int = 0  # that the time has room for
    passes: float = 0.0  # over the training text
    score: float = math.inf  # of `expected_ratio`, lower is better
    note: str = ""  # why it was not tried, or not taken


def rounded(count: float) -> int:
    """Return the nearest power of two, 1 at least."""
    return 2 ** max(0, round(math.log2(max(1.0, count))))


def batch_for(context: int, device: str) -> int:
    """Return the sequences in a batch: on a CPU, with minutes to spend, more steps beat smoother ones."""
    return max(1, TOKENS_PER_STEP[_kind(device)] // context)


def _kind(device: str) -> str:
    return "cpu" if device.startswith("cpu") else "cuda"  # GPUs are described by their names


def candidates(shapes: Mapping[str, dict[str, Any]]) -> list[Candidate]:
    """Return the networks from the smallest on, not timed yet.

    Args:
        shapes: fields of `model.ModelConfig` by name.
    """
    from model import ModelConfig, count_parameters

    counts = {name: count_parameters(ModelConfig.from_dict(shape)) for name, shape in shapes.items()}
    found = [Candidate(name, of["total"], of["attention"] + of["mlp"] + of["norm"]) for name, of in counts.items()]
    return sorted(found, key=lambda item: item.parameters)


def shape_of_tokens(sizes: dict[str, int], tokens_read: int) -> str:
    """Return the shape nearest to `TOKENS_PER_PARAMETER` tokens a parameter, for a training whose tokens are given."""
    wanted = math.log(max(1.0, tokens_read / TOKENS_PER_PARAMETER))
    return min(sizes, key=lambda name: abs(math.log(sizes[name]) - wanted))


def steps_in(minutes: float, step_seconds: float) -> int:
    """Return the steps that minutes have room for."""
    seconds = max(0.0, 60 * minutes - START_SECONDS)
    return max(MIN_STEPS, int(seconds * SHARE_OF_STEPS / step_seconds))


@stage("suggest", version=12, unkeyed=("execution",))
def suggest(work: Work, settings: SuggestSettings, *, execution: ExecutionSettings | None = None) -> str:
    """Choose the shape, and fix the steps that fill the minutes."""
    found = candidates(settings.shapes)
    if settings.minutes:
        found = list(_timed(work, settings, found, execution or ExecutionSettings()))
        best = min(found, key=lambda item: item.score)
    else:
        chosen = shape_of_tokens({item.name: item.parameters for item in found}, settings.read_tokens)
        passes = settings.read_tokens / settings.tokens if settings.tokens else 0.0
        found = [replace(item, passes=passes) for item in found]
        best = next(item for item in found if item.name == chosen)
    if best.step_seconds is None and settings.minutes:
        raise UserError(f"no network fits this machine: {'; '.join(item.note for item in found)}")
    plan, regularised = settings.train[best.name], settings.regularise and best.passes >= MANY_PASSES
    more_decay = MORE_DECAY if regularised and plan["optimizer"] in DECOUPLED else 1.0
    answer = {
        "preset": best.name,
        "model": {**settings.shapes[best.name], **(DROPOUT if regularised else {})},
        "train": {**plan, "weight_decay": plan["weight_decay"] * more_decay},
        "max_steps": best.steps,
        "step_seconds": best.step_seconds,
        "why": list(_reasons(settings, best, found, regularised)),
        "candidates": [{**asdict(item), "score": None if math.isinf(item.score) else item.score} for item in found],
    }
    (work.out / SUGGESTION_FILE).write_text(json.dumps(answer, indent=1))
    work.counts["rows"] = len(found)
    return sha256_json(answer)


def _timed(
    work: Work, settings: SuggestSettings, networks: Sequence[Candidate], execution: ExecutionSettings
) -> Iterator[Candidate]:
    """Time the networks from the smallest on, until one is expected to be worse than the one before."""

    def means_of(item: Candidate) -> ExecutionSettings:
        plan = settings.train[item.name]
        return settled(execution, work.machine.device, plan, settings.minutes, item.parameters)

    needed = {item: item.parameters * BYTES_PER_PARAMETER * means_of(item).processes for item in networks}
    room = SHARE_OF_MEMORY * memory_bytes(work.machine.device) if len(networks) > 1 else math.inf
    before, tried = math.inf, 0
    for means, group in groupby((item for item in networks if needed[item] <= room), means_of):
        alike = list(group)
        for item, seconds in zip(alike, _step_seconds(work, settings, alike, means), strict=True):
            network, plan = settings.shapes[item.name], settings.train[item.name]
            steps = steps_in(settings.minutes, seconds)
            read = steps * plan["batch_size"] * plan["grad_accum"] * network["max_seq_len"]
            read = min(read, settings.max_epochs * settings.tokens) if settings.tokens else read
            passes = read / settings.tokens if settings.tokens else 0.0
            score = expected_ratio(item.body, network["vocab_size"], settings.tokens or read, read)
            tried += 1
            work.progress.update(tried, len(networks), item.name)
            yield replace(item, step_seconds=seconds, steps=steps, passes=passes, score=score)
            if tried > 1 and (score > before or steps < WORTHWHILE_STEPS):
                return
            before = score
    for item, size in needed.items():
        if size > room:
            yield replace(item, note=f"{item.name} would take {size / 1e9:.1f} GB, more than half of the memory")


def _step_seconds(
    work: Work, settings: SuggestSettings, networks: Sequence[Candidate], means: ExecutionSettings
) -> Iterator[float]:
    """Yield the time of a step of each network, as the training computes it (of several machines on this one alone)."""
    threads, device = threads_each(means.processes), work.machine.device
    jobs = [
        Job(settings.shapes[item.name], settings.train[item.name], means.fields(), device=device, threads=threads)
        for item in networks
    ]
    return time_steps(jobs, means.processes, work.scratch / "probe")


def _reasons(
    settings: SuggestSettings, best: Candidate, found: Sequence[Candidate], regularised: bool
) -> Iterator[str]:
    shape, plan = settings.shapes[best.name], settings.train[best.name]
    if plan["optimizer"] == PROPOSED["optimizer"]:
        yield "Muon trains the matrices: in a measurement 280 of its steps did what 400 of AdamW's do."
    if settings.document_tokens:
        yield (
            f"Sequences of {shape['max_seq_len']} tokens: a document has about {settings.document_tokens:,}, "
            f"and longer ones than {LONGEST[_kind(settings.device)]} are slow on this device."
        )
    if regularised:
        and_decay = f", with {MORE_DECAY:g} times the usual weight decay," if plan["optimizer"] in DECOUPLED else ""
        yield (
            f"A text that is read {MANY_PASSES:g} times and more is learnt by heart; a dropout of "
            f"{DROPOUT['drop_ffn']:g}{and_decay} defers that."
        )
    if not settings.minutes:
        yield (
            f"{best.name} ({best.parameters:,} parameters) is nearest to {TOKENS_PER_PARAMETER} tokens a parameter for "
            f"the {settings.read_tokens:,} tokens asked for."
        )
        return
    yield (
        f"A step of {plan['batch_size'] * plan['grad_accum']} sequences took {best.step_seconds:.3f} s on "
        f"{settings.device}, so {settings.minutes:g} minutes have room for {best.steps:,} steps."
    )
    if settings.tokens:
        most = ", as often as train.max_epochs allows" if best.passes == settings.max_epochs else ""
        yield f"They read the training text of about {settings.tokens:,} tokens {best.passes:.1f} times{most}."
    others = [item.name for item in found if item is not best and item.step_seconds is not None]
    if others:
        yield (
            f"{best.name} ({best.parameters:,} parameters) was timed beside {', '.join(others)}; by a law fitted to "
            "measured trainings it reaches the fewest bits per byte in this time."
        )
    falls = ", and falls to 0 in the second half of the training" if PROPOSED.items() <= plan.items() else ""
    yield f"The highest learning rate is {plan['lr']:g}, less for wider networks{falls}."


def read_suggestion(folder: Path) -> dict[str, Any]:
    """Return a suggestion: preset, model, train, max_steps, step_seconds, why, candidates."""
    found: dict[str, Any] = json.loads((folder / SUGGESTION_FILE).read_text())
    return found


def candidates_of(
    model: ModelSettings, train: TrainSettings, vocab_size: int, context: int, device: str
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the shapes to choose from and the training configuration of each, by name.

    A preset that is given is the only one. What the settings say of the network or the training holds for all.

    Raises:
        UserError: if the settings fit no shape.
    """
    defaults = {"max_seq_len": context} if model.preset == AUTO else {}
    try:
        networks = networks_of(model, vocab_size, **defaults)
    except ValueError as error:
        raise UserError(str(error)) from error
    shapes = {name: network.to_dict() for name, network in networks.items()}
    plans = {}
    for name, shape in shapes.items():
        suggested: dict[str, Any] = {}
        if model.preset == AUTO:
            rows = batch_for(shape["max_seq_len"], device)
            suggested = {"batch_size": rows, "patience": PATIENCE, **proposed_beside(train.overrides)}
        plans[name] = train_config(train, shape, _kind(device), 1_000, **suggested)
    return shapes, plans


def context_of(run: Run, model: ModelSettings, shards: Sequence[ArtifactRef]) -> int:
    """Return the length of sequences: the preset's context, or one that suits the length of the documents.

    Args:
        shards: Token shards of the documents.
    """
    if model.preset != AUTO:
        return int(model_config(model, vocab_size=1)["max_seq_len"])
    given = model.overrides.get("max_seq_len")
    if given is not None:
        return int(given)
    return min(LONGEST[_kind(detect_device())], max(SHORTEST, _document_tokens(run, shards)[1]))


def suggest_settings(
    run: Run, settings: Settings, tokenizer: ArtifactRef, shards: Sequence[ArtifactRef], seq_len: int
) -> SuggestSettings:
    """Return the request for a shape and for the steps that the budget has room for."""
    device = describe_device(detect_device())
    shapes, plans = candidates_of(settings.model, settings.train, vocab_size_of(run, tokenizer), seq_len, device)
    tokens, document = _document_tokens(run, shards) if len(shapes) > 1 else (0, 0)
    most = settings.train.max_epochs if tokens else 0.0
    plan = plans[next(iter(plans))]
    by_steps = settings.train.max_steps * plan["batch_size"] * plan["grad_accum"] * seq_len
    by_tokens = min(settings.train.max_tokens, int(most * tokens) or settings.train.max_tokens)
    read_tokens = by_steps or by_tokens
    minutes = 0.0 if read_tokens else settings.train.minutes
    means = settled(settings.execution, detect_device(), plan, minutes).words()
    described = ", ".join(filter(None, (device, means)))
    given = {*settings.model.overrides, *settings.train.overrides}
    open_to_more = not any(name.startswith("drop_") or name == "weight_decay" for name in given)
    return SuggestSettings(minutes, tokens, document, most, read_tokens, open_to_more, shapes, plans, described)


def _document_tokens(run: Run, shards: Sequence[ArtifactRef]) -> tuple[int, int]:
    """Return the tokens there are and those of a document, both rounded to powers of two."""
    found = [manifest_of(run.store, ref).counts for ref in shards if ref.made]
    tokens, documents = (sum(counts.get(name, 0) for counts in found) for name in ("tokens", "rows"))
    return rounded(tokens), rounded(tokens / max(1, documents))


def suggestion_sentence(suggestion: Mapping[str, Any]) -> str:
    """Return what is proposed, without the reasons."""
    shape, plan = suggestion["model"], suggestion["train"]
    steps = f"{suggestion['max_steps']:,} steps" if suggestion["max_steps"] else "the steps asked for"
    return (
        f"{suggestion['preset']}: {shape['n_layer']} layers of width {shape['d_model']}, context "
        f"{shape['max_seq_len']}, {plan['optimizer']} in {plan['precision']}, batches of "
        f"{plan['batch_size'] * plan['grad_accum']}, highest learning rate {plan['lr']:g}, {steps}."
    )


def suggestion_text(suggestion: Mapping[str, Any]) -> str:
    """Return a proposal and its reasons in Markdown."""
    rows = []
    for rank, item in enumerate(sorted(suggestion["candidates"], key=lambda one: one["score"] or math.inf), 1):
        figures = ["", "", "", item["note"]]
        if item["step_seconds"] is not None:
            figures = [f"{item['step_seconds']:.3f}", f"{item['steps']:,}", f"{item['passes']:.1f}", str(rank)]
        rows.append([item["name"], f"{item['parameters']:,}", *figures])
    lines = table(["network", "parameters", "s/step", "steps", "passes", "rank"], rows)
    return "\n\n".join(
        [suggestion_sentence(suggestion), "\n".join(f"- {reason}" for reason in suggestion["why"]), "\n".join(lines)]
    )
