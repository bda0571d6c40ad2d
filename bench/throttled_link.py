"""A demonstration that nobody grades: lab20's broken file and its solution, two ranks with a slow link between them.

    $ sudo .venv/bin/python bench/throttled_link.py --mbit 400

Each rank gets a network namespace of its own; a pair of virtual interfaces joins them, and tc's token bucket limits
both directions. That takes root, iproute2 and a kernel with sch_tbf. Bandwidth alone is limited: latency and computing
time are this machine's. What was made is removed at the end.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from breakfix.catalog import Catalog

ADDRESSES = ("10.20.0.1", "10.20.0.2")
PORT = "29500"  # free: the namespaces are new
SECONDS = 300  # for one rank to end
BURST = "512kb"  # what may leave at once: more than the kernel's tick lets pass at 1 Gbit/s


def names() -> list[str]:
    """Of the two namespaces, and of the interface in each: at most 15 characters, and nobody else's."""
    return [f"bf{os.getpid()}{side}" for side in "ab"]


@contextmanager
def throttled(mbit: int) -> Iterator[None]:
    """Two namespaces with a link of `mbit` Mbit/s between them."""
    first, second = names()
    try:
        for name in (first, second):
            call("ip", "netns", "add", name)
        call("ip", "link", "add", first, "netns", first, "type", "veth", "peer", "name", second, "netns", second)
        for name, address in zip((first, second), ADDRESSES, strict=True):
            call("ip", "-n", name, "link", "set", "lo", "up")  # a rank reaches its own address over it
            call("ip", "-n", name, "addr", "add", f"{address}/24", "dev", name)
            call("ip", "-n", name, "link", "set", name, "up")
            limit = ["rate", f"{mbit}mbit", "burst", BURST, "latency", "100ms"]
            call("tc", "-n", name, "qdisc", "add", "dev", name, "root", "tbf", *limit)
        yield
    finally:
        for name in (first, second):  # the interfaces go with them
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL)


def call(*command: str) -> None:
    subprocess.run(command, check=True)


def train(path: Path, world: int, steps: int) -> str:
    """The line that rank 0 prints: time per step, and samples per second of all ranks."""
    ranks = [start(path, rank, world, steps) for rank in range(world)]
    try:
        said = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode for rank in ranks):
        sys.exit("\n".join(said))
    return said[0].strip().splitlines()[-1]


def start(path: Path, rank: int, world: int, steps: int) -> subprocess.Popen:
    """One rank in its namespace, as torchrun would start it."""
    name = names()[rank]
    where = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": PORT}
    return subprocess.Popen(
        ["ip", "netns", "exec", name, sys.executable, str(path), "--steps", str(steps)],
        env=os.environ | where | {"GLOO_SOCKET_IFNAME": name, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mbit", type=int, nargs="+", default=[400])
    parser.add_argument("--steps", type=int, default=5, help="that are timed, after three")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        sys.exit("namespaces and a limited link need root, and ip and tc from iproute2")
    lab = Catalog.read()["lab20"]
    for mbit in arguments.mbit:
        with throttled(mbit):
            for label, path, world in (
                ("broken", lab.starter, 1),
                ("broken", lab.starter, 2),
                ("fixed", lab.solution, 2),
            ):
                print(f"{mbit} Mbit/s, {label:6}  {train(path, world, arguments.steps)}", flush=True)


if __name__ == "__main__":
    main()
