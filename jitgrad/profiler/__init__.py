"""Measuring: what a function costs interpreted and compiled; nothing here changes what is computed."""

from jitgrad.profiler.comparing import compare
from jitgrad.profiler.comparison import Comparison, Measurement
from jitgrad.profiler.events import Event
from jitgrad.profiler.profile import Profile, profile
from jitgrad.profiler.timing import Times
from jitgrad.profiler.work import Work

__all__ = ["Comparison", "Event", "Measurement", "Profile", "Times", "Work", "compare", "profile"]
