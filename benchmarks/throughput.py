"""Single requests of many clients: a Batcher, against one request at a time and against fixed rules.

    python -m benchmarks.throughput [--device cuda] [--seconds 10] [--rounds 4] [--soak 600] [--only WORD]

- `closed`: 64 client threads, each of which submits its next image when the last one is answered; on a GPU wherever the
  system runs them, and all on one core, which spares Python's threads the way to another core for every turn
- `open`: requests of 64 threads at random times (Poisson): first more than are answered, without a deadline, then with
  a deadline at 0.8 and at 3 times as many as that were answered (threads that wake one by one at random times take more
  of the interpreter than those of `closed`); on a GPU also at 2.5 times the throughput of single requests that come
  like this, with and without the deadline, and single requests at 3 times theirs, since the threads of one interpreter
  cannot send 3 times what the Batcher answers
- `rules`: such loads in simulated time, at the times of batches with nothing else at work, with the rules of the
  Batcher, and with those of servers that always build the largest batch: at once, or after a fixed delay
- `soak`: 0.8 of the throughput with deadlines; the first minute beside the last. The same requests arrive in each
  minute, so that the two differ by what the Batcher does

The images are 640x640 pixels of a crowded synthetic street. The record is throughput, or throughput_gpu.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import random
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.protocol import RECORDS, save
from framefuse import Batcher, Model, open_source
from framefuse.batching.costs import Costs
from framefuse.batching.queue import RequestQueue
from framefuse.batching.simulation import poisson, simulate
from framefuse.errors import RequestError

CLIENTS, MODEL = 64, "scout-n"
DEADLINE = {"cpu": 0.5, "cuda": 0.02}
"""Seconds."""
FIXED_DELAY = 0.005
BOTH, ALONE = "Batcher", "Batcher, single requests"
"""Rules: with batches, and without."""
MORE = 1.2
"""Times the throughput of clients that wait: more than the Batcher answers where they do not."""
MINUTE = 60.0
"""Seconds after which the times of `open` and `soak` repeat."""
STREET = "synthetic://street?split=test&complexity=1&seed=5&size=640x640&frames=32"
GROUPS = "batching", "program", "model call"
ENGINES = {"cpu": "engine openvino", "cuda": "engine cudnn"}


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    found = sorted(seconds)
    return {f"p{name}_ms": 1e3 * found[int(float(f"0.{name}") * (len(found) - 1))] for name in ("50", "99")}


def together(work: Callable[[int], None], count: int, cores: set[int]) -> None:
    """Run `work` in so many threads on some cores, each with its number."""

    def placed(number: int) -> None:
        os.sched_setaffinity(0, cores)  # of this thread
        work(number)

    threads = [threading.Thread(target=placed, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def closed(call: Callable[[Any], object], images: list[Any], seconds: float, cores: set[int]) -> dict[str, Any]:
    """Requests a second of clients that wait for their answers, in threads on some cores."""
    times: list[list[float]] = [[] for _ in range(CLIENTS)]
    begun = time.perf_counter()

    def client(number: int) -> None:
        while (started := time.perf_counter()) - begun < seconds:
            call(images[(number + len(times[number])) % len(images)])
            times[number].append(time.perf_counter() - started)

    together(client, CLIENTS, cores)
    found = [one for client_times in times for one in client_times]
    return {"rate": len(found) / (time.perf_counter() - begun), **quantiles(found)}


def arrivals(seed: int, rate: float, seconds: float) -> Iterator[float]:
    """Random times, so many a second, the same in each minute."""
    for minute in itertools.count():
        chance, due = random.Random(seed), minute * MINUTE
        while (due := due + chance.expovariate(rate)) < min((minute + 1) * MINUTE, seconds):
            yield due
        if (minute + 1) * MINUTE >= seconds:
            return


def offered(
    batcher: Batcher, images: list[Any], rate: float, seconds: float, deadline: float | None, cores: set[int]
) -> dict[str, Any]:
    """Requests at random times, sent by threads on some cores, whoever answers them."""
    started_at, latencies = array("d"), array("d")  # which the garbage collector does not look at
    begun = time.perf_counter()
    lock, counts = threading.Lock(), Counter[str]()

    def done(future: Any, started: float) -> None:
        with lock:
            if future.exception() is not None:
                counts["missed"] += 1
            else:
                started_at.append(started - begun)
                latencies.append(time.perf_counter() - started)

    def send(number: int) -> None:
        sent = Counter[str]()
        for due in arrivals(number, rate / CLIENTS, seconds):
            due += begun
            if (wait := due - time.perf_counter()) > 0:
                time.sleep(wait)
            started = time.perf_counter()
            sent["all"] += 1
            try:
                future = batcher.submit(images[sent["all"] % len(images)], deadline=deadline)
            except RequestError:
                sent["refused"] += 1
                continue
            future.add_done_callback(partial(done, started=started))
        with lock:
            counts.update(sent)

    together(send, CLIENTS, cores)
    seconds = max(seconds, time.perf_counter() - begun)  # they may be too slow for the rate
    batcher.drain()
    late = sum(latency > deadline for latency in latencies) if deadline else 0
    sent, missed = counts["all"], counts["missed"]
    admitted = len(latencies) + missed
    tail = min(MINUTE, seconds / 3)
    return {
        "offered": sent / seconds,
        "rate": len(latencies) / seconds,
        "refused": counts["refused"] / sent,
        "in_time": 1 - (late + missed) / max(1, admitted),
        "admitted": admitted,
        **quantiles(latencies),
        "first_rate": sum(when < tail for when in started_at) / tail,
        "last_rate": sum(when >= seconds - tail for when in started_at) / tail,
    }


def loads(full: dict[str, float], device: str) -> list[tuple[str, str, float, float | None]]:
    """Of `open`, after the rows without a deadline: rules, the load in words, requests a second, and the deadline.

    Args:
        full: requests a second that these rules answer at most if they come at random times.
    """
    deadline = DEADLINE[device]
    rows: list[tuple[str, str, float, float | None]] = [
        (BOTH, f"{times:g} times its throughput", times * full[BOTH], deadline) for times in (0.8, 3.0)
    ]
    if device == "cuda":
        load = "2.5 times the throughput of single requests"
        rows[1:1] = [
            (BOTH, load, 2.5 * full[ALONE], deadline),
            (BOTH, f"{load}, without a deadline", 2.5 * full[ALONE], None),
        ]
        rows.append((ALONE, "3 times its throughput", 3 * full[ALONE], deadline))
    return rows


def rules(seconds: dict[int, float], servers: int, ahead: int) -> list[dict[str, Any]]:
    """Latencies of the same requests under several rules, in simulated time."""
    largest = max(seconds)
    given = {"max_queue": 10**6, "servers": servers, "ahead": ahead}
    only = {largest: seconds[largest]}
    queues: dict[str, Callable[[], RequestQueue]] = {
        BOTH: lambda: RequestQueue(Costs(seconds, seconds), **given),
        "largest batch at once": lambda: RequestQueue(Costs(only, only), max_queue_delay=0, **given),
        "largest batch after a fixed delay": lambda: RequestQueue(
            Costs(only, only), min_batch_size=largest, max_queue_delay=FIXED_DELAY, **given
        ),
        "single requests": lambda: RequestQueue(Costs([1], {1: seconds[1]}), **given),
    }
    full = max(servers * size / one for size, one in seconds.items())
    rows = []
    for load in (0.2, 0.5, 0.8):
        for name, queue in queues.items():
            requests = poisson(load * full, 10_000 / (load * full), seed=3)
            found = simulate(queue(), requests, seconds.__getitem__, servers=servers)
            rate = len(found.ended) / max(found.ended.values())
            rows.append({"load": load, "rules": name, "rate": rate, **quantiles(found.latencies(requests))})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=DEADLINE, default="cpu")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--soak", type=float, default=600)
    parser.add_argument("--only", default="", help="closed, open or soak: the rest is that of the record")
    args = parser.parse_args()
    name = "throughput" if args.device == "cpu" else "throughput_gpu"
    before = json.loads((RECORDS / f"{name}.json").read_text()) if args.only else {}
    images = [np.ascontiguousarray(frame.to_rgb()[..., ::-1]) for frame in open_source(STREET)]
    deadline = DEADLINE[args.device]
    with ExitStack() as opened:
        model = opened.enter_context(Model(MODEL, device=args.device))
        single = opened.enter_context(Batcher(model, max_batch_size=1))
        batcher = opened.enter_context(Batcher(model))
        gc.collect()
        gc.freeze()  # as the guide says: a collection of all modules takes longer than most deadlines
        turn = threading.Lock()

        def one_at_a_time(image: Any) -> object:
            with turn:
                return model(image)

        calls = {
            "Model, one call at a time": one_at_a_time,
            ALONE: lambda image: single.submit(image).result(),
            BOTH: lambda image: batcher.submit(image).result(),
        }
        facts: dict[str, Any] = {
            "device": args.device,
            "model": f"{MODEL} {model.engine.name} {model.engine.precision}",
            "clients": CLIENTS,
            "deadline_ms": 1e3 * deadline,
            "seconds": args.seconds,
        }
        for kind in ("closed", "open", "rules", "soak"):
            if args.only and args.only != kind and kind in before:
                facts[kind] = before[kind]
        every = os.sched_getaffinity(0)
        # The last one: the system serves most interrupts on the first.
        places = {"any": every} | ({"one": {max(every)}} if args.device == "cuda" else {})
        cores = list(places.values())[-1]
        if "closed" not in facts:
            runs: dict[tuple[str, str], list[dict[str, Any]]] = {
                (place, name): [] for place in places for name in calls
            }
            order = random.Random(0)
            for _ in range(args.rounds):
                for place, rule in order.sample(list(runs), len(runs)):
                    closed(calls[rule], images, 1.0, places[place])
                    runs[place, rule].append(closed(calls[rule], images, args.seconds, places[place]))
                    print(place, rule, runs[place, rule][-1], flush=True)
            keys = "rate", "p50_ms", "p99_ms"
            facts["closed"] = [
                {"rules": rule, "cores": place} | {key: median(one[key] for one in found) for key in keys}
                for (place, rule), found in runs.items()
            ]
        if "open" not in facts:
            facts["open"] = []

            def measure(rule: str, load: str, asked: float, until: float | None) -> None:
                used = batcher if rule == BOTH else single
                row = {"rules": rule, "load": load, "asked": asked}
                row |= offered(used, images, asked, args.seconds * args.rounds, until, cores)
                facts["open"].append(row)
                print(row, flush=True)

            for rule in (BOTH, ALONE) if args.device == "cuda" else (BOTH,):
                most = max(row["rate"] for row in facts["closed"] if row["rules"] == rule)
                measure(rule, "more than it answers, without a deadline", MORE * most, None)
            for load in loads({row["rules"]: row["rate"] for row in facts["open"]}, args.device):
                measure(*load)
        facts["batch_ms"] = batcher.stats().batch_ms
        runner = batcher._runner
        if len(runner.seconds) > 1:  # rules differ in the batches that they build
            facts.setdefault("rules", rules(dict(runner.seconds), runner.servers, runner.ahead))
        groups = (*GROUPS, ENGINES[args.device], "model")
        save(name, facts, *groups)  # the soak is long
        if "soak" not in facts and args.soak:
            rate = 0.8 * facts["open"][0]["rate"]
            facts["soak"] = offered(batcher, images, rate, args.soak, deadline, cores)
            print(facts["soak"], flush=True)
            save(name, facts, *groups)


if __name__ == "__main__":
    main()
