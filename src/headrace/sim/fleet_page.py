"""A fleet's run as one HTML page to be looked at moment by moment: tiles over a timeline, with everything inside the file.

Puts style, script and data together; `sim/page/` is what a browser makes of them. Makes text; opens no file but its own.
"""

import re
import zlib
from base64 import b64encode
from collections.abc import Mapping
from html import escape
from importlib import resources

import msgspec

from headrace.measure.report.palette import PALETTE
from headrace.measure.report.record import Run, RunFacts
from headrace.sim.fleet_frames import fleet_frames
from headrace.sim.fleet_log import FleetLog

_WEB = resources.files("headrace.sim") / "page"


def fleet_page(log: FleetLog, run: Run) -> str:
    frames = fleet_frames(log, run)
    deflated = zlib.compress(msgspec.json.encode(frames), 9)
    facts = run.facts
    return _filled(
        (_WEB / "fleet.html").read_text(encoding="utf-8"),
        {
            "title": escape(f"{facts.model or 'A fleet'}, {len(log.replicas)} replicas"),
            "about": escape(_about(facts)),
            "style": PALETTE + (_WEB / "fleet.css").read_text(encoding="utf-8"),
            "script": (_WEB / "fleet.js").read_text(encoding="utf-8"),
            "data": b64encode(deflated).decode(),
        },
    )


def _about(facts: RunFacts) -> str:
    parts = ["replay of a simulated run", facts.metadata.get("fleet", ""), facts.metadata.get("devices", ""), facts.workload]
    return " · ".join(part for part in (*parts, f"seed {facts.seed}") if part)


def _filled(skeleton: str, parts: Mapping[str, str]) -> str:
    """Each `{name}` in its place; what is put in may have braces of its own."""
    return re.sub(rf"\{{({'|'.join(parts)})\}}", lambda place: parts[place[1]], skeleton)
