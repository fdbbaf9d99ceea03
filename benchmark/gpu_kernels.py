"""Compare fast kernels of the levels and the refinement on a GPU with their plain twins, bit by bit.

Fast kernels have blocks that share memory and cannot run as loops on the host, so no test calls them. Needs NumPy, a
GPU, and the module `_cuda`; times are measured by `gpu.py`.
"""

import importlib
import sys

import numpy as np

LEVELS = (((32, 22, 32), 6.2, 4), ((64, 64, 64), 6.2, 5), ((64, 64, 64), 3.1, 5), ((128, 128, 128), 6.2, 5))
"""Image, voxels between nodes and edge of a support of a level."""
GRIDS = (((64, 64, 64), 1.0), ((128, 128, 128), 1.15), ((61, 50, 77), 1.3))


def smooth(rng, shape, size):
    """Noise averaged with its neighbours a few times, of that largest value."""
    out = rng.normal(size=shape)
    for _ in range(4):
        for axis in (-3, -2, -1):
            out = (np.roll(out, 1, axis) + out + np.roll(out, -1, axis)) / 3
    return (size * out / np.abs(out).max()).astype(np.float32)


class Bench:
    """Arrays of one grid on the GPU, and the verbs of a step on them."""

    def __init__(self, cuda, queue, shape, spacing):
        rng = np.random.default_rng(1)
        self.cuda, self.queue, self.shape = cuda, queue, shape
        self.fixed, self.moved = (queue.upload(smooth(rng, shape, 1.0)) for _ in range(2))
        self.weight = queue.upload(rng.random(shape, dtype=np.float32))
        self.u = queue.upload(smooth(rng, (3, *shape), 1.0))
        self.force = queue.upload(rng.normal(size=(3, *shape)).astype(np.float32))
        nodes = tuple(int(np.ceil((n - 1) / spacing)) + 1 for n in shape)
        origin = [(n - 1 - (m - 1) * spacing) / 2 for n, m in zip(shape, nodes, strict=True)]
        self.lattice = cuda.Lattice(queue, origin, [spacing] * 3, nodes, shape)
        self.update = queue.upload(smooth(rng, (3, *nodes), 0.3))
        self.folding = queue.upload(rng.normal(0, 1.5, (3, *nodes)).astype(np.float32))
        self.sums = {r: cuda.local_sums(self.fixed, r) for r in (1, 2, 3)}

    def correlation(self, radius, plain):
        balance = self.cuda.balance(self.u)
        sums = (self.sums[radius], self.moved, self.weight)
        self.cuda.correlation(balance, self.fixed, *sums, None, 1.0, radius, 1e-4, True, plain)
        return balance

    def descent(self):
        return self.cuda.Descent(self.queue, self.lattice, [1.0, 0.9, 1.1], 0.3, 0.4, 0.1, 0.9, 0.99)

    def held(self, update, plain):
        return self.cuda.held_back(self.u, update, self.lattice, 0.1, 8, plain)

    def check(self):
        """Compare fast kernels with their twins, bit by bit."""
        for radius in (1, 2, 3):
            fast, plain = (self.correlation(radius, p) for p in (False, True))
            assert np.array_equal(fast.force.numpy(), plain.force.numpy()), ("force", self.shape, radius)
            assert fast.totals() == plain.totals(), ("cost", self.shape, radius)
        fast, plain = self.descent(), self.descent()
        for _ in range(3):
            a, b = fast.update(self.force, False).numpy(), plain.update(self.force, True).numpy()
            assert np.array_equal(a, b), ("gradient", self.shape)
        for update in (self.update, self.folding):
            (a, tries), (b, same) = self.held(update, False), self.held(update, True)
            assert tries == same, ("attempts", self.shape)
            assert np.array_equal(a.numpy(), b.numpy()), ("step", self.shape)
        self.check_marks()
        return tries

    def check_marks(self):
        """Marks round folds are those that NumPy spreads, so that no more control points are held than should be."""
        u = smooth(np.random.default_rng(2), (3, *self.shape), 4.0)
        wide = self.cuda.jacobian(self.queue.upload(u)).numpy() <= 0
        assert wide.any(), ("folds", self.shape)
        for reach in range(1, 5):
            padded = np.pad(wide, 1)
            wide = padded[1:-1, 1:-1, 1:-1].copy()
            for axis in range(3):
                for shift in (-1, 1):
                    wide |= np.roll(padded, shift, axis)[1:-1, 1:-1, 1:-1]
            found = self.cuda.folded_blocks(self.queue.upload(u), self.shape, (1, 1, 1), reach).numpy()
            assert np.array_equal(found != 0, wide), ("marks", self.shape, reach)


