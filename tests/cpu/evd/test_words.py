"""How the host looks at a word that a kernel writes: soon, late, never because of an error; without a GPU."""

import ctypes
import sys
import threading

import pytest

from ...on_host import Stream, cupy_of

FINITE, NOT_FINITE = 1, 2


@pytest.fixture
def stream(monkeypatch):
    stream = Stream()
    monkeypatch.setitem(sys.modules, "cupy", cupy_of(stream))
    from spectile.evd.cuda.small import report

    report.free_words.cache_clear()
    return stream


def tell(address, what):
    ctypes.c_int32.from_address(int(address)).value = what


@pytest.mark.parametrize("what", [FINITE, NOT_FINITE])
def test_a_word_that_comes_at_once_is_not_waited_for(stream, what):
    from spectile.evd.cuda.small import report

    for _ in range(3):
        waits = stream.waits
        assert report.told(lambda word: tell(word.address, what)) is (what == FINITE)
    assert stream.waits == waits <= 1  # but for the counter of a new word
    assert len(report.free_words(0, report.Word)) == 1


@pytest.mark.parametrize("what", [FINITE, NOT_FINITE])
def test_a_word_that_comes_late_is_waited_for(stream, what):
    from spectile.evd.cuda.small import report

    def launch(word):
        stream.end = lambda: tell(word.address, what)

    assert report.told(launch) is (what == FINITE)
    assert stream.waits == 2


def test_calls_at_the_same_time_have_words_of_their_own(stream):
    from spectile.evd.cuda.small import report

    met, seen = threading.Barrier(4), []

    def launch(word):
        seen.append((int(word.address), word.arrived.ctypes.data))
        met.wait(timeout=120)
        tell(word.address, FINITE)

    threads = [threading.Thread(target=report.told, args=(launch,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    addresses, counters = zip(*seen, strict=True)
    assert len(set(addresses)) == len(set(counters)) == 4
    assert len(report.free_words(0, report.Word)) == 4


def test_a_word_is_let_go_after_the_kernel_has_written_it(stream):
    """Also where the host is interrupted: its memory may be another one's then."""
    from spectile.evd.cuda.small import report

    told = []

    def launch(word):
        stream.end = lambda: told.append(tell(word.address, FINITE))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report.told(launch)
    assert told and not report.free_words(0, report.Word)


def test_an_error_of_the_stream_is_raised(stream):
    from spectile.evd.cuda.small import report

    def fail():
        raise RuntimeError("an illegal address")

    def launch(word):
        stream.end = fail

    with pytest.raises(RuntimeError, match="illegal address"):
        report.told(launch)
    assert not report.free_words(0, report.Word)
