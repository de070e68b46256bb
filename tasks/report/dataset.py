"""The page and the data card of a dataset: tokens, sequences, mix, tokeniser, vocabulary and provenance.

A temporary table holds a few hundred bytes per document, without text and token ids; everything else is an aggregate of
it, or comes from manifests and `dataset.json`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from storage.catalog import Catalog, read_state
from storage.digest import canonical_json, sha256_json
from storage.lineage import manifest_of
from storage.manifest import Manifest
from storage.schemas import COUNTS_FILE
from storage.store import StoreError, open_store
from tasks.report.charts import bar_figure
from tasks.report.corpus import MEASURES, collect
from tasks.report.page import Notice, Outcome, Page, draw_page, notices_of, render
from tasks.report.queries import Row, folded, histogram, join_documents, rows
from tasks.report.vocabulary import RARE, Spelling, usage
from tasks.report.wording import counted
from tasks.tokens.groups import realised
from tasks.tokens.index import read_record
from tasks.tokens.settings import MixSettings
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE, Tokenizer, load_tokenizer

CARD = "data-card.md"
# stages up to the dataset, in the order of the flow
STAGES = (
    "import", "extract", "snapshot", "normalise", "measure", "classifier", "score", "dedup", "evaluation_sets",
    "curate", "refine", "tokenizer", "tokenise", "groups", "dataset",
)  # fmt: skip
MAX_ITEMS = 12  # items of a list of settings; a longer one, such as a segment's contents, is shown by its digest

SAMPLE_KINDS = 3  # kinds of documents with a sample
SAMPLE_TOKENS = 320  # most tokens of a sample
ENOUGH_TOKENS = 120  # shorter documents are sampled only if their kind has no longer one

# sums over a group of documents; `lost_bytes`: bytes that became unk or were left out, `held_out`: tokens
_SUMS = (
    "count(*) as documents, coalesce(sum(length), 0)::bigint as tokens, coalesce(sum(n_bytes), 0)::bigint as n_bytes, "
    "coalesce(sum(lost_bytes), 0)::bigint as lost_bytes, "
    "coalesce(sum(length) filter (split = 'validation'), 0)::bigint as held_out from dataset_documents"
)


def _slices(name: str, where: str = "true") -> str:
    return f"select {name} as name, {_SUMS} where {where} group by 1 order by tokens desc, name"


SLICES = {
    "splits": f"select split as name, {_SUMS} group by 1 order by name",
    "kinds": _slices("kind"),
    "sources": _slices("source"),
    "languages": _slices("coalesce(language, 'und')", "kind <> 'code'"),
    "programming_languages": _slices("coalesce(programming_language, 'unknown')", "kind = 'code'"),
    "licences": _slices("licence"),
}
_TOTAL = (
    "select 'all' as name, (select count(*) from all_selection where kept) - count(*) as not_encoded, "
    "coalesce(sum(redactions), 0)::bigint as redactions, count(*) filter (redactions > 0) as redacted_documents, "
    "coalesce(max(length), 0) as longest, coalesce(max(length) filter (split = 'train'), 0) as longest_train, "
    f"count(*) filter (length > {{seq_len}}) as longer, {_SUMS}"
)


def collect_dataset(catalog: Catalog, corpus: str) -> Row:
    """Return all figures of a corpus's dataset.

    Returns:
        The rows of each of `SLICES` under its name, `total` over all documents, `packed` (`dataset.json` with
        `accounts` of both splits and the mix of `groups`), `train` and `held_out` (splits), `tokenizer`, `vocabulary`,
        `plots` and `samples`.

    Raises:
        StoreError: the corpus was not prepared yet.
    """
    missing = [stage for stage in ("tokenizer", "tokenise", "dataset") if not catalog.state.get(stage)]
    if missing:
        raise StoreError(
            f"corpus {corpus!r} has no {missing[0]} artefact, and a report needs its dataset: run `sheepfold "
            "prepare SOURCE` or `run` first"
        )
    join_documents(catalog, MEASURES)
    catalog.connection.execute(
        "create or replace temp view dataset_documents as select doc_id, path, coalesce(source, 'unknown') as source, "
        "kind, language, programming_language, coalesce(licence, 'unknown') as licence, split, redactions, lost_bytes, "
        "n_tokens as length, encoded_bytes as n_bytes from report_documents where kept and n_tokens is not null"
    )
    folder = catalog.store.folder(catalog.state["tokenizer"][0])
    tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
    table = pq.read_table(catalog.store.folder(catalog.state["dataset"][0]) / COUNTS_FILE).sort_by("token")
    found = Row(**{name: rows(catalog, query) for name, query in SLICES.items()})
    by_side = {row.name: row for row in found.splits}
    found.train, found.held_out = (by_side.get(name, Row(documents=0, tokens=0)) for name in ("train", "validation"))
    found.packed = _packed(catalog)
    (found.total,) = rows(catalog, _TOTAL.format(seq_len=int(found.packed.seq_len)))
    found.tokenizer = _tokenizer_facts(catalog, tokenizer, folder)
    found.vocabulary = usage(tokenizer, table.column("count").to_numpy())
    found.plots = list(_plots(catalog))
    found.samples = _samples(catalog, tokenizer)
    return found


def _packed(catalog: Catalog) -> Row:
    """Return `dataset.json` with `accounts` of both splits and the realised mix."""
    record = read_record(catalog.store.folder(catalog.state["dataset"][0]))
    accounts = []
    for split in ("train", "validation"):
        if split in record["splits"]:
            account = Row(split=split, **record["splits"][split])
            account.places = account.kept + account.repeated + account.padded
            account.fill = (account.kept + account.repeated) / account.places if account.places else 0.0
            accounts.append(account)
    return Row(**record | {"accounts": accounts, "groups": _mixed(record["groups"], record["mix"])})


def _mixed(groups: list[dict[str, Any]], mix: Mapping[str, Any] | None) -> list[Row]:
    """Return the groups with their realised shares, and the shares of the settings, if any."""
    documents, tokens, sequences, reads = (
        {item["name"]: int(item[column]) for item in groups} for column in ("documents", "tokens", "count", "reads")
    )
    asked = bool(mix and (mix.get("weights") or mix.get("temperature") or mix.get("epochs")))
    found = [
        Row(**vars(item) | {"documents": documents[item.name]} | ({} if asked else {"share_asked": None}))
        for item in realised(tokens, sequences, reads, MixSettings(**(mix or {})))
    ]
    return sorted(found, key=lambda group: (-group.share_realised, group.name))


def _tokenizer_facts(catalog: Catalog, tokenizer: Tokenizer, folder: Path) -> Row:
    """Return kind, size and fingerprint of a tokeniser, and sentences on its choice, trainer and encoder."""
    encoded = [manifest_of(catalog.store, ref) for ref in catalog.state["tokenise"]]
    fitted = manifest_of(catalog.store, catalog.state["tokenizer"][0]).tools
    choice = folder / "choice.json"
    why = json.loads(choice.read_text(encoding="utf-8")).get("why", "") if choice.is_file() else ""
    words = [f"Choice: {why}."] if why else []

    made_by = [(f"Fitted by {fitted['trainer']}", fitted.get("trainer_reason"))] if "trainer" in fitted else []
    engines = Counter((found.tools.get("engine", ""), found.tools.get("engine_reason", "")) for found in encoded)
    made_by += [
        (f"Encoded by {name} ({counted(n, 'segment')})", why) for (name, why), n in sorted(engines.items()) if name
    ]
    words += [f"{by}: {why}." if why else f"{by}." for by, why in made_by]
    return Row(kind=tokenizer.kind, size=tokenizer.vocab_size, fingerprint=tokenizer.fingerprint, words=words)


def _plots(catalog: Catalog) -> Iterator[Row]:
    """Yield histograms of the documents, as arguments of `bar_figure`."""
    tones = {"in training": "tone-ink", "held out": "tone-contrary"}
    for name, title, note, value, top in (
        ("tokens", "Length of documents", "tokens, logarithmic", "length", 0),
        ("bytes-a-token", "Bytes per token", "the last bar includes larger values", "n_bytes / nullif(length, 0)", 6),
    ):
        shown = {"name": f"histogram-{name}", "title": title, "note": note}
        upper = "split = 'validation'"
        yield from histogram(catalog, "dataset_documents", value, upper, tones, shown, top=top, bins=24)


def _samples(catalog: Catalog, tokenizer: Tokenizer) -> list[Row]:
    """Return a training document of each of the kinds with the most tokens.

    The long enough one of lowest id is chosen: ids are hashes, so the choice is arbitrary but deterministic.
    """
    chosen = rows(
        catalog,
        "with kinds as (select kind, sum(length) as tokens from dataset_documents where split = 'train' group by 1 "
        f"order by tokens desc, kind limit {SAMPLE_KINDS}), chosen as (select d.kind, d.path, d.length as tokens, "
        "d.doc_id, k.tokens as of_kind from dataset_documents d join kinds k using (kind) where d.split = 'train' "
        f"qualify row_number() over (partition by kind order by least(d.length, {ENOUGH_TOKENS}) desc, d.doc_id) = 1) "
        "select c.kind, c.path, c.tokens, "
        f'token_ids(a.filename, a."offset", least(a.length, {SAMPLE_TOKENS})) as ids from chosen c '
        "join holders_tokenise h using (doc_id) join all_tokenise a on a.doc_id = h.doc_id and a.filename = h.filename "
        "order by c.of_kind desc, c.kind",
    )
    spelling = Spelling(tokenizer)
    return [Row(**vars(row), pieces=[spelling.token(index) for index in row.ids]) for row in chosen]


def notices(found: Row) -> list[Notice]:
    """Return the notices of the page, most severe first."""
    return notices_of("dataset_notices.html", **vars(found))


def provenance(catalog: Catalog) -> list[Row]:
    """Return the artefacts behind a dataset by stage, in the order of the flow.

    Returns:
        Rows of `stage`, `versions`, `artefacts` (one per segment of some stages), `key` and `digest` (sha256 over all
        of several), `settings` (if shared by all; others and long lists as digests) and `tools`.
    """
    found: dict[str, list[Manifest]] = {}
    for stage in STAGES:
        if refs := catalog.state.get(stage):
            found[stage] = [manifest_of(catalog.store, ref) for ref in sorted(set(refs))]
    # inputs that are missing in the state of a run
    for stage, argument, of in (("evaluation_sets", "evaluation", "curate"), ("classifier", "classifier", "score")):
        if of in found and argument in found[of][0].inputs:
            found[stage] = [manifest_of(catalog.store, ref) for ref in found[of][0].input_refs(argument)]
    return [_made(stage, found[stage]) for stage in STAGES if found.get(stage)]


def _made(stage: str, manifests: list[Manifest]) -> Row:
    tools: dict[str, set[str]] = {}
    for manifest in manifests:
        for name, version in manifest.tools.items():
            if version and not name.endswith("_reason"):  # reasons are shown with the tokeniser
                tools.setdefault(name, set()).add(version)
    keys, digests = ([getattr(manifest, name) for manifest in manifests] for name in ("key", "digest"))
    return Row(
        stage=stage,
        versions=sorted({manifest.version for manifest in manifests}),
        artefacts=len(manifests),
        key=keys[0] if len(keys) == 1 else sha256_json(sorted(keys)),
        digest=digests[0] if len(digests) == 1 else sha256_json(sorted(digests)),
        settings=_shared_settings([manifest.settings for manifest in manifests]),
        tools={name: ", ".join(sorted(versions)) for name, versions in sorted(tools.items())},
    )


def _shared_settings(settings: list[dict[str, Any]]) -> dict[str, Any]:
    """Return settings by name, without those that are None."""
    shared: dict[str, Any] = {}
    for name in sorted({name for item in settings for name in item}):
        values = sorted({canonical_json(item.get(name)) for item in settings})
        several = f"{len(values):,} different values, sha256 {sha256_json(values)}"
        shared[name] = several if len(values) > 1 else _short(settings[0][name])
    return {name: value for name, value in shared.items() if value is not None}


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items() if item is not None}
    if isinstance(value, list) and len(value) > MAX_ITEMS:
        return f"{len(value):,} values, sha256 {sha256_json(value)}"
    return value


def dataset_page(found: Row, corpus: str) -> list[str]:
    """Return the page and its Markdown summary from the result of `collect_dataset`."""
    charts = [bar_figure(**vars(plot)) for plot in found.plots]
    return draw_page(
        "dataset.html", notices(found), corpus=corpus, rare=RARE, charts=charts, folded=folded, **vars(found)
    )  # fmt: skip


def data_card(found: Row, files: Row, made: list[Row], corpus: str) -> str:
    """Return the data card as Markdown.

    It contains no times, so the same sources with the same settings give the same card.

    Args:
        found: result of `collect_dataset`.
        files: result of `corpus.collect`.
        made: result of `provenance`.
    """
    settings = {item.stage: item.settings for item in made if item.settings}
    # JSON on indented lines cannot end the Markdown code block
    block = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=True)
    return render(
        "data_card.md", corpus=corpus, files=files, made=made, settings=settings, json_settings=block, folded=folded,
        notices=notices(found), **vars(found),
    )  # fmt: skip


def write(outcome: Outcome) -> Page | None:
    """Write the page and the data card of a run's dataset; returns None without one."""
    run = outcome.run
    if outcome.made("dataset") is None:
        return None
    state = {stage: refs for stage, refs in read_state(run.store, run.corpus).items() if stage in STAGES}

    def draw() -> list[str]:
        page, summary, card = outcome.draw_in_subprocess(draw_dataset)
        return [page, f"{summary}\n\nThe data card: `{outcome.folder / CARD}`", card]

    return outcome.draw_once("dataset", f"Dataset of {run.corpus}", state, draw, CARD)


def draw_dataset(store: str, cache: str, corpus: str, progress: Callable[[int, int], None]) -> list[str]:
    """Return page, summary and card of a dataset; target of `Outcome.draw_in_subprocess`."""
    catalog = Catalog(open_store(store, Path(cache)), corpus)
    found = collect_dataset(catalog, corpus)
    return [*dataset_page(found, corpus), data_card(found, collect(catalog), provenance(catalog), corpus)]
