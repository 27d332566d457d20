"""Tasks and actors that ask for odd amounts, are cancelled, killed and tried again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from on_gpu import MIB, look, outcome, start, tell, touch, wait_for

import ray

start()
task = ray.remote(look)
for amount in (2, 0.01, 0.333, 0.29, 0.57):
    tell(**{f"asks_{amount}": outcome(task.options(num_gpus=amount).remote())})
tell(too_small=outcome(task.options(num_gpus=0.0099, max_retries=0).remote()))
try:
    task.options(num_gpus=1.5).remote()
except ValueError as error:
    tell(too_odd=str(error))

once = ray.remote(num_gpus=0.5, max_calls=1, max_retries=0)(look)
tell(once=[outcome(once.remote()) for _ in range(2)])


def touch_once(name: str) -> bool:
    """Return whether the file was not there."""
    try:
        Path(os.environ["RAY_TMPDIR"], name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@ray.remote(num_gpus=0.5, max_restarts=2, max_task_retries=2)
class Actor:
    def look(self) -> object:
        return look(2000 * MIB)

    def end(self, name: str) -> object:
        if touch_once(name):
            os.kill(os.getpid(), signal.SIGKILL)
        return look()


@ray.remote(num_gpus=0.5, max_retries=2, retry_exceptions=True)
def fails_once() -> object:
    found = look(5000 * MIB if touch_once("failed") else 1000 * MIB)
    if found["had"] is not True:
        raise MemoryError(found["had"])
    return found


@ray.remote(num_gpus=1, max_retries=0)
def stays(name: str) -> object:
    from cuda_driver import Driver

    driver = Driver.started()
    driver.mem_alloc(5000 * MIB)  # beside the contexts of workers that have done their tasks and take seconds to end
    touch(name)
    while True:
        time.sleep(0.1)


actor = Actor.remote()
tell(actor=[outcome(actor.look.remote()), outcome(actor.end.remote("ended")), outcome(actor.look.remote())])
ray.kill(actor)
tell(again=outcome(fails_once.remote()))
staying = [stays.remote(name) for name in ("one", "two")]
wait_for("one", "two", tasks=staying)
for each in staying:
    ray.cancel(each, force=True)
tell(cancelled=[outcome(each)[0] for each in staying])
tell(after=[outcome(task.options(num_gpus=1).remote(6000 * MIB)) for _ in range(2)])
