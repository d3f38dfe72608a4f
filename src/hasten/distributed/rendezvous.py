"""Rendezvous of the processes of a run: store, network interface, process group.

On one node everything stays on the loopback interface, unless the environment names another.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from hasten.config import DistributedOptions
from hasten.distributed.launch import LOOPBACK, Launch, listen
from hasten.errors import ConfigurationError, ProcessesError, first_line

_SIOCGIFADDR = 0x8915


def resolve_backend(name: str, device: torch.device) -> str:
    """``auto`` is nccl on CUDA, else gloo; an error if the device does not support it."""
    if name == "auto":
        return "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
    if name == "nccl" and device.type != "cuda":
        raise ConfigurationError(
            f"distributed.backend nccl needs CUDA devices, not {device.type}: use gloo or auto"
        )
    if name == "nccl" and not dist.is_nccl_available():
        raise ConfigurationError("distributed.backend nccl: this torch is built without it")
    return name


def choose_interface(launch: Launch) -> None:
    """Let gloo and nccl use loopback on one node, else the interface that reaches the first node.

    Existing values of ``GLOO_SOCKET_IFNAME`` and ``NCCL_SOCKET_IFNAME`` are kept. By default gloo
    uses the address of the host name, which other machines often cannot reach.
    """
    if launch.one_node:
        name: str | None = "lo0" if sys.platform == "darwin" else "lo"
    else:
        name = _interface_towards(launch.address, launch.port)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _interface_towards(address: str, port: int) -> str | None:
    """The network interface that routes to this address; None if unknown."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port))  # connecting a datagram socket sends nothing
            local_address = probe.getsockname()[0]
    except OSError:
        return None
    return next(
        (name for _, name in socket.if_nameindex() if _address_of(name) == local_address), None
    )


def _address_of(interface: str) -> str | None:
    """The IPv4 address of an interface, if the system provides it (Linux)."""
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def open_store(launch: Launch, timeout: timedelta) -> Any:
    """The store of the rendezvous, held by the launcher or by rank 0."""
    holds = launch.rank == 0 and not launch.keeps_store
    descriptor = launch.store_socket
    if holds and descriptor is None:
        # a socket of our own: torch's would listen on every interface
        address = LOOPBACK if launch.address == "localhost" else launch.address
        descriptor = listen(address, launch.port, ProcessesError).detach()
    try:
        return TCPStore(
            launch.address,
            launch.port,
            launch.world,
            is_master=holds,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=descriptor if holds else None,
        )
    except (dist.DistError, RuntimeError) as error:
        raise ProcessesError(
            f"rank {launch.rank} does not reach rank 0 at {launch.address}:{launch.port}: "
            f"{first_line(error)}; check the address, the port and the firewall"
        ) from error


def rendezvous(
    launch: Launch, options: DistributedOptions, device: torch.device, backend: str
) -> Any:
    """Wait for the others, form the process group and return the store.

    Raises ProcessesError that names the missing processes.
    """
    if dist.is_initialized():
        raise ProcessesError(
            "this program has a process group of torch.distributed already: let hasten make it "
            "(call hasten.train first), or destroy it before"
        )
    choose_interface(launch)
    timeout = timedelta(seconds=options.timeout)
    store = open_store(launch, timeout)
    here = PrefixStore(f"hasten/{launch.restarts}", store)
    here.set(f"here/{launch.rank}", socket.gethostname())
    backends = f"cpu:gloo,cuda:{backend}" if device.type == "cuda" else "cpu:gloo"
    try:
        here.wait([f"here/{rank}" for rank in range(launch.world)], timeout)
        dist.init_process_group(
            backends,
            store=PrefixStore("group", here),
            rank=launch.rank,
            world_size=launch.world,
            # Processes waits with its own timeout; this one only ends abandoned collectives
            timeout=timeout + timedelta(seconds=30),
            device_id=device if device.type == "cuda" and backend == "nccl" else None,
        )
    except (dist.DistError, RuntimeError) as error:
        missing = [rank for rank in range(launch.world) if not here.check([f"here/{rank}"])]
        who = f"ranks {', '.join(map(str, missing))} did not come" if missing else "all came"
        raise ProcessesError(
            f"rank {launch.rank} of {launch.world} could not join the others within "
            f"{options.timeout:g} s ({who}): {first_line(error)}"
        ) from error
    return store
