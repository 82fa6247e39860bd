"""Gets at a file of a Debian package: installed, unpacked earlier, or downloaded now and unpacked. Installs nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .cli import UserError


def package_file(package: str, path: str, cache: Path, root: Path = Path("/")) -> Path:
    """The file `path` (relative to the file system's root) of `package`, from the first of these places that has it:

    `root` itself, `cache`/PACKAGE (unpacked), `cache`/PACKAGE_*.deb, the package archive of this machine.
    """
    unpacked = cache / package
    for place in (root, unpacked):
        if (place / path).is_file():
            return place / path
    archive = _newest_archive(package, cache) or _download(package, cache)
    _unpack(archive, unpacked)
    if not (unpacked / path).is_file():
        raise UserError(f"{archive.name} holds no file {path}")
    return unpacked / path


def _newest_archive(package: str, cache: Path) -> Path | None:
    return max(cache.glob(f"{package}_*.deb"), key=lambda archive: archive.stat().st_mtime, default=None)


def _download(package: str, cache: Path) -> Path:
    """apt-get's signatures are the check that the package is Debian's."""
    cache.mkdir(parents=True, exist_ok=True)
    command = ["apt-get", "-q", "download", package]
    if os.geteuid() == 0:  # the user _apt may not enter this folder, and apt warns about it
        command[1:1] = ["-o", "APT::Sandbox::User=root"]
    done = _run(command, cache)
    archive = _newest_archive(package, cache)
    if done.returncode != 0 or archive is None:
        errors = [line.removeprefix("E: ") for line in done.stderr.splitlines() if line.startswith("E: ")]
        reason = errors[0].rstrip(".") if errors else f"exit code {done.returncode}"
        raise UserError(
            f"cannot download the Debian package {package} ({reason}): run apt-get update, or put its .deb into {cache}"
        )
    return archive


def _unpack(archive: Path, folder: Path) -> None:
    """Into a folder that appears only when it is complete."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        done = _run(["dpkg-deb", "-x", archive.name, str(temporary.resolve())], archive.parent)
        if done.returncode != 0:
            raise UserError(f"{archive} cannot be unpacked: delete it and try again")
        shutil.rmtree(folder, ignore_errors=True)
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
        )
    except FileNotFoundError as error:
        raise UserError(
            f"{command[0]} is not on this machine: Debian or Ubuntu is needed to unpack the texts"
        ) from error
