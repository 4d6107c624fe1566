"""Places for threads that get questions ready."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from physedit.eval_hooks.judges.workbench import Workbench


def test_a_question_about_an_open_picture_goes_before_a_picture_that_is_not() -> None:
    bench, order = Workbench(1), list[str]()

    def open_one() -> None:
        with bench.opening():
            order.append("opened")

    def prepare_one() -> None:
        with bench.preparing():
            order.append("prepared")

    with ThreadPoolExecutor(2) as pool:
        with bench.opening():
            pool.submit(open_one)
            prepared = pool.submit(prepare_one)
            while not bench._num_to_prepare:
                time.sleep(0.001)
        prepared.result()
    assert order == ["prepared", "opened"]


def test_no_more_work_than_there_are_places_and_no_place_is_forgotten() -> None:
    bench, lock, now, most = Workbench(2), threading.Lock(), 0, 0

    def work(number: int) -> None:
        nonlocal now, most
        with bench.opening() if number % 4 == 0 else bench.preparing():
            with lock:
                now += 1
                most = max(most, now)
            time.sleep(0.001)
            with lock:
                now -= 1

    with ThreadPoolExecutor(40) as pool:
        list(pool.map(work, range(400)))
    assert (most, now) == (2, 0)
    assert (bench._num_free, bench._num_to_prepare) == (2, 0)