class Level:
    """Features of one level on the GPU, and the costs of its labels."""

    def __init__(self, cuda, queue, shape, spacing, edge):
        rng = np.random.default_rng(3)
        self.cuda, self.queue, self.shape = cuda, queue, shape
        nodes = [int(np.ceil(n / spacing)) for n in shape]
        offsets = [np.array([-0.4, 0.0, 0.4]) * spacing] * 3
        self.search = {
            size: cuda.Search(queue, shape, [self.starts(n, k, size) for n, k in zip(shape, nodes, strict=True)],
                              (size,) * 3, offsets)
            for size in {edge, 4}
        }  # fmt: skip
        self.edge, self.nodes, self.n = edge, nodes, int(np.prod(nodes))
        self.images = {c: [queue.upload(smooth(rng, (c, *shape), 0.5) + 0.5) for _ in range(2)] for c in (1, 3)}
        self.table = queue.upload(np.array([n * np.log(max(n, 1)) for n in range(edge**3 + 1)], dtype=np.float32))
        self.voxels = int(np.prod(shape))

    @staticmethod
    def starts(n, nodes, size):
        return np.linspace(0, n - size, nodes).round().astype(np.int32)

    def calls(self, out):
        """Costs of each metric: a function of plain."""
        cuda, at, haar = self.cuda, self.search[self.edge], self.search[4]
        one, three = self.images[1], self.images[3]
        return {
            "sad": lambda plain: cuda.sad_costs(at, *one, out, plain),
            "ncc": lambda plain: cuda.ncc_costs(at, *one, out, 1e-4, True, plain),
            "mi": lambda plain: cuda.mi_costs(at, *one, out, 8, self.table, plain),
            "ngf": lambda plain: cuda.ngf_costs(at, *three, out, plain),
            "dwt": lambda plain: cuda.dwt_costs(haar, *one, out, plain),
        }

    def check(self):
        """Compare fast and plain costs of every metric."""
        out = self.queue.empty((self.n, 27))
        for name, call in self.calls(out).items():
            found = []
            for plain in (False, True):
                self.cuda.copy(self.queue.upload(np.full((self.n, 27), np.nan, dtype=np.float32)), out)
                call(plain)
                found.append(out.numpy())
            # Wavelets are contracted otherwise by the compiler.
            far = np.abs(found[0] - found[1]).max()
            assert far <= (1e-7 if name == "dwt" else 0), (name, self.shape, far)
        self.check_messages()

    def check_messages(self):
        """Compare message passing, whose blocks wait for each other, with its twin and with itself."""
        rng, line = np.random.default_rng(4), [-1.0, 0.0, 1.0]
        unary = self.queue.upload(rng.random((self.n, 27)))
        base = self.queue.upload(rng.normal(0, 0.2, (self.n, 3)))
        for weight, start in ((0.02, None), (0.1, base), (0.4, None)):
            found = []
            for plain in (False, False, True):
                labels, *numbers = self.cuda.trws(unary, self.nodes, [line] * 3, weight, start, 30, 1e-4, plain)
                found.append((labels.numpy().tobytes(), *numbers))
            assert found[0] == found[1] == found[2], ("messages", self.shape, weight)


def main():
    cuda = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "regweave._cuda")
    queue = cuda.Queue(0)
    for shape, spacing in GRIDS:
        attempts = Bench(cuda, queue, shape, spacing).check()
        print(f"{shape}, control points every {spacing} voxels: same bits as the twins; {attempts} attempts")
    for shape, spacing, edge in LEVELS:
        Level(cuda, queue, shape, spacing, edge).check()
        print(f"{shape}, nodes every {spacing} voxels: same bits as the twins")


if __name__ == "__main__":
    main()
