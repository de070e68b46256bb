"""The stages `characters` and `legibility`: find and mend what OCR misread, without knowing what stands on the page.

A model of character n-grams, fitted on the corpus's own text that no OCR read, tells how many bits the characters of a
passage need. Some of that text is held out and damaged at known rates, which turns bits into an estimated share of
wrong characters. The words of that text tell which words OCR misread (`tasks.text.mending`). The model is kept until
the text it can be fitted on has doubled or has another language, so that growth leaves the estimates of earlier
documents as they are.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from storage.digest import sha256_file, sha256_json
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, LEGIBILITY, LEGIBILITY_FILE, MEASURES, MEASURES_FILE, PAGES_FILE
from storage.store import StoreError
from storage.tables import count_rows, read_places, stream_rows, union_digest, unpacked_size, write_table
from tasks.core.stage import NoSettings, Work, stage
from tasks.curate.corpus import Corpus, matching_folders, tables_of
from tasks.curate.measure import CLEAN_BYTES, UNDETERMINED
from tasks.readers.records import EARLIER_OCR
from tasks.text.kneser_ney import KneserNey
from tasks.text.mending import mends, word_counts

if TYPE_CHECKING:
    from tasks.core.run import Run

I64 = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]

FIT_BYTES = 2_000_000
LEAST_BYTES = 50_000  # of text to fit on, in all and of a language whose text is judged
ORDER = 5
CHARACTERS = 250  # most frequent ones that are told apart
HELD_OUT = 10  # one of so many parts is damaged
RATES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
PART = 2_000  # characters: texts are divided before some are held out
LONGEST = 100_000  # characters of a document that the model is fitted on, unless there are few
RECORDED = 0.01  # least share of wrong characters of a passage that is recorded
PASSAGE = 300  # characters of a passage at least, in whole lines
SURE = 0.93  # mean confidence of Tesseract in the words of pages without errors; it falls as fast as errors rise
ANCHOR, ANCHORS = 20, 20  # characters of a line by which a page is found, and lines that are tried
MOVED = 10_000  # characters that a page may begin later than those before it suggest
AT_ONCE = 2**20  # characters that are judged together
SEED = 0
CURVE_FILE = "curve.json"

_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Characters:
    """A model of the characters of clean text, and what errors cost in it.

    Attributes:
        model: Model of their numbers.
        alphabet: The characters with a number of their own, from 1; all others have 0.
        bits: Mean bits a character of clean text with each of `RATES` of its characters replaced, ascending.
        languages: ISO 639-1 codes of the languages it was fitted on.
        words: How often each word occurs in clean text.
    """

    model: KneserNey
    alphabet: str
    bits: tuple[float, ...]
    languages: tuple[str, ...]
    words: Mapping[str, int]

    @classmethod
    def fit(cls, texts: Sequence[str], languages: Iterable[str] = ()) -> Characters:
        """Fit a model on texts, of which every `HELD_OUT`-th is damaged to learn what errors cost.

        Args:
            texts: At least two.
            languages: Their languages.
        """
        spaced = [_SPACE.sub(" ", text) for text in texts]
        counts: Counter[str] = Counter()
        for text in spaced:
            counts.update(text)
        alphabet = "".join(sorted(counts, key=lambda character: (-counts[character], character))[:CHARACTERS])
        fitted: list[I64] = []
        held_out: list[I64] = []
        for number, text in enumerate(spaced):
            (fitted if number % HELD_OUT else held_out).append(_numbers(text, alphabet))
        vocabulary = len(alphabet) + 1
        model = KneserNey.fit(np.concatenate(fitted), np.array([*map(len, fitted)]), vocabulary, ORDER)
        generator = np.random.default_rng(SEED)
        clean = np.concatenate(held_out)
        usual = np.concatenate(fitted)
        bits = [_mean_bits(model, _damaged(clean, usual, rate, generator)) for rate in RATES]
        curve = tuple(np.maximum.accumulate(bits).round(6).tolist())
        # the parts of a text in a row, so that none of its words is cut
        return cls(model, alphabet, curve, tuple(sorted(languages)), word_counts(["".join(texts)]))

    def save(self, folder: Path) -> None:
        """Write the model into a folder; see `load`."""
        self.model.save(folder)
        curve = {"alphabet": self.alphabet, "bits": self.bits, "languages": self.languages, "words": self.words}
        (folder / CURVE_FILE).write_text(json.dumps(curve, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Characters:
        """Read the model that `save` wrote."""
        curve = json.loads((folder / CURVE_FILE).read_text(encoding="utf-8"))
        saved = KneserNey.load(folder)
        model = KneserNey(tuple(saved.orders), saved.vocab_size, saved.tokens)
        return cls(model, curve["alphabet"], tuple(curve["bits"]), tuple(curve["languages"]), curve["words"])

    def passages(self, text: str) -> Iterator[tuple[int, int, float]]:
        """Yield start, length and estimated share of wrong characters of the passages of a text, which cover it."""
        ends = _passage_ends(text)
        first = 0
        while first < len(ends) - 1:
            last = max(first + 1, bisect_right(ends, ends[first] + AT_ONCE) - 1)
            yield from self._judged(text[ends[first] : ends[last]], ends[first : last + 1])
            first = last

    def _judged(self, text: str, ends: Sequence[int]) -> Iterator[tuple[int, int, float]]:
        numbers = _numbers(re.sub(r"\s", " ", text), self.alphabet)
        # a run of spaces, as in a table, tells nothing
        told = np.append(True, (numbers[1:] != numbers[:-1]) | (numbers[1:] != _numbers(" ", self.alphabet)[0]))
        kept = numbers[told]
        bits = np.zeros(len(numbers))
        bits[told] = self.model.nll(kept, np.array([len(kept)])) / np.log(2)
        sums, counts = (np.append(0.0, np.cumsum(values)) for values in (bits, told))
        for start, end in pairwise(ends):
            own = [start - ends[0], end - ends[0]]
            mean = np.diff(sums[own])[0] / max(np.diff(counts[own])[0], 1)
            yield start, end - start, round(float(np.interp(mean, self.bits, RATES)), 4)


def _numbers(text: str, alphabet: str) -> I64:
    """Return the number of each character of a text."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.int64)
    known = np.frombuffer(alphabet.encode("utf-32-le"), dtype="<u4").astype(np.int64)
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known[order], points), len(known) - 1)
    return np.where(known[order][place] == points, order[place] + 1, 0)


