"""Tokenisers: round trips on hostile text, no forged control tokens, fits that repeat to the byte."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_samples import HOSTILE, prose

from tasks.tokens.hf_spec import cut_text
from tasks.tokens.settings import TokenizerSettings
from tasks.tokens.tokenizer import CHAR_BELOW_BYTES, choose, fit_tokenizer, learn_merges
from tasks.tokens.tokenizer_kinds import (
    EOS,
    N_SPECIAL,
    UNK,
    AsciiTokenizer,
    BpeTokenizer,
    ByteTokenizer,
    CharTableTokenizer,
    CharTokenizer,
    Tokenizer,
    TokenizerError,
    WordTokenizer,
    load_tokenizer,
)

KINDS = ("char", "ascii", "bytes", "word", "bpe")


@pytest.fixture(scope="module")
def bpe() -> BpeTokenizer:
    # special tokens lie in the training text too: they must not become mergeable control tokens
    return learn_merges([prose(), "<|bos|> <|eos|> " * 500], 600)


@pytest.fixture(scope="module")
def char() -> CharTokenizer:
    return CharTokenizer.fit([prose()])


def fitted(texts: list[str], **asked: Any) -> Tokenizer:
    return fit_tokenizer([text.encode() for text in texts], TokenizerSettings(**asked))[0]


@pytest.mark.parametrize("name", HOSTILE)
def test_bpe_gives_every_text_back_and_makes_no_control_token_of_it(bpe: BpeTokenizer, name: str) -> None:
    text = HOSTILE[name]
    ids = bpe.encode([text])[0]
    assert bpe.decode(ids.tolist()) == text
    assert bpe.lost_bytes(text, ids) == 0
    assert not len(ids) or (ids.min() >= N_SPECIAL and ids.max() < bpe.vocab_size)


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


@pytest.mark.parametrize("reserved", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_is_read_back_equal(kind: str, reserved: int, tmp_path: Path) -> None:
    made = fitted([prose(), HOSTILE["emoji"], "\u2028\x00\r"], kind=kind, reserved=reserved)
    made.save(tmp_path / "one.json")
    loaded = load_tokenizer(tmp_path / "one.json")
    loaded.save(tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert (loaded.vocab_size, loaded.special_ids) == (made.vocab_size, made.special_ids)
    for text in HOSTILE.values():
        assert np.array_equal(loaded.encode([text])[0], made.encode([text])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_is_that_of_the_saved_file(kind: str, tmp_path: Path) -> None:
    made = fitted([prose()], kind=kind)
    made.save(tmp_path / "tokenizer.json")
    assert made.fingerprint == hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()
    assert load_tokenizer(tmp_path / "tokenizer.json", made.fingerprint).fingerprint == made.fingerprint


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"kind": "char", "alph', "Unterminated string"),
        ("[]", "a list, expected the JSON of a tokeniser"),
        ('{"kind": "char"}', "the tokeniser lacks 'alphabet'"),
        ('{"kind": "char", "alphabet": "aa"}', "has a character twice"),
        ('{"kind": "table", "vocabulary": {"ab": 4}}', "'ab' is not one character"),
        ('{"kind": "bpe", "spec": {"version": "1.0"}}', "not a tokeniser that `tokenizers` can read"),
        ('{"kind": "word", "vocabulary": {"the": 1}}', "from 4 (0 to 3 are special)"),
        ('{"kind": "word", "vocabulary": {"the": 4, "fold": 4}}', "'the' and 'fold' have the same id 4"),
        ("\x00\x01", "Expecting value"),
    ],
)
def test_a_broken_file_is_told_by_name(content: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=rf"tokenizer\.json: .*{re.escape(told)}"):
        load_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("kind", KINDS)
def test_reserved_ids_are_the_last_ones_and_no_text(kind: str) -> None:
    plain, made = (fitted([prose()], kind=kind, reserved=reserved) for reserved in (0, 5))
    last = tuple(range(plain.vocab_size, plain.vocab_size + 5))
    assert (made.vocab_size, made.special_ids) == (plain.vocab_size + 5, (0, 1, 2, 3, *last))
    ids = made.encode(["the sheep"])[0]
    assert np.array_equal(ids, plain.encode(["the sheep"])[0])
    assert made.decode([*last, *ids.tolist(), *last]) == "the sheep" if kind != "word" else "thesheep"


@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
def test_reserved_ids_are_part_of_the_size_that_is_asked_for(kind: str) -> None:
    made = fitted([prose()], kind=kind, vocab_size=280, reserved=10)
    assert made.vocab_size <= 280
    assert made.special_ids[-10:] == tuple(range(made.vocab_size - 10, made.vocab_size))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["", "a", "a" * 10_000, " ", "\n\n"])
def test_poor_training_texts_are_enough(kind: str, text: str) -> None:
    made = fitted([text], kind=kind)
    ids = made.encode([text])[0]
    assert made.decode(ids.tolist()) == text
    assert made.lost_bytes(text, ids) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_of_unknown_characters_loses_all_its_bytes_or_none(kind: str) -> None:
    made, text = fitted(["abc def"], kind=kind), "東京 東京"
    ids = made.encode([text])[0]
    lost = made.lost_bytes(text, ids)
    if kind in ("bytes", "bpe"):
        assert (lost, made.decode(ids.tolist())) == (0, text)
    else:
        assert lost == len(text.encode()) - (kind in ("char", "word", "ascii"))  # the space is known
        assert set(ids.tolist()) <= {UNK, *made.encode([" "])[0].tolist()}


def test_fits_repeat_to_the_byte_in_processes_with_other_hash_seeds(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[3]);"
        "from tasks.tokens.settings import TokenizerSettings; from tasks.tokens.tokenizer import fit_tokenizer;"
        "text = pathlib.Path(sys.argv[1]).read_text(encoding='utf-8');"
        "texts = [text.encode(), text[::-1].encode()];"
        "[fit_tokenizer(texts, TokenizerSettings(kind=kind))[0].save(pathlib.Path(sys.argv[2], kind))"
        " for kind in ('char', 'word', 'bpe')]"
    )
    source = tmp_path / "text.txt"
    source.write_text(prose(5) + HOSTILE["emoji"], encoding="utf-8")
    root = str(Path(__file__).resolve().parents[3])
    written = []
    for seed in ("0", "12345"):
        target = tmp_path / seed
        target.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", script, source, target, root], env=environment, check=True)
        written.append({path.name: path.read_bytes() for path in target.iterdir()})
    assert written[0] == written[1]
    assert len(written[0]) == 3


@pytest.mark.parametrize(
    ("n_bytes", "kind", "word"), [(CHAR_BELOW_BYTES - 1, "char", "are less"), (CHAR_BELOW_BYTES, "bpe", "not less")]
)
def test_the_size_of_the_text_picks_the_kind_and_says_why(n_bytes: int, kind: str, word: str) -> None:
    chosen, _, why = choose(TokenizerSettings(), n_bytes)
    assert chosen == kind
    assert word in why
    assert f"{n_bytes:,}" in why


def test_an_explicit_kind_wins_over_the_size() -> None:
    kind, size, why = choose(TokenizerSettings(kind="bpe"), 10)
    assert (kind, size) == ("bpe", 512)
    assert why.startswith("asked for; the size, for about")
    assert choose(TokenizerSettings(kind="char"), 10**9)[::2] == ("char", "asked for")


def test_a_bpe_vocabulary_grows_with_the_text_up_to_its_limit() -> None:
    sizes = [choose(TokenizerSettings(kind="bpe"), n_bytes)[1] for n_bytes in (0, 10**6, 4 * 10**6, 10**9, 10**12)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 512
    assert sizes[-1] == 8192


def test_the_sentence_on_the_choice_names_kind_and_size() -> None:
    found, why, _ = fit_tokenizer([prose().encode()], TokenizerSettings(kind="bpe", vocab_size=300))
    assert isinstance(found, BpeTokenizer)
    assert why == "byte-level BPE of 300: asked for"


def test_a_byte_and_four_is_its_id() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode(["a€"])[0].tolist() == [101, 0xE2 + 4, 0x82 + 4, 0xAC + 4]
    assert tokenizer.vocab_size == 260


def test_half_a_character_of_bytes_is_told_as_one_that_is_not_there() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(["a€"])[0].tolist()[:-1]) == "a\ufffd"


def test_words_are_looked_up_and_put_together_with_spaces() -> None:
    tokenizer = WordTokenizer({"Hi": 4, "Thomas": 8, "Nguyen": 9})
    assert tokenizer.encode(["Hi Thomas"])[0].tolist() == [4, 8]
    assert tokenizer.decode([4, 8, 9]) == "Hi Thomas Nguyen"
    assert tokenizer.decode_continuation([4, 8], [9]) == " Nguyen"
    assert tokenizer.vocab_size == 10


def test_unknown_words_become_unk_and_their_bytes_are_counted() -> None:
    tokenizer = WordTokenizer({"Hi": 4})
    ids = tokenizer.encode(["Hi straße  Hi"])[0]
    assert ids.tolist() == [4, UNK, UNK, 4]
    assert tokenizer.lost_bytes("Hi straße  Hi", ids) == len("straße  ".encode())


@pytest.mark.parametrize("made", [WordTokenizer({"Hi": 4, "Thomas": 8}, 1), CharTableTokenizer({" ": 4, "z": 8}, 1)])
def test_ids_in_gaps_of_a_table_stand_for_no_text(made: Tokenizer) -> None:
    assert (made.vocab_size, made.special_ids) == (10, (0, 1, 2, 3, 5, 6, 7, 9))
    assert made.decode([5, 6, 7, 9]) == ""


def test_a_word_vocabulary_holds_the_most_frequent_words() -> None:
    made = fitted(["a a a b b c\n"], kind="word", vocab_size=6)
    assert isinstance(made, WordTokenizer)
    assert made.vocabulary == {"a": 4, "b": 5}


@pytest.mark.parametrize("kind", ["ascii", "bytes", "file"])
def test_kinds_with_ids_of_their_own_take_no_size(kind: str) -> None:
    with pytest.raises(ValueError, match="leave it out"):
        TokenizerSettings(kind=kind, vocab_size=300, file="x" if kind == "file" else "")


@pytest.mark.parametrize(("kind", "file"), [("file", ""), ("bpe", "tokenizer.json")])
def test_a_file_goes_with_its_kind(kind: str, file: str) -> None:
    with pytest.raises(ValueError, match="a file goes with kind file"):
        TokenizerSettings(kind=kind, file=file)


@given(st.text())
@settings(max_examples=100, deadline=None)
def test_bytes_give_every_text_back(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode([text])[0]
    assert (tokenizer.decode([2, *ids.tolist(), EOS]), tokenizer.lost_bytes(text, ids)) == (text, 0)
    assert not len(ids) or (ids.min() >= N_SPECIAL and ids.max() < tokenizer.vocab_size)


@given(st.lists(st.text()))
@settings(max_examples=40, deadline=None)
def test_characters_and_words_give_training_texts_back(texts: list[str]) -> None:
    for made in (CharTokenizer.fit(texts), WordTokenizer.fit(texts, 10**6)):
        for text, ids in zip(texts, made.encode(texts), strict=True):
            assert (made.decode(ids.tolist()), made.lost_bytes(text, ids)) == (text, 0)


@given(st.text(), st.text(alphabet="ab ß東\n"))
@settings(max_examples=40, deadline=None)
def test_what_is_lost_is_what_does_not_come_back(seen: str, text: str) -> None:
    for made in (CharTokenizer.fit([seen]), AsciiTokenizer()):
        ids = made.encode([text])[0]
        assert len(made.decode(ids.tolist()).encode()) + made.lost_bytes(text, ids) == len(text.encode())


@given(text=st.text(alphabet="aé 1.,'s東。\n\t\u00a0\u3000", min_size=1), size=st.integers(12, 24))
@settings(max_examples=150, deadline=None)
def test_pieces_that_are_cut_before_spaces_have_the_ids_of_the_whole(bpe: BpeTokenizer, text: str, size: int) -> None:
    pieces = [piece.decode() for piece in cut_text(text.encode(), size)]
    if all(later.startswith(" ") and not earlier[-1].isspace() for earlier, later in pairwise(pieces)):
        whole = bpe.encode([text])[0]
        assert np.array_equal(np.concatenate(bpe.encode(pieces)), whole)
