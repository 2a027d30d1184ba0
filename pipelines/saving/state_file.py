"""The state of a fit or a model: one file of tensors (safetensors) and plain JSON.

It replaces the previous file atomically, and holds the SHA-256 of all its other bytes.
"""

from __future__ import annotations

import errno
import json
import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipelines.base.errors import InputError
from pipelines.storage.atomic import atomic_file
from pipelines.storage.digests import (
    CHECKSUM_KEY,
    PLACEHOLDER,
    insert_checksum,
    verify_checksum,
)

_RECORD = "dustmap.state"
_FORMAT = 7
# Key in JSON of a tensor.
_TENSOR = "$tensor"
# Key of bytes as a tensor.
_BYTES = "$bytes"


def write_state(path: Path, content: dict[str, Any], *, version: int = _FORMAT) -> None:
    """Write a state over the last one.

    ``content`` is a tree of dicts, lists and dataclasses with tensors, bytes, texts and
    finite numbers; ``version`` is the version of its layout, by default of a fit's.

    Raises `OSError` if the file cannot be written; the last one remains unchanged.
    """
    tensors: dict[str, Tensor] = {}
    memory: set[int] = set()

    def packed(value: Any) -> dict[str, Any]:
        if is_dataclass(value):
            return {item.name: getattr(value, item.name) for item in fields(value)}
        mark, name = _TENSOR, str(len(tensors))
        if isinstance(value, bytes):
            mark = _BYTES
            value = torch.from_numpy(np.frombuffer(value, np.uint8).copy())
        own = value.detach().cpu().contiguous()
        # The format does not allow tensors with shared memory.
        pointer = own.untyped_storage().data_ptr()
        tensors[name] = own.clone() if pointer in memory else own
        memory.add(pointer)
        return {mark: name}

    record = {"format": version, "written": time.time(), "content": content}
    text = json.dumps(record, default=packed, allow_nan=False)
    with atomic_file(path, overwrite=True) as part:
        try:
            save_file(tensors, part, {_RECORD: text, CHECKSUM_KEY: PLACEHOLDER})
        except SafetensorError as error:
            # Its writer is not Python's and reports system errors as text.
            full = "No space left" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error
        insert_checksum(part)
        # Its writer makes files that only the owner may read.
        part.chmod(0o644)


def read_state(path: Path, *, version: int = _FORMAT) -> dict[str, Any]:
    """Read a state and check its hash; dataclasses become dicts.

    The key ``written`` holds its Unix time.

    Raises `InputError` if the file is absent, incomplete, altered or of another format.
    """
    try:
        verify_checksum(path)
        with safe_open(path, "pt") as file:

            def unpacked(plain: dict[str, Any]) -> Any:
                if plain.keys() not in ({_TENSOR}, {_BYTES}):
                    return plain
                # Use torch's aligned memory: rounding of some products depends on it.
                ((mark, name),) = plain.items()
                value = file.get_tensor(name).clone()
                return value if mark == _TENSOR else value.numpy().tobytes()

            record = json.loads(file.metadata()[_RECORD], object_hook=unpacked)
            found = record["format"]
            content = {**record["content"], "written": float(record["written"])}
    except InputError:
        raise
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise InputError(f"{path} is not a state of this program: {error}") from error
    if found != version:
        raise InputError(
            f"{path} has format {found}; this version reads {version}: use the version "
            "that wrote it, or start again"
        )
    return content