def _damaged(numbers: I64, usual: I64, rate: float, generator: np.random.Generator) -> I64:
    """Return text with a share of its characters replaced by others of usual text."""
    replaced = generator.random(len(numbers)) < rate
    return np.where(replaced, generator.choice(usual, len(numbers)), numbers)


def _mean_bits(model: KneserNey, numbers: I64) -> float:
    return float(model.nll(numbers, np.array([len(numbers)])).mean() / np.log(2))


def _passage_ends(text: str) -> list[int]:
    """Return the ends of passages of whole lines, with 0 before them; the rest of a text belongs to the last one."""
    ends = [0]
    for line in re.finditer(r"\n", text):
        if line.end() - ends[-1] >= PASSAGE:
            ends.append(line.end())
    if text and (len(text) - ends[-1] >= PASSAGE or len(ends) == 1):
        ends.append(len(text))
    else:
        ends[-1] = len(text)
    # a line without end is cut
    return [0, *(place for start, end in pairwise(ends) for place in (*range(start + AT_ONCE, end, AT_ONCE), end))]


def page_places(text: str, pages: Sequence[tuple[str, float]]) -> list[tuple[int, float]]:
    """Return where pages begin in the text of their document, which was normalised, with their second values.

    A page begins where its first line of enough characters is found that also occurs near the place at which the pages
    before it end.
    """
    found: list[tuple[int, float]] = []
    after, until = 0, MOVED
    for page, value in pages:
        until += len(page)
        lines = islice((line for line in map(str.strip, page.split("\n")) if len(line) >= ANCHOR), ANCHORS)
        place = next((place for line in lines if (place := text.find(line, after, until)) >= 0), None)
        if place is not None:
            found.append((place, value))
            after, until = place + ANCHOR, place + len(page) + MOVED
    return found


