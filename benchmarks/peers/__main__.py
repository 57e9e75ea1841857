"""Other engines beside this one: `make bench-peers`, or `make bench-peers ARGS='--only decode --peers llama.cpp'`.

Each part is kept as soon as it is measured, in benchmarks/results/peers_ISA.json by the instruction set that the kernels
choose here, beside the parts that were measured before; so a comparison can be taken a part at a time. The peers are
installed on first use, in environments of their own, outside the repository.
"""

import argparse
import signal
import sys
import time

from benchmarks.peers import llama_cpp, openvino, vllm_cpu
from benchmarks.peers.measures import PARTS, PEERS, Plan
from benchmarks.peers.report import Report

from headrace.base.errors import nearest
from headrace.cli.report_view import report_console


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="PART", help="measure these parts (default: all)")
    parser.add_argument("--peers", nargs="+", metavar="NAME", default=list(PEERS[:2]),
                        help=f"beside these: {', '.join(PEERS)} (default: the first two)")  # fmt: skip
    parser.add_argument("--num-rounds", type=int, default=3, help="runs of everybody, in turns (default: 3)")
    parser.add_argument("--list", action="store_true", help="say which parts there are and how long a round takes")
    parser.add_argument("--show", action="store_true", help="show what was measured before, and measure nothing")
    parser.add_argument("--install", action="store_true", help="install the peers, and measure nothing")
    options = parser.parse_args()
    console = report_console()
    for given, known, what in ((options.only or [], [part.name for part in PARTS], "part"), (options.peers, PEERS, "peer")):
        for name in given:
            if name not in known:
                parser.error(f"there is no {what} {name!r}{nearest(name, known)} (known: {', '.join(known)})")
    if options.num_rounds < 1:
        parser.error("--num-rounds must be at least 1")
    if options.list:
        for part in PARTS:
            console.print(f"  {part.name:<8} about {part.minutes:g} minutes a round: {part.what}")
        return
    report = Report()
    if options.install:
        _install(options.peers)
    elif not options.show:
        plan = Plan(tuple(options.peers), options.num_rounds)
        _install(options.peers)
        for part in PARTS:
            if options.only is None or part.name in options.only:
                expected = part.minutes * (options.num_rounds + 1)
                console.print(f"[bold]{part.name}[/]: {part.what}, about {expected:.0f} minutes")
                began = time.monotonic()
                measured = part.measure(plan)
                report.keep(part.name, measured, (time.monotonic() - began) / 60)
    report.show(console)


def _install(peers: list[str]) -> None:
    """Before anything is measured, so that no measure waits for a compiler."""
    for peer in (llama_cpp, openvino, vllm_cpu):
        if peer.NAME in peers:
            peer.folder()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended on the way out
    main()
