"""Tokenisers from elsewhere: what they lose is counted, no text forges a control token, and odd files are told."""

from __future__ import annotations

import json
import random
import re
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from tokenizer_samples import HOSTILE, byte_level_engine
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HfEngine

from tasks.report.vocabulary import special_names
from tasks.tokens.foreign import ForeignTokenizerError, digest_of_tokenizer_file, read_tokenizer_file
from tasks.tokens.hf_spec import WORD_PATTERNS, cut_text, spelled_bytes
from tasks.tokens.settings import TokenizerSettings
from tasks.tokens.tokenise import (
    ADDED_CHARS,
    ALL_ADDED_CHARS,
    WORTH_AN_ENGINE,
    GigatokenEngine,
    TokeniseSettings,
    choose_engine,
)
from tasks.tokens.tokenizer import FitSettings, learn_merges
from tasks.tokens.tokenizer_kinds import (
    HfTokenizer,
    Tokenizer,
    TokenizerError,
    load_tokenizer,
)
from tasks.upkeep.verify import _framing_problems

SPECIAL = ("<unk>", "<s>", "</s>")
TEXT = "the </s> a <s> the"


def spec_of(model: Any, **parts: Any) -> dict[str, Any]:
    """An engine's JSON, with three special tokens."""
    engine = HfEngine(model)
    engine.pre_tokenizer = parts.pop("pre_tokenizer", pre_tokenizers.WhitespaceSplit())
    engine.add_special_tokens(list(SPECIAL))
    return {**json.loads(engine.to_str()), **parts}


def word_level() -> dict[str, Any]:
    return spec_of(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2, "the": 3, "a": 4}, unk_token="<unk>"))


def unigram() -> dict[str, Any]:
    scores = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("▁the", -1.0), ("▁", -2.0), ("a", -2.0), ("th", -14.0)]
    scores += [("éa", -14.0), ("ab", -1.0), ("b", -13.5)]  # an unk and "ab" cost less than "éa" and "b"
    return spec_of(models.Unigram(scores, unk_id=0), pre_tokenizer=pre_tokenizers.Metaspace())


def byte_level(**options: Any) -> dict[str, Any]:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIAL, *letters, "</", "</s", "<s", "th", "the"]
    merges = [("<", "/"), ("</", "s"), ("</s", ">"), ("<", "s"), ("<s", ">"), ("t", "h"), ("th", "e")]
    model = models.BPE({word: index for index, word in enumerate(words)}, merges, **options)
    return spec_of(model, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))


def letters_only(**options: Any) -> dict[str, Any]:
    """Without an unknown token: what is no a and no b is left out."""
    engine = HfEngine(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], **options))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return json.loads(engine.to_str())


def read(folder: Path, spec: dict[str, Any], **beside: Any) -> HfTokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    for name, content in beside.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    found = read_tokenizer_file(folder / "tokenizer.json")
    assert isinstance(found, HfTokenizer)
    return found


