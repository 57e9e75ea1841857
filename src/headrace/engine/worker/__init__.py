"""The worker: one device that holds a model and computes steps.

Decides, before torch is loaded, how its threads wait for one another. By default they spin, which is a little quicker on an
idle machine and many times slower as soon as anything else wants a core: the thread that everybody waits for is then the
one that cannot run. `GOMP_SPINCOUNT` still overrides this.
"""

import os

os.putenv("OMP_WAIT_POLICY", "PASSIVE")  # read once, when torch loads its OpenMP library
