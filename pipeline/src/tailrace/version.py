"""The version, where every module can have it."""

from typing import Final

VERSION: Final = "0.1.0"
