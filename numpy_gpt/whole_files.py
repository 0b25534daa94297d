"""Files that are whole or absent: written aside, flushed to the disk, and then renamed into place.

Whatever goes wrong before the renaming, a full disk or an interrupt or a kill, an earlier file of that name
is still there as it was. The name aside is fixed, so that what a killed process left there is overwritten by
the next.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import TypeAlias

Contents: TypeAlias = bytes | memoryview


def write_whole(path: Path, pieces: Iterable[Contents]) -> None:
    """Write a file, replacing an earlier one of that name only when all of it has reached the disk.

    Args:
        path: of the file.
        pieces: bytes, written one after the other; they may be made while they are written.

    Raises:
        OSError: naming `path`, when it cannot be written. After this and any other exception nothing is left
            behind, and an earlier file is as it was.
    """
    aside = name_aside(path)
    try:
        with opened_aside(path) as file:
            for piece in pieces:
                write_all(file, piece)
        aside.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with contextlib.suppress(OSError):  # it was renamed, or never made
            aside.unlink()
    if os.name == "posix":  # elsewhere a folder cannot be opened, and a rename needs no flush of its own
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def name_aside(path: Path) -> Path:
    """Return where a file or folder is made before it gets its name."""
    return path.with_name(f".{path.name}.tmp")


@contextlib.contextmanager
def opened_aside(path: Path) -> Iterator[FileIO]:
    """Open a file aside, for `write_all`; at the end it is flushed to the disk. Renaming is the caller's.

    Raises:
        OSError: naming the file aside.
    """
    # Without a buffer, so that closing the file after a fault cannot meet the same fault again.
    with name_aside(path).open("wb", buffering=0) as file:
        yield file
        with _naming(file):
            os.fsync(file.fileno())


def write_all(file: FileIO, contents: Contents) -> None:
    """Write all of the contents, in as many parts as the system takes them.

    Raises:
        OSError: naming the file.
    """
    rest = memoryview(contents)
    with _naming(file):
        while rest:
            rest = rest[file.write(rest) :]


@contextlib.contextmanager
def _naming(file: FileIO) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file.name)) from None
