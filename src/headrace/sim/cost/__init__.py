"""How long a step takes on stated hardware: shapes, kernels on the roofline, collectives, the host's own time.

Everything here is a closed number of a few sums over a plan, so a simulator can ask it millions of times.
"""
