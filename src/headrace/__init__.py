"""Headrace: an LLM serving stack in one package. Start reading at ARCHITECTURE.md."""

__version__ = "0.1.0"
