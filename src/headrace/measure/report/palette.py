"""The colours of every page that reports a run, light and dark: grounds, ink, six lines, and two kinds of trouble."""

PALETTE = """
:root { color-scheme: light dark; --ground: #fbfaf7; --card: #ffffff; --ink: #1d2327; --faint: #6b757c; --rule: #e4e1d9;
  --c0: #0b6e8f; --c1: #c2571a; --c2: #5b7f2b; --c3: #8a4a9e; --c4: #b08a00; --c5: #4a5a9e;
  --alarm: #b3261e; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181b; --card: #1c2125; --ink: #e6e4df; --faint: #98a2a9;
  --rule: #2e353a; --c0: #5cc0e0; --c1: #f09a63; --c2: #a6cf6d; --c3: #cf97e0; --c4: #e3c04a; --c5: #96a6f0;
  --alarm: #ff8a80; --warn: #e8b75a; } }
"""
