"""The stage `evaluate_answers`: a model on the answers of evaluation documents, given their questions.

The tables are those of `tasks.evaluation.evaluate`, over the tokens of the expected answers alone, so that models are
compared and judged by them as by documents. Two more metrics are of what the model answered itself: the share of exact
answers, and of answers that keep the form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np

from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import COMPLETIONS_FILE, COUNTS_FILE
from storage.tables import read_columns
from tasks.chat.answers import Question, Questions, read_questions, template_of
from tasks.chat.template import ChatError, Template
from tasks.core.stage import Work, stage
from tasks.evaluation.evaluate import figures
from tasks.evaluation.tables import DIMENSIONS, TABLES, Evaluated, write_evaluation
from tasks.training.bundle import Bundle

EXACT, IN_FORM = "val/exact_match", "val/format_obedience"
ASKED, UNASKED = "val/questions", "val/questions_without_room"


@stage("evaluate_answers", version=1, modules=("model.checkpoint",), tables=TABLES, keep_with=("checkpoint", "evalset"))
def evaluate_answers(
    work: Work, settings: Questions, *, checkpoint: ArtifactRef, evalset: ArtifactRef, answers: ArtifactRef
) -> str:
    """Measure how likely a model finds the expected answers, and judge its own.

    Args:
        answers: what it answered.
    """
    work.seed(0)
    bundle = Bundle(work.folder(checkpoint), work.machine.device)
    asked = read_questions(work.store, evalset, settings)
    rows = read_columns(work.folder(answers) / COMPLETIONS_FILE, ["fields", "error"])
    told = [json.loads(fields) for fields, error in zip(*rows.values(), strict=True) if error is None]
    if not told:
        first = next(filter(None, rows["error"]), "the evaluation documents have none")
        raise UserError(f"the model could be asked none of {len(asked)} questions, so it cannot be judged: {first}")
    documents = _measured(work, bundle, template_of(bundle, settings), asked)
    if np.isnan(documents.sums["nll_nats"]).any():
        raise UserError(
            f"the model {checkpoint.key[:12]} gives NaN for expected answers: its weights are broken; train it again, "
            "with a lower train.lr if its loss diverged"
        )
    metrics = {
        **figures(documents),
        EXACT: sum(row["exact"] for row in told) / len(told),
        IN_FORM: sum(row["in_form"] for row in told) / len(told),
        ASKED: float(len(told)),
        UNASKED: float(len(asked) - len(told)),
    }
    write_evaluation(work.out, metrics, documents)
    work.counts.update(rows=len(metrics), documents=len(documents))
    nll = documents.sums["nll_nats"].tolist()
    return sha256_json([sorted(metrics.items()), list(zip(documents.doc_id, nll, strict=True))])


def _measured(work: Work, bundle: Bundle, template: Template, asked: Sequence[Question]) -> Evaluated:
    """Return the sums of each document over the tokens of its expected answers.

    An answer that does not go with the template is charged 8 bits a byte.
    """
    from model.metrics import unigram_log_probabilities
    from model.scoring import Continuation, continuation_likelihoods

    scored: list[tuple[int, Continuation]] = []
    names = list(dict.fromkeys(question.doc_id for question in asked))
    place = {name: number for number, name in enumerate(names)}
    n_bytes, lost = (np.zeros(len(names), np.int64) for _ in range(2))
    for question in asked:
        row = place[question.doc_id]
        size = len(question.expected.encode())
        n_bytes[row] += size
        try:
            ids, learnt = template.examples(question.messages)[-1]
        except ChatError:
            lost[row] += size
            continue
        end = max(number for number, mark in enumerate(learnt, 1) if mark)
        n_scored = next((n for n, mark in enumerate(reversed(learnt[:end])) if not mark), end - 1)
        scored.append((row, Continuation(ids[:end], n_scored)))
        if bundle.tokenizer.may_lose:
            text = question.expected
            lost[row] += bundle.tokenizer.lost_bytes(text, bundle.tokenizer.encode([text])[0])
    found = continuation_likelihoods(bundle.model, [item for _, item in scored])
    work.counts["tokens"] = sum(len(item.ids) for _, item in scored)  # all that were read, for the speed
    counts = np.array(read_columns(bundle.folder / COUNTS_FILE, ["count"])["count"], dtype=np.int64)
    unigram = unigram_log_probabilities(counts)
    owner = np.array([row for row, _ in scored], dtype=np.int64)

    def total(values: Sequence[float]) -> np.ndarray:
        return np.bincount(owner, weights=np.array(values), minlength=len(names))

    tokens = np.bincount(owner, [item.n_scored for _, item in scored], len(names)).astype(np.int64)
    by_document = {question.doc_id: question.labels for question in asked}
    return Evaluated(
        doc_id=names,
        labels={name: [by_document[doc_id][name] for doc_id in names] for name in DIMENSIONS},
        sums={
            "tokens": tokens,
            "bytes": n_bytes,
            "lost_bytes": lost,
            "top1": total([one.top1 for one in found]).astype(np.int64),
            "nll_nats": total([-one.logprob for one in found]),
            "charged_nats": np.zeros(len(names)),
            "uniform_nats": tokens * math.log(bundle.tokenizer.vocab_size),
            "unigram_nats": total([-unigram[list(item.ids[-item.n_scored :])].sum() for _, item in scored]),
        },
    )
