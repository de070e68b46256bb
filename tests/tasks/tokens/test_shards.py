"""Token shards: what lies in the files, whatever the engine, the row groups and the size of the documents."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_run import direct_run, home_at
from tokenizer_samples import WORDS, prose
from tokenizers import Tokenizer as HfEngine
from tokenizers import models, pre_tokenizers

from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import Manifest
from tasks.core.run import Run
from tasks.core.stage import Work, stage
from tasks.evaluation.evaluate import encode_documents
from tasks.tokens import tokenise as module
from tasks.tokens.hf_spec import PIECE_BYTES
from tasks.tokens.tokenise import TokeniseSettings, smallest_dtype, tokenise, tokenise_segment
from tasks.tokens.tokenizer import learn_merges
from tasks.tokens.tokenizer_kinds import (
    BOS,
    EOS,
    UNK,
    AsciiTokenizer,
    ByteTokenizer,
    CharTokenizer,
    HfTokenizer,
    Tokenizer,
    WordTokenizer,
)

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus"


BPE = learn_merges([prose()], 500)
KINDS: dict[str, Tokenizer] = {
    "char": CharTokenizer.fit([WORDS]),
    "ascii": AsciiTokenizer(),
    "bytes": ByteTokenizer(),
    "word": WordTokenizer.fit([WORDS], 30),
    "bpe": BPE,
}
DOCUMENTS = [prose(1, 200), "", "a", "<|bos|> <|eos|>", "unknown Ω €", "w " * 2_000, prose(2, 200)]


def write_documents(folder: Path, texts: list[str], rows_per_group: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    names = [hashlib.sha256(str(place).encode()).hexdigest() for place in range(len(texts))]
    table = pa.table({"doc_id": pa.array(names, pa.string()), "text": pa.array(texts, pa.large_string())})
    pq.write_table(table, folder / "documents.parquet", row_group_size=rows_per_group)
    return folder / "documents.parquet"


def encode(folder: Path, tokenizer: Tokenizer, texts: list[str], **options: Any) -> dict[str, Any]:
    """Tokenise texts into a folder."""
    source = write_documents(folder / "in", texts, options.pop("rows_per_group", 3))
    tokenizer.save(folder / "tokenizer.json")
    (folder / "out").mkdir(exist_ok=True)
    settings = TokeniseSettings(options.pop("bos", True), options.pop("eos", True))
    asked = {"settings": settings, "engine": "auto", "progress": lambda done, total: None, **options}
    return tokenise_segment(source, folder / "tokenizer.json", tokenizer.fingerprint, folder / "out", **asked)


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "out").iterdir())}


@pytest.mark.parametrize("kind", KINDS)
def test_every_document_lies_where_the_table_says(kind: str, tmp_path: Path) -> None:
    tokenizer = KINDS[kind]
    made = encode(tmp_path, tokenizer, DOCUMENTS)
    shard = np.load(tmp_path / "out" / "tokens.npy", mmap_mode="r", allow_pickle=False)
    rows = pq.read_table(tmp_path / "out" / "tokens.parquet").to_pylist()
    place = 0
    for row, text in zip(rows, DOCUMENTS, strict=True):
        expected = encode_documents(tokenizer, TokeniseSettings(), [text])
        assert (row["offset"], row["length"]) == (place, len(expected.ids))
        assert (row["n_bytes"], row["lost_bytes"]) == (len(text.encode()), expected.lost_bytes[0])
        assert np.array_equal(shard[place : place + row["length"]], expected.ids)
        assert row["digest"] == hashlib.sha256(expected.ids.astype(shard.dtype).tobytes()).hexdigest()
        place += row["length"]
    assert (len(shard), made["rows"], made["tokens"]) == (place, len(DOCUMENTS), place)
    assert shard.dtype == smallest_dtype(tokenizer.vocab_size)


@pytest.mark.parametrize("kind", KINDS)
def test_the_counts_are_those_of_the_shard(kind: str, tmp_path: Path) -> None:
    encode(tmp_path, KINDS[kind], DOCUMENTS)
    shard, counts = (np.load(tmp_path / "out" / name) for name in ("tokens.npy", "counts.npy"))
    assert np.array_equal(counts, np.bincount(shard, minlength=KINDS[kind].vocab_size))
    assert counts.dtype == np.int64


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"engine": "reference"}, {"rows_per_group": 1}, {"rows_per_group": 100}])
def test_engine_and_row_groups_leave_no_trace_in_the_ids(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    first = encode(tmp_path / "a", KINDS[kind], DOCUMENTS)
    second = encode(tmp_path / "b", KINDS[kind], DOCUMENTS, **options)
    assert first["digest"] == second["digest"]
    one, other = written(tmp_path / "a"), written(tmp_path / "b")
    assert (one["tokens.npy"], one["counts.npy"]) == (other["tokens.npy"], other["counts.npy"])


def test_a_fast_engine_writes_what_the_reference_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORTH_AN_ENGINE", 0)
    monkeypatch.setattr(module, "COMPARE_BYTES", 1)
    made = encode(tmp_path / "a", BPE, DOCUMENTS)
    assert made["engine"].startswith("gigatoken ")
    assert encode(tmp_path / "b", BPE, DOCUMENTS, engine="reference")["engine"].startswith("tokenizers ")
    assert written(tmp_path / "a") == written(tmp_path / "b")


@pytest.mark.parametrize("kind", ["bpe", "char"])
@pytest.mark.parametrize("size", [1, 50, 4_000])
def test_batches_of_any_size_give_the_same_files(
    kind: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode(tmp_path / "a", KINDS[kind], DOCUMENTS)
    monkeypatch.setattr(module, "BATCH_BYTES", size)
    monkeypatch.setattr(module, "COUNTED_AT_ONCE", size)
    encode(tmp_path / "b", KINDS[kind], DOCUMENTS)
    assert written(tmp_path / "a") == written(tmp_path / "b")


@pytest.mark.parametrize("kind", ["bpe", "char", "bytes"])
def test_a_long_document_in_pieces_lies_there_as_one(kind: str, tmp_path: Path) -> None:
    text = prose(3, PIECE_BYTES // 2) + " Ω"
    made = encode(tmp_path, KINDS[kind], ["a", text, "b"])
    expected = encode_documents(KINDS[kind], TokeniseSettings(), [text])
    lost = expected.lost_bytes[0]
    row = pq.read_table(tmp_path / "out" / "tokens.parquet").to_pylist()[1]
    shard = np.load(tmp_path / "out" / "tokens.npy")
    assert len(list(KINDS[kind].pieces(text.encode()))) > 1
    assert np.array_equal(shard[row["offset"] : row["offset"] + row["length"]], expected.ids)
    assert (row["n_bytes"], row["lost_bytes"], made["lost_bytes"]) == (len(text.encode()), lost, lost)
    assert row["digest"] == hashlib.sha256(expected.ids.astype(shard.dtype).tobytes()).hexdigest()


class Broken(module.GigatokenEngine):
    """Right in the first row group, where it is chosen, and wrong later."""

    def _encode(self, data: bytes) -> np.ndarray:
        found = super()._encode(data)
        return self.wrong(found) if b"late" in data else found

    def wrong(self, ids: np.ndarray) -> np.ndarray:
        return np.where(ids > UNK, ids - 1, ids)


class Outside(Broken):
    """Gives ids that the tokeniser does not have."""

    def wrong(self, ids: np.ndarray) -> np.ndarray:
        return ids + 100_000


class Raising(Broken):
    """Fails."""

    def wrong(self, ids: np.ndarray) -> np.ndarray:
        raise RuntimeError("lost")


@pytest.mark.parametrize(
    ("engine", "compare_bytes", "told"),
    [
        (Broken, 1, "other ids than the reference's"),
        (Outside, 2**30, "is outside the vocabulary of"),
        (Raising, 2**30, "RuntimeError: lost"),
    ],
)
def test_an_engine_that_goes_wrong_on_the_way_gives_way_to_the_reference(
    engine: Any, compare_bytes: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [prose(1, 200), prose(2, 200), "late " * 50]
    encode(tmp_path / "a", BPE, texts, rows_per_group=1, engine="reference")
    monkeypatch.setattr(module, "WORTH_AN_ENGINE", 0)
    monkeypatch.setattr(module, "COMPARE_BYTES", compare_bytes)
    monkeypatch.setattr(module, "GigatokenEngine", engine)
    module._gigatoken.cache_clear()
    made = encode(tmp_path / "b", BPE, texts, rows_per_group=1)
    assert made["engine"].startswith("tokenizers ")
    assert told in made["engine_reason"]
    assert written(tmp_path / "a") == written(tmp_path / "b")


@pytest.mark.parametrize(
    ("bos", "eos", "expected"),
    [(True, True, [BOS, 4, EOS]), (False, True, [4, EOS]), (True, False, [BOS, 4]), (False, False, [4])],
)
def test_a_document_begins_and_ends_as_asked(bos: bool, eos: bool, expected: list[int], tmp_path: Path) -> None:
    encode(tmp_path, CharTokenizer("a"), ["a", ""], bos=bos, eos=eos)
    shard = np.load(tmp_path / "out" / "tokens.npy")
    assert shard.tolist() == expected + [index for index in expected if index != 4]
    assert encode_documents(CharTokenizer("a"), TokeniseSettings(bos, eos), ["a"]).ids.tolist() == expected


def test_no_documents_give_an_empty_shard(tmp_path: Path) -> None:
    made = encode(tmp_path, BPE, [])
    assert (made["rows"], made["tokens"]) == (0, 0)
    assert np.load(tmp_path / "out" / "tokens.npy", mmap_mode=None).shape == (0,)
    assert pq.read_table(tmp_path / "out" / "tokens.parquet").num_rows == 0


def test_a_broken_tokeniser_is_told_to_the_user(tmp_path: Path) -> None:
    source = write_documents(tmp_path, ["a"])
    (tmp_path / "tokenizer.json").write_text('{"kind": "char"}')
    for fingerprint, told in (("", "lacks 'alphabet'"), ("0" * 64, "fingerprint is")):
        with pytest.raises(UserError, match=told):
            tokenise_segment(
                source, tmp_path / "tokenizer.json", fingerprint, tmp_path, TokeniseSettings(), "auto", print
            )


@pytest.mark.parametrize("worth", [0, module.WORTH_AN_ENGINE])
def test_a_tokeniser_that_cannot_encode_is_told_to_the_user(
    worth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WORTH_AN_ENGINE", worth)
    engine = HfEngine(models.WordLevel({"the": 0, "fold": 1}))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = HfTokenizer(engine.to_str())
    assert encode(tmp_path, tokenizer, ["the fold"])["tokens"] == 2
    with pytest.raises(
        UserError,
        match=r"tokenizer\.json \(WordLevel from elsewhere\) cannot encode .*give it an unknown token",
    ):
        encode(tmp_path, tokenizer, ["the fold", "of sheep"])


# -- the stage ----------------------------------------------------------------------------------------------------


@stage("refine", version=1)
def some_documents(work: Work, settings: list[str]) -> str:
    """Documents of these texts."""
    write_documents(work.out, settings)
    return hashlib.sha256("\0".join(settings).encode()).hexdigest()


@stage("tokenizer", version=1)
def some_tokenizer(work: Work, settings: str) -> str:
    """A tokeniser of this kind."""
    KINDS[settings].save(work.out / "tokenizer.json")
    return KINDS[settings].fingerprint


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with direct_run(home_at(tmp_path)) as found:
        yield found


def encoded(run: Run, kind: str, texts: list[str], **unkeyed: str) -> Manifest:
    """The shard of these texts."""
    documents, tokenizer = some_documents(run, texts), some_tokenizer(run, kind)
    made = tokenise(run, TokeniseSettings(), documents=documents, tokenizer=tokenizer, **unkeyed)
    return manifest_of(run.store, made)


def test_the_stage_notes_engine_and_counts(run: Run) -> None:
    manifest = encoded(run, "char", DOCUMENTS)
    assert manifest.counts["rows"] == manifest.counts["units"] == len(DOCUMENTS)
    assert manifest.counts["lost_bytes"] > 0
    assert manifest.tools["engine"] == "reference"
    assert manifest.tools["engine_reason"] == "there is no other for this kind of tokeniser"


def test_the_engine_asked_for_is_no_part_of_the_key(run: Run) -> None:
    first = encoded(run, "char", DOCUMENTS)
    second = encoded(run, "char", DOCUMENTS, engine="reference")
    assert (first.key, second.tools["engine"]) == (second.key, first.tools["engine"])


def test_a_large_segment_is_encoded_apart_by_a_fast_engine(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    texts = ["".join(map(chr, random.Random(seed).choices(range(33, 0x2000), k=20_000))) for seed in range(40)]
    manifest = encoded(run, "bpe", texts)
    folder = run.store.folder(manifest.ref)
    assert manifest.tools["engine"].startswith("gigatoken ")
    rows = pq.read_table(folder / "tokens.parquet", columns=["offset", "length"]).to_pylist()
    shard = np.load(folder / "tokens.npy")
    last = rows[-1]
    ids = shard[last["offset"] : last["offset"] + last["length"]].tolist()
    assert (ids[0], BPE.decode(ids), ids[-1]) == (BOS, texts[-1], EOS)
    assert capfd.readouterr().out == ""


# -- the corpus ----------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.skipif(not CORPUS.is_dir(), reason="the sample corpus is not here")
def test_engines_agree_on_all_text_of_the_sample_corpus(tmp_path: Path) -> None:
    texts = []
    for path in sorted(file for file in CORPUS.rglob("*") if file.is_file()):
        data = path.read_bytes()
        texts.append(data.decode("utf-8", errors="replace") if b"\x00" not in data else data[:50_000].decode("latin-1"))
    learned = learn_merges((text[:20_000] for text in texts), 4096)
    pieces = [piece for text in texts for piece in learned.pieces(text.encode())]
    module.GigatokenEngine(learned).check(pieces)


# -- what a process takes ------------------------------------------------------------------------------------------


def told_by_a_process(code: str, kind: str, texts: list[str], folder: Path) -> list[str]:
    """The words that a program prints, which is given what `tokenise_segment` takes."""
    source = write_documents(folder / "in", texts)
    KINDS[kind].save(folder / "tokenizer.json")
    arguments = [str(source), str(folder / "tokenizer.json"), KINDS[kind].fingerprint, str(folder)]
    root = str(Path(__file__).resolve().parents[3])
    told = subprocess.run([sys.executable, "-c", code, root, *arguments], capture_output=True, text=True, check=True)
    return told.stdout.split()


PEAK = r"""
import pathlib, re, sys
sys.path.insert(0, sys.argv[1])
from tasks.tokens.tokenise import TokeniseSettings, tokenise_segment
source, tokenizer, out = map(pathlib.Path, (sys.argv[2], sys.argv[3], sys.argv[5]))
made = tokenise_segment(source, tokenizer, sys.argv[4], out, TokeniseSettings(), "auto", lambda done, total: None)
peak = re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())  # ru_maxrss knows the parent's, too
print(made["engine"].split()[0], int(peak[1]) * 1024)
"""


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell a process's peak")
@pytest.mark.parametrize("kind", ["char", "bpe", "bytes"])
def test_a_long_document_needs_a_few_times_its_size(kind: str, tmp_path: Path) -> None:
    text = prose(3, 2_000_000) * 6
    name, peak = told_by_a_process(PEAK, kind, [text], tmp_path)
    assert name in ("reference", "gigatoken")
    assert int(peak) < 2**27 + 6 * len(text.encode())
