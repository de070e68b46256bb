"""Named tensors as a safetensors file, written and digested in one pass.

In go tensors, out come the file and the sha256 of its bytes: each piece is hashed and written while it is in the
processor's cache, so that a checkpoint reads its memory once and not its file again. The bytes are those that
`safetensors.torch.save_file` writes, which cannot tell their digest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

_PIECE = 2**20  # bytes that are hashed and written at once

# As safetensors calls them, and in the order of its files: wide elements first, so that all lie at multiples of their
# size.
_DTYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Writes tensors to a file and flushes it to the disk.

    Args:
        path: the file; one that is there is replaced.
        tensors: by name, on any device.

    Returns:
        The sha256 of the file's bytes, in hexadecimal digits.

    Raises:
        OSError: it cannot be written.
        ValueError: a tensor's elements are of a kind that is not known here.
    """
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in _pieces(tensors):
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _pieces(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The file's bytes."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise ValueError(
                f"the tensor {name!r} holds {tensor.dtype}; expected one of {', '.join(map(str, _DTYPES))}"
            )
    places = {dtype: place for place, dtype in enumerate(_DTYPES)}
    names = sorted(tensors, key=lambda name: (places[tensors[name].dtype], name))
    yield _header({name: tensors[name] for name in names})
    for name in names:
        data = tensors[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
        for start in range(0, len(data), _PIECE):
            yield data[start : start + _PIECE]


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    """Names, kinds, shapes and places, in their order; before it its length, behind it spaces to a multiple of 8."""
    entries, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
