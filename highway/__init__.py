"""Highway: an MQTT broker that never forgets."""

__all__ = ["__version__"]

__version__ = "0.1.0"