# -- what is lost ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [word_level(), unigram()])
def test_the_unknown_token_is_the_model_s_own(spec: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = read(tmp_path, spec)
    assert tokenizer.unk_id == 0
    ids = tokenizer.encode(["the 東京 a"])[0]
    assert tokenizer.lost_bytes("the 東京 a", ids) == len("東京".encode())


def test_files_beside_do_not_overrule_what_the_model_gives_to_the_unknown(tmp_path: Path) -> None:
    assert read(tmp_path, word_level(), config={"unk_token_id": 2}).unk_id == 0


def test_what_a_model_leaves_out_is_lost(tmp_path: Path) -> None:
    tokenizer = read(tmp_path, letters_only())
    items = ["ab ba", "a東b éab c", "", "東京"]
    assert tokenizer.may_lose and tokenizer.unk_id is None
    expected = [0, 3 + 2 + 1, 0, 6]
    assert [
        tokenizer.lost_bytes(text, ids) for text, ids in zip(items, tokenizer.encode(items), strict=True)
    ] == expected


def test_a_character_is_lost_once_however_many_of_its_bytes_are_unknown() -> None:
    engine = HfEngine(models.BPE({"a": 0}, []))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = HfTokenizer(engine.to_str())
    assert tokenizer.lost_bytes("a東a", tokenizer.encode(["a東a"])[0]) == 3


@pytest.mark.parametrize("spec", [byte_level(), letters_only(byte_fallback=True)])
def test_a_model_that_spells_every_byte_loses_nothing(spec: dict[str, Any]) -> None:
    if "</s" not in spec["model"]["vocab"]:
        spec["model"]["vocab"] |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    assert not HfTokenizer(json.dumps(spec)).may_lose


# -- control tokens --------------------------------------------------------------------------------------------------

FORGEABLE = {
    "words": word_level(),
    "unigram": unigram(),
    "merges": byte_level(),
    "whole words": byte_level(ignore_merges=True),
}


@pytest.mark.parametrize("name", FORGEABLE)
def test_no_text_becomes_a_control_token_that_the_model_knows(name: str, tmp_path: Path) -> None:
    tokenizer = read(tmp_path, FORGEABLE[name], special_tokens_map={"bos_token": "<s>", "eos_token": "</s>"})
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    for text in (TEXT, "</s>", "<s>", "</s></s>"):
        assert not {1, 2} & set(tokenizer.encode([text])[0].tolist())
    if "merges" in FORGEABLE[name]["model"]:
        assert not {1, 2} & set(GigatokenEngine(tokenizer).encode([TEXT.encode()])[0].tolist())
        assert (
            tokenizer.decode(tokenizer.encode([TEXT])[0].tolist()).replace("Ġ", " ").replace(" ", "")
            == "the</s>a<s>the"
        )


def test_an_id_named_beside_the_file_is_not_forged_either(tmp_path: Path) -> None:
    spec = {**word_level(), "added_tokens": []}
    assert 2 not in read(tmp_path, spec, config={"eos_token_id": 2}).encode([TEXT])[0]


def with_added(spec: dict[str, Any], *tokens: str) -> dict[str, Any]:
    """With tokens that are ordinary ones."""
    engine = HfEngine.from_str(json.dumps(spec))
    engine.add_tokens(list(tokens))
    return json.loads(engine.to_str())


def test_an_ordinary_added_token_that_is_named_beside_the_file_is_not_forged(tmp_path: Path) -> None:
    tokenizer = read(tmp_path, with_added(byte_level(), "<|end|>", "sheep"), config={"eos_token_id": 264})
    assert (tokenizer.eos_id, tokenizer.vocabulary()["<|end|>"]) == (264, 264)
    text = "the <|end|> sheep"
    ids = tokenizer.encode([text])[0].tolist()
    assert 264 not in ids and ids[-1] == 265
    assert GigatokenEngine(tokenizer).encode([text.encode()])[0].tolist() == ids


@pytest.mark.parametrize("meaning", ["bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"])
def test_a_character_is_no_control_token_whatever_stands_beside_the_file(meaning: str, tmp_path: Path) -> None:
    spec = byte_level()
    tokenizer = read(tmp_path, spec, config={meaning: spec["model"]["vocab"]["a"]})
    assert spec["model"]["vocab"]["a"] in tokenizer.encode(["a"])[0]
    assert not tokenizer.may_lose
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.unk_id) == (None,) * 4


def framing_problems(tokenizer: HfTokenizer, texts: list[str], *more: int) -> list[str]:
    """Return the problems that `verify` finds in a shard of these texts, the last of them with added ids."""
    before, behind = TokeniseSettings().frame(tokenizer)
    found = [np.concatenate([before, ids, behind]).astype(np.int64) for ids in tokenizer.encode(texts)]
    found[-1] = np.concatenate([found[-1][:1], more, found[-1][1:]]).astype(np.int64)
    lengths, shard = np.array([len(ids) for ids in found]), np.concatenate(found)
    counts = np.bincount(shard, minlength=tokenizer.vocab_size)
    frame = (before, behind)
    return list(_framing_problems(frame, shard, np.cumsum(lengths) - lengths, lengths, counts, tokenizer.unk_id))


