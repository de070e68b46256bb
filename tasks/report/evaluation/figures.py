"""What is known of an evaluation: the report's data, apart from how it is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from storage.manifest import ArtifactRef
from tasks.evaluation.compare import Difference
from tasks.evaluation.tables import Evaluation, Sums
from tasks.lineage.contamination import Exposure


@dataclass(frozen=True)
class Document:
    """One evaluation document.

    Attributes:
        path: where it was found; empty where that is not known.
        labels: which slice it is in, by dimension.
        begins: the beginning of its text.
        seen: share of its runs of thirteen words that stand in training text; None where nobody looked.
    """

    doc_id: str
    path: str
    labels: Mapping[str, str]
    sums: Sums
    begins: str = ""
    seen: float | None = None


@dataclass(frozen=True)
class Mark:
    """A span of a completion that stands in training text; places are in characters.

    Attributes:
        sources: paths, or ids, of training documents that it stands in.
    """

    start: int
    length: int
    words: int
    sources: Sequence[str] = ()


@dataclass(frozen=True)
class Completion:
    """What a model wrote.

    Attributes:
        error: why it could not continue the prompt; empty if it did.
        marks: spans that stand in training text, the longest first; None where nobody looked.
    """

    prompt: str
    text: str
    finish_reason: str = ""
    marks: Sequence[Mark] | None = None
    error: str = ""


@dataclass(frozen=True)
class Rival:
    """Another model on the same documents: the champion that this one met.

    Attributes:
        name: text.
        bits: its bits per byte of each slice, by dimension and value.
        difference: of bits per byte, this model's less its own.
    """

    name: str
    metrics: Mapping[str, float]
    bits: Mapping[tuple[str, str], float]
    difference: Difference


@dataclass(frozen=True)
class EvaluationFigures:
    """Everything that the report shows.

    Attributes:
        model: what the model is called.
        checkpoint, evalset, ref: artefacts of the model, of the documents and of the evaluation.
        best, worst: the documents with the fewest and the most bits per byte.
        rival: None where there is no other champion, or it cannot be compared.
        exposures: bits per byte by how much of a document stands in training text; empty where nobody looked.
        completions: a few.
        echoes: figures of the stage `echoes`; empty where nobody looked.
        pages: files of other reports that lie beside this one.
        texts: what the documents are called; empty for the frozen evaluation set.
        read: whether the model was trained on some of them.
    """

    model: str
    checkpoint: ArtifactRef
    evalset: ArtifactRef
    ref: ArtifactRef
    evaluation: Evaluation
    best: Sequence[Document] = ()
    worst: Sequence[Document] = ()
    rival: Rival | None = None
    exposures: Sequence[Exposure] = ()
    completions: Sequence[Completion] = ()
    echoes: Mapping[str, float] = field(default_factory=dict)
    pages: Sequence[str] = ()
    texts: str = ""
    read: bool = False

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.evaluation.metrics

    @property
    def bits_per_byte(self) -> float:
        return self.metrics.get("val/bits_per_byte", math.nan)
