"""Tokenisers: round trips on hostile text, no forged control tokens, fits that repeat to the byte."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tasks.settings import TokenizerSettings
from tasks.tokens.fit import CHAR_BELOW_BYTES, choose, fit_tokenizer
from tasks.tokens.tokenizer import (
    MIN_BPE_VOCAB,
    N_SPECIAL,
    SPECIAL_TOKENS,
    UNK,
    AsciiTokenizer,
    BpeTokenizer,
    CharTokenizer,
    Tokenizer,
    load_tokenizer,
)

TEXT = "the shepherd counts his sheep and the fold is full of wool über straße 東京 naïve"


def prose(seed: int = 0, n_words: int = 2_000) -> str:
    return " ".join(random.Random(seed).choices(TEXT.split(), k=n_words))


HOSTILE = {
    "special-tokens": "".join(SPECIAL_TOKENS) + " <|endoftext|> <|bos|><|pad|>\n<|unk|>x",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 😀",
    "nul": "a\x00b\x00",
    "controls": "".join(map(chr, range(32))),
    "long-line": "a" * 100_000,
    "spaces": " \t  \n\n   \u00a0\u2028 ",
    "combining": "e\u0301\u0302\u0303" * 50,
    "astral": "\U0010ffff\U00010000",
    "empty": "",
    "digits": "1234567890" * 20,
    "unseen-script": "Ελληνικά עברית العربية ไทย",
}


@pytest.fixture(scope="module")
def bpe() -> BpeTokenizer:
    # special tokens lie in the training text too: they must not become mergeable control tokens
    return BpeTokenizer.fit([prose(), "<|bos|> <|eos|> " * 500], 600)


@pytest.fixture(scope="module")
def char() -> CharTokenizer:
    return CharTokenizer.fit([prose()])


@pytest.mark.parametrize("name", HOSTILE)
def test_bpe_gives_every_text_back(bpe: BpeTokenizer, name: str) -> None:
    text = HOSTILE[name]
    ids = bpe.encode([text])[0]
    assert bpe.decode(ids.tolist()) == text
    assert bpe.lost_bytes(text, ids) == 0


@pytest.mark.parametrize("name", HOSTILE)
def test_bpe_never_makes_a_control_token_from_text(bpe: BpeTokenizer, name: str) -> None:
    ids = bpe.encode([HOSTILE[name]])[0]
    assert not len(ids) or (ids.min() >= N_SPECIAL and ids.max() < bpe.vocab_size)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_reloaded_bpe_makes_no_control_token_either(bpe: BpeTokenizer, tmp_path: Path, name: str) -> None:
    bpe.save(tmp_path / "tokenizer.json")
    ids = load_tokenizer(tmp_path / "tokenizer.json").encode([HOSTILE[name]])[0]
    assert np.array_equal(ids, bpe.encode([HOSTILE[name]])[0])


@pytest.mark.parametrize("name", HOSTILE)
def test_characters_make_no_control_token_but_unk(name: str) -> None:
    text = HOSTILE[name]
    fitted = CharTokenizer.fit([text, "x"])
    ids = fitted.encode([text])[0]
    assert len(ids) == len(text)
    assert not len(ids) or ids.min() >= N_SPECIAL
    assert fitted.decode(ids.tolist()) == text


def test_character_ids_follow_the_special_ones_in_code_point_order() -> None:
    fitted = CharTokenizer.fit(["cab", "ää"])
    assert fitted.encode(["abcä"])[0].tolist() == [4, 5, 6, 7]
    assert fitted.vocab_size == 8


def test_an_ascii_id_is_the_code_of_its_character() -> None:
    tokenizer = AsciiTokenizer()
    assert tokenizer.encode(["Hello World", "Hi"])[0].tolist() == list(b"Hello World")
    assert tokenizer.vocab_size == 128


def test_ascii_text_comes_back_but_for_the_codes_of_special_tokens() -> None:
    tokenizer, text = AsciiTokenizer(), "".join(map(chr, range(128)))
    ids = tokenizer.encode([text])[0]
    assert ids.tolist() == [UNK] * N_SPECIAL + list(range(N_SPECIAL, 128))
    assert tokenizer.decode(ids.tolist()) == text[N_SPECIAL:]
    assert tokenizer.lost_bytes(text, ids) == N_SPECIAL


@pytest.mark.parametrize("name", HOSTILE)
def test_ascii_makes_no_control_token_but_unk(name: str) -> None:
    tokenizer, text = AsciiTokenizer(), HOSTILE[name]
    ids = tokenizer.encode([text])[0]
    assert len(ids) == len(text)
    assert set(ids.tolist()) <= {UNK, *range(N_SPECIAL, 128)}
    known = "".join(char for char in text if N_SPECIAL <= ord(char) < 128)
    assert tokenizer.decode(ids.tolist()) == known
    assert tokenizer.lost_bytes(text, ids) == len(text.encode()) - len(known)


def test_ascii_is_chosen_by_name_and_fits_nothing() -> None:
    fitted, why = fit_tokenizer([prose(), HOSTILE["emoji"]], TokenizerSettings(kind="ascii"))
    assert isinstance(fitted, AsciiTokenizer)
    assert why == "ASCII codes: asked for"


def test_ascii_takes_no_vocabulary_size() -> None:
    with pytest.raises(ValueError, match="ASCII has 128 ids"):
        TokenizerSettings(kind="ascii", vocab_size=300)


def test_the_order_of_texts_does_not_change_the_alphabet() -> None:
    assert CharTokenizer.fit(["ab", "cd"]).record() == CharTokenizer.fit(["dc", "ba"]).record()


def test_a_limited_alphabet_holds_the_most_frequent_characters() -> None:
    fitted = CharTokenizer.fit(["aaaa bbb cc d"], vocab_size=N_SPECIAL + 3)
    assert fitted.alphabet == " ab"
    assert fitted.vocab_size == N_SPECIAL + 3


def test_unseen_characters_become_unk_and_their_bytes_are_counted(char: CharTokenizer) -> None:
    text = "theQ€😀"
    ids = char.encode([text])[0]
    assert ids[3:].tolist() == [UNK] * 3
    assert char.lost_bytes(text, ids) == 1 + 3 + 4
    assert char.decode(ids.tolist()) == "the"


def test_texts_of_a_batch_do_not_touch_each_other(bpe: BpeTokenizer, char: CharTokenizer) -> None:
    texts = ["the sheep", "", "über", "x" * 500]
    for fitted in (bpe, char, AsciiTokenizer()):
        alone = [fitted.encode([text])[0].tolist() for text in texts]
        assert [ids.tolist() for ids in fitted.encode(texts)] == alone


def test_special_ids_decode_to_nothing(bpe: BpeTokenizer, char: CharTokenizer) -> None:
    for fitted in (bpe, char, AsciiTokenizer()):
        ids = fitted.encode(["the"])[0].tolist()
        assert fitted.decode([0, 1, 2, *ids, 3]) == "the"


@pytest.mark.parametrize("kind", ["char", "ascii", "bpe"])
def test_a_saved_tokenizer_is_read_back_equal(kind: str, tmp_path: Path) -> None:
    fitted, _ = fit_tokenizer([prose(), HOSTILE["emoji"], "\u2028\x00\r"], TokenizerSettings(kind=kind))
    fitted.save(tmp_path / "one.json")
    loaded = load_tokenizer(tmp_path / "one.json")
    loaded.save(tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert loaded.vocab_size == fitted.vocab_size
    for text in HOSTILE.values():
        assert np.array_equal(loaded.encode([text])[0], fitted.encode([text])[0])


def test_a_file_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"kind": "words"}')
    with pytest.raises(ValueError, match=r"tokenizer\.json: tokenizer kind is 'words'"):
        load_tokenizer(path)


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_a_fit_repeats_to_the_byte_in_processes_with_other_hash_seeds(kind: str, tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[3]);"
        "from tasks.settings import TokenizerSettings; from tasks.tokens.fit import fit_tokenizer;"
        "text = pathlib.Path(sys.argv[1]).read_text(encoding='utf-8');"
        f"fit_tokenizer([text, text[::-1]], TokenizerSettings(kind={kind!r}))[0].save(pathlib.Path(sys.argv[2]))"
    )
    source = tmp_path / "text.txt"
    source.write_text(prose(5) + HOSTILE["emoji"], encoding="utf-8")
    root = str(Path(__file__).resolve().parents[2])
    written = []
    for seed in ("0", "12345"):
        target = tmp_path / f"{seed}.json"
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", script, source, target, root], env=environment, check=True)
        written.append(target.read_bytes())
    assert written[0] == written[1]


def test_bpe_learns_no_more_ids_than_asked_for(bpe: BpeTokenizer) -> None:
    assert MIN_BPE_VOCAB < bpe.vocab_size <= 600


def test_bpe_of_a_tiny_text_still_holds_every_byte() -> None:
    fitted = BpeTokenizer.fit(["a"], 512)
    assert fitted.vocab_size == MIN_BPE_VOCAB
    assert fitted.decode(fitted.encode(["ÿ😀"])[0].tolist()) == "ÿ😀"


def test_a_vocabulary_too_small_for_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least 260"):
        BpeTokenizer.fit(["a"], 100)


@pytest.mark.parametrize("vocab_size", [1, 2, 3, 4])
def test_a_character_vocabulary_without_a_character_is_refused(vocab_size: int) -> None:
    with pytest.raises(ValueError, match="vocab_size"):
        CharTokenizer.fit(["abc"], vocab_size)


@pytest.mark.parametrize(
    ("n_bytes", "kind", "word"), [(CHAR_BELOW_BYTES - 1, "char", "are less"), (CHAR_BELOW_BYTES, "bpe", "not less")]
)
def test_the_size_of_the_text_picks_the_kind_and_says_why(n_bytes: int, kind: str, word: str) -> None:
    chosen, _, why = choose(TokenizerSettings(), n_bytes)
    assert chosen == kind
    assert word in why
    assert f"{n_bytes:,}" in why


def test_an_explicit_kind_wins_over_the_size() -> None:
    assert choose(TokenizerSettings(kind="bpe"), 10)[::2] == ("bpe", "asked for")
    assert choose(TokenizerSettings(kind="char"), 10**9)[::2] == ("char", "asked for")


def test_a_bpe_vocabulary_grows_with_the_text_up_to_its_limit() -> None:
    sizes = [choose(TokenizerSettings(kind="bpe"), n_bytes)[1] for n_bytes in (0, 10**6, 4 * 10**6, 10**9, 10**12)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 512
    assert sizes[-1] == 8192


def test_an_explicit_vocabulary_size_is_kept() -> None:
    assert choose(TokenizerSettings(kind="bpe", vocab_size=300), 10**9)[1] == 300


def test_the_sentence_on_the_choice_names_kind_and_size() -> None:
    fitted, why = fit_tokenizer([prose()], TokenizerSettings(kind="bpe", vocab_size=300))
    assert isinstance(fitted, Tokenizer)
    assert why == "byte-level BPE of 300: asked for"
