"""Finding the native library and opening one interface of it: its prototypes set, its version held to this package's.

Owns: where it may lie, the sentences for a library that cannot be used, text on its way in and out. Must not know: what
its functions do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gpumem.errors import NativeCoreError

Library = TypeVar("Library", bound=ctypes.CDLL)
LIBRARY_NAME = "libgpumem.so"


def library_path() -> Path:
    """Where the native library lies; raises NativeCoreError when it is nowhere."""
    for folder in _library_folders():
        if (folder / LIBRARY_NAME).is_file():
            return folder / LIBRARY_NAME
    raise NativeCoreError(
        f"gpumem's native library ({LIBRARY_NAME}) is not installed; install gpumem with 'pip install .' "
        "in its checkout (a C++ compiler is needed)."
    )


def open_interface(
    kind: type[Library], path: str, hash_function: str, hash_needed: str, prototypes: Mapping[str, Any]
) -> Library:
    """The library as `kind` (which keeps the interpreter lock in its calls or not), ready for `prototypes`:
    by name a result and its arguments. Raises NativeCoreError where it is not there, or built for another package.
    """
    try:
        core = kind(path)
        ask = getattr(core, hash_function)
        ask.restype = ctypes.c_char_p
        found = ask().decode()
    except (OSError, AttributeError) as error:
        raise NativeCoreError(f"{path} cannot be loaded ({error}); install gpumem again.") from error
    if found != hash_needed:
        raise NativeCoreError(
            f"{path} was built from another version of gpumem (interface {found[:12]}, needed {hash_needed[:12]}); "
            "install gpumem again."
        )
    for name, (result, arguments) in prototypes.items():
        function = getattr(core, name)
        function.restype = result
        function.argtypes = arguments
    return core


def encode_text(text: str) -> bytes:
    """UTF-8 up to the first NUL; lone surrogates, which no reader could decode, become question marks."""
    return text.encode("utf-8", "replace").split(b"\0", 1)[0]


def decode_text(text: bytes) -> str:
    """What the library says; it may have cut its sentence inside a character."""
    return text.decode("utf-8", "replace")


def _library_folders() -> Iterator[Path]:
    import importlib.metadata
    import importlib.resources

    package = importlib.resources.files("gpumem")
    with importlib.resources.as_file(package / LIBRARY_NAME) as path:
        yield path.parent
    try:
        files = importlib.metadata.files("gpumem")
    except importlib.metadata.PackageNotFoundError:
        files = None
    for file in files or ():
        if file.name == LIBRARY_NAME:
            yield Path(str(file.locate())).parent
