"""From YAML and the environment to settings that are known to be right; a wrong configuration never takes effect."""

__all__: list[str] = []
