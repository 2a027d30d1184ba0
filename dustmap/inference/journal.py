"""What is saved of an inference, so that it can be taken up again."""

from __future__ import annotations

from dustmap.journal import Frame, Journal, State

__all__ = ["Frame", "Journal", "State"]
