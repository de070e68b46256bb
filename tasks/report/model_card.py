"""The model card: what a registered version is, how good, judged how, made from what, and what not to expect of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from storage.lineage import ancestor, manifest_of
from storage.manifest import ArtifactRef, Manifest
from storage.store import Store
from tasks.evaluation.gates import CorpusFacts, Verdict, corpus_facts, curated_of
from tasks.evaluation.tables import Evaluation, Slice, baselines_of, read_evaluation
from tasks.report.markdown import plain, table
from tasks.training.bundle import WEIGHTS_FILE

FEW_DOCUMENTS = 20
_SLICES = 6


def model_card(
    store: Store,
    checkpoint: ArtifactRef,
    evaluation: ArtifactRef,
    verdicts: Sequence[Verdict],
    name: str,
    links: Mapping[str, str] | None = None,
) -> str:
    """Description of a version, in Markdown.

    Args:
        evaluation: the figures that it was registered with.
        verdicts: of the gates.
        name: of the registered model.
        links: addresses by what they lead to.
    """
    made, found = manifest_of(store, checkpoint), read_evaluation(store, evaluation)
    (evalset,) = manifest_of(store, evaluation).input_refs("evalset")
    curated = curated_of(store, checkpoint)
    parts = [
        *_network(made),
        *_figures(found, evalset),
        *_gates(verdicts),
        *_data(store, checkpoint, curated),
        *_limits(found, corpus_facts(store, curated)),
        *_use(name),
        *_lineage(store, made, evalset, links or {}),
    ]
    return "\n".join(parts) + "\n"


def parameters_of(made: Manifest) -> int:
    """Number of parameters of a training's network."""
    from model import ModelConfig, count_parameters

    return count_parameters(ModelConfig.from_dict(made.settings["model"]))["total"]


def _network(made: Manifest) -> Iterator[str]:
    network, plan = made.settings["model"], made.settings["train"]
    size = next(entry.size for entry in made.files if entry.name == WEIGHTS_FILE)
    yield (
        f"## Language model of {network['n_layer']} layers, width {network['d_model']}, context "
        f"{network['max_seq_len']}"
    )
    yield ""
    yield (
        f"{parameters_of(made):,} parameters ({size / 1e6:,.1f} MB), vocabulary of {network['vocab_size']:,}. Trained "
        f"for {made.counts['rows']:,} of {plan['max_steps']:,} steps in {plan['precision']} with seed {plan['seed']}"
        + (", from the weights of another model." if "base" in made.inputs else ", from random weights.")
    )


def _figures(found: Evaluation, evalset: ArtifactRef) -> Iterator[str]:
    metrics = found.metrics
    yield from ("", "### How good it is", "")
    yield (
        f"On {metrics['val/documents']:,.0f} held-out documents ({metrics['val/bytes']:,.0f} bytes, evaluation set "
        f"`{evalset.digest[:12]}`): perplexity {metrics['val/perplexity']:.2f}, top-1 {metrics['val/top1']:.1%}."
    )
    rows = [["this model", f"{metrics['val/loss']:.4f}", f"{metrics['val/bits_per_byte']:.4f}"]]
    rows += [
        [name, f"{metrics[f'val/{of}_loss']:.4f}", f"{metrics[f'val/{of}_bits_per_byte']:.4f}"]
        for name, of in baselines_of(metrics)
    ]
    rows.append(["zstd -19", "", f"{metrics['val/zstd19_bits_per_byte']:.4f}"])
    yield from ("", *table(["", "loss (nats per token)", "bits per byte"], rows))


def _gates(verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield from ("", "### Gates", "")
    rows = [[item.gate.replace("_", " "), item.verdict, plain(item.sentence, 400)] for item in verdicts]
    yield from table(["gate", "verdict", "why"], rows)


def _data(store: Store, checkpoint: ArtifactRef, curated: Manifest) -> Iterator[str]:
    cut = ancestor(store, checkpoint, "dataset").counts
    corpus = corpus_facts(store, curated)
    yield from ("", "### Data", "")
    yield (
        f"{curated.counts['train']:,} documents, {cut['train_tokens']:,} tokens; {curated.counts['validation']:,} "
        f"documents were held out. Of {corpus.files:,} files looked into, {corpus.rejected:,} gave no text; "
        f"{curated.counts['dropped']:,} documents were dropped by curation. The dataset's own card lies beside the "
        "training's run."
    )


def _limits(found: Evaluation, corpus: CorpusFacts) -> Iterator[str]:
    """What is known to be weak; each follows from a figure or from what the model is."""
    metrics = found.metrics
    yield from ("", "### Limits", "")
    yield "- It continues text. It was not taught to answer, to be right or to be polite, and may repeat what it read."
    if metrics["val/documents"] < FEW_DOCUMENTS:
        yield f"- Its figures rest on {metrics['val/documents']:.0f} documents; others like them may give other ones."
    for name, of in baselines_of(metrics):
        if metrics["val/bits_per_byte"] >= metrics[f"val/{of}_bits_per_byte"]:
            yield f"- It is no better than the {name} model of the same tokens."
    weak = [item for item in _weakest(found.slices) if item.sums.bits_per_byte > metrics["val/bits_per_byte"]]
    if weak:
        listed = ", ".join(
            f"{plain(item.dimension)} {plain(item.value)} {item.sums.bits_per_byte:.3f}" for item in weak
        )
        yield f"- It is weaker than on the whole, in bits per byte, on {listed}."
    languages = [plain(item.value) for item in found.slices if item.dimension == "language" and item.value]
    if languages:
        yield f"- Nothing is known of it but for {', '.join(languages[:_SLICES])}."
    if corpus.ocr_confidence is not None:
        yield (
            f"- Text of {corpus.ocr_pages:,.0f} pages comes from OCR, which was sure to {corpus.ocr_confidence:.0%}: "
            "its mistakes were learnt, too."
        )


def _weakest(slices: Sequence[Slice]) -> list[Slice]:
    """The slices by kind and language with most bits per byte."""
    chosen = [item for item in slices if item.dimension in ("kind", "language") and item.sums.tokens]
    return sorted(chosen, key=lambda item: -item.sums.bits_per_byte)[:_SLICES]


def _use(name: str) -> Iterator[str]:
    yield from ("", "### Use", "", "```python", "import mlflow")
    yield f'model = mlflow.pyfunc.load_model("models:/{name}@champion")'
    yield 'model.predict(["Once"], params={"max_new_tokens": 40, "temperature": 0.8})'
    yield "```"


def _lineage(store: Store, made: Manifest, evalset: ArtifactRef, links: Mapping[str, str]) -> Iterator[str]:
    yield from ("", "### Lineage", "")
    yield f"- checkpoint `{made.stage}/{made.key}`"
    yield from (
        f"- {name} `{ref.stage}/{ref.key}`"
        for name in ("base", "dataset", "tokenizer")
        if name in made.inputs
        for ref in made.input_refs(name)
    )
    yield f"- evaluation set `{evalset.stage}/{evalset.key}`"
    yield from (f"- [{name}]({address})" for name, address in links.items())
    yield from ("", f"`sheepfold why {made.stage}/{made.key[:12]}` leads back to its documents.")
