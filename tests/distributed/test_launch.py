"""What a launcher says of a process, and starting processes."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest
import torch

from hasten import api
from hasten.config import DistributedOptions
from hasten.distributed import launch, rendezvous
from hasten.distributed.device import resolve_device
from hasten.distributed.launch import Launch, launched, processes_to_start, run_processes
from hasten.distributed.processes import Processes
from hasten.distributed.rendezvous import choose_interface, resolve_backend
from hasten.errors import ConfigurationError, ProcessesError, UsageError
from tests.contract.cases import sequences

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_torchruns_variables_are_read():
    found = launched(TORCHRUN)
    assert found == Launch(3, 4, 1, 2, "10.0.0.1", 29500, restarts=2, keeps_store=True)
    assert not found.one_node
    assert launched({}) is None
    assert launched({"WORLD_SIZE": "1"}) == Launch(0, 1, 0, 1, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": None}, "RANK is not set"),
        ({"RANK": None, "MASTER_PORT": None}, "RANK, MASTER_PORT are not set"),
        ({"RANK": "4"}, "RANK=4 does not fit WORLD_SIZE=4"),
        ({"RANK": "one"}, "RANK=one"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
    ],
)
def test_half_an_environment_is_refused(changes, message):
    variables = {name: value for name, value in {**TORCHRUN, **changes}.items() if value}
    with pytest.raises(UsageError, match=message):
        launched(variables)


def test_processes_are_started_only_where_none_were(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert processes_to_start(1, False, 0) == 0
    assert processes_to_start(3, True, 0) == 3
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert processes_to_start(8, False, 0) == 0
    assert processes_to_start(2, True, 29500) == 0
    with pytest.raises(UsageError, match="launcher has started 2 processes"):
        processes_to_start(4, True, 0)
    with pytest.raises(UsageError, match="torchrun --master-port"):
        processes_to_start(2, False, 1234)


def test_a_port_in_use_is_said_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port {port} on 127.0.0.1 cannot be used.*0 takes"):
            launch.run_processes(["doctor"], 2, port)
        first = Launch(0, 2, 0, 2, "localhost", port)
        with pytest.raises(ProcessesError, match=rf"port {port} on 127.0.0.1 cannot be used"):
            rendezvous.open_store(first, rendezvous.timedelta(seconds=5))


def test_the_store_listens_on_the_loopback_interface_alone():
    """Rendezvous on loopback on one node: another address of this machine is not answered."""
    store = rendezvous.open_store(
        Launch(0, 1, 0, 1, "127.0.0.1", 0), rendezvous.timedelta(seconds=5)
    )
    with socket.create_connection(("127.0.0.1", store.port), timeout=2):
        pass
    with pytest.raises(OSError):  # noqa: PT011 - refused or unreachable, as the system has it
        socket.create_connection(("127.0.0.2", store.port), timeout=2)


def test_who_does_not_come_is_named(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    started |= {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    del started["TORCHELASTIC_USE_AGENT_STORE"]
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("atexit.register", lambda *arguments: None)
    with pytest.raises(ProcessesError, match=r"rank 0 of 2 .* within 2 s \(ranks 1 did not come\)"):
        Processes.join("cpu", DistributedOptions(timeout=2))


def test_devices_follow_the_local_rank(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    second = launched(TORCHRUN)
    assert resolve_device("auto", second) == torch.device("cuda", 1)
    assert resolve_device("cuda", second) == torch.device("cuda", 1)
    assert resolve_device("cpu", second) == torch.device("cpu")
    with pytest.raises(ConfigurationError, match="cuda:0 cannot be shared by 4 processes"):
        resolve_device("cuda:0", second)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with pytest.raises(ConfigurationError, match=r"1 are seen \(CUDA_VISIBLE_DEVICES 5\)"):
        resolve_device("auto", second)


def test_the_backend_follows_the_device():
    assert resolve_backend("auto", torch.device("cpu")) == "gloo"
    assert resolve_backend("gloo", torch.device("cuda")) == "gloo"
    with pytest.raises(ConfigurationError, match="needs CUDA devices"):
        resolve_backend("nccl", torch.device("cpu"))


def test_the_interface_is_loopback_on_one_node_and_may_be_chosen(monkeypatch):
    one = Launch(0, 2, 0, 2, "127.0.0.1", 29500)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that it is put back as it was
        monkeypatch.delenv(name)
    choose_interface(one)
    assert rendezvous.os.environ["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    choose_interface(one)
    assert rendezvous.os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
    assert rendezvous._interface_towards("127.0.0.1", 1) in ("lo", None)


def test_a_table_in_memory_cannot_be_shared(monkeypatch, tmp_path):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UsageError, match="save the table"):
        api.train("sasrec", sequences(), devices=2, out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_more_processes_than_a_machine_can_carry_are_refused(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    cores = len(os.sched_getaffinity(0))
    with pytest.raises(UsageError, match=rf"{cores} usable cores and \d+ CUDA devices; start at"):
        run_processes(["train", "pop"], 5000)
