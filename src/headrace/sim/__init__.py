"""Rehearsal: the production minds under virtual time.

The simulator has no scheduling, routing or scaling code of its own; it imports the minds and replaces the matter around
them: time by an event queue, an executor by a stated cost, tensors by fingerprints.
"""
