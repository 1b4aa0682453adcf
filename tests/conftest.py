"""Tests verify every stage, compile kernels once, and keep them beside pytest's own cache, not in the user's."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("JITGRAD_VERIFY", "1")
os.environ.setdefault("JITGRAD_QUICK_START", "0")
os.environ.setdefault("JITGRAD_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "kernels"))
