"""Extended tokenisers: pieces as in training of byte-pair encoding, and ids of the base that change only by joining."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tokenizer_samples import prose
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tasks.tokens.extend import ExtendError, check_extendable, count_words, extend_tokenizer, parts_of_new_ids
from tasks.tokens.hf_spec import WORD_PATTERNS, byte_level_spec, byte_spellings
from tasks.tokens.tokenise import GigatokenEngine
from tasks.tokens.tokenizer import learn_merges
from tasks.tokens.tokenizer_kinds import (
    BpeTokenizer,
    ByteTokenizer,
    CharTokenizer,
    HfTokenizer,
    LibraryTokenizer,
    WordTokenizer,
)

CODE = [
    "".join(
        f"static int get_{name}{number}(struct {name} *self)\n{{\n\treturn (int) self->{name}_field[{number}];\n}}\n"
        for name in ("buffer", "window", "socket", "unwind")
        for number in range(start, start + 5)
    )
    for start in range(0, 2030, 290)
]
UNSEEN = "caf\u00e9 na\u00efve \u6771\u4eac\u90fd \U0001f469\u200d\U0001f467 \U0001f469\u200d\U0001f467"
MIXED = [*CODE, prose(3) + "statically nonstatic " * 99 + UNSEEN]


def gpt2_with_chat_tokens() -> HfTokenizer:
    """Merges as strings, and added tokens behind the vocabulary that the model does not have."""
    spec = json.loads(learn_merges([prose()], 320).spec)
    spec["model"]["merges"] = [" ".join(pair) for pair in spec["model"]["merges"]]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    first = max(spec["model"]["vocab"].values()) + 1
    spec["added_tokens"] = [
        {"id": first, "content": "<|im_start|>", "special": True, **flags},
        {"id": first + 1, "content": "<|im_end|>", "special": True, **flags},
        {"id": first + 2, "content": "buffer_", "special": False, **flags},
    ]
    return HfTokenizer(json.dumps(spec), eos_id=first + 1)


def llama3() -> HfTokenizer:
    """GPT-4's pattern, and words of the vocabulary without merges."""
    spec = json.loads(learn_merges([prose()], 320).spec)
    split = {"type": "Split", "pattern": {"Regex": WORD_PATTERNS[0]}, "behavior": "Isolated", "invert": False}
    spelling = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, spelling]}
    spec["model"]["ignore_merges"] = True
    spec["model"]["vocab"]["static"] = len(spec["model"]["vocab"])
    return HfTokenizer(json.dumps(spec))


def llama2() -> HfTokenizer:
    """Characters, bytes for others, and no words but those that signs of spaces begin."""
    engine = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    cut = pre_tokenizers.Split(Regex(r"\u2581*([a-z]+|[^a-z\u2581])"), "isolated")
    engine.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), cut])
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    engine.train_from_iterator(
        [prose(), "".join(CODE)[:300], prose(2)],
        trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<s>", "</s>", *raw], show_progress=False),
    )
    engine.pre_tokenizer = None
    engine.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    engine.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    spec = json.loads(engine.to_str())
    spec["added_tokens"] = spec["added_tokens"][:3]  # bytes are none
    return HfTokenizer(json.dumps(spec), unk_id=0, bos_id=1, eos_id=2)


def with_affixes(decoder: Any, **affixes: str) -> HfTokenizer:
    engine = Tokenizer(models.BPE(unk_token="<unk>", **affixes))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    engine.train_from_iterator(
        [prose(), "".join(CODE)[:300]],
        trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>"], show_progress=False, **affixes),
    )
    engine.decoder = decoder
    return HfTokenizer(engine.to_str(), unk_id=0)


BASES = {
    "own": lambda: learn_merges([prose()], 320),
    "gpt2": gpt2_with_chat_tokens,
    "llama3": llama3,
    "llama2": llama2,
    "clip": lambda: with_affixes(decoders.BPEDecoder(), end_of_word_suffix="</w>"),
    "prefix": lambda: with_affixes(decoders.WordPiece(), continuing_subword_prefix="##"),
}


@pytest.fixture(params=BASES, scope="module")
def base(request: pytest.FixtureRequest) -> LibraryTokenizer:
    return BASES[request.param]()


def encoded(texts: list[str]) -> list[bytes]:
    return [text.encode() for text in texts]


