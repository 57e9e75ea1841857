"""The data plane's mind: what one engine computes in its next step, and which KV blocks belong to whom.

No torch, no I/O, no threads, no clock, no randomness of its own: time comes in as an argument, everything else as
messages.
"""
