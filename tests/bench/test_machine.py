"""What is said of the machine."""

from loopwright.bench.machine import read_bandwidth, this_machine
from loopwright.core.clock import SystemClock


def test_this_machine_has_a_cpu_cores_and_memory():
    machine = this_machine()
    assert machine.num_cores >= 1
    assert machine.memory_bytes > 64 << 20
    assert machine.cpu in str(machine)


def test_bandwidth_is_bytes_a_second(monkeypatch):
    monkeypatch.setattr("loopwright.bench.machine._read_bytes", lambda: 1 << 20)
    assert read_bandwidth(SystemClock(), num_threads=2, num_repeats=1) > 0
