"""GGUF: llama.cpp reads what is exported, and gives the same ids, probabilities and texts; an import is the model."""

from __future__ import annotations

import random
import struct
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import xllamacpp
from generation_samples import model_folder

from storage.errors import UserError
from tasks.tokens.tokenizer import learn_merges
from tasks.tokens.tokenizer_kinds import BpeTokenizer, ByteTokenizer
from tasks.training.bundle import Bundle
from tasks.training.gguf_file import export_gguf, import_gguf
from tasks.training.gguf_types import FLOATS, TYPES, round_weights
from tasks.training.hugging_face import ExchangeError

NETWORKS: dict[str, dict[str, Any]] = {
    "qwen3": {
        **{"pos": "rope", "norm": "rmsnorm", "act": "swiglu", "attn_bias": False, "ffn_bias": False},
        **{"qk_norm": True, "n_head": 2, "n_kv_head": 1, "head_dim": 32, "d_model": 64, "d_ff": 96},
    },
    "llama": {"pos": "rope", "norm": "rmsnorm", "act": "swiglu", "attn_bias": False, "ffn_bias": False, "d_model": 64},
    "qwen2": {
        **{"pos": "rope", "norm": "rmsnorm", "act": "swiglu", "attn_bias": False, "ffn_bias": False, "qkv_bias": True},
        "d_model": 64,
    },
    "gpt2": {"pos": "learned", "norm": "layernorm", "act": "gelu_tanh", "d_model": 64, "tie_weights": True},
}
BLOCKS = struct.Struct("<11sII")
TEXT = "The fold keeps the sheep, and the shepherd counts them: 1, 2, 3 ... they'll stay until it's light. "


@pytest.fixture(scope="module")
def tokenizer() -> BpeTokenizer:
    return learn_merges([TEXT * 4, "def fold(x):\n    return x ** 2\n" * 8], 320)


@contextmanager
def llama(path: Path) -> Iterator[str]:
    """llama.cpp's server with a file; yields its address."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup, params.verbosity = 64, 1, 0, False, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    yield server.listening_address
    del server


def ask(address: str, path: str, **body: Any) -> Any:
    return httpx.post(f"{address}/{path}", json=body, timeout=60).raise_for_status().json()


def logprobs(address: str, ids: list[int], n: int) -> dict[int, float]:
    """llama.cpp's log-probabilities of the token after some."""
    options: dict[str, Any] = {
        "n_predict": 1,
        "n_probs": n,
        "temperature": 0,
        "samplers": [],
        "logit_bias": [[40, 1e9]],
    }
    (first,) = ask(address, "completion", prompt=ids, **options)["completion_probabilities"]
    return {entry["id"]: entry["logprob"] for entry in first["top_logprobs"]}


def own_logprobs(bundle: Bundle, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return bundle.model(torch.tensor([ids]))[0, -1, : bundle.model_config.vocab_size].log_softmax(-1)


def hostile(n: int) -> Iterator[str]:
    """Strings of every part of Unicode, of control characters, of long runs and of special tokens' names."""
    draw = random.Random(5)
    points = [point for point in range(sys.maxunicode + 1) if unicodedata.category(chr(point)) not in ("Cs", "Cn")]
    yield from (
        "\x00\x01\x1b[0m",
        "\r\n\r\n\t \u2028\u00a0 ",
        "a" * 300,
        " " * 200,
        "[BOS][EOS]<|endoftext|>",
        "'s'S'LL",
    )
    for number in range(n):
        place = number * len(points) // n  # a walk through all blocks
        near = points[place : place + 40]
        mixed = [*draw.choices(near, k=6), *draw.choices(points, k=2), *map(ord, draw.choices(TEXT, k=6))]
        draw.shuffle(mixed)
        yield "".join(map(chr, mixed))


@pytest.fixture(scope="module", params=list(NETWORKS))
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tokenizer: BpeTokenizer
) -> Iterator[tuple[Bundle, str]]:
    folder = tmp_path_factory.mktemp(request.param)
    source = model_folder(folder / "model", tokenizer, {"max_seq_len": 64, **NETWORKS[request.param]})
    export_gguf(source, folder / "model.gguf", "f32")
    with llama(folder / "model.gguf") as address:
        yield Bundle(source), address


