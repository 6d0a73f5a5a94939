"""What a gradient holds and does, measured from outside and counted from inside."""

from ebbtide.profiling.report import Profile, profile

__all__ = ["Profile", "profile"]
