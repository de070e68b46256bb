"""The flow `generate`: complete the prompts of a file, shard by shard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.context import flow, open_run, subflow
from flows.options import GenerateOptions
from flows.report import finish
from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef, RefSet
from tasks.chat.answers import Questions, answers
from tasks.core.run import Run
from tasks.core.settings import Settings
from tasks.core.stage import Call, NoSettings
from tasks.generation.complete import complete
from tasks.generation.completions import Prompt
from tasks.generation.generate import join_completions, joined
from tasks.generation.prompts import PromptsSettings, cut_prompts, keep_prompts, read_prompts, sample_prompts
from tasks.lineage.training_data import forgotten_since
from tasks.registry.models import checkpoint_of
from tasks.training.bundle import CONFIG_FILE, read_sampling


@flow(GenerateOptions)
def generate(options: Any) -> dict[str, Any]:
    """Complete every prompt of a file; further sampling settings by `settings`, such as generate.stop_ids."""
    if not options.prompts:
        raise UserError("generate completes the prompts of a file: give `prompts`")
    settings, workers = options.load(), options.workers or 1
    with open_run(options.model_copy(update={"workers": workers})) as run:
        run.machine.deterministic = settings.generate.deterministic
        asked = read_prompts(Path(options.prompts).expanduser().resolve(), options.template or "")
        checkpoint = checkpoint_of(run, options.model)
        made = make_completions(run, settings, checkpoint, asked, workers)
        run.remember(generate=made)
        return finish(run, completions=made)


@subflow("generate")
def sample(
    run: Run, settings: Settings, checkpoint: ArtifactRef, evalset: ArtifactRef, questions: Questions | None = None
) -> ArtifactRef:
    """Complete the first words of a few evaluation documents, or answer their questions."""
    if questions is not None:
        return answers(run, questions, checkpoint=checkpoint, evalset=evalset)
    nothing: list[Prompt] = []
    prompts = run.read(evalset, lambda ref: sample_prompts(run.store, ref), nothing)
    return make_completions(run, settings, checkpoint, prompts, after=(evalset,))


def make_completions(
    run: Run,
    settings: Settings,
    checkpoint: ArtifactRef,
    prompts: Sequence[Prompt],
    workers: int = 1,
    after: tuple[ArtifactRef, ...] = (),
) -> ArtifactRef:
    """Complete prompts, shard by shard; sampling settings that are not given are those recorded with the model.

    Args:
        workers: Shards computed at once on a CPU, each in its own process with one thread.
        after: Artefacts that the prompts were read from.
    """
    if n := run.read(checkpoint, lambda ref: forgotten_since(run.store, ref), 0):
        run.note(
            f"the model was trained on {n} document(s) that were forgotten since: `sheepfold run SOURCE` trains one "
            "without them"
        )
    asked = run.read(
        checkpoint,
        lambda ref: settings.generate_with(read_sampling(run.store.folder(ref, CONFIG_FILE))),
        settings.generate,
    )
    shards = cut_prompts(list(prompts), asked)
    kept = keep_prompts.map(
        run, [Call(PromptsSettings(sha256_json(shard)), {"prompts": shard}, len(shard), after) for shard in shards]
    )
    how = {"checkpoint": checkpoint, "batch_size": asked.batch_size, "own_process": workers > 1}
    parts = complete.map(
        run,
        [
            Call(asked.without_cut(), {**how, "prompts": ref}, len(shard))
            for ref, shard in zip(kept, shards, strict=True)
        ],
    )
    whole = joined(parts) if parts else RefSet(after, "")  # the prompts are missing in a plan
    return join_completions(run, NoSettings(), parts=whole)