def test_probabilities_are_the_same(exported: tuple[Bundle, str]) -> None:
    bundle, address = exported
    n = bundle.model_config.vocab_size
    for text in ("The fold", "it's 3 ... they'll", "x"):
        (ids,) = bundle.encode([text])
        own, theirs = own_logprobs(bundle, ids), logprobs(address, ids, n)
        assert len(theirs) == n
        differences = [abs(theirs[index] - float(own[index])) for index in range(n)]
        # llama.cpp looks GELU up in a table of half precision
        assert max(differences) <= (1e-3 if bundle.model_config.act == "gelu_tanh" else 1e-4) * float(own.abs().max())


def test_greedy_texts_are_the_same(exported: tuple[Bundle, str]) -> None:
    bundle, address = exported
    for text in ("The fold", "def "):
        (ids,) = bundle.encode([text])
        theirs = ask(address, "completion", prompt=ids, n_predict=30, temperature=0, return_tokens=True)
        own = bundle.complete([text], temperature=0.0, max_new_tokens=30, min_new_tokens=0)[0]
        assert theirs["tokens"][: len(own.ids)] == own.ids


def _same_ids(exported: tuple[Bundle, str], n: int) -> None:
    bundle, address = exported
    texts = list(hostile(n))
    with httpx.Client(timeout=60) as client:
        for text, ids in zip(texts, bundle.encode(texts), strict=True):
            body = {"content": text, "add_special": True, "parse_special": False}
            assert client.post(f"{address}/tokenize", json=body).json()["tokens"] == ids, ascii(text)


def test_hostile_texts_have_the_same_ids(exported: tuple[Bundle, str]) -> None:
    _same_ids(exported, 300)


@pytest.mark.full
def test_ten_thousand_hostile_texts_have_the_same_ids(exported: tuple[Bundle, str]) -> None:
    _same_ids(exported, 10_000)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_is_read_and_stays_near(tmp_path: Path, tokenizer: BpeTokenizer, kind: str) -> None:
    source = model_folder(tmp_path / "model", tokenizer, {"max_seq_len": 64, **NETWORKS["qwen3"]})
    export_gguf(source, tmp_path / "model.gguf", kind)
    bundle = Bundle(source)
    (ids,) = bundle.encode(["The fold keeps"])
    with llama(tmp_path / "model.gguf") as address:
        theirs = logprobs(address, ids, bundle.model_config.vocab_size)
    own = own_logprobs(bundle, ids)
    worst = max(abs(theirs[index] - float(own[index])) for index in theirs)
    assert worst <= {"f32": 1e-3, "f16": 0.05, "bf16": 0.3, "q8_0": 0.5, "q4_0": 8}[kind]
    round_weights(bundle.model, kind)
    rounded = own_logprobs(bundle, ids)
    off = max(abs(theirs[index] - float(rounded[index])) for index in theirs)
    assert off <= {"f32": 1e-3, "f16": 0.02, "bf16": 0.1, "q8_0": 0.3, "q4_0": 0.3}[kind]


def test_the_metadata_tells_where_a_model_comes_from(tmp_path: Path, tokenizer: BpeTokenizer) -> None:
    import gguf

    source = model_folder(tmp_path / "model", tokenizer, {"max_seq_len": 64, **NETWORKS["qwen3"]})
    export_gguf(source, tmp_path / "wool.gguf", "f16", "sheepfold/3", {"manifest": '{"stage": "train"}'})
    fields = gguf.GGUFReader(tmp_path / "wool.gguf").fields
    assert fields["general.name"].contents() == "sheepfold/3"
    assert fields["sheepfold.manifest"].contents() == '{"stage": "train"}'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "wool.gguf"]  # Ollama reads Qwen otherwise


