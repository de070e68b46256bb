"""Import and export of weights in the layouts of `hf_config`, and export of adapters in that of `peft`.

Tensors are renamed by one table (`_NAMES`), which also serves gradients. GPT-2 stores matrices transposed and
concatenates queries, keys and values. `transformers` is not needed, and pickles are never read.
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
from .config import TrainConfig
from .hf_config import GPT2, LAYOUTS, ORIGINAL, OWN, ROTARY, LayoutError, config_from_hf, config_to_hf, layout_of
from .transformer import Transformer

CONFIG_FILE, PARAMS_FILE = "config.json", "params.json"
GENERATION_FILE = "generation_config.json"
WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
PEFT_FILE, PEFT_CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
_HEAD = "lm_head.weight"

# columns: this package, GPT-2, transformers' rotary models, LLaMA's original release; N is the number of the layer
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
    ("norm_attention_out", "", "model.layers.N.post_attention_layernorm", ""),
    ("norm_mlp_out", "", "model.layers.N.post_feedforward_layernorm", ""),
    ("norm_mlp", "transformer.h.N.ln_2", "model.layers.N.post_attention_layernorm", "layers.N.ffn_norm"),
    ("mlp.gate", "", "model.layers.N.mlp.gate_proj", "layers.N.feed_forward.w1"),
    ("mlp.up", "transformer.h.N.mlp.c_fc", "model.layers.N.mlp.up_proj", "layers.N.feed_forward.w3"),
    ("mlp.down", "transformer.h.N.mlp.c_proj", "model.layers.N.mlp.down_proj", "layers.N.feed_forward.w2"),
    ("norm", "transformer.ln_f", "model.norm", "norm"),
    ("untied_head", "lm_head", "lm_head", "output"),
)
_PREFIXES = {GPT2: "transformer.", ROTARY: "model.", OWN: ""}  # missing in files of a model saved without its head
_OURS = re.compile(r"(?:blocks\.(\d+)\.)?(.+?)(?:\.(weight|bias))?")
# constants that older versions stored with the weights
_BUFFERS = re.compile(r"(h\.\d+\.attn\.(masked_)?bias|(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq|rope\.freqs)")
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def hf_parts(tensors: Mapping[str, Tensor], config: ModelConfig, layout: str = "") -> dict[str, list[Tensor]]:
    """Return each tensor of a layout as parts, to be concatenated along the last axis.

    Args:
        tensors: the network's state dict in its order, or tensors of the same names and shapes, such as gradients.
        config: the network's configuration.
        layout: one of LAYOUTS; empty for the first that fits.

    Returns:
        Views of the tensors under the layout's names, without rows of padding and without a tied head. Queries, keys
        and gains of QK-norm are permuted copies if the layout rotates other pairs than rope_layout.

    Raises:
        LayoutError: the configuration does not fit the layout, or any layout.
    """
    layout = layout_of(config, layout)
    known, names = LAYOUTS[layout], _names(layout)
    found: dict[str, list[Tensor]] = {}
    for name, tensor in tensors.items():
        layer, part, kind = _OURS.fullmatch(name).groups()  # type: ignore[union-attr]
        if part in ("token_embedding", "untied_head"):
            tensor = tensor[: config.vocab_size]
        elif known.column == GPT2 and layer:
            tensor = tensor.t()  # its Conv1D stores (in, out)
        elif part.endswith(("q", "k")):
            tensor = _in_layout(tensor, config, layout)
        found.setdefault(f"{names[part].replace('N', layer or '')}.{kind or 'weight'}", []).append(tensor)
    return found


def _names(layout: str) -> dict[str, str]:
    found = {row[0]: row[LAYOUTS[layout].column] for row in _NAMES}
    if LAYOUTS[layout].fixed.get("norm_order") == "both":
        found["norm_mlp"] = "model.layers.N.pre_feedforward_layernorm"
    return found


def _is_gain(name: str) -> bool:
    return name.endswith(("norm.weight", "layernorm.weight"))


def _in_layout(tensor: Tensor, config: ModelConfig, layout: str) -> Tensor:
    """Return the rows of queries or keys in the order of the layout's rotated pairs."""
    if config.rope_layout == LAYOUTS[layout].fixed.get("rope_layout"):
        return tensor
    half = config.head_dim // 2
    groups = (half, 2) if config.rope_layout == "interleaved" else (2, half)
    return tensor.unflatten(0, (-1, *groups)).transpose(1, 2).flatten(0, 2)


