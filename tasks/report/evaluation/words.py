"""What a person should look at first in an evaluation, and how it is said in a few words."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tasks.evaluation.compare import Difference
from tasks.evaluation.tables import baselines_of
from tasks.report.evaluation.figures import EvaluationFigures
from tasks.report.wording import counted, share, size_of
from tasks.report.worries import Worry, ordered

FEW_DOCUMENTS = 20
MISCALIBRATED = 0.1
ECHOING = 0.25  # share of completions that reproduce training text
_NAMES = {"top1": "top-1", "top5": "top-5", "ece": "calibration error"}
ZSTD = "val/zstd19_bits_per_byte"


def lead(figures: EvaluationFigures) -> str:
    """What came out, in two or three sentences."""
    found = figures.metrics
    words = (
        f"{_begun(figures.model)} takes {figures.bits_per_byte:.4f} bits for a byte of "
        f"{counted(int(found['val/documents']), 'document')}{_which(figures)} ({size_of(found['val/bytes'])})"
    )
    named = baselines_of(found)
    if named:
        name, of = named[0]
        bits = found[f"val/{of}_bits_per_byte"]
        words += f"; the {name} model of the same tokens takes {bits:.4f}"
    words += "."
    if figures.rival is not None:
        words += f" {verdict(figures.rival.difference, 'It', figures.rival.name)}"
    return words


def figure_name(metric: str) -> str:
    """What a figure is called where people read it."""
    name = metric.removeprefix("val/")
    return _NAMES.get(name, name.replace("_", " "))


def _begun(name: str) -> str:
    """A name at the beginning of a sentence."""
    return name[:1].upper() + name[1:]


def _which(figures: EvaluationFigures) -> str:
    """Which documents a model was measured on."""
    named = f" of {figures.texts}" if figures.texts else ""
    return f"{named}, of which it has read some," if figures.read else named or " that it never read"


def verdict(difference: Difference, one: str, other: str) -> str:
    """Whether one model is better than another, in a sentence."""
    one = _begun(one)
    size = f"{abs(difference.value):.4f} bits per byte"
    if not math.isfinite(difference.high - difference.low):
        return f"{one} and {other} were measured on one document, which says nothing of others."
    if difference.value == 0 == difference.low == difference.high:
        return f"{one} and {other} do not differ on any document."
    fewer = "fewer" if difference.value < 0 else "more"
    reach = f"95 % interval of the difference {difference.low:+.4f} to {difference.high:+.4f}".replace("-", "−")
    if difference.is_clear:
        return f"{one} takes {size} {fewer} than {other} ({reach})."
    return f"{one} takes {size} {fewer} than {other}, which other documents might turn round ({reach})."


def facts(figures: EvaluationFigures) -> dict[str, str]:
    """A few figures."""
    found = figures.metrics
    known = {
        "Bits per byte": f"{figures.bits_per_byte:.4f}",
        "Perplexity": f"{found['val/perplexity']:.2f}",
        "Loss": f"{found['val/loss']:.4f} nats",
        "Bits per character": f"{found['val/bits_per_character']:.4f}",
        "Top-1": f"{100 * found['val/top1']:.1f} %",
        "Top-5": f"{100 * found['val/top5']:.1f} %",
        "Calibration error": f"{found['val/ece']:.4f}",
        "Documents": f"{found['val/documents']:,.0f}",
    }
    if figures.echoes:
        known["Completions that echo"] = share(figures.echoes["completions/echo_share"], 1)
    return known


def worries(figures: EvaluationFigures) -> list[Worry]:
    """The gravest first."""
    return ordered([*_of_baselines(figures), *_of_documents(figures), *_of_text(figures)])


def _of_baselines(figures: EvaluationFigures) -> Iterator[Worry]:
    found, bits = figures.metrics, figures.bits_per_byte
    for name, of in baselines_of(found):
        if bits >= found[f"val/{of}_bits_per_byte"]:
            remedy = "It has learned less than counting would: train longer, or look at the training's page."
            yield _check(f"It is no better than the {name} model", remedy, "baselines")
            break
    if bits >= found.get(ZSTD, math.inf):
        remedy = "Of small corpora a compressor keeps much, for it reads the evaluation text as it goes."
        yield _note("zstd -19 packs the same text into fewer bits", remedy, "baselines")
    rival = figures.rival
    if rival is not None and rival.difference.is_clear and rival.difference.value > 0:
        remedy = "See where: sheepfold compare champion challenger, or any two by name."
        yield _check(f"{_begun(rival.name)} is clearly better", remedy, "baselines")


def _of_documents(figures: EvaluationFigures) -> Iterator[Worry]:
    found = figures.metrics
    if figures.read:
        words = "It was trained on some of these documents"
        yield _check(words, "Figures on them measure memory: measure it on others.", "documents")
    if found["val/documents"] < FEW_DOCUMENTS:
        words = f"It was measured on {counted(int(found['val/documents']), 'document')}"
        yield _note(words, "Of so few documents, others like them may give other figures.", "documents")
    if found["val/lost_bytes"]:
        words = f"The tokeniser cannot give back {size_of(found['val/lost_bytes'])} of the text"
        yield _note(words, "Each lost byte is charged 8 bits; see the dataset's page.", "slices")
    mostly = next((item for item in figures.exposures if item.name == "mostly seen" and item.documents), None)
    if mostly is not None:
        words = f"{counted(mostly.documents, 'evaluation document')} stand for the most part in the training text"
        yield _check(words, "Figures on them measure memory: see how the others do.", "contamination", mostly.documents)


def _of_text(figures: EvaluationFigures) -> Iterator[Worry]:
    if figures.metrics.get("val/ece", 0.0) > MISCALIBRATED:
        remedy = "Its probabilities say more, or less, than they hold; a temperature other than 1 may help."
        yield _note(f"Its calibration error is {figures.metrics['val/ece']:.3f}", remedy, "curves")
    echo_share = figures.echoes.get("completions/echo_share", 0.0)
    if echo_share >= ECHOING:
        words = f"{share(echo_share, 1)} of the completions repeat thirteen words or more of the training text"
        yield _check(words, "It knows passages by heart: look at the marked spans.", "completions")


def _check(title: str, remedy: str, section: str, weight: int = 1) -> Worry:
    return Worry("check", weight, title, remedy, "", section)


def _note(title: str, remedy: str, section: str, weight: int = 1) -> Worry:
    return Worry("note", weight, title, remedy, "", section)
