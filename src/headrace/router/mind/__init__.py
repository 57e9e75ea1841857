"""The control plane's mind: which endpoint gets a request, what becomes of it when that endpoint fails, and whose answers
still count.

No I/O, no threads, no clock, no randomness of its own: time comes in as an argument, everything else as messages, and what
is to be done goes out as actions.
"""
