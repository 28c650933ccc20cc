from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from highway.storage.disk.pool import Mailbox, Pool


class Loop:
    """What an event loop does with callbacks from other threads, one at a time."""

    def __init__(self):
        self.callbacks = SimpleQueue()

    def call_soon_threadsafe(self, callback, *args):
        self.callbacks.put((callback, args))

    def run_one(self):
        callback, args = self.callbacks.get(timeout=10)
        callback(*args)


def test_many_posts_ring_once_and_are_made_in_order():
    loop = Loop()
    mailbox = Mailbox(loop, inline=False)
    made = []
    for number in range(5):
        mailbox.post(made.append, number)
    assert loop.callbacks.qsize() == 1
    loop.run_one()
    assert made == [0, 1, 2, 3, 4]
    mailbox.post(made.append, 5)
    assert loop.callbacks.qsize() == 1


def test_a_callback_that_fails_does_not_hold_up_those_behind_it():
    loop = Loop()
    mailbox = Mailbox(loop, inline=False)
    made = []
    mailbox.post(lambda: 1 / 0)
    mailbox.post(made.append, "behind")
    with pytest.raises(ZeroDivisionError):
        loop.run_one()
    loop.run_one()
    assert made == ["behind"]


def test_a_closed_loop_is_no_error():
    class Closed:
        def call_soon_threadsafe(self, callback, *args):
            raise RuntimeError("Event loop is closed")

    mailbox = Mailbox(Closed(), inline=False)
    made = []
    mailbox.post(made.append, 1)
    assert mailbox.wait(1)
    assert not mailbox.wait(0.01)
    assert made == [1]


def test_work_runs_in_a_pool_thread_and_its_outcome_in_the_loop():
    loop = Loop()
    pool = Pool(Mailbox(loop, inline=False), 2)
    outcomes = []
    pool.submit(threading.get_ident, outcomes.append)
    loop.run_one()
    assert outcomes[0] != threading.get_ident()
    pool.submit(lambda: 1 / 0, outcomes.append)
    loop.run_one()
    assert isinstance(outcomes[1], ZeroDivisionError)
    pool.close()


def test_without_threads_work_waits_until_it_is_run():
    pool = Pool(Mailbox(Loop(), inline=True), 0)
    outcomes = []
    pool.submit(lambda: 1, outcomes.append)
    assert outcomes == []
    assert pool.run_pending()
    assert outcomes == [1]
    assert not pool.run_pending()
