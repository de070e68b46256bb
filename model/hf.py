"""Models of Hugging Face in and out: GPT-2's, LLaMA's and Qwen3's folders (config.json and safetensors), both ways.

The two sides hold the same numbers under other names: GPT-2 stores its matrices transposed, LLaMA and Qwen3 store
queries, keys and values apart. So the whole of it is one table of views (`hf_views`): each tensor of theirs is a view
of one of ours. Reading copies into the views, writing copies out of them, and gradients translate by the same table.

Nothing here needs `transformers`, and no pickle is ever read.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .architecture import ModelConfig
from .hf_config import GPT2, LLAMA, QWEN3, LayoutError, config_from_hf, config_to_hf, layout_of
from .transformer import Transformer

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# where a language model keeps its body; a body saved alone lacks it
_PREFIX = {GPT2: "transformer.", LLAMA: "model.", QWEN3: "model."}
# constants that older versions stored beside the weights
_BUFFERS = re.compile(r"(h\.\d+\.attn\.(masked_)?bias|(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq)")
_HEAD = "lm_head.weight"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def hf_views(tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Tensors named and shaped as ours, seen under Hugging Face's names and shapes.

    Args:
        tensors: the network's state (or anything shaped alike, such as gradients).
        config: the network's shape.

    Returns:
        One view of ours for each tensor of theirs (writing to it writes to ours), without rows of padding and without
        a tied head. Only with rope_layout "interleaved" queries, keys and the gains of QK-norm are copies, because
        their rows change places.

    Raises:
        LayoutError: the shape has no place in any layout.
    """
    layout = layout_of(config)
    rows = slice(config.vocab_size)
    body = _gpt2_views(tensors, config) if layout == GPT2 else _rotary_views(tensors, config)
    views = {_PREFIX[layout] + name: view for name, view in body.items()}
    if not config.tie_weights:
        views[_HEAD] = tensors["untied_head.weight"][rows]
    return views


