"""What a dataset report takes from the files of artefacts: the account of the sequences, the tokeniser, the counts.

Everything that depends on how those files are written stands here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.lineage import manifest_of
from storage.schemas import COUNTS_FILE, DATASET_FILE
from storage.store import StoreError
from tasks.report.dataset.figures import Account, Engine, MixedGroup, Packed, TokenizerFacts
from tasks.tokens.index import read_record
from tasks.tokens.mix import MixSettings, realised
from tasks.tokens.tokenizers import TOKENIZER_FILE, Tokenizer, load_tokenizer

if TYPE_CHECKING:
    import numpy as np

    from storage.catalog import Catalog

CHOICE_FILE = "choice.json"
SPLITS = ("train", "validation")


def _folder(catalog: Catalog, stage: str) -> Path:
    return catalog.store.folder(catalog.state[stage][0])


def read_tokenizer(catalog: Catalog) -> Tokenizer:
    """The tokeniser of the corpus."""
    return load_tokenizer(_folder(catalog, "tokenizer") / TOKENIZER_FILE)


def read_counts(catalog: Catalog) -> np.ndarray:
    """(vocab_size,) how often each id is predicted in the training split."""
    import pyarrow.parquet as pq

    table = pq.read_table(_folder(catalog, "dataset") / COUNTS_FILE, columns=["token", "count"]).sort_by("token")
    counts: np.ndarray = table.column("count").to_numpy()
    return counts


def tokenizer_facts(catalog: Catalog, tokenizer: Tokenizer) -> TokenizerFacts:
    """What a tokeniser is, why it was chosen, and what encoded with it."""
    choice = _read_json(_folder(catalog, "tokenizer") / CHOICE_FILE)
    encoded = [manifest_of(catalog.store, ref) for ref in catalog.state["tokenise"]]
    engines = Counter((found.tools.get("engine", ""), found.tools.get("engine_reason", "")) for found in encoded)
    ends = encoded[0].settings
    fitted = manifest_of(catalog.store, catalog.state["tokenizer"][0]).tools
    trainer = Engine(fitted["trainer"], fitted.get("trainer_reason", ""), 1) if "trainer" in fitted else None
    return TokenizerFacts(
        kind=tokenizer.kind,
        vocab_size=tokenizer.vocab_size,
        why=str(choice.get("why", "")),
        fingerprint=tokenizer.fingerprint,
        special=special_names(tokenizer),
        bos=tokenizer.start_id is not None and bool(ends.get("bos", True)),
        eos=tokenizer.eos_id is not None and bool(ends.get("eos", True)),
        engines=[Engine(name, reason, n) for (name, reason), n in sorted(engines.items()) if name],
        trainer=trainer,
    )


def special_names(tokenizer: Tokenizer) -> dict[int, str]:
    """What each special id is for: one of four meanings, kept free for later, or something else."""
    names = {"pad": tokenizer.pad_id, "unk": tokenizer.unk_id, "bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
    special = {index: "special" if index < tokenizer.used_ids else "reserved" for index in tokenizer.special_ids}
    special |= {index: name for name, index in names.items() if index is not None}
    return dict(sorted(special.items()))


def read_packed(catalog: Catalog, indexed: dict[str, tuple[int, int]]) -> Packed:
    """The sequences of a dataset.

    Args:
        indexed: input ids and sequences of each side as the index has them.

    Raises:
        StoreError: if the dataset has no account of them.
    """
    ref = catalog.state["dataset"][0]
    folder = catalog.store.folder(ref)
    if not (folder / DATASET_FILE).is_file():
        raise StoreError(
            f"dataset {ref.key[:12]} was made by an older version and has no {DATASET_FILE}: run `sheepfold prepare "
            "SOURCE` again"
        )
    written = read_record(folder)
    return Packed(
        packing=written["packing"],
        seq_len=written["seq_len"],
        stride=written["stride"],
        drop_last=written["drop_last"],
        accounts=[_account(name, written["splits"][name]) for name in SPLITS if name in written["splits"]],
        indexed=indexed,
        groups=_mixed(written["groups"], written["mix"]),
        mixed=written["mix"] is not None,
        notes=written["notes"],
    )


def _account(split: str, written: Mapping[str, Any]) -> Account:
    names = ("documents", "ids", "n_bytes", "sequences", "kept", "repeated", "padded", "cut", "labels")
    return Account(split, **{name: int(written[name]) for name in names})


def _mixed(groups: list[dict[str, Any]], mix: Mapping[str, Any] | None) -> list[MixedGroup]:
    """The groups with the shares they have, and those that were asked for where the settings are known."""
    documents, tokens, sequences, reads = (
        {item["name"]: int(item[column]) for item in groups} for column in ("documents", "tokens", "count", "reads")
    )
    known = realised(tokens, sequences, reads, MixSettings(**(mix or {})))
    asked = bool(mix and (mix.get("weights") or mix.get("temperature") or mix.get("epochs")))
    found = [
        MixedGroup(
            item.name, documents[item.name], item.sequences, item.reads, item.tokens,
            item.share_asked if asked else None, item.share_realised,
        )
        for item in known
    ]  # fmt: skip
    return sorted(found, key=lambda group: (-group.share, group.name))


def _read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