@pytest.mark.parametrize(
    ("spec", "config"),
    [
        (word_level(), {"bos_token_id": 3, "eos_token_id": 1}),
        (word_level(), {"bos_token_id": 0, "eos_token_id": 0}),
        (unigram(), {"bos_token_id": 3, "eos_token_id": 0}),
        (with_added(word_level(), "zz"), {"eos_token_id": 5}),
    ],
    ids=["words", "the unknown", "the unknown of pieces", "an added token"],
)
def test_ordinary_ids_that_are_named_beside_the_file_are_no_false_alarm(
    spec: dict[str, Any], config: dict[str, Any], tmp_path: Path
) -> None:
    tokenizer = read(tmp_path, spec, config=config)
    assert tokenizer.eos_id == config["eos_token_id"]
    texts = ["the a", "a </s> the 東京 <s>", "zz the zz"]
    assert framing_problems(tokenizer, texts) == []


def test_a_control_token_within_a_text_is_an_alarm(tmp_path: Path) -> None:
    tokenizer = read(tmp_path, word_level(), config={"bos_token_id": 0, "eos_token_id": 2})
    assert framing_problems(tokenizer, ["the a", "the zz"], 3) == []
    assert framing_problems(tokenizer, ["the a", "the zz"], 2) == [
        "special id 2 occurs 3 times, expected 2: once for every document"
    ]


@pytest.mark.parametrize("name", FORGEABLE)
def test_other_text_keeps_the_ids_that_the_file_itself_gives(name: str) -> None:
    engine = HfEngine.from_str(json.dumps(FORGEABLE[name]))
    engine.add_tokens(["東京"])  # its id is behind those of the model
    tokenizer = HfTokenizer(engine.to_str(), bos_id=1, eos_id=2)
    for seed in range(200):
        text = "".join(random.Random(seed).choices(["the", " ", "a", "é", "éab", "b", "th", "東京", "x"], k=12))
        assert tokenizer.encode([text])[0].tolist() == engine.encode(text, add_special_tokens=False).ids


def test_hidden_tokens_change_no_decoding() -> None:
    spec = word_level()
    for ids in ([3, 2, 4, 1], [0, 3], [2]):
        expected = HfEngine.from_str(json.dumps(spec)).decode(ids, skip_special_tokens=True)
        assert HfTokenizer(json.dumps(spec), unk_id=0, bos_id=1, eos_id=2).decode(ids) == expected


def test_a_dropout_of_merges_is_off() -> None:
    spec = byte_level()
    spec["model"]["dropout"] = 0.5
    tokenizer = HfTokenizer(json.dumps(spec))
    text = "the " * 200
    assert len({tuple(tokenizer.encode([text])[0].tolist()) for _ in range(5)}) == 1
    assert tokenizer.encode(["the"])[0].tolist() == [spec["model"]["vocab"]["the"]]
    assert json.loads(tokenizer.saved)["spec"]["model"]["dropout"] == 0.5


# -- long texts ------------------------------------------------------------------------------------------------------

PARTS = [
    "word",
    "Word's",
    "12345",
    "é",
    "e\u0301",
    "東京",
    "\u0301",
    "(",
    ")!",
    "/",
    "</s>",
    "<t>",
    "\u200b",
    "\u180e",
    "I'LL",
]
SPACES = [" ", " ", " ", "  ", "\n", " \n", "\n ", "\r\n", "\t", "\u00a0", "\u3000", "", "\x1c", "\x85", " \u0301"]


