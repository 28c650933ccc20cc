"""Places for connections: who gets one, who makes room, and how long a stranger may take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from highway.server import admission as module
from highway.server.admission import HURRIED_S, Admission, host_of
from tests.broker.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Admission]:
    def make(**settings: Any) -> Admission:
        return Admission(Rig(tmp_path, **settings).broker)

    return make


class Guest:
    def __init__(self, places: Admission, host: str = "10.0.0.1") -> None:
        self.is_out = False
        place = places.enter((host, 1), self.turn_out)
        self.is_refused = place is None
        if place is not None:
            self.place = place

    def turn_out(self) -> None:
        self.is_out = True


def test_the_oldest_that_is_not_logged_in_makes_room(make: Callable[..., Admission]) -> None:
    places = make(max_connections=3)
    client, first, second = (Guest(places, f"10.0.0.{number}") for number in range(3))
    places.logged_in(client.place)
    third = Guest(places, "10.0.0.9")
    assert [guest.is_out for guest in (client, first, second, third)] == [False, True, False, False]
    assert len(places) == 3
    places.leave(first.place)  # its connection is lost, later
    assert len(places) == 3


def test_nobody_who_is_logged_in_makes_room(make: Callable[..., Admission]) -> None:
    places = make(max_connections=2)
    for guest in (clients := [Guest(places), Guest(places)]):
        places.logged_in(guest.place)
    assert Guest(places).is_refused
    assert not any(guest.is_out for guest in clients)
    assert places._broker.counters.limited["max_connections"] == 1
    places.leave(clients[0].place)
    assert not Guest(places).is_refused


def test_an_address_has_its_own_limit_and_makes_room_among_its_own(make: Callable[..., Admission]) -> None:
    places = make(max_connections_per_address=2)
    other = Guest(places, "10.0.0.2")
    mine = [Guest(places) for _ in range(3)]
    assert [guest.is_out for guest in (other, *mine)] == [False, True, False, False]
    for guest in mine[1:]:
        places.logged_in(guest.place)
    assert Guest(places).is_refused
    assert not Guest(places, "10.0.0.2").is_refused
    assert places._broker.counters.limited["max_connections_per_address"] == 2


def test_a_crowded_address_is_hurried_and_others_are_not(make: Callable[..., Admission]) -> None:
    places = make(max_half_open_per_address=2)
    mine = [Guest(places) for _ in range(3)]
    other = Guest(places, "10.0.0.2")
    assert places.patience_s(mine[2].place) == HURRIED_S
    assert places.patience_s(other.place) == 10.0
    places.logged_in(mine[0].place)
    assert places.patience_s(mine[2].place) == 10.0
    assert places._broker.counters.limited["max_half_open_per_address"] == 1


def test_strangers_together_hold_no_more_than_their_limit(
    make: Callable[..., Admission], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STRANGERS_BYTES", 100)
    places = make()
    first, second, third, client = (Guest(places) for _ in range(4))
    places.holds(first.place, 10)
    places.holds(client.place, 20)
    places.logged_in(client.place)  # what it holds is no stranger's any more
    places.holds(second.place, 80)
    assert (first.is_out, second.is_out, places.held_bytes) == (False, False, 90)
    places.holds(second.place, 85)
    assert places.held_bytes == 95
    places.holds(third.place, 90)
    assert (first.is_out, second.is_out, third.is_out, client.is_out) == (True, True, False, False)
    places.leave(third.place)
    assert (places.held_bytes, len(places), places.half_open) == (0, 1, 0)


def test_nothing_is_left_of_those_who_left(make: Callable[..., Admission]) -> None:
    places = make()
    guests = [Guest(places, f"10.0.0.{number % 3}") for number in range(9)]
    for guest in guests[:5]:
        places.logged_in(guest.place)
    for guest in guests * 2:
        places.leave(guest.place)
    assert (len(places), places.half_open, places._hosts, places._half_open) == (0, 0, {}, {})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::2", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, *, same: bool) -> None:
    assert (host_of((one, 1)) == host_of((other, 2, 0, 0))) is same
