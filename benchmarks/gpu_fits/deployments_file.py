"""Where what measured deployments showed is shipped: each benchmark that learns a part of it keeps the others."""

from pathlib import Path

SHIPPED = Path(__file__).parents[2] / "src" / "headrace" / "sim" / "cost" / "gpu_deployments.json"
