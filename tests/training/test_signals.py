"""SIGINT and SIGTERM set a flag; a second SIGINT raises; handlers are given back."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from hasten.training.signals import StopNow, StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted_and_nothing_else_happens(number):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopSignals() as stop:
        assert stop.received is None
        os.kill(os.getpid(), number)
        assert stop.received == number
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert stop.received == number


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_second_interrupt_raises():
    before = signal.getsignal(signal.SIGINT)
    with StopSignals() as stop:
        interrupt()
        assert stop.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_first_signal_counts_and_terminating_twice_does_not_raise():
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        interrupt()
        assert stop.received == signal.SIGTERM


def test_what_was_set_elsewhere_is_not_none_afterwards(monkeypatch):
    original = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.received == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, original)


def test_a_hang_up_that_is_ignored_stays_so():
    """As under nohup."""
    original = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.received is None
    finally:
        signal.signal(signal.SIGHUP, original)


def test_in_another_thread_it_does_nothing():
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with StopSignals() as stop:
            seen.append(signal.getsignal(signal.SIGINT) is before)
            seen.append(stop.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True, None]


def test_one_within_another():
    with StopSignals() as outer:
        with StopSignals() as inner:
            interrupt()
        assert (inner.received, outer.received) == (signal.SIGINT, None)
        interrupt()
        assert outer.received == signal.SIGINT


def test_immediately_where_work_can_be_abandoned():
    with StopSignals() as stop:
        with stop.stop_at_once(lambda: False):
            os.kill(os.getpid(), signal.SIGTERM)
        with stop.stop_at_once(lambda: False):
            pass
        with pytest.raises(StopNow), stop.stop_at_once():
            pytest.fail("it was received before")
        os.kill(os.getpid(), signal.SIGTERM)
    with StopSignals() as stop:
        with pytest.raises(StopNow), stop.stop_at_once():
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == signal.SIGTERM
