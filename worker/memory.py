"""The garbage collector of a worker process, told what kind of work this is."""

import gc

YOUNG_OBJECTS = 20_000
"""Python looks for cycles after 700 new containers; a batch of a pack makes thousands, none of which is in a cycle."""


def tune_collector() -> None:
    """Look for garbage less often, and never among what was imported; call it once all is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
