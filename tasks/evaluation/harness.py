"""lm-evaluation-harness: its tasks evaluate a model of ours, by log-likelihoods and greedy text.

The harness's own command knows the model `sheepfold` when it is started here:

    python -m tasks.evaluation.harness run --model sheepfold --model_args folder=FOLDER --tasks TASK

Only the network and the tokeniser are needed beside the harness (torch, numpy, safetensors, tokenizers), so this also
runs in an environment of its own, where the two packages cannot share one.
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

MAX_NEW_TOKENS = 256  # of an answer whose task does not say
_KNOWN = {"until", "do_sample", "max_gen_toks", "max_new_tokens", "temperature", "top_k", "top_p"}


def task_manager(tasks: Sequence[str], include: str) -> TaskManager:
    """Return the harness's list of tasks.

    Args:
        tasks: names that must be among them.
        include: folder with further tasks as YAML; empty for none.

    Raises:
        UserError: if a task is unknown, or none is named.
    """
    manager = TaskManager(include_path=include or None)
    unknown = [name for name in tasks if name not in manager.all_tasks]
    if unknown or not tasks:
        raise UserError(
            f"--tasks {','.join(tasks)}: lm-evaluation-harness knows no task {', '.join(unknown) or 'without a name'}; "
            "`lm-eval ls tasks` lists those that it knows, and --include names a folder with more"
        )
    return manager


def evaluate_tasks(
    folder: Path, device: str, tasks: Sequence[str], manager: TaskManager, limit: int, shots: int
) -> dict[str, dict[str, Any]]:
    """Return the harness's figures of a model, by task.

    Args:
        folder: of the model.
        limit: documents of each task; 0 takes all.
        shots: solved examples before each question; -1 leaves it to the task.
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
    """A model of ours as the harness sees it.

    Args:
        folder: the model, as `sheepfold run` leaves it in the store; or a `Bundle` that is loaded already.
        device: where it runs.
        batch_size, max_batch_size: taken, because the harness gives them; batches are cut by tokens.
    """

    def __init__(
        self, folder: str | Path | Bundle, device: str = "cpu", batch_size: Any = None, max_batch_size: Any = None
    ) -> None:
        super().__init__()
        self.bundle = folder if isinstance(folder, Bundle) else Bundle(Path(folder), device or "cpu")

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation after its context, and if greedy decoding would write it."""
        pairs = [_moved_space(*request.args) for request in requests]
        whole = self.bundle.encode([context + continuation for context, continuation in pairs])
        before = self.bundle.encode([context for context, _ in pairs])
        # a tokeniser may join the end of a context with what follows: what is scored begins where the ids depart
        asked = [(ids, _common_length(ids, context)) for ids, context in zip(whole, before, strict=True)]
        found = [(item.logprob, item.greedy) for item in score_ids(self.bundle, asked)]
        self._remember("loglikelihood", requests, found)
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of whole texts, read in windows of the context if they are longer."""
        begin = 0 if self.bundle.start_id is None else 1
        whole = self.bundle.encode([request.args[0] for request in requests])
        found = [item.logprob for item in score_ids(self.bundle, [(ids, begin) for ids in whole])]
        self._remember("loglikelihood_rolling", requests, found)
        return found

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the model's continuation of each context, up to the first of the texts that end it.

        Raises:
            ValueError: a task asks for a setting of generation that there is not.
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
        """Tell the harness's cache, if it keeps one."""
        for request, value in zip(requests, found, strict=True):
            self.cache_hook.add_partial(kind, request.args, value)


def score_ids(bundle: Bundle, asked: Sequence[tuple[list[int], int]]) -> list[Likelihood]:
    """Return the log-likelihood of each sequence of token ids, given its first ids.

    A first id that nothing stands before, which no network predicts, is charged as if all were equally likely.

    Args:
        asked: token ids, and the number of ids at their beginning that are context and not scored.
    """
    from model.scoring import Continuation, Likelihood, continuation_likelihoods

    # nothing predicts a first id
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
    """Move white space from the end of a context to the continuation, where tokenisers have it."""
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
