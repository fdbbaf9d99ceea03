"""A scene whose features the host computes and uploads: the refinement's own kernels are then tested by themselves."""

from dataclasses import dataclass, field

from regweave.energy import Comparison
from regweave.registration.cuda import CudaDevice
from regweave.registration.scene import Scene


@dataclass(frozen=True)
class UploadedScene:
    device: CudaDevice
    host: Scene
    without_kernel: frozenset[str] = field(default=frozenset())

    @property
    def factors(self):
        return self.host.factors

    @property
    def geometry(self):
        return self.host.geometry

    def at(self, resolution):
        return UploadedScene(self.device, self.host.at(resolution), self.without_kernel)

    def compare(self, members, u):
        upload = self.device.upload
        return [
            None if c.member.name in self.without_kernel else Comparison(c.member, upload(c.fixed), upload(c.moved))
            for c in self.host.compare(members, u.numpy())
        ]

    def valid(self, u):
        return self.device.upload(self.host.valid(u.numpy()))

    def maps(self, source, u):
        return self.host.maps(source, u.numpy())


class UploadingDevice(CudaDevice):
    """The device of the twin with such scenes."""

    without_kernel: frozenset[str] = frozenset()

    def scene(self, pair, schedule):
        return UploadedScene(self, Scene.whole(pair, schedule), self.without_kernel)
