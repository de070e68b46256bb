"""Folders of published models in and out, both ways: GPT-2's, LLaMA's, Mistral's and Qwen's, and LLaMA's own release.

Both sides hold the same numbers under other names, so the whole of it is one table of names (`_NAMES`). GPT-2 stores
matrices transposed, and queries, keys and values side by side. Reading copies into the parts of ours that make up one
tensor of theirs, writing joins them, and gradients translate by the same table.

Nothing here needs `transformers`, and no pickle is ever read.
"""

from __future__ import annotations

import json
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
from .checkpoint import fsync_path
from .hf_config import GPT2, LAYOUTS, ORIGINAL, OWN, ROTARY, LayoutError, config_from_hf, config_to_hf, layout_of
from .transformer import Transformer

CONFIG_FILE, PARAMS_FILE = "config.json", "params.json"
GENERATION_FILE = "generation_config.json"
WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
_HEAD = "lm_head.weight"

# ours, GPT-2's, those of transformers' rotary models, those of LLaMA's own release; N is the layer's number
_NAMES = (
    ("token_embedding", "transformer.wte", "model.embed_tokens", "tok_embeddings"),
    ("position_table", "transformer.wpe", "", ""),
    ("norm_attention", "transformer.h.N.ln_1", "model.layers.N.input_layernorm", "layers.N.attention_norm"),
    ("attention.q", "transformer.h.N.attn.c_attn", "model.layers.N.self_attn.q_proj", "layers.N.attention.wq"),
    ("attention.k", "transformer.h.N.attn.c_attn", "model.layers.N.self_attn.k_proj", "layers.N.attention.wk"),
    ("attention.v", "transformer.h.N.attn.c_attn", "model.layers.N.self_attn.v_proj", "layers.N.attention.wv"),
    ("attention.norm_q", "", "model.layers.N.self_attn.q_norm", ""),
    ("attention.norm_k", "", "model.layers.N.self_attn.k_norm", ""),
    ("attention.proj", "transformer.h.N.attn.c_proj", "model.layers.N.self_attn.o_proj", "layers.N.attention.wo"),
    ("norm_mlp", "transformer.h.N.ln_2", "model.layers.N.post_attention_layernorm", "layers.N.ffn_norm"),
    ("mlp.gate", "", "model.layers.N.mlp.gate_proj", "layers.N.feed_forward.w1"),
    ("mlp.up", "transformer.h.N.mlp.c_fc", "model.layers.N.mlp.up_proj", "layers.N.feed_forward.w3"),
    ("mlp.down", "transformer.h.N.mlp.c_proj", "model.layers.N.mlp.down_proj", "layers.N.feed_forward.w2"),
    ("norm", "transformer.ln_f", "model.norm", "norm"),
    ("untied_head", "lm_head", "lm_head", "output"),
)
_PREFIXES = {GPT2: "transformer.", ROTARY: "model.", OWN: ""}  # which a body saved alone lacks
_OURS = re.compile(r"(?:blocks\.(\d+)\.)?(.+?)(?:\.(weight|bias))?")
# constants that older versions stored beside the weights
_BUFFERS = re.compile(r"(h\.\d+\.attn\.(masked_)?bias|(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq|rope\.freqs)")
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def hf_parts(tensors: Mapping[str, Tensor], config: ModelConfig, layout: str = "") -> dict[str, list[Tensor]]:
    """Return the parts of each tensor of a layout; it is their concatenation along the last axis.

    Args:
        tensors: the network's state in its order, or anything named and shaped alike, such as gradients.
        config: the network's shape.
        layout: one of LAYOUTS; otherwise the first that fits.

    Returns:
        Views of ours under the layout's names, without rows of padding and without a tied head. Only where the layout
        rotates other pairs than rope_layout says, queries, keys and the gains of QK-norm are copies, because their rows
        change places.

    Raises:
        LayoutError: the shape has no place in the layout, or in any.
    """
    known = LAYOUTS[layout_of(config, layout)]
    names = {row[0]: row[known.column] for row in _NAMES}
    swaps = config.rope_layout != known.fixed.get("rope_layout")
    half = config.head_dim // 2
    groups = (half, 2) if config.rope_layout == "interleaved" else (2, half)
    found: dict[str, list[Tensor]] = {}
    for name, tensor in tensors.items():
        layer, part, kind = _OURS.fullmatch(name).groups()  # type: ignore[union-attr]
        if part in ("token_embedding", "untied_head"):
            tensor = tensor[: config.vocab_size]
        elif known.column == GPT2 and layer:
            tensor = tensor.t()  # its Conv1D multiplies from the other side: (in, out)
        elif swaps and part.endswith(("q", "k")):  # rows of heads, from one order of pairs to the other
            tensor = tensor.unflatten(0, (-1, *groups)).transpose(1, 2).flatten(0, 2)
        found.setdefault(f"{names[part].replace('N', layer or '')}.{kind or 'weight'}", []).append(tensor)
    return found


