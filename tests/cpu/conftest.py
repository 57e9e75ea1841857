"""Before a test here loads torch: its threads sleep while they wait, as in the engine, so that tests can share cores."""

import headrace.engine.worker

assert headrace.engine.worker.__doc__
