"""Facts of a model that name its bytes, from what every engine knows of it: a path, a revision and a configuration."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from orbitkv.errors import ConfigurationError
from orbitkv.identity import FINGERPRINT, ModelDigest, digest_text, model_digest

# Where a configuration came from and who wrote it say nothing about the bytes.
ORIGINS = ("_name_or_path", "name_or_path", "transformers_version")


def digest_of(model: str, revision: str | None) -> ModelDigest:
    """Return the digest of a model's files. ConfigurationError when they are not on this host."""
    if os.environ.get(FINGERPRINT):
        return model_digest(Path())
    return model_digest(model_folder(model, revision))


def model_folder(model: str, revision: str | None) -> Path:
    """Return the local folder of a model that the engine has loaded; ConfigurationError when there is none."""
    path = Path(model)
    if path.is_dir():
        return path.resolve()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError, OSError) as fault:
        raise ConfigurationError(
            f"the files of model {model} are not on this host ({fault}), so it cannot be told from another: "
            f"name a local folder, or set {FINGERPRINT} to 64 hexadecimal digits that change with the weights"
        ) from fault


def config_digest(hf_config: Any) -> str:
    """Return a digest of the model's configuration as it is used, overrides included, without where it came from."""
    values = hf_config.to_dict()
    for name in ORIGINS:
        values.pop(name, None)
    return digest_text([json.dumps(values, sort_keys=True, default=str)])
