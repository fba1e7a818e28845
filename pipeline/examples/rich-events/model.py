"""The event as a pydantic model; the pipeline takes the schema of its JSON from it."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, field_validator


class RichEvent(BaseModel):
    """Something that was said, and when."""

    id: int
    content: str
    at: datetime

    @field_validator("content")
    @classmethod
    def says_something(cls, content: str) -> str:
        """Refuse an event in which nothing was said."""
        if not content.strip():
            raise ValueError("nothing was said")
        return content
