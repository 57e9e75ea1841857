"""When Python looks for garbage in rehearsals: between them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """A rehearsal makes many objects and no cycles worth looking for before its end; looking would cost a tenth of its
    time. Whoever makes several calls `gc.collect` between them."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        gc.unfreeze()
