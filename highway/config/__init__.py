"""From YAML, the environment and the command line to settings that are known to be right.

`load_settings` is the way in, `Settings` what comes out, and ConfigError with every problem what comes instead: a wrong
configuration never takes effect, not even partly.
"""

from __future__ import annotations

from highway.config.loading import Overrides, load_settings
from highway.config.models import Listener, Settings, TlsSettings

__all__ = ["Listener", "Overrides", "Settings", "TlsSettings", "load_settings"]