def from_hf(folder: Path | str, *, device: torch.device | str = "cpu") -> Transformer:
    """Return the network in a folder of a published model, in evaluation mode.

    Args:
        folder: holds config.json and model.safetensors, or shards of it with model.safetensors.index.json; or LLaMA's
            params.json and its tensors as consolidated.safetensors. The tied head may be stored or left out, names may
            lack the body's prefix; float16 and bfloat16 become float32.
        device: where to put the network.

    Raises:
        LayoutError: the folder lacks something, its config.json asks for what the network here does not do, or its
            tensors are not the ones that config.json describes (missing, unknown or of another shape).
    """
    folder = Path(folder)
    layout, config = read_shape(folder)
    with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten; they must cost no random numbers
        model = Transformer(config)
    with torch.no_grad():
        _fill(model, layout, folder)
    return model.to(device).eval()


def read_shape(folder: Path) -> tuple[str, ModelConfig]:
    """Return the layout of a folder, one of LAYOUTS, and the shape of its network.

    Raises:
        LayoutError: see `from_hf`.
    """
    if (folder / CONFIG_FILE).is_file() or not (folder / PARAMS_FILE).is_file():
        fields = _read_json(folder / CONFIG_FILE)
        return str(fields.get("model_type")), config_from_hf(fields)
    fields = _read_json(folder / PARAMS_FILE)
    if fields.get("vocab_size", -1) == -1:  # the first two releases leave it to the tokeniser
        rows = (len(tensor) for name, tensor in _tensors(folder) if name == "tok_embeddings.weight")
        fields["vocab_size"] = next(rows, None)
    return ORIGINAL, config_from_hf(fields, ORIGINAL)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise LayoutError(
            f"{path.parent} has no {path.name}; give a folder that save_pretrained of transformers wrote"
        ) from error
    except (ValueError, OSError) as error:
        raise LayoutError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise LayoutError(f"{path} holds a {type(found).__name__}; expected a JSON object")
    return found


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a folder, one at a time."""
    for path in _weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (the file is no dictionary)
                    yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise LayoutError(f"{path} cannot be read as safetensors: {error}") from error


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX_FILE).is_file():
        placed = _read_json(folder / INDEX_FILE).get("weight_map")
        names = sorted(set(map(str, placed.values()))) if isinstance(placed, dict) else []
        wrong = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
        if not names or wrong:
            fault = f"names {', '.join(wrong)}" if names else "names no file"
            raise LayoutError(f"{folder / INDEX_FILE} {fault}; expected safetensors files in the same folder")
        return [folder / name for name in names]
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if found := sorted(folder.glob("consolidated*.safetensors")):
        return found
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pth", ".pt"))
    if pickles:
        raise LayoutError(
            f"{folder} has its weights in {pickles[0]}, a pickle, which can run code and is never read; convert it "
            f"where you trust it, by save_pretrained of transformers, or by safetensors.torch.save_file of what "
            f"torch.load(file, weights_only=True) returns"
        )
    raise LayoutError(f"{folder} has neither {WEIGHTS_FILE} nor {INDEX_FILE}; expected weights as safetensors")


def _fill(model: Transformer, layout: str, folder: Path) -> None:
    """Copies every tensor of the files into its parts; names all that is missing, unknown or misshapen."""
    parts = hf_parts(model.state_dict(), model.config, layout)
    prefix = _PREFIXES[LAYOUTS[layout].column]
    missing, faults = set(parts), []
    tied: Tensor | None = None
    for name, tensor in _tensors(folder):
        full = name if name in parts or name == _HEAD else prefix + name
        if _BUFFERS.fullmatch(name.removeprefix(prefix)):
            continue
        if full == _HEAD and model.config.tie_weights:
            tied = tensor
        elif full not in parts:
            faults.append(f"{name} is unknown")
        elif full not in missing:
            faults.append(f"{name} occurs twice")
        else:
            missing.remove(full)
            widths = [part.shape[-1] for part in parts[full]]
            expected = (*parts[full][0].shape[:-1], sum(widths))
            if tensor.shape != expected:
                faults.append(f"{name} has the shape {tuple(tensor.shape)}, expected {expected}")
            elif tensor.dtype not in _FLOATS:
                faults.append(f"{name} is of type {tensor.dtype}, expected floats; save the model without quantisation")
            else:
                for part, piece in zip(parts[full], tensor.split(widths, -1), strict=True):
                    part.copy_(piece)
    faults += [f"{name} is missing" for name in sorted(missing)]
    embedding = model.token_embedding.weight
    if tied is not None and not faults and not torch.equal(tied.to(embedding.dtype), embedding):
        faults.append(f"{_HEAD} differs from the token embedding although tie_word_embeddings is true")
    if faults:
        shown = "; ".join(faults[:8]) + (f"; and {len(faults) - 8} more" if len(faults) > 8 else "")
        file = PARAMS_FILE if layout == ORIGINAL else CONFIG_FILE
        raise LayoutError(f"the tensors in {folder} are not those of its {file}: {shown}")


def to_hf(model: Transformer, folder: Path | str, layout: str = "", **details: Any) -> None:
    """Write a network as a folder that `AutoModelForCausalLM.from_pretrained` of `transformers` reads.

    Args:
        model: the network; rows of padding are cut, a tied head is stored once, weights are written as float32.
        folder: where to; it must not exist, or be empty. It appears whole or not at all.
        layout: one of LAYOUTS; otherwise the first that fits. "llama-original" has the names of LLaMA's own release,
            which `transformers` does not read.
        details: the special ids and `generation` of `write_hf`.

    Raises:
        LayoutError: the folder is not empty, or the network's shape has no place in the layout, or in any.
    """
    layout = layout_of(model.config, layout)  # refuse before anything is written
    with fresh_folder(Path(folder)) as work:
        write_hf(model, work, layout, **details)


def write_hf(
    model: Transformer,
    folder: Path,
    layout: str = "",
    *,
    bos_id: int | None = None,
    eos_id: int | None = None,
    pad_id: int | None = None,
    generation: Mapping[str, Any] | None = None,
) -> None:
    """Write the files of `to_hf` into a folder that is there, for callers that add files of their own.

    Args:
        bos_id, eos_id, pad_id: special ids for config.json and generation_config.json.
        generation: further entries of generation_config.json.
    """
    layout = layout_of(model.config, layout)
    config = config_to_hf(model.config, layout, bos_id=bos_id, eos_id=eos_id, pad_id=pad_id)
    if layout == ORIGINAL:
        write_json(folder / PARAMS_FILE, config)
    else:
        write_json(folder / CONFIG_FILE, config)
        special = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        write_json(folder / GENERATION_FILE, {**special, **(generation or {})})
    parts = hf_parts(model.state_dict(), model.config, layout)
    joined = {name: torch.cat(own, -1).float().cpu().contiguous() for name, own in parts.items()}
    save_file(joined, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object as Hugging Face does."""
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
            fsync_path(path)
        work.replace(target)
        fsync_path(target.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
