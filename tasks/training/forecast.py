"""The stage `forecast`: the bits per byte that a training is expected to reach, before it begins.

The n-gram model of the training text is measured on the evaluation set, in seconds. Relative to its first orders, what
a network of the suggested kind reaches depends on its parameters and the tokens it reads, by `tasks.training.law`.
Sizes and times far from those that the law was fitted to have no forecast.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from storage.digest import sha256_json
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE
from storage.tables import read_columns
from tasks.core.stage import Work, stage
from tasks.evaluation.evaluate import charged_nats, encode_documents
from tasks.report.wording import table
from tasks.text.kneser_ney import KneserNey
from tasks.tokens.tokenise import TokeniseSettings
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE, load_tokenizer
from tasks.training.law import ORDERS, SPREAD, TOKENS_PER_STEP, expected_ratio, is_measured
from tasks.training.suggest import read_suggestion, steps_in

FORECAST_FILE = "forecast.json"
OUTLOOK = (10.0, 60.0, 480.0)  # minutes
LONGEST = 10_000.0  # minutes in which a network is looked for that beats the n-gram model
NINE_OF_TEN = 1.645  # standard deviations to each side


@dataclass(frozen=True)
class ForecastSettings:
    """A request.

    Attributes:
        minutes: time of the training.
        max_epochs: most passes of a training.
        framing: bos and eos of documents.
    """

    minutes: float
    max_epochs: float
    framing: TokeniseSettings


@dataclass(frozen=True)
class Expected:
    """Forecast for a time.

    Attributes:
        minutes: the time.
        preset: the network.
        passes: over the training text.
        bits_per_byte: expected value; None where no training like this was measured.
        low, high: interval that nine of ten trainings end in; None likewise.
    """

    minutes: float
    preset: str
    passes: float
    bits_per_byte: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Outlook:
    """Networks of a suggestion on a training text.

    Attributes:
        suggestion: see `read_suggestion`.
        tokens: of the training text.
        max_epochs: most passes.
        ngram_bits: bits per byte of the n-gram model.
        reference: those of its first `law.ORDERS` orders.
    """

    suggestion: Mapping[str, Any]
    tokens: int
    max_epochs: float
    ngram_bits: float
    reference: float

    def each(self, minutes: float) -> Iterator[tuple[float, Expected]]:
        """Yield the expected bits per byte, and the forecast, of each network that was timed."""
        model, train = self.suggestion["model"], self.suggestion["train"]
        per_step = model["max_seq_len"] * train["batch_size"] * train["grad_accum"]
        for item in self.suggestion["candidates"]:
            if item["step_seconds"] is None:
                continue
            read = steps_in(minutes, item["step_seconds"]) * per_step
            read = min(read, self.max_epochs * self.tokens)
            sizes = item["body"], model["vocab_size"], self.tokens, read
            bits, wide = expected_ratio(*sizes) * self.reference, math.exp(NINE_OF_TEN * SPREAD)
            is_known = per_step == TOKENS_PER_STEP and is_measured(*sizes)
            told = (bits, bits / wide, bits * wide) if is_known else (None, None, None)
            yield bits, Expected(minutes, item["name"], read / self.tokens, *told)

    def best(self, minutes: float) -> Expected:
        """Return the forecast of the network that is best for a time."""
        return min(self.each(minutes), key=lambda item: item[0])[1]

    def of(self, preset: str, minutes: float) -> Expected:
        """Return the forecast of a network."""
        return next(found for _, found in self.each(minutes) if found.preset == preset)

    def minutes_to_beat(self) -> float | None:
        """Return the minutes after which a network is forecast to beat the n-gram model; None if none is."""
        for time in (1.1**n for n in range(-30, round(math.log(LONGEST, 1.1)))):
            if any((found.bits_per_byte or math.inf) < self.ngram_bits for _, found in self.each(time)):
                return time
        return None


@stage("forecast", version=5, keep_with=("suggestion", "dataset", "evalset"))
def forecast(
    work: Work,
    settings: ForecastSettings,
    *,
    suggestion: ArtifactRef,
    dataset: ArtifactRef,
    ngram: ArtifactRef,
    tokenizer: ArtifactRef,
    evalset: ArtifactRef,
) -> str:
    """Measure the n-gram model on the evaluation set, and say what trainings are expected to reach."""
    from model.metrics import bits_per_byte

    texts = read_columns(work.folder(evalset) / DOCUMENTS_FILE, ["text"])["text"]
    known = load_tokenizer(work.folder(tokenizer) / TOKENIZER_FILE)
    encoded = encode_documents(known, settings.framing, texts)
    model = KneserNey.load(work.folder(ngram))
    charged = float(charged_nats(known, encoded).sum())
    bits, reference = (
        bits_per_byte(
            float(model.nll(encoded.ids, encoded.lengths, orders).sum()) + charged,
            int(encoded.n_bytes.sum()),
            int(encoded.lost_bytes.sum()),
        )
        for orders in (None, ORDERS)
    )
    found, tokens = read_suggestion(work.folder(suggestion)), manifest_of(work.store, dataset).counts["train_tokens"]
    outlook = Outlook(found, tokens, settings.max_epochs, bits, reference)
    others = [outlook.best(minutes) for minutes in OUTLOOK if minutes != settings.minutes]
    answer = {
        "order": len(model.orders),
        "ngram_bits_per_byte": bits,
        "asked": asdict(outlook.of(found["preset"], settings.minutes)),
        "others": [asdict(other) for other in others],
        "minutes_to_beat": outlook.minutes_to_beat(),
    }
    (work.out / FORECAST_FILE).write_text(json.dumps(answer, indent=1))
    work.counts["rows"] = 1 + len(others)
    return sha256_json(answer)


def read_forecast(folder: Path) -> dict[str, Any]:
    """Return a forecast: order, ngram_bits_per_byte, asked, others, minutes_to_beat."""
    found: dict[str, Any] = json.loads((folder / FORECAST_FILE).read_text())
    return found


def forecast_sentence(found: Mapping[str, Any]) -> str:
    """Return what is expected of the training, beside the n-gram model."""
    asked, rival = found["asked"], f"the {found['order']}-gram model of the same text has"
    beside = f"{rival} {found['ngram_bits_per_byte']:.2f}"
    if asked["bits_per_byte"] is None:
        return f"no training of this size and length was measured, so nothing is forecast; {beside}."
    told = (
        f"{asked['bits_per_byte']:.2f} bits per byte are expected ({asked['low']:.2f} to {asked['high']:.2f} in nine "
        f"of ten); {beside}"
    )
    if asked["bits_per_byte"] <= found["ngram_bits_per_byte"]:
        return f"{told}."
    needed = found["minutes_to_beat"]
    after = "how many it takes was not measured" if needed is None else f"beating it takes {minutes_text(needed)}"
    return f"{told}, and {asked['minutes']:g} minutes are too few for a network to beat it: {after}."


def minutes_text(minutes: float) -> str:
    """Return a time in words, such as "about 40 minutes"."""
    return f"about {minutes / 60:.0f} hours" if minutes >= 120 else f"about {math.ceil(minutes)} minutes"


def forecast_text(found: Mapping[str, Any]) -> str:
    """Return a forecast in Markdown."""
    rows = []
    for item in sorted([found["asked"], *found["others"]], key=lambda one: one["minutes"]):
        bits = ["not forecast", ""]
        if item["bits_per_byte"] is not None:
            bits = [f"{item['bits_per_byte']:.2f}", f"{item['low']:.2f} to {item['high']:.2f}"]
        rows.append([f"{item['minutes']:g}", item["preset"], f"{item['passes']:.1f}", *bits])
    lines = table(["minutes", "network", "passes", "bits per byte", "nine of ten"], rows)
    return f"{forecast_sentence(found).capitalize()}\n\n" + "\n".join(lines)