def _gpt2_views(ours: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    views = {
        "wte.weight": ours["token_embedding.weight"][: config.vocab_size],
        "wpe.weight": ours["position_table"],
        "ln_f.weight": ours["norm.weight"],
        "ln_f.bias": ours["norm.bias"],
    }
    parts = {
        "ln_1": "norm_attention",
        "attn.c_proj": "attention.proj",
        "ln_2": "norm_mlp",
        "mlp.c_fc": "mlp.up",
        "mlp.c_proj": "mlp.down",
    }
    for layer in range(config.n_layer):
        for kind in ("weight", "bias"):
            for theirs, part in parts.items():
                # its Conv1D multiplies from the other side: (in, out)
                views[f"h.{layer}.{theirs}.{kind}"] = ours[f"blocks.{layer}.{part}.{kind}"].t()
    return views


def _rotary_views(ours: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """LLaMA's tensors; Qwen3's are the same and the gains of queries and keys."""

    def in_halves(view: Tensor) -> Tensor:
        return _halves_from_pairs(view, config.head_dim) if config.rope_layout == "interleaved" else view

    views = {
        "embed_tokens.weight": ours["token_embedding.weight"][: config.vocab_size],
        "norm.weight": ours["norm.weight"],
    }
    parts = {
        "input_layernorm": "norm_attention",
        "self_attn.o_proj": "attention.proj",
        "post_attention_layernorm": "norm_mlp",
        "mlp.gate_proj": "mlp.gate",
        "mlp.up_proj": "mlp.up",
        "mlp.down_proj": "mlp.down",
    }
    rows = [n * config.head_dim for n in (config.n_head, config.n_kv_head, config.n_kv_head)]
    for layer in range(config.n_layer):
        for kind in ("weight", "bias"):
            for theirs, part in parts.items():
                if (name := f"blocks.{layer}.{part}.{kind}") in ours:
                    views[f"layers.{layer}.{theirs}.{kind}"] = ours[name]
            if (name := f"blocks.{layer}.attention.qkv.{kind}") in ours:
                for letter, view in zip("qkv", ours[name].split(rows), strict=True):
                    views[f"layers.{layer}.self_attn.{letter}_proj.{kind}"] = view if letter == "v" else in_halves(view)
        if config.qk_norm:
            for letter in "qk":
                gain = ours[f"blocks.{layer}.attention.norm_{letter}.weight"]
                views[f"layers.{layer}.self_attn.{letter}_norm.weight"] = in_halves(gain)
    return views


def _halves_from_pairs(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of heads with pairs (2i, 2i + 1) put in the order of pairs (i, i + head_dim / 2)."""
    return rows.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)


def from_hf(folder: Path | str, *, device: torch.device | str = "cpu") -> Transformer:
    """The network in a Hugging Face folder of a GPT-2, LLaMA or Qwen3 model, in evaluation mode.

    Args:
        folder: holds config.json and model.safetensors, or shards of it with model.safetensors.index.json. The tied
            head may be stored or left out, names may lack the body's prefix; float16 and bfloat16 become float32.
        device: where to put the network.

    Raises:
        LayoutError: the folder lacks something, its config.json asks for what the network here does not do, or its
            tensors are not the ones that config.json describes (missing, unknown or of another shape).
    """
    folder = Path(folder)
    config = config_from_hf(read_json(folder, CONFIG_FILE))
    files = _weight_files(folder)
    with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten; they must cost no random numbers
        model = Transformer(config)
    with torch.no_grad():
        _fill(hf_views(model.state_dict(), config), files, config, folder)
    return model.to(device).eval()


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object of a model folder.

    Raises:
        LayoutError: there is no such file, or it is not JSON.
    """
    try:
        found = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise LayoutError(
            f"{folder} has no {name}; give a folder that save_pretrained of transformers wrote"
        ) from error
    except (ValueError, OSError) as error:
        raise LayoutError(f"{folder / name} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise LayoutError(f"{folder / name} holds a {type(found).__name__}; expected a JSON object")
    return found


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX_FILE).is_file():
        placed = read_json(folder, INDEX_FILE).get("weight_map")
        names = sorted(set(map(str, placed.values()))) if isinstance(placed, dict) else []
        foreign = [name for name in names if Path(name).name != name]
        absent = [name for name in names if name not in foreign and not (folder / name).is_file()]
        if not names or foreign or absent:
            fault = f"names {', '.join(foreign or absent)}" if names else "names no file"
            raise LayoutError(f"{folder / INDEX_FILE} {fault}; expected safetensors files in the same folder")
        return [folder / name for name in names]
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if pickles:
        raise LayoutError(
            f"{folder} has its weights in {pickles[0]}, a pickle, which can run code and is never read; convert it "
            f"where you trust it: transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)"
        )
    raise LayoutError(f"{folder} has neither {WEIGHTS_FILE} nor {INDEX_FILE}; expected weights as safetensors")


def _fill(views: dict[str, Tensor], files: list[Path], config: ModelConfig, folder: Path) -> None:
    """Copies every tensor of the files into its view; names all that is missing, unknown or misshapen."""
    prefix = _PREFIX[layout_of(config)]
    missing, faults = set(views), []
    tied: Tensor | None = None
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (the file is no dictionary)
                    body = name.removeprefix(prefix)
                    full = name if name == _HEAD else prefix + body
                    if _BUFFERS.fullmatch(body):
                        continue
                    tensor = file.get_tensor(name)
                    if full == _HEAD and config.tie_weights:
                        tied = tensor
                    elif full not in views:
                        faults.append(f"{name} is unknown")
                    elif full not in missing:
                        faults.append(f"{name} occurs twice")
                    else:
                        missing.remove(full)
                        fault = _fault(tensor, views[full])
                        if fault:
                            faults.append(f"{name} {fault}")
                        else:
                            views[full].copy_(tensor)
        except (SafetensorError, OSError) as error:
            raise LayoutError(f"{path} cannot be read as safetensors: {error}") from error
    faults += [f"{name} is missing" for name in sorted(missing)]
    embedding = next(iter(views.values()))  # the token table comes first in all layouts
    if tied is not None and not faults and not torch.equal(tied.to(embedding.dtype), embedding):
        faults.append(f"{_HEAD} differs from the token embedding although tie_word_embeddings is true")
    if faults:
        shown = "; ".join(faults[:8]) + (f"; and {len(faults) - 8} more" if len(faults) > 8 else "")
        raise LayoutError(f"the tensors in {folder} are not those of its {CONFIG_FILE}: {shown}")


def _fault(tensor: Tensor, view: Tensor) -> str | None:
    if tensor.shape != view.shape:
        return f"has the shape {tuple(tensor.shape)}, expected {tuple(view.shape)}"
    if tensor.dtype not in _FLOATS:
        return f"is of type {tensor.dtype}, expected floats; save the model without quantisation"
    return None


def to_hf(
    model: Transformer,
    folder: Path | str,
    *,
    bos_id: int | None = None,
    eos_id: int | None = None,
    pad_id: int | None = None,
    generation: Mapping[str, Any] | None = None,
    max_shard_bytes: int | None = None,
) -> None:
    """Writes a network as a Hugging Face folder that `AutoModelForCausalLM.from_pretrained` reads.

    Args:
        model: the network; rows of padding are cut, a tied head is stored once, weights are written as float32.
        folder: where to; it must not exist, or be empty. It appears whole or not at all.
        bos_id, eos_id, pad_id: special ids for config.json and generation_config.json.
        generation: further entries of generation_config.json.
        max_shard_bytes: largest file of weights (a single larger tensor has one of its own); None writes one file.

    Raises:
        LayoutError: the folder is not empty, or the network's shape has no place in GPT-2's, LLaMA's or Qwen3's
            layout.
    """
    ids = {"bos_id": bos_id, "eos_id": eos_id, "pad_id": pad_id}
    config_to_hf(model.config)  # refuse before anything is written
    with fresh_folder(Path(folder)) as work:
        write_hf(model, work, ids=ids, generation=generation, max_shard_bytes=max_shard_bytes)


def write_hf(
    model: Transformer,
    folder: Path,
    *,
    ids: Mapping[str, int | None],
    generation: Mapping[str, Any] | None = None,
    max_shard_bytes: int | None = None,
) -> None:
    """Writes the files of to_hf into a folder that is there, for callers that add files of their own."""
    config = config_to_hf(model.config, **ids)
    write_json(folder / CONFIG_FILE, config)
    special = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(folder / GENERATION_FILE, {**special, **(generation or {})})
    views = hf_views(model.state_dict(), model.config)
    groups = _shards(views, max_shard_bytes)
    names = [WEIGHTS_FILE]
    if len(groups) > 1:
        names = [f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
        placed = {name: file for file, group in zip(names, groups, strict=True) for name in group}
        size = sum(_n_bytes(view) for view in views.values())
        write_json(folder / INDEX_FILE, {"metadata": {"total_size": size}, "weight_map": placed})
    for file, group in zip(names, groups, strict=True):
        # views of one tensor share its memory, which the format refuses
        copies = {name: torch.empty(views[name].shape).copy_(views[name].detach()) for name in group}
        save_file(copies, folder / file, metadata={"format": "pt"})


def _n_bytes(view: Tensor) -> int:
    return 4 * view.numel()


def _shards(views: dict[str, Tensor], max_shard_bytes: int | None) -> list[list[str]]:
    """Names in their order, in groups of at most so many bytes."""
    if max_shard_bytes is None:
        return [list(views)]
    groups: list[list[str]] = [[]]
    filled = 0
    for name, view in views.items():
        if groups[-1] and filled + _n_bytes(view) > max_shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += _n_bytes(view)
    return groups


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON object as Hugging Face does."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def fresh_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name when all is written; after an error nothing is left.

    Raises:
        LayoutError: the name is taken by a file or by a folder that is not empty.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise LayoutError(f"{target} is there already and is not an empty folder; give a new name, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    work.mkdir()
    try:
        yield work
        for path in [*work.iterdir(), work]:
            _flush(path)
        work.replace(target)
        _flush(target.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