def known_words(pattern: str, **parts: Any) -> HfTokenizer:
    engine = HfEngine(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    engine.train_from_iterator(
        [f"{one}{space}{two}" for one in PARTS for two in PARTS for space in SPACES],
        trainers.BpeTrainer(vocab_size=600, initial_alphabet=sorted(alphabet), show_progress=False),
    )
    engine.add_tokens(["<t>"])
    return HfTokenizer(json.dumps({**json.loads(engine.to_str()), **parts}))


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
@pytest.mark.parametrize("pattern", WORD_PATTERNS)
def test_where_text_is_cut_words_of_known_patterns_end(pattern: str, normalizer: dict[str, str] | None) -> None:
    tokenizer = known_words(pattern, normalizer=normalizer)
    assert tokenizer.cuts_before_spaces
    compared = 0
    for seed in range(400):
        draw = random.Random(seed)
        text = "".join(chain.from_iterable((draw.choice(PARTS), draw.choice(SPACES)) for _ in range(40)))
        pieces = [piece.decode() for piece in cut_text(text.encode(), 24)]
        if all(later.startswith(" ") and not earlier[-1].isspace() for earlier, later in pairwise(pieces)):
            compared += len(pieces) > 1
            assert np.concatenate(tokenizer.encode(pieces)).tolist() == tokenizer.encode([text])[0].tolist()
    assert compared > 100


def test_other_patterns_and_added_tokens_around_spaces_keep_a_text_whole() -> None:
    tokenizer = known_words(WORD_PATTERNS[0])
    spec = json.loads(tokenizer.spec)
    assert not known_words(r"\p{L}+ \p{L}+|\s+").cuts_before_spaces
    assert not known_words(WORD_PATTERNS[0], normalizer={"type": "Prepend", "prepend": " "}).cuts_before_spaces
    for change in ({"content": "a b"}, {"lstrip": True}, {"rstrip": True}, {"single_word": True}):
        added = [{**spec["added_tokens"][0], **change}]
        assert not HfTokenizer(json.dumps({**spec, "added_tokens": added})).cuts_before_spaces


# -- engines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokens",
    [["x" * (ADDED_CHARS + 1)], [f"{number:0{ADDED_CHARS}}" for number in range(1 + ALL_ADDED_CHARS // ADDED_CHARS)]],
    ids=["one", "together"],
)
def test_long_added_tokens_are_left_to_the_reference(tokens: list[str]) -> None:
    tokenizer = HfTokenizer(json.dumps(with_added(byte_level(), *tokens)))
    text = f"the {tokens[0]} the"
    engine, reason = choose_engine(tokenizer, [text.encode()], WORTH_AN_ENGINE)
    assert engine.name.startswith("tokenizers ")
    assert f"gigatoken: its added tokens are of up to {len(tokens[0]):,} characters" in reason
    assert tokenizer.vocabulary()[tokens[0]] in engine.encode([text.encode()])[0]


def test_a_token_of_a_million_characters_is_no_hang() -> None:
    tokenizer = HfTokenizer(json.dumps(with_added(byte_level(), "x" * 10**6)))
    _, reason = choose_engine(tokenizer, [b"the"], WORTH_AN_ENGINE)
    assert "of up to 1,000,000 characters, 1,000,000 in all; 1,024 and 262,144 can be" in reason


# -- GPT-2's pair of files, tables of characters -----------------------------------------------------------------------

GPT2_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PAIR_NAMES = [("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")]


def write_pair(folder: Path, names: tuple[str, str]) -> HfEngine:
    """A pair of files as GPT-2's: 400 tokens, and the end of a text behind them; returns what they were made of."""
    engine = byte_level_engine(400)
    model = json.loads(engine.to_str())["model"]
    (folder / names[0]).write_text(json.dumps({**model["vocab"], "<|endoftext|>": 400}))
    lines = ["#version: 0.2", *map(" ".join, model["merges"]), ""]
    (folder / names[1]).write_text("\n".join(lines), encoding="utf-8")
    return engine


@pytest.mark.parametrize("names", PAIR_NAMES)
def test_gpt_2_s_pair_of_files_gives_the_ids_of_tokenizers_and_tiktoken(names: tuple[str, str], tmp_path: Path) -> None:
    engine = write_pair(tmp_path, names)
    ranks = {spelled_bytes(token): index for token, index in engine.get_vocab().items()}
    theirs = tiktoken.Encoding("pair", pat_str=GPT2_WORDS, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 400})
    found = read_tokenizer_file(tmp_path)
    assert found.saved == read_tokenizer_file(tmp_path / names[0]).saved
    assert (found.vocab_size, found.bos_id, found.eos_id, found.start_id) == (401, None, 400, 400)
    for text, ids in zip(HOSTILE.values(), found.encode(list(HOSTILE.values())), strict=True):
        assert ids.tolist() == engine.encode(text).ids == theirs.encode_ordinary(text)
        assert (found.decode(ids.tolist()), found.lost_bytes(text, ids)) == (text, 0)


def test_the_digest_of_a_pair_follows_both_files(tmp_path: Path) -> None:
    write_pair(tmp_path, PAIR_NAMES[0])
    before = digest_of_tokenizer_file(tmp_path)
    with (tmp_path / "merges.txt").open("a") as merges:
        merges.write("x y\n")
    assert digest_of_tokenizer_file(tmp_path) != before


@pytest.mark.parametrize("line", ["one", "a b c", " "])
def test_a_line_that_is_no_merge_is_told(line: str, tmp_path: Path) -> None:
    write_pair(tmp_path, PAIR_NAMES[0])
    merges = tmp_path / "merges.txt"
    merges.write_text(f"#version: 0.2\nt h\n{line}\n")
    with pytest.raises(ForeignTokenizerError, match=rf"merges\.txt: line 3 is '{line}'"):
        read_tokenizer_file(tmp_path)


def test_a_pair_without_its_merges_is_told(tmp_path: Path) -> None:
    write_pair(tmp_path, PAIR_NAMES[0])
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(ForeignTokenizerError, match=r"vocab\.json: '.+' is not one character, .*merges\.txt"):
        read_tokenizer_file(tmp_path / "vocab.json")


def read_table(folder: Path, text: str) -> Tokenizer:
    (folder / "table.json").write_text(text, encoding="utf-8")
    return read_tokenizer_file(folder / "table.json")


def test_a_table_of_characters_is_taken_as_it_is_gaps_too(tmp_path: Path) -> None:
    table = {"<pad>": 0, "<unk>": 1, "<bos>": 2, "<eos>": 3, " ": 4, "!": 5, "ß": 7, "\n": 9, "z": 129}
    found = read_table(tmp_path, json.dumps(table))
    assert found.encode(["z! ß\na<pad>"])[0].tolist() == [129, 5, 4, 7, 9, *[1] * 6]
    assert (found.decode([129, 6, 5, 128, 0]), found.vocab_size, found.unk_id) == ("z!", 130, 1)
    assert set(range(130)).difference(found.special_ids) == {4, 5, 7, 9, 129}
    assert read_table(tmp_path, '{" ": 4, "!": 5, "ß": 7, "\\n": 9, "z": 129}').saved == found.saved


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 4, "a": 5}', "'a' is in the table twice"),
        ('{"a": 4, "b": 4}', "'a' and 'b' have the same id 4"),
        ('{"a": 3}', "the id of 'a' is 3, expected a whole number from 4"),
        ('{"<pad>": 4, "a": 5}', "'<pad>' is not one character"),
        ('{"a": "4"}', "the id of 'a' is '4'"),
        ('{"a": {"b": 4}}', "the id of 'a' is "),
        ('{"a": 16777216}', "to 16,777,215"),
        ('{"\\ud800": 4}', "is not one character"),
        ('{"": 4}', "the entry of id 4 is empty"),
        ('{"<pad>": 0}', "an empty table"),
    ],
)
def test_a_faulty_table_is_told_by_name(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ForeignTokenizerError, match=rf"table\.json: .*{re.escape(told)}"):
        read_table(tmp_path, text)


