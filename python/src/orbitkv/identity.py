"""What makes two pages the same: the digest of a model's files, and the facts of a namespace.

A namespace is the identity of bytes, so anything that changes the KV of one token must change a fact. The dearest fact
is the content of the weight files. It is read once: the digest of each file is kept in the user's cache folder under
the file's device, inode, size, mtime and ctime (both in nanoseconds), so that a changed file is read again and an
unchanged one is not. Ranks that start together share the work through a file lock.

ORBITKV_MODEL_FINGERPRINT (64 hexadecimal digits) replaces the reading and moves the responsibility to the operator;
ORBITKV_CACHE_SCOPE separates tenants or experiments and never replaces the fingerprint.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orbitkv.errors import ConfigurationError

FINGERPRINT = "ORBITKV_MODEL_FINGERPRINT"
SCOPE = "ORBITKV_CACHE_SCOPE"

WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz"})
# Files that decide how weights become KV. A tokenizer does not: keys are made of token ids.
MODEL_NAMES = frozenset(
    {"config.json", "params.json", "quantize_config.json", "hf_quant_config.json", "adapter_config.json"}
)
MODEL_CODE_SUFFIX = ".py"

READ_BYTES = 8 << 20
READERS_MAX = 8  # files read at once: a local disk or page cache gives no more to more readers
FILES_MAX = 65536  # a folder with more weight files than this is not a model


def refuse_unread_weights(load_format: str) -> None:
    """Refuse a load format whose weights do not come from the model's files, unless the operator vouches for them."""
    if not os.environ.get(FINGERPRINT):
        raise ConfigurationError(
            f"the load format {load_format} may take weights from elsewhere than the model's files, so they cannot be "
            f"told from others: set {FINGERPRINT} to 64 hexadecimal digits that change with the weights"
        )


@dataclass(frozen=True)
class ModelDigest:
    """The digest of a model's files and what it cost to get it."""

    hex: str
    files: int
    bytes: int
    read_bytes: int  # the part whose digest was not in the cache
    seconds: float

    def describe(self) -> str:
        """Return one sentence for the log."""
        if self.files == 0:
            return f"model fingerprint {self.hex[:16]} taken from {FINGERPRINT}"
        return (
            f"model fingerprint {self.hex[:16]} of {self.files} files, {self.bytes} bytes, "
            f"{self.read_bytes} of them read anew, in {self.seconds:.2f} s"
        )


def model_digest(
    folder: Path, *, cache: Path | None = None, environment: Mapping[str, str] | None = None
) -> ModelDigest:
    """Return the digest of the files in `folder` that decide the KV bytes.

    ConfigurationError when the override is no fingerprint, or the folder holds no weights and there is no override.
    """
    values = os.environ if environment is None else environment
    if override := values.get(FINGERPRINT):
        if not re.fullmatch(r"[0-9a-f]{64}", override):
            raise ConfigurationError(f"{FINGERPRINT} must be 64 lowercase hexadecimal digits, not {override!r}")
        return ModelDigest(override, 0, 0, 0, 0.0)
    begin = time.monotonic()
    files = model_files(folder)
    if not any(path.suffix in WEIGHT_SUFFIXES for path in files):
        raise ConfigurationError(
            f"no weight files under {folder}, so two different models could not be told apart: "
            f"name a local model folder, or set {FINGERPRINT} to 64 hexadecimal digits that change with the weights"
        )
    store = DigestStore(cache if cache is not None else default_cache())
    with store.locked(), ThreadPoolExecutor(min(READERS_MAX, len(files))) as readers:
        digests = list(readers.map(store.digest, files))
    whole = hashlib.sha256()
    for path, entry in zip(files, digests, strict=True):
        name = str(path.relative_to(folder)).encode()
        whole.update(len(name).to_bytes(4, "little") + name + bytes.fromhex(entry.hex))
    return ModelDigest(
        whole.hexdigest(),
        len(files),
        sum(entry.bytes for entry in digests),
        sum(entry.bytes for entry in digests if entry.read),
        time.monotonic() - begin,
    )


def model_files(folder: Path) -> list[Path]:
    """Return the files under `folder` (symbolic links followed) that decide the KV bytes, in one fixed order."""
    found = []
    for path in sorted(folder.rglob("*")):
        wanted = path.suffix in WEIGHT_SUFFIXES or path.suffix == MODEL_CODE_SUFFIX or path.name in MODEL_NAMES
        if wanted and path.is_file():
            found.append(path)
        if len(found) > FILES_MAX:
            raise ConfigurationError(f"{folder} holds more than {FILES_MAX} weight files: name the model's own folder")
    return found


@dataclass(frozen=True)
class FileDigest:
    """Digest and size of one file; `read` says whether it had to be read."""

    hex: str
    bytes: int
    read: bool


class DigestStore:
    """Digests of files by their inode facts, one small file each. Safe among threads and processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def digest(self, path: Path) -> FileDigest:
        """Return the digest of a file's bytes. ConfigurationError when it changes while it is read."""
        before = path.stat()
        if not stat.S_ISREG(before.st_mode):
            raise ConfigurationError(f"{path} is no regular file, so its bytes have no digest")
        entry = self._folder / entry_name(before)
        known = self._read(entry)
        if known is not None:
            return FileDigest(known, before.st_size, read=False)
        value = hash_file(path)
        if inode_facts(path.stat()) != inode_facts(before):
            raise ConfigurationError(
                f"{path} changed while its digest was taken: let the download end, then start again"
            )
        self._write(entry, value)
        return FileDigest(value, before.st_size, read=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from reading the same files at the same time; without the folder there is no lock."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            yield  # A read-only home costs the reading at each start, nothing else.
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _read(self, entry: Path) -> str | None:
        try:
            text = entry.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return None
        return text if re.fullmatch(r"[0-9a-f]{64}", text) else None

    def _write(self, entry: Path, value: str) -> None:
        """Put an entry into place whole; a cache folder that cannot be written costs a reading at the next start."""
        try:
            handle, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "w", encoding="ascii") as out:
                out.write(value)
            Path(name).replace(entry)
        except OSError:
            return


def inode_facts(status: os.stat_result) -> tuple[int, ...]:
    """Return what changes whenever a file's content may have changed."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def entry_name(status: os.stat_result) -> str:
    """Return the name of a file's entry in the store."""
    return "-".join(format(value, "x") for value in inode_facts(status))


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    buffer = bytearray(READ_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as source:
        while count := source.readinto(buffer):
            digest.update(view[:count])
    return digest.hexdigest()


def digest_text(parts: Iterable[str]) -> str:
    """Return the SHA-256 of a list of strings, each framed by its length."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return digest.hexdigest()


def cache_scope(environment: Mapping[str, str] | None = None) -> str:
    """Return the operator's scope, empty when there is none."""
    return (os.environ if environment is None else environment).get(SCOPE, "")


def default_cache() -> Path:
    """Return the folder of the digests in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "orbitkv" / "digests"
