"""Reading the next batch while the present one is worked on.

Owns: one thread that decodes ahead; numpy and the decoder both release the interpreter lock, so two cores are used.
Must not know: what a batch holds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from gpumem.trace.model import EventBatch


def read_ahead(batches: Iterable[EventBatch]) -> Iterator[EventBatch]:
    """The same batches, each decoded while its predecessor is in use; an error of the source comes at its batch."""
    source = iter(batches)
    fetch = _Fetch(source)
    try:
        while (batch := fetch.result()) is not None:
            fetch = _Fetch(source)
            yield batch
    finally:
        fetch.thread.join()


class _Fetch:
    """The next batch of a source, being read by a thread."""

    def __init__(self, source: Iterator[EventBatch]) -> None:
        self.batch: EventBatch | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._read, args=(source,), name="gpumem read ahead", daemon=True)
        self.thread.start()

    def _read(self, source: Iterator[EventBatch]) -> None:
        try:
            self.batch = next(source, None)
        except BaseException as error:  # noqa: BLE001 -- handed to the thread that waits in result()
            self.error = error

    def result(self) -> EventBatch | None:
        """The batch, or None after the last one."""
        self.thread.join()
        if self.error is not None:
            raise self.error
        return self.batch
