"""The device itself: how it is chosen, what it keeps, what it refuses; a whole registration beside the host's."""

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from phantoms import make_phantom
from regweave.config.settings import Refine, Settings, preset
from regweave.errors import ResourceError, UsageError
from regweave.registration import cuda as memory, devices
from regweave.registration.align import align, refine
from regweave.registration.cpu import CPU

LEVELS = [{"spacing_mm": 48.0, "shrink": 2, "steps": 2}, {"spacing_mm": 30.0, "steps": 2}]
PLAN = Settings(name="test", modality="mr", smoothness=0.1, levels=LEVELS, banks={"mr": preset("default").banks["mr"]})
WEIGHTS = PLAN.start_weights(0.05)


@pytest.fixture(scope="module")
def pair():
    return make_phantom(seed=4, shape=(18, 16, 15), spacing_mm=(8.0, 8.0, 9.0)).pair


def test_a_whole_registration_is_that_of_the_host_within_the_memory_planned(device, pair):
    before, least = device.queue.memory()[0], []
    align(pair, WEIGHTS, PLAN, on_step=lambda _: least.append(device.queue.memory()[0]), device=device)
    assert 0 < before - min(least) < memory.needed_bytes(pair, PLAN)
    seen = []
    for d in (CPU, device):
        levels = align(pair, WEIGHTS, PLAN, device=d)
        seen.append(refine(pair, levels.displacement, WEIGHTS, PLAN, Refine(steps=5), device=d).displacement)
    far = np.sqrt(((seen[1] - seen[0]) ** 2).sum(axis=0))
    assert np.abs(seen[0]).max() > 1
    assert np.quantile(far, 0.99) < 0.05


def test_a_pair_that_does_not_fit_is_refused(device, pair, monkeypatch):
    monkeypatch.setattr(memory, "needed_bytes", lambda *_: 5 << 30)
    with pytest.raises(ResourceError, match=r"E140: .*5120 MB of the GPU, of whose 4096 MB"):
        device.scene(pair, preset("default").for_bank("mr"))


def test_names_choose_devices(with_twin):
    assert devices.get().name == devices.get("cpu").name == "cpu"
    assert devices.get("auto") is devices.get("cuda") is devices.get("cuda:0")
    assert devices.get("cuda").name == "cuda:0"
    with pytest.raises(UsageError, match=r"E157: there is no GPU 3.*cuda:0 twin"):
        devices.get("cuda:3")
    for wrong in ("cuda:one", "cpu:1", "auto:0", "gpu"):
        with pytest.raises(UsageError, match="E173"):
            devices.get(wrong)


def test_without_a_gpu_the_processor_computes_and_it_is_said_once(monkeypatch, recwarn):
    monkeypatch.setattr(devices, "gpus", lambda: ((), "no driver of the tests"))
    with pytest.raises(UsageError, match="E157: no GPU can be used: no driver of the tests"):
        devices.get("cuda")
    with pytest.warns(match="W219: no GPU can be used: no driver of the tests"):
        assert devices.get("auto").name == "cpu"
    assert devices.get("auto").name == "cpu"
    assert not recwarn.list


def test_a_build_without_gpu_kernels_says_so(monkeypatch):
    monkeypatch.setattr(devices, "MODULE", "regweave._no_such_module")
    assert devices.gpus() == ([], "this build of regweave has no GPU kernels")


def test_what_was_brought_to_the_host_is_not_copied_back_and_images_leave_with_their_pair(device):
    there = device.upload(np.arange(6, dtype=np.float32))
    here = device.download(there)
    assert device.upload(here) is there
    assert device.upload(here.copy()) is not there
    with pytest.raises(ValueError, match="read-only"):
        here[0] = 1
    plan = preset("default").for_bank("mr")
    free = device.queue.memory()[0]
    own = make_phantom(seed=5, shape=(16, 16, 16), spacing_mm=(6.0, 6.0, 6.0)).pair
    scene = device.scene(own, plan)
    assert scene.fixed.data.shape == (16, 16, 16)
    assert device.scene(own, plan).fixed is scene.fixed
    del scene, own
    gc.collect()
    assert device.queue.memory()[0] == free


def test_a_thread_takes_over_the_device_of_one_that_has_ended(with_twin):
    memory.release_idle()

    def opened():
        return devices.get("cuda"), devices.get("cuda")

    def in_a_thread():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(opened).result()

    first, again = in_a_thread()
    assert first is again
    assert in_a_thread() == (first, first)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        both = [pool.submit(opened).result()[0] for pool in (one, other)]
    assert both[0] is not both[1]
    memory.release_idle()
    assert in_a_thread()[0] not in (first, *both)
