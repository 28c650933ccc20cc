"""What a broker does, without sockets: sessions, subscriptions, routing, replay, retained messages."""

from .broker import Broker
from .settings import BrokerSettings, TopicEntry

__all__ = ["Broker", "BrokerSettings", "TopicEntry"]
