"""A file for HDF5 to write to that survives a full disk.

After a write has failed, the HDF5 library neither says so reliably (errors in a dataset's destructor are lost) nor closes
the file without crashing. So this file tells it that all is well, remembers the error, and `check` raises it where Python
can clean up.
"""

from __future__ import annotations

import io
from collections.abc import Callable


class RememberingFile(io.FileIO):
    """A file whose `write` and `truncate` never fail; what was written after the first error is lost."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "w+")
        self._error: OSError | None = None

    def check(self) -> None:
        """Raises the first error, if there was one."""
        if self._error is not None:
            raise self._error

    def write(self, data: memoryview | bytes) -> int:  # type: ignore[override]
        return self._remember(lambda: super(RememberingFile, self).write(data), len(data))

    def truncate(self, size: int | None = None) -> int:
        return self._remember(lambda: super(RememberingFile, self).truncate(size), size or 0)

    def _remember(self, action: Callable[[], int], pretended: int) -> int:
        if self._error is None:
            try:
                return action()
            except OSError as error:
                self._error = error
        return pretended
