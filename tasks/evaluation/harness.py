"""Adapter to lm-evaluation-harness: log-likelihoods and generation of a Sheepfold model for its tasks.

The harness's own command, with the model `sheepfold` registered:

    python -m tasks.evaluation.harness run --model sheepfold --model_args folder=FOLDER --tasks TASK

Besides the harness it needs only torch, numpy, safetensors and tokenizers, so it can run in a separate environment.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import UserError
from tasks.training.bundle import Bundle

try:
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from lm_eval.tasks import TaskManager
except ImportError as error:
    raise UserError(f"lm-evaluation-harness is not installed ({error}): pip install 'sheepfold[lm-eval]'") from error

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from model.scoring import Likelihood

MAX_NEW_TOKENS = 256  # if the task sets no limit
_KNOWN = {"until", "do_sample", "max_gen_toks", "max_new_tokens", "temperature", "top_k", "top_p"}


def task_manager(tasks: Sequence[str], include: str) -> TaskManager:
    """Return the harness's task manager.

    Args:
        tasks: names of tasks that must exist.
        include: folder of further tasks as YAML; may be empty.

    Raises:
        UserError: a task is unknown, or there is none.
    """
    manager = TaskManager(include_path=include or None)
    unknown = [name for name in tasks if name not in manager.all_tasks]
    if unknown or not tasks:
        raise UserError(
            f"--tasks {','.join(tasks)}: lm-evaluation-harness has no task {', '.join(unknown) or 'without a name'}; "
            "`lm-eval ls tasks` lists its tasks, and --include adds a folder of tasks"
        )
    return manager


def evaluate_tasks(
    folder: Path, device: str, tasks: Sequence[str], manager: TaskManager, limit: int, shots: int
) -> dict[str, dict[str, Any]]:
    """Return the harness's results of a model, by task.

    Args:
        folder: folder of the model.
        limit: documents per task; 0 for all.
        shots: few-shot examples per question; -1 for the task's default.
    """
    found = simple_evaluate(
        model=SheepfoldLM(folder, device),
        tasks=list(tasks),
        task_manager=manager,
        limit=limit or None,
        num_fewshot=None if shots < 0 else shots,
    )
    results: dict[str, dict[str, Any]] = found["results"]
    return results


@register_model("sheepfold")
class SheepfoldLM(LM):
    """A Sheepfold model with the interface of the harness.

    Args:
        folder: folder of the model, or a loaded `Bundle`.
        device: device of the network.
        batch_size, max_batch_size: ignored; the harness passes them, and batches are sized by tokens.
    """

    def __init__(
        self, folder: str | Path | Bundle, device: str = "cpu", batch_size: Any = None, max_batch_size: Any = None
    ) -> None:
        super().__init__()
        self.bundle = folder if isinstance(folder, Bundle) else Bundle(Path(folder), device or "cpu")

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and True if greedy decoding would generate it."""
        pairs = [_moved_space(*request.args) for request in requests]
        whole = self.bundle.encode([context + continuation for context, continuation in pairs])
        before = self.bundle.encode([context for context, _ in pairs])
        # a token may span the end of the context: scored ids begin at the first difference
        asked = [(ids, _common_length(ids, context)) for ids, context in zip(whole, before, strict=True)]
        found = [(item.logprob, item.greedy) for item in score_ids(self.bundle, asked)]
        self._remember("loglikelihood", requests, found)
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of whole texts, in windows if they are longer than the context."""
        begin = 0 if self.bundle.start_id is None else 1
        whole = self.bundle.encode([request.args[0] for request in requests])
        found = [item.logprob for item in score_ids(self.bundle, [(ids, begin) for ids in whole])]
        self._remember("loglikelihood_rolling", requests, found)
        return found

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the completion of each context, up to the first stop string.

        Raises:
            ValueError: a task has an unknown setting of generation.
        """
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            groups[tuple(_settings(request.args[1]).items())].append(number)
        found = [""] * len(requests)
        for settings, numbers in groups.items():
            prompts = [requests[number].args[0] for number in numbers]
            completions = self.bundle.complete(prompts, **dict(settings))
            for number, completion in zip(numbers, completions, strict=True):
                found[number] = completion.text
        self._remember("generate_until", requests, found)
        return found

    def _remember(self, kind: str, requests: Sequence[Instance], found: Sequence[Any]) -> None:
        """Add results to the harness's cache."""
        for request, value in zip(requests, found, strict=True):
            self.cache_hook.add_partial(kind, request.args, value)


def score_ids(bundle: Bundle, asked: Sequence[tuple[list[int], int]]) -> list[Likelihood]:
    """Return the log-likelihood of each sequence of token ids, given its first ids.

    The first id of a sequence without context is not predicted; it is charged ln(vocab_size).

    Args:
        asked: token ids, and the number of leading ids that are context.
    """
    from model.scoring import Continuation, Likelihood, continuation_likelihoods

    # the first id is not predicted
    continuations = [Continuation(ids, max(0, len(ids) - max(1, before))) for ids, before in asked]
    found = continuation_likelihoods(bundle.model, continuations)
    charge = math.log(bundle.tokenizer.vocab_size)
    return [
        Likelihood(item.logprob - charge, False) if ids and not before else item
        for item, (ids, before) in zip(found, asked, strict=True)
    ]


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(one), len(other)))


def _moved_space(context: str, continuation: str) -> tuple[str, str]:
    """Move white space from the end of a context to the continuation, as tokenisers join it with the next word."""
    bare = context.rstrip()
    return bare, context[len(bare) :] + continuation


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(given.keys() - _KNOWN)
    if unknown:
        raise ValueError(f"generation_kwargs has {unknown[0]}, expected some of {', '.join(sorted(_KNOWN))}")
    most = int(given.get("max_gen_toks") or given.get("max_new_tokens") or MAX_NEW_TOKENS)
    until = given.get("until") or ()
    stop = tuple(text for text in ([until] if isinstance(until, str) else until) if text)
    found: dict[str, Any] = {"max_new_tokens": most, "stop": stop, "temperature": 0.0}
    if given.get("do_sample", bool(given.get("temperature"))):
        found["temperature"] = float(given.get("temperature", 1.0))
        found |= {"top_k": int(given.get("top_k") or 0), "top_p": float(given.get("top_p") or 1.0)}
    return found


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