def test_a_modelfile_for_ollama_is_beside_a_llama(tmp_path: Path, tokenizer: BpeTokenizer) -> None:
    source = model_folder(tmp_path / "model", tokenizer, {"max_seq_len": 64, **NETWORKS["llama"]})
    export_gguf(source, tmp_path / "wool.gguf")
    told = (tmp_path / "wool.Modelfile").read_text()
    assert "FROM ./wool.gguf\n" in told and "PARAMETER num_ctx 64\n" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "wool.Modelfile", "wool.gguf"]


def test_a_model_without_an_end_goes_on_in_llama_cpp(tmp_path: Path, tokenizer: BpeTokenizer) -> None:
    source = model_folder(tmp_path / "model", tokenizer, {"max_seq_len": 64, **NETWORKS["qwen3"]}, eos=False)
    export_gguf(source, tmp_path / "model.gguf", "f32")
    bundle = Bundle(source)
    assert bundle.end_id is None
    with llama(tmp_path / "model.gguf") as address:
        for index in (11, 12):  # llama.cpp's default for an end is 11
            found = ask(address, "completion", prompt=[2], n_predict=8, logit_bias=[[index, 1e9]], return_tokens=True)
            assert found["tokens"] == [index] * 8


@pytest.mark.parametrize(
    ("shape", "kind", "message"),
    [
        ({**NETWORKS["llama"], "window": 8}, "f16", "no such network with window=8"),
        (
            {**NETWORKS["llama"], "rope_scaling": "linear", "rope_factor": 2.0},
            "f16",
            "no such network with rope_scaling='linear'",
        ),
        ({**NETWORKS["gpt2"], "act": "relu"}, "f16", "no such network with act='relu'"),
        ({"pos": "sinusoidal"}, "f16", "llama.cpp has no such network: "),
        (NETWORKS["llama"], "q3_k", "no type 'q3_k'; expected one of f32, f16, bf16, q8_0, q4_0"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(
    tmp_path: Path, tokenizer: BpeTokenizer, shape: dict[str, Any], kind: str, message: str
) -> None:
    source = model_folder(tmp_path / "model", tokenizer, {"max_seq_len": 64, **shape})
    with pytest.raises(UserError, match=message):
        export_gguf(source, tmp_path / "model.gguf", kind)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_a_tokeniser_that_llama_cpp_does_not_have_is_refused(tmp_path: Path) -> None:
    source = model_folder(tmp_path / "model", ByteTokenizer(), {"max_seq_len": 64, **NETWORKS["llama"]})
    with pytest.raises(UserError, match="no tokeniser like this one of kind 'bytes'"):
        export_gguf(source, tmp_path / "model.gguf")


def test_a_file_that_is_there_stays(tmp_path: Path, tokenizer: BpeTokenizer) -> None:
    source = model_folder(tmp_path / "model", tokenizer, {"max_seq_len": 64, **NETWORKS["llama"]})
    (tmp_path / "model.gguf").write_text("mine")
    with pytest.raises(UserError, match="exists; give a new name"):
        export_gguf(source, tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").read_text() == "mine"


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("kind", FLOATS)
def test_an_import_is_the_model_with_its_numbers_rounded(
    tmp_path: Path, tokenizer: BpeTokenizer, network: str, kind: str
) -> None:
    source = model_folder(tmp_path / "model", tokenizer, {"max_seq_len": 64, **NETWORKS[network]})
    export_gguf(source, tmp_path / "model.gguf", kind)
    import_gguf(tmp_path / "model.gguf", tmp_path / "back")
    own, back = Bundle(source), Bundle(tmp_path / "back")
    round_weights(own.model, kind)
    texts = list(hostile(30))
    assert back.encode(texts) == own.encode(texts)
    assert (back.start_id, back.end_id, back.ids_without_text()) == (
        own.start_id,
        own.end_id,
        own.ids_without_text(),
    )
    (ids,) = own.encode([TEXT[:30]])
    assert torch.equal(own_logprobs(back, ids), own_logprobs(own, ids))
    ours, theirs = own.model_config.to_dict(), back.model_config.to_dict()
    of_training = ("drop_", "init_", "vocab_multiple")
    assert not [name for name in ours if ours[name] != theirs[name] and not name.startswith(of_training)]


@pytest.mark.parametrize("framing", [{"bos": False}, {"eos": False}, {"bos": False, "eos": False}])
def test_texts_begin_and_end_after_an_import_as_before(
    tmp_path: Path, tokenizer: BpeTokenizer, framing: dict[str, bool]
) -> None:
    source = model_folder(tmp_path / "model", tokenizer, {"max_seq_len": 64, **NETWORKS["llama"]}, **framing)
    export_gguf(source, tmp_path / "model.gguf", "f32")
    import_gguf(tmp_path / "model.gguf", tmp_path / "back")
    own, back = Bundle(source), Bundle(tmp_path / "back")
    assert (back.start_id, back.end_id) == (own.start_id, own.end_id)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (b"qwen3", b"qwen9", "has a network of 'qwen9'; expected gpt2"),
        (b"gpt-2", b"qwen2", "the word pattern 'qwen2'; expected 'gpt2', 'gpt-2'"),
        (b"rope.freq_base", b"rope.freq_bass", r"qwen3.rope.freq_bass=10000.0 is not supported; known are "),
        (b"feed_forward_length", b"FEED_FORWARD_LENGTH", "FEED_FORWARD_LENGTH=96 is not supported"),
        (BLOCKS.pack(b"block_count", 4, 2), BLOCKS.pack(b"block_count", 4, 1 << 16), "of 2 blocks"),
        (b"blk.1.attn_norm", b"blk.1.attn_nose", "the tensor blk.1.attn_nose.weight is unknown"),
        (b"output_norm", b"token_types", "the tensor token_types.weight is unknown"),
        (BLOCKS.pack(b".head_count", 4, 2), BLOCKS.pack(b".head_count", 4, 0), "head_count is 0, expected 1 to"),
        (BLOCKS.pack(b".head_count", 4, 2), BLOCKS.pack(b".head_count", 6, 2), "head_count is .*, expected int"),
        (b"blk.1.attn_q.weight\x02\0\0\0\x40", b"blk.1.attn_q.weight\x02\0\0\0\x20", "the shape"),
        (b"ggml.merges", b"ggml.mergez", "tokenizer.ggml.merges is None, expected list"),
        (b"GGUF", b"GGML", "is no whole GGUF file: GGUF magic invalid"),
    ],
)
def test_a_file_with_something_else_is_refused_by_name(
    tmp_path: Path, tokenizer: BpeTokenizer, old: bytes, new: bytes, told: str
) -> None:
    source = model_folder(tmp_path / "model", tokenizer, {"max_seq_len": 64, **NETWORKS["qwen3"]})
    file = tmp_path / "model.gguf"
    export_gguf(source, file, "f16")
    whole = file.read_bytes()
    assert old in whole
    file.write_bytes(whole.replace(old, new))
    with pytest.raises(ExchangeError, match=told):
        import_gguf(file, tmp_path / "back")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.gguf"]


def test_a_quantised_or_broken_file_is_refused(tmp_path: Path, tokenizer: BpeTokenizer) -> None:
    source = model_folder(tmp_path / "model", tokenizer, {"max_seq_len": 64, **NETWORKS["qwen3"]})
    export_gguf(source, tmp_path / "model.gguf", "q8_0")
    with pytest.raises(ExchangeError, match="is of type Q8_0; expected f32, f16, bf16"):
        import_gguf(tmp_path / "model.gguf", tmp_path / "back")
    whole = (tmp_path / "model.gguf").read_bytes()
    for length in (0, 3, 20, 200, len(whole) // 3, len(whole) - 40):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        with pytest.raises(ExchangeError, match="is no whole GGUF file"):
            import_gguf(tmp_path / "cut.gguf", tmp_path / "back")
    with pytest.raises(ExchangeError, match="cannot be read: No such file"):
        import_gguf(tmp_path / "none.gguf", tmp_path / "back")
