"""The event as a pydantic model; the pipeline takes the schema of its JSON from it."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel


class RichEvent(BaseModel):
    """Something that was said, and when."""

    id: int
    content: str
    at: datetime