def believed(
    passages: Iterable[tuple[int, int, float]], pages: Sequence[tuple[int, float]]
) -> Iterator[tuple[int, int, float]]:
    """Yield passages with no more wrong characters than their page has room for.

    Text unlike the rest of the corpus, such as code or a list of names, is no misread text where the engine was sure.

    Args:
        pages: Where each begins, and the largest share of wrong characters on it; see `_room`.
    """
    for start, length, rate in passages:
        yield start, length, round(min(rate, room_at(start + length // 2, pages)), 4)


def room_at(place: int, pages: Sequence[tuple[int, float]]) -> float:
    """Return the largest share of wrong characters on the page of a character; 1 before all of them."""
    page = bisect_right(pages, place, key=lambda item: item[0]) - 1
    return pages[page][1] if page >= 0 else 1.0


def room(method: str, engine: str, confidence: float | None) -> float:
    """Return the largest share of wrong characters on a page, by what is known of its reader."""
    if method in ("ocr", "both"):
        return 1.0 if confidence is None else max(0.0, SURE - confidence)
    return 1.0 if engine in EARLIER_OCR else 0.0


@stage("characters", version=2, pinned=True, unkeyed=("clean",))
def characters(
    work: Work,
    settings: NoSettings,
    *,
    snapshot: ArtifactRef,
    documents: RefSet,
    measures: RefSet,
    clean: Mapping[str, int],
) -> str:
    """Fit a model of the characters of text that no OCR read, with an equal share of each language.

    `clean` are the bytes of such text by language, to compare with later ones.
    """
    tables = tables_of(work.store, documents)
    measured = matching_folders(work.store, documents, measures)
    with Corpus(work.machine.query_bytes, work.scratch) as corpus:
        corpus.want_live(work.folder(snapshot))
        corpus.locate(tables, DOCUMENTS_FILE, ["kind", "ocr_share", "n_bytes"])
        languages = corpus.rows_of(measured, MEASURES_FILE, MEASURES)
        chosen = corpus.sql(
            f"with clean as (select part, place, located.doc_id, language, least(n_bytes, {LONGEST}) as used "
            f"from located join {languages} as measures using (part, place) where located.kind <> 'code' and "
            "ocr_share = 0), turns as (select *, sum(used) over (partition by language order by doc_id) as turn "
            "from clean), chosen as (select *, sum(used) over (order by turn, doc_id) - used as before from turns) "
            f"select part, place, language from chosen where before < {FIT_BYTES} order by turn, doc_id"
        ).fetchall()
    made = work.in_subprocess(
        fit_characters, FIT_BYTES, chosen=[(tables[part].folder, *rest) for part, *rest in chosen], out=work.out
    )
    work.counts.update(made["counts"], **{f"{CLEAN_BYTES}{language}": n for language, n in clean.items()})
    return str(made["digest"])


def fit_characters(chosen: list[tuple[str, int, str]], out: Path, progress: Progress) -> dict[str, Any]:
    """Fit and write the model of some documents, given by folder, row and language; return counts and a digest."""
    wanted: dict[str, list[int]] = {}
    for folder, row, _ in chosen:
        wanted.setdefault(folder, []).append(row)
    found = {
        (folder, row): text
        for folder, rows in wanted.items()
        for row, text in read_places(Path(folder) / DOCUMENTS_FILE, "text", sorted(rows)).items()
    }
    longest = max(LONGEST, FIT_BYTES // max(1, len(chosen)))
    held: Counter[str] = Counter()
    parts: list[str] = []
    for folder, row, language in chosen:
        text = found.pop((folder, row))
        held[language] += len(text)
        parts += [text[start : start + PART] for start in range(0, min(len(text), longest), PART)]
    # too few where the documents that were counted are gone: then nothing is judged
    model = Characters.fit(parts if len(parts) > 1 else [" ", " "], _known_languages(held))
    model.save(out)
    progress(len(chosen), len(chosen))
    counts = {"rows": len(chosen), "bytes": sum(len(part.encode()) for part in parts)}
    return {"counts": counts, "digest": sha256_json([sha256_file(path) for path in sorted(out.iterdir())])}


def corpus_characters(
    run: Run, snapshot: ArtifactRef, documents: RefSet, measures: RefSet, measured: Sequence[ArtifactRef]
) -> ArtifactRef | None:
    """Return the model of the corpus's characters, fitted again once its clean text has doubled or a new language.

    Returns:
        None if no document was read by OCR, or too little text was not.
    """
    counts = [manifest_of(run.store, ref).counts for ref in measured if ref.made]
    n_read = sum(found["by_ocr"] for found in counts)
    clean: Counter[str] = Counter()
    for found in counts:
        clean.update(_clean_bytes(found))
    wanted = _known_languages(clean)
    if not n_read or not wanted:
        if n_read and len(counts) == len(measured):
            _note_unjudged(run, n_read, n_read)
        return None
    pinned = characters.pinned(run)
    if pinned is not None and manifest_of(run.store, pinned).version == characters.version:
        before = _clean_bytes(manifest_of(run.store, pinned).counts)
        has_grown = 2 * min(before.total(), FIT_BYTES) <= min(clean.total(), FIT_BYTES)
        if not has_grown and wanted <= _known_languages(before):
            return run.reuse(characters, pinned)
    return characters(run, NoSettings(), snapshot=snapshot, documents=documents, measures=measures, clean=clean)


def _clean_bytes(counts: Mapping[str, int]) -> Counter[str]:
    """Return the bytes of text that no OCR read, by language."""
    return Counter({name.removeprefix(CLEAN_BYTES): n for name, n in counts.items() if name.startswith(CLEAN_BYTES)})


def _known_languages(clean: Mapping[str, int]) -> set[str]:
    """Return the languages with enough text to fit on."""
    return {language for language, n_bytes in clean.items() if n_bytes >= LEAST_BYTES and language != UNDETERMINED}


def note_unjudged(run: Run, judged: Sequence[ArtifactRef]) -> None:
    """Tell the user of documents that OCR read and that were not judged."""
    counts = [manifest_of(run.store, ref).counts for ref in judged if ref.made]
    n_read, n_judged = (sum(found[name] for found in counts) for name in ("by_ocr", "judged"))
    if n_judged < n_read:
        _note_unjudged(run, n_read - n_judged, n_read)


def judged_segments(run: Run, judged: Sequence[ArtifactRef]) -> list[RefSet]:
    """Return the legibility of each segment; nothing for one without judged documents, which no new model changes."""
    return [RefSet.of([ref] if not ref.made or manifest_of(run.store, ref).counts["judged"] else []) for ref in judged]


def _note_unjudged(run: Run, n: int, n_read: int) -> None:
    run.note(
        f"misread text was not looked for in {n} of the {n_read} documents that OCR read: that takes {LEAST_BYTES:,} "
        "bytes of other text in their language, which no OCR read"
    )


@stage("legibility", version=2, unit="document", tables={LEGIBILITY_FILE: LEGIBILITY})
def legibility(
    work: Work,
    settings: NoSettings,
    *,
    segment: ArtifactRef,
    documents: ArtifactRef,
    measures: ArtifactRef,
    characters: ArtifactRef,
) -> str:
    """Estimate the share of wrong characters in the passages of one segment's documents, and mend words."""
    source = work.folder(documents) / DOCUMENTS_FILE
    made = work.in_subprocess(
        judge_segment,
        unpacked_size(source),
        pages=work.folder(segment) / PAGES_FILE,
        source=source,
        measures=work.folder(measures) / MEASURES_FILE,
        model=work.folder(characters),
        out=work.out,
    )
    work.counts.update(rows=made["rows"], units=made["rows"], by_ocr=made["by_ocr"], judged=made["judged"])
    return str(made["digest"])


@lru_cache(maxsize=1)  # the same process judges the segments one after the other
def _load(model: Path) -> Characters:
    return Characters.load(model)


def judge_segment(
    pages: Path, source: Path, measures: Path, model: Path, out: Path, progress: Progress
) -> dict[str, Any]:
    """Write the legibility of a table of documents; return counts and a digest."""
    by_ocr = {row["doc_id"] for row in stream_rows(source, ["doc_id", "ocr_share"]) if row["ocr_share"] > 0}
    known = _load(model)
    languages = {*known.languages, UNDETERMINED} if known.languages else ()  # that of garbled text cannot be told
    read: dict[str, list[tuple[str, float]]] = {}  # texts of the pages of these, and room for errors
    for page in stream_rows(pages, ["doc_id", "text", "method", "engine", "confidence"]) if by_ocr else ():
        if page["doc_id"] in by_ocr:
            own = page["text"], room(page["method"], page["engine"], page["confidence"])
            read.setdefault(page["doc_id"], []).append(own)
    judged, n_rows = 0, count_rows(source)

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal judged
        found = zip(
            stream_rows(source, ["doc_id", "text"] if by_ocr else ["doc_id"]),
            stream_rows(measures, ["doc_id", "language"]),  # the same documents in the same order
            strict=True,
        )
        for done, (row, measured) in enumerate(found, start=1):
            if row["doc_id"] != measured["doc_id"]:
                raise StoreError(f"{measures} has the measures of other documents than {source}: --refresh measure")
            passages, mended = [], []
            if row["doc_id"] in read and measured["language"] in languages:
                places = page_places(row["text"], read.pop(row["doc_id"]))
                passages = list(believed(known.passages(row["text"]), places))
                # only on pages that were read by OCR
                mended = [mend for mend in mends(row["text"], known.words) if room_at(mend[0], places) > 0]
            judged += bool(passages)
            n_chars = sum(length for _, length, _ in passages)
            error = round(sum(length * rate for _, length, rate in passages) / n_chars, 4) if passages else None
            bad = [passage for passage in passages if passage[2] >= RECORDED]
            yield {
                "doc_id": row["doc_id"],
                "error_rate": error,
                "passages": [dict(zip(("start", "length", "error_rate"), passage, strict=True)) for passage in bad],
                "mends": [{"start": start, "length": end - start, "text": new} for start, end, new in mended],
                "digest": sha256_json([error, bad, mended]),
            }
            progress(done, n_rows)

    table = out / LEGIBILITY_FILE
    count = write_table(table, LEGIBILITY, rows())
    return {"rows": count, "by_ocr": len(by_ocr), "judged": judged, "digest": union_digest([table])}