def merges_of(tokenizer: LibraryTokenizer) -> list[list[str]]:
    written = json.loads(tokenizer.spec)["model"]["merges"]
    return [merge.split(" ") if isinstance(merge, str) else merge for merge in written]


def trained_slowly(base: LibraryTokenizer, texts: list[str], n_pieces: int) -> list[list[str]]:
    """Merges found one by one, each in words that the library encodes with all merges so far."""
    found, spec = base, json.loads(base.spec)
    model = spec["model"]
    skip = len(model.get("continuing_subword_prefix") or "")
    kept_out = {*base.special_ids, *(token["id"] for token in spec["added_tokens"])}
    if model.get("byte_fallback"):
        kept_out |= {index for token, index in model["vocab"].items() if token.startswith("<0x")}
    model |= {"vocab": base.vocabulary(), "merges": merges_of(base)}
    merges: list[list[str]] = []
    for _ in range(n_pieces):
        counts: Counter[tuple[int, int]] = Counter()
        for word, times in count_words(found, encoded(texts)).items():
            for pair in pairwise(np.frombuffer(word, np.uint32).tolist()):
                counts[pair] += times
        spelled = {index: token for token, index in model["vocab"].items()}
        for pair in sorted(counts, key=lambda pair: (-counts[pair], pair)):
            one, two = (spelled[index] for index in pair)
            if not kept_out & set(pair) and counts[pair] > 1 and one + two[skip:] not in model["vocab"]:
                break
        else:
            return merges
        merges.append([one, two])
        model["vocab"][one + two[skip:]] = base.used_ids + len(merges) - 1
        model["merges"].append(merges[-1])
        more = {name: getattr(base, name) for name in base.parts if name != "spec"}
        found = type(base)(json.dumps(spec), **more)
    return merges


def test_pieces_are_those_of_a_training_that_encodes_anew_after_each_merge(base: LibraryTokenizer) -> None:
    before, after = (merges_of(one) for one in (base, extend_tokenizer(base, encoded(MIXED), 60).tokenizer))
    assert len(after) > len(before) + 20
    assert after == [*before, *trained_slowly(base, MIXED, 60)]


def test_ids_change_only_by_joining_those_of_the_base(base: LibraryTokenizer) -> None:
    found = extend_tokenizer(base, encoded(CODE), 60)
    made, parts = found.tokenizer, dict(parts_of_new_ids(base, found.tokenizer))
    assert base.vocabulary().items() <= made.vocabulary().items()
    assert list(parts) == list(range(base.used_ids, base.used_ids + found.n_pieces))
    for text in (*MIXED, "buffer_ static", "", " \n\n\t "):
        (before,), (after,) = base.encode([text]), made.encode([text])
        assert [part for index in after.tolist() for part in parts.get(index, [index])] == before.tolist()
        assert made.decode(after.tolist()) == base.decode(before.tolist())
    text = "\u6771\u4eac\u90fd"
    assert made.encode([text])[0].tolist() == base.encode([text])[0].tolist()


def test_the_same_texts_give_the_same_tokeniser(base: LibraryTokenizer) -> None:
    shuffled = random.Random(1).sample(CODE, len(CODE))
    one, other = (extend_tokenizer(base, encoded(texts), 40).tokenizer for texts in (CODE, shuffled))
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize("name", ["own", "gpt2", "llama3", "llama2"])  # the engine has no affixes of words
def test_another_engine_gives_the_same_ids(name: str) -> None:
    made = extend_tokenizer(BASES[name](), encoded(CODE), 60).tokenizer
    GigatokenEngine(made).check(encoded([*MIXED, "<|im_start|>buffer_1"]))


def test_special_tokens_keep_their_ids_and_text_that_spells_one_becomes_none() -> None:
    base = gpt2_with_chat_tokens()
    made = extend_tokenizer(base, encoded(["<|im_start|>" * 50, *CODE]), 60).tokenizer
    assert made.vocabulary()["<|im_start|>"] == base.vocabulary()["<|im_start|>"]
    assert made.special_ids == base.special_ids
    ids = made.encode(["<|im_start|>"])[0]
    assert len(ids) > 1 and made.decode(ids.tolist()) == "<|im_start|>"