def from_hf(folder: Path | str, *, device: torch.device | str = "cpu") -> Transformer:
    """Read the network of a published model, in evaluation mode.

    Args:
        folder: holds config.json and model.safetensors, or shards of it with model.safetensors.index.json; or LLaMA's
            params.json and its tensors as consolidated.safetensors. A tied head and the prefix of names are optional;
            float16 and bfloat16 become float32.
        device: device of the returned network.

    Raises:
        LayoutError: a file is missing, config.json has an unsupported setting, or the tensors do not match config.json
            (missing, unknown or of another shape).
    """
    folder = Path(folder)
    layout, config = read_shape(folder)
    with torch.random.fork_rng(devices=[]):  # initialisation must not advance the caller's generator
        model = Transformer(config)
    with torch.no_grad():
        _fill(model, layout, folder)
    return model.to(device).eval()


def read_shape(folder: Path) -> tuple[str, ModelConfig]:
    """Return the layout of a folder, one of LAYOUTS, and the configuration of its network.

    Raises:
        LayoutError: as for `from_hf`.
    """
    if (folder / CONFIG_FILE).is_file() or not (folder / PARAMS_FILE).is_file():
        fields = _read_json(folder / CONFIG_FILE)
        return str(fields.get("model_type")), config_from_hf(fields)
    fields = _read_json(folder / PARAMS_FILE)
    if fields.get("vocab_size", -1) == -1:  # the first two releases do not have it
        rows = (len(tensor) for name, tensor in _tensors(folder) if name == "tok_embeddings.weight")
        fields["vocab_size"] = next(rows, None)
    return ORIGINAL, config_from_hf(fields, ORIGINAL)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise LayoutError(
            f"{path.parent} has no {path.name}; expected a folder written by save_pretrained of transformers"
        ) from error
    except (ValueError, OSError) as error:
        raise LayoutError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise LayoutError(f"{path} holds a {type(found).__name__}; expected a JSON object")
    return found


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of all files, one at a time."""
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
            f"{folder} has its weights in {pickles[0]}, a pickle, which can run code and is never read; convert it by "
            f"save_pretrained of transformers, or by safetensors.torch.save_file(torch.load(file, weights_only=True))"
        )
    raise LayoutError(f"{folder} has neither {WEIGHTS_FILE} nor {INDEX_FILE}; expected weights as safetensors")


def _fill(model: Transformer, layout: str, folder: Path) -> None:
    """Copy the tensors of the files into the model. Raises LayoutError with all missing, unknown or wrong ones."""
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
                    if LAYOUTS[layout].is_centred and _is_gain(full):
                        part.add_(1.0)
    faults += [f"{name} is missing" for name in sorted(missing)]
    embedding = model.token_embedding.weight
    if tied is not None and not faults and not torch.equal(tied.to(embedding.dtype), embedding):
        faults.append(f"{_HEAD} differs from the token embedding although tie_word_embeddings is true")
    if faults:
        shown = "; ".join(faults[:8]) + (f"; and {len(faults) - 8} more" if len(faults) > 8 else "")
        file = PARAMS_FILE if layout == ORIGINAL else CONFIG_FILE
        raise LayoutError(f"the tensors in {folder} do not match its {file}: {shown}")


def to_hf(model: Transformer, folder: Path | str, layout: str = "", **details: Any) -> None:
    """Write a folder that `AutoModelForCausalLM.from_pretrained` of `transformers` reads.

    Args:
        model: the network; rows of padding are cut, a tied head is stored once, weights are written as float32.
        folder: a folder that does not exist or is empty; it is written atomically.
        layout: one of LAYOUTS; empty for the first that fits. "llama-original" is the layout of LLaMA's original
            release, which `transformers` does not read.
        details: keyword arguments of `write_hf`.

    Raises:
        LayoutError: the folder is not empty, or the configuration does not fit the layout, or any layout.
    """
    layout = layout_of(model.config, layout)  # before anything is written
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
    """Write the files of `to_hf` into an existing folder, for callers that add further files.

    Args:
        model, folder, layout: as for `to_hf`.
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
    if LAYOUTS[layout].is_centred:
        joined = {name: tensor - 1.0 if _is_gain(name) else tensor for name, tensor in joined.items()}
    save_file(joined, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def write_peft(
    adapter: Mapping[str, Tensor],
    folder: Path,
    config: ModelConfig,
    train_config: TrainConfig,
    base: str,
    layout: str = "",
) -> None:
    """Write adapters as a folder that `PeftModel.from_pretrained` of `peft` reads, for the base in a layout.

    Args:
        adapter: weights by the names of `adapters.AdaptedLinear`.
        folder: created.
        config: the network's configuration.
        train_config: gives the settings of the adapters.
        base: name of the base, for the reader.
        layout: one of LAYOUTS, but LLaMA's original one; empty for the first that fits.

    Raises:
        LayoutError: the configuration does not fit the layout, or GPT-2's has an adapter for some of queries, keys and
            values only, which are one layer there.
    """
    layout = layout_of(config, layout)
    column, rank = LAYOUTS[layout].column, train_config.adapter_rank
    names = _names(layout)
    found: dict[str, list[dict[str, Tensor]]] = {}
    for prefix in [name.removesuffix("lora_a") for name in adapter if name.endswith(".lora_a")]:
        kinds = ("lora_a", "lora_b", "magnitude")
        ours = {kind: adapter[prefix + kind] for kind in kinds if prefix + kind in adapter}
        layer, part, _ = _OURS.fullmatch(prefix.removesuffix(".")).groups()  # type: ignore[union-attr]
        if part.endswith((".q", ".k")):
            ours |= {kind: _in_layout(ours[kind], config, layout) for kind in ours if kind != "lora_a"}
        found.setdefault(names[part].replace("N", layer), []).append(ours)
    tensors, joined = {}, set()
    for name, parts in found.items():
        if name.endswith("c_attn"):
            if len(parts) < 3:
                raise LayoutError("queries, keys and values are one layer of GPT-2; give adapters to all or none")
            joined.add("c_attn")
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.cat([part["lora_a"] for part in parts])
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.block_diag(*(part["lora_b"] for part in parts))
        if train_config.adapter == "dora":
            tensors[f"base_model.model.{name}.lora_magnitude_vector"] = torch.cat([part["magnitude"] for part in parts])
    folder.mkdir(parents=True)
    save_file({name: one.detach().float().cpu().contiguous() for name, one in tensors.items()}, folder / PEFT_FILE)
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": train_config.adapter_alpha,
        "lora_dropout": train_config.adapter_dropout,
        "use_dora": train_config.adapter == "dora",
        "target_modules": sorted({".".join(name.split(".")[-2:]) for name in found}),
        "fan_in_fan_out": column == GPT2,
        "bias": "none",
        "rank_pattern": dict.fromkeys(joined, 3 * rank),
        "alpha_pattern": dict.fromkeys(joined, 3 * train_config.adapter_alpha),
    }
    write_json(folder / PEFT_CONFIG_FILE, fields)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object in the format of Hugging Face."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def fresh_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to the target at the end and removed after an error.

    Raises:
        LayoutError: the target is a file or a folder that is not empty.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise LayoutError(f"{target} exists and is not an empty folder; give a new name, or remove it")
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