def test_ids_that_a_tokeniser_from_elsewhere_leaves_out_stand_for_no_text() -> None:
    engine = HfEngine(models.WordLevel({"<unk>": 0, "the": 1, "fold": 5}, unk_token="<unk>"))
    assert HfTokenizer(engine.to_str(), unk_id=0, reserved=1).special_ids == (0, 2, 3, 4, 6)


# -- odd files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [[[1]], {"a": 1}, 1.0, True, "2", [True]])
def test_an_id_that_is_none_is_told(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ForeignTokenizerError, match=r"config\.json: eos_token_id is .*expected an id"):
        read(tmp_path, word_level(), config={"eos_token_id": value})


@pytest.mark.parametrize("value", [None, [], -1, 50256])
def test_an_id_that_no_token_has_is_passed_over(value: Any, tmp_path: Path) -> None:
    assert read(tmp_path, word_level(), config={"eos_token_id": value}).eos_id is None


@pytest.mark.parametrize("name", ["tokenizer", "config"])
def test_json_without_end_of_nesting_is_told(name: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(word_level()))
    (tmp_path / f"{name}.json").write_text('{"a":' + "[" * 100_000)
    with pytest.raises(ForeignTokenizerError, match=rf"{name}\.json: its JSON is nested too deep"):
        read_tokenizer_file(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"kind": "word", "vocabulary": {"": 4}}', "the entry of id 4 is empty"),
        ('{"kind": "word", "vocabulary": {"a": 5000000000}}', "the id of 'a' is 5000000000, expected a whole number"),
        ('{"kind": "word", "vocabulary": {"a": true}}', "the id of 'a' is True"),
        ('{"kind": "word", "vocabulary": {"a": 4.0}}', "the id of 'a' is 4.0"),
        ('{"kind": "bytes", "reserved": 1.5}', "reserved is 1.5"),
        ('{"kind": "bytes", "reserved": 5000000000}', "reserved is 5000000000"),
        ('{"kind":' + "[" * 100_000, "its JSON is nested too deep"),
        ("[]", "a list, expected the JSON of a tokeniser"),
    ],
)
def test_a_broken_tokeniser_is_told(content: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=rf"tokenizer\.json: {told}"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_largest_id_that_is_a_mistake_is_told(tmp_path: Path) -> None:
    spec = word_level()
    spec["model"]["vocab"]["far"] = 4_000_000_000
    with pytest.raises(ForeignTokenizerError, match=r"its largest id is 4,000,000,000, expected less than 16,777,216"):
        read(tmp_path, spec)


@pytest.mark.parametrize("spec", [word_level(), unigram(), letters_only()])
def test_a_vocabulary_without_a_token_is_told(spec: dict[str, Any], tmp_path: Path) -> None:
    spec["model"]["vocab"] = type(spec["model"]["vocab"])()
    spec["model"] |= {"merges": []} if "merges" in spec["model"] else {}
    spec["model"] |= {"unk_id": None} if "unk_id" in spec["model"] else {}
    with pytest.raises(ForeignTokenizerError, match=r"tokenizer\.json: its vocabulary is empty"):
        read(tmp_path, {**spec, "added_tokens": []})


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", r"is not JSON \(Expecting value"),
        (b"\xff", "is not UTF-8"),
        (b'{"kind": "char"}', "lacks 'alphabet'"),
        (b'{"kind": "x"}', "tokenizer kind is 'x'"),
        (b"[]", "a list, expected"),
        (b'{"model": {}}', "not a tokeniser that"),
        (None, "tokenizer.json: expected a tokenizer.json"),
    ],
)
def test_an_error_names_the_file_once(content: bytes | None, told: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ForeignTokenizerError, match=told) as error:
        read_tokenizer_file(path)
    assert str(error.value).count(str(path)) == 1


def test_a_file_in_one_s_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    learn_merges(["a"], 260).save(tmp_path / "x.json")
    found = FitSettings.of(TokenizerSettings(kind="file", file="~/x.json"))
    assert found.file == digest_of_tokenizer_file(tmp_path / "x.json")


def test_a_special_id_without_a_name_is_reserved_only_at_the_end() -> None:
    tokenizer = HfTokenizer(json.dumps(word_level()), unk_id=0, eos_id=2, reserved=2)
    assert special_names(tokenizer) == {0: "unk", 1: "special", 2: "eos", 5: "reserved", 6: "reserved"}