def test_single_bytes_are_joined_where_they_are_characters_only() -> None:
    base, texts = llama2(), ["\U0001f469\U0001f467 " * 200] * 2
    made = extend_tokenizer(base, encoded(texts), 20).tokenizer
    assert not any("<0x" in token for token in made.vocabulary().keys() - base.vocabulary().keys())


def test_without_words_of_its_own_a_base_gets_pieces_of_letters_or_of_punctuation() -> None:
    base = llama2()
    made = extend_tokenizer(base, encoded([*CODE, "{};  {};   a  b " * 60]), 80).tokenizer
    new = made.vocabulary().keys() - base.vocabulary().keys()
    assert all(re.fullmatch(r"\u2581*([a-z]+|[^\u2581a-z\s]*|\s*)", piece) for piece in new)
    assert any(piece.strip("\u2581").isalpha() for piece in new) and any("};" in piece for piece in new)


def test_numbers_stay_single_digits_in_a_base_without_words_that_has_no_longer_ones() -> None:
    base = llama2()
    made = extend_tokenizer(base, encoded(["12 2024 77 word2024 " * 100]), 20).tokenizer
    new = made.vocabulary().keys() - base.vocabulary().keys()
    assert not any(one.isdigit() and other.isdigit() for piece in new for one, other in pairwise(piece))


def test_pieces_take_reserved_ids_first() -> None:
    base = learn_merges([prose()], 320, reserved=20)
    few, many = (extend_tokenizer(base, encoded(CODE), n).tokenizer for n in (15, 30))
    assert isinstance(few, BpeTokenizer)
    assert [(one.used_ids, one.reserved, one.vocab_size) for one in (few, many)] == [(315, 5, 320), (330, 0, 330)]


def test_a_tenth_of_many_texts_is_measured_and_not_counted() -> None:
    base, other = learn_merges([prose()], 320), ["zzyzx " * 60] * 3
    texts = [text for start in range(3) for text in (*CODE, prose(start), prose(start + 9), other[start])]
    made = extend_tokenizer(base, encoded(texts), 40)
    assert "zyz" not in str(made.tokenizer.vocabulary())
    tokens = len(base.encode([other[0]])[0])
    assert made.measured == (
        f"{360 / tokens:.3f} bytes per token become {360 / tokens:.3f} on 3 documents that were not counted"
    )
    assert extend_tokenizer(base, encoded(CODE), 5).measured.endswith("on the same documents, as they are few")


def test_a_short_text_gives_fewer_pieces_than_asked_for() -> None:
    made = extend_tokenizer(learn_merges([prose()], 320), [b"xyxyxy"], 50)
    assert 0 < made.n_pieces < 5 and made.tokenizer.used_ids == 320 + made.n_pieces


def test_a_base_that_is_not_extended_has_no_new_ids() -> None:
    base = learn_merges([prose()], 320)
    assert parts_of_new_ids(base, base) == []
    assert parts_of_new_ids(ByteTokenizer(), ByteTokenizer(reserved=9)) == []


def library(model: Any) -> HfTokenizer:
    engine = Tokenizer(model)
    engine.add_special_tokens([AddedToken("<unk>")])
    return HfTokenizer(engine.to_str())


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda: CharTokenizer("abc"), "kind char;"),
        (lambda: ByteTokenizer(), "kind bytes;"),
        (lambda: WordTokenizer({"a": 4}), "kind word;"),
        (lambda: library(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0)), "kind Unigram from elsewhere;"),
        (lambda: library(models.WordPiece({"<unk>": 0, "a": 1}, unk_token="<unk>")), "kind WordPiece from elsewhere;"),
        (lambda: library(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>")), "kind WordLevel from elsewhere;"),
        (
            lambda: HfTokenizer(
                byte_level_spec({byte: number for number, byte in enumerate(byte_spellings())}, []).replace(
                    '"use_regex": true', '"use_regex": false'
                )
            ),
            "neither cuts text into words nor marks spaces",
        ),
    ],
)
def test_other_tokenisers_are_refused(other: Any, told: str) -> None:
    with pytest.raises(ExtendError, match=told):
        check_extendable(other(), 10)


def test_more_ids_than_there_can_be_are_refused() -> None:
    with pytest.raises(ExtendError, match="expected at most 16,777,216; give fewer"):
        check_extendable(learn_merges([prose()], 320), 2**24 - 300)
