"""The control plane: which endpoint gets a request, and whether any does."""
