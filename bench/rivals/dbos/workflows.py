"""The workflows on DBOS, and their callers.

DBOS is a library: a caller calls the workflow in the process that runs it, so this is server and client in
one. There are two ways to write a workflow, with functions and with coroutines. Both are tried in the warm-up
and the faster is measured. Steps side by side have one documented way, coroutines started in order and
gathered, so the fan-out has only that.

Arguments: the database's URL, the workload, the number of callers, the seconds of warm-up and of measuring.
Prints one line of JSON: which way was taken, how long the measured runs took in all, and each of them.
"""

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS


@DBOS.step()
def step(value):
    return value


@DBOS.step()
async def step_async(value):
    return value


@DBOS.workflow()
def sequence():
    return sum(step(value) for value in range(10))


@DBOS.workflow()
async def sequence_async():
    total = 0
    for value in range(10):
        total += await step_async(value)
    return total


@DBOS.workflow()
async def fan_out_async():
    steps = [asyncio.create_task(step_async(value)) for value in range(100)]
    return sum(await asyncio.gather(*steps))


@DBOS.workflow()
def empty():
    return 0


@DBOS.workflow()
async def empty_async():
    return 0


# One for all: DBOS gives a loop its own threads, and a loop that is closed ends them.
LOOP = asyncio.new_event_loop()

EXPECTED = {"sequence": 45, "fan-out": 4950, "empty": 0}
WAYS = {
    "sequence": {"functions": sequence, "coroutines": sequence_async},
    "fan-out": {"coroutines": fan_out_async},
    "empty": {"functions": empty, "coroutines": empty_async},
}


class Calls:
    """Calls of one workflow, from several callers at once, as long as there is more to do."""

    def __init__(self, workload, way, callers):
        self.workflow, self.expected = WAYS[workload][way], EXPECTED[workload]
        self.way, self.callers = way, callers
        self.latencies_ms = []

    def make(self, more):
        """Calls while `more()`; answers with the seconds that it took."""
        self.latencies_ms = []
        began = time.perf_counter()
        if self.way == "functions":
            with ThreadPoolExecutor(self.callers) as threads:
                for caller in [threads.submit(self._caller, more) for _ in range(self.callers)]:
                    caller.result()
        else:
            LOOP.run_until_complete(self._callers_async(more))
        return time.perf_counter() - began

    def _caller(self, more):
        while more():
            began = time.perf_counter()
            result = self.workflow()
            self._ended(began, result)

    async def _callers_async(self, more):
        await asyncio.gather(*[self._caller_async(more) for _ in range(self.callers)])

    async def _caller_async(self, more):
        while more():
            began = time.perf_counter()
            result = await self.workflow()
            self._ended(began, result)

    def _ended(self, began, result):
        self.latencies_ms.append((time.perf_counter() - began) * 1000)
        if result != self.expected:
            raise AssertionError(f"{self.workflow.__name__} answered {result}")


def main():
    url, workload, callers, warm_up_seconds, seconds = sys.argv[1:]
    DBOS(config={"name": "bench", "system_database_url": url})
    DBOS.launch()

    rates = {}
    # Twice, for the first to be tried is tried cold; the second time counts.
    for way in [*WAYS[workload], *WAYS[workload]]:
        calls = Calls(workload, way, int(callers))
        until = time.perf_counter() + float(warm_up_seconds) / 2
        took = calls.make(lambda until=until: time.perf_counter() < until)
        rates[way] = len(calls.latencies_ms) / took
    faster = max(rates, key=rates.get)

    calls = Calls(workload, faster, int(callers))
    # Taking the next number is one step of the interpreter, so callers on threads need no lock.
    left = iter(range(max(1, round(rates[faster] * float(seconds)))))
    took = calls.make(lambda: next(left, None) is not None)
    result = {"way": faster, "ratesTried": rates, "seconds": took, "latenciesMs": calls.latencies_ms}
    print(json.dumps(result))
    DBOS.destroy()


main()
