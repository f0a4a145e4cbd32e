"""Named arrays in small files: compressed, and what several files of a folder have in common kept once.

Weights differ in every bit of their fractions and share their exponents. So the first bytes of all float32 numbers
stand together, then all second bytes, and so on: that compresses to four fifths, where whole numbers do not.
"""

import hashlib
import io
import json
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np

from stream_jax import store

PLANES, LAYOUT, SHARED = "planes", "layout", "shared"  # entries of a file that are no array of their own
COMMON = Path("shared") / "weights.npz"  # of a folder: arrays of several files, by their digests
SMALLEST = 4096  # bytes of an array that is worth sharing
DIGEST = 16  # characters


def write(path: Path, arrays: dict[str, np.ndarray], shared: dict[str, str] | None = None) -> None:
    """Writes a file, whole or not at all; equal arrays give equal bytes.

    Args:
        shared: names of further arrays, with the digests under which the folder's common file has them.
    """
    floats = {name: array for name, array in sorted(arrays.items()) if array.dtype == np.float32}
    flat = np.concatenate([array.ravel() for array in floats.values()] or [np.zeros(0, np.float32)])
    entries = {name: array for name, array in arrays.items() if name not in floats}
    entries[PLANES] = flat.view(np.uint8).reshape(-1, 4).T  # [4, number of weights]
    entries[LAYOUT] = _text({name: array.shape for name, array in floats.items()})
    entries |= {SHARED: _text(shared)} if shared else {}
    with store.whole_file(path) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(entries):
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(entries[name]), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy")  # its date is fixed at 1980
            archive.writestr(entry, content.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)


def read(path: Path, content: bytes | None = None) -> dict[str, np.ndarray]:
    """All arrays of a file, shared ones too; also of a plain npz. Raises what numpy and zipfile raise on damage.

    Args:
        content: of the file, if it was read already.
    """
    arrays, shared = _own(io.BytesIO(path.read_bytes() if content is None else content))
    if not shared:
        return arrays
    common, _ = _own(path.parent / COMMON)
    return arrays | {name: common[digest] for name, digest in shared.items()}


def share(folder: Path) -> list[Path]:
    """Keeps arrays that several files of a folder have once, in a file of their own; returns the files written."""
    whole = {path: read(path) for path in sorted(folder.glob("*.npz"))}
    marks = {path: {name: _digest(array) for name, array in arrays.items()} for path, arrays in whole.items()}
    count = Counter(mark for of in marks.values() for mark in of.values())
    common = {}
    for path, arrays in whole.items():
        shared = {name: mark for name, mark in marks[path].items() if count[mark] > 1 and _is_large(arrays[name])}
        common |= {mark: arrays[name] for name, mark in shared.items()}
        whole[path] = {name: array for name, array in arrays.items() if name not in shared}, shared
    if common:
        write(folder / COMMON, common)
    for path, (arrays, shared) in whole.items():
        write(path, arrays, shared)
    return [*whole, *([folder / COMMON] if common else [])]


def _own(source: io.BytesIO | Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays in a file, and the digests of those that it shares."""
    with np.load(source, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if PLANES not in arrays:
        return arrays, {}
    flat = np.ascontiguousarray(arrays.pop(PLANES).T).view(np.float32).ravel()
    shapes = json.loads(arrays.pop(LAYOUT).tobytes())
    shared = json.loads(arrays.pop(SHARED).tobytes()) if SHARED in arrays else {}
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = np.split(flat, ends)[:-1] if shapes else []
    found = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
    return arrays | found, shared


def _is_large(array: np.ndarray) -> bool:
    return array.dtype == np.float32 and array.nbytes >= SMALLEST


def _digest(array: np.ndarray) -> str:
    about = f"{array.dtype} {array.shape} ".encode()
    return hashlib.sha256(about + np.ascontiguousarray(array).tobytes()).hexdigest()[:DIGEST]


def _text(value: dict) -> np.ndarray:
    return np.frombuffer(json.dumps(value, separators=(",", ":")).encode(), np.uint8)
