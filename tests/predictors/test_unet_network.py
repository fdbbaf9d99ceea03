"""Layers of a network against slow ones of NumPy, and the whole of it against the same layers of torch."""

import numpy as np
import pytest

from regweave import _core
from regweave._core.builds import load, usable
from regweave.predictors.unet import Network, channels, filled_shape, layer_shapes, n_channels, strides_for
from regweave.threads import kernel_threads


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def slow_block(image, weight, scale, shift):
    """Convolution with zeros outside, instance norm, leaky ReLU, in double precision."""
    x, y, z, _ = image.shape
    padded = np.pad(image.astype(np.float64), ((1, 1), (1, 1), (1, 1), (0, 0)))
    out = sum(
        padded[i : i + x, j : j + y, k : k + z] @ weight[:, :, i, j, k].T.astype(np.float64)
        for i, j, k in np.ndindex(3, 3, 3)
    )
    normed = (out - out.mean(axis=(0, 1, 2))) / np.sqrt(out.var(axis=(0, 1, 2)) + 1e-5) * scale + shift
    return np.where(normed > 0, normed, 0.01 * normed)


def repeated(coarse, stride):
    for axis, n in enumerate(stride):
        coarse = coarse.repeat(n, axis=axis)
    return coarse


def test_block_is_the_slow_convolution():
    for shape in [(3, 5, 13), (2, 4, 6), (1, 1, 1)]:
        for width in [8, 16, 24, 40]:
            for build in usable():
                image, weight = normal(*shape, 3), normal(width, 3, 3, 3, 3)
                scale, shift = normal(width), normal(width, seed=1)
                found = load(build).convolution_block(image, None, (1, 1, 1), weight, scale, shift)
                np.testing.assert_allclose(found, slow_block(image, weight, scale, shift), atol=2e-5)


def test_coarse_images_pooling_and_shares():
    for stride in [(2, 2, 2), (2, 2, 1), (1, 2, 1)]:
        image, coarse = normal(4, 6, 10, 5), normal(*(n // s for n, s in zip((4, 6, 10), stride, strict=True)), 7)
        weight, scale, shift = normal(16, 12, 3, 3, 3), normal(16), normal(16, seed=1)
        found = _core.convolution_block(image, coarse, stride, weight, scale, shift)
        both = np.concatenate([image, repeated(coarse, stride)], axis=-1)
        np.testing.assert_allclose(found, slow_block(both, weight, scale, shift), atol=2e-5)
    for stride in [(2, 2, 2), (2, 1, 3), (1, 1, 1)]:
        image = normal(4, 6, 12, 5)
        found = _core.max_pool(image, stride)
        x, y, z = (n // s for n, s in zip((4, 6, 12), stride, strict=True))
        blocks = image.reshape(x, stride[0], y, stride[1], z, stride[2], 5)
        np.testing.assert_array_equal(found, blocks.max(axis=(1, 3, 5)))
    image, weight, bias = 5 * normal(3, 4, 5, 8), normal(4, 8), normal(4)
    found = _core.class_shares(image, weight, bias)
    odds = np.exp(image.astype(np.float64) @ weight.T + bias)
    np.testing.assert_allclose(found, np.moveaxis(odds / odds.sum(axis=-1, keepdims=True), -1, 0), atol=1e-6)
    assert (_core.class_shares(1e4 * image, weight, bias).sum(axis=0) == 1).all()


def network(n_channels=2, width=8, n_classes=4, strides=((2, 2, 1), (2, 2, 2))) -> Network:
    shapes = layer_shapes(n_channels, width, n_classes, len(strides) + 1)
    arrays = {name: normal(*shape, seed=n) for n, (name, shape) in enumerate(shapes.items())}
    return Network.of(arrays, strides)


def test_grid_is_filled_up_with_edge_values_and_cut_again_and_threads_change_no_bit():
    net, image = network(), normal(2, 8, 12, 6)
    cut = np.ascontiguousarray(image[:, :7, :9, :5])
    with kernel_threads(1):
        found = net.shares(cut)
    with kernel_threads(5):
        np.testing.assert_array_equal(net.shares(cut), found)
    filled = net.shares(np.pad(cut, ((0, 0), (0, 1), (0, 3), (0, 1)), mode="edge"))
    np.testing.assert_array_equal(found, filled[:, :7, :9, :5])
    image = normal(2, 3, 8, 1)  # an instance norm over one voxel would be zero everywhere: two are left
    filled = net.shares(np.pad(image, ((0, 0), (0, 5), (0, 0), (0, 3)), mode="edge"))
    np.testing.assert_array_equal(net.shares(image), filled[:, :3, :, :1])


def test_layers_that_do_not_fit_are_refused():
    net = network()
    for name, shape, said in (
        ("down1.0.weight", (16, 16, 3, 3, 3), "down1.0.weight has shape"),
        ("up0.1.scale", (9,), "up0.1.scale has shape"),
        ("head.weight", (4, 8), "head.weight has shape"), ("more", (1,), "'more' is no layer"),
        ("down0.0.shift", (12,), "down0.0.weight has shape"), ("head.bias", (0,), "are no U-Net"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            Network.of({**net.arrays, name: normal(*shape)}, net.strides)
    with pytest.raises(KeyError, match=r"up1\.0\.weight"):
        Network.of({k: v for k, v in net.arrays.items() if k != "up1.0.weight"}, net.strides)
    with pytest.raises(ValueError, match="width is 12, allowed: multiples of 8"):
        Network.of({n: normal(*s) for n, s in layer_shapes(1, 12, 2, 2).items()}, ((2, 2, 2),))


@pytest.mark.parametrize("shape", [(16, 12, 7), (9, 8, 6)], ids=str)
def test_network_is_that_of_torch(shape):
    torch = pytest.importorskip("torch")
    layers, net, image = torch.nn.functional, network(), normal(2, *shape)
    weights = {name: torch.as_tensor(array) for name, array in net.arrays.items()}

    def blocks(name, x):
        for k in (0, 1):
            weight, scale, shift = (weights[f"{name}.{k}.{part}"] for part in ("weight", "scale", "shift"))
            x = layers.instance_norm(layers.conv3d(x, weight, padding=1), weight=scale, bias=shift, eps=1e-5)
            x = layers.leaky_relu(x, 0.01)
        return x

    filled = filled_shape(shape, net.strides)
    padding = [(0, 0), *((0, f - n) for n, f in zip(shape, filled, strict=True))]
    x, skips = torch.as_tensor(np.pad(image, padding, mode="edge"))[None], []
    for scale, stride in enumerate(net.strides):
        skips.append(blocks(f"down{scale}", x))
        x = layers.max_pool3d(skips[-1], stride)
    x = blocks("down2", x)
    for scale, stride in reversed(list(enumerate(net.strides))):
        x = layers.interpolate(x, scale_factor=tuple(map(float, stride)), mode="nearest")
        x = blocks(f"up{scale}", torch.cat([skips.pop(), x], dim=1))
    wanted = layers.conv3d(x, weights["head.weight"], weights["head.bias"]).softmax(dim=1)[0].numpy()
    np.testing.assert_allclose(net.shares(image), wanted[:, : shape[0], : shape[1], : shape[2]], atol=2e-4)


# Input channels of a network: fixed windows for CT, percentiles of what is above the minimum for MR.
def test_channels_of_ct_and_mr():
    hu = np.linspace(-2000, 3000, 501).reshape(3, 167, 1)
    found = channels(hu, "ct")
    wanted = [np.clip((hu + 160) / 400, 0, 1) * 2 - 1, np.clip((hu + 1000) / 2500, 0, 1) * 2 - 1]
    assert found.dtype == np.float32
    assert found.shape == (n_channels("ct"), 3, 167, 1)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    body = np.random.default_rng(0).uniform(100, 200, (10, 10, 10))
    padded = np.zeros((20, 20, 20))
    padded[:10, :10, :10] = body
    found = channels(padded, "mr")
    low, high = np.percentile(body, [0.5, 99.5])
    np.testing.assert_allclose(found[0, :10, :10, :10], (body - low) / (high - low) * 2 - 1, atol=1e-5)
    assert found[0, -1, -1, -1] == np.float32(-1.2)
    assert found.shape[0] == n_channels("mr")
    image = np.random.default_rng(1).normal(500, 100, (12, 12, 12))
    for scale in (0.01, 30.0):
        np.testing.assert_allclose(channels(image * scale, "mr"), channels(image, "mr"), atol=1e-5)
    for image in (np.full((3, 3, 3), 7.0), np.array([[[0.0, 0.0, 5.0]]])):
        assert np.isfinite(channels(image, "mr")).all()


def test_pooling_makes_cubes_first_and_keeps_four_voxels():
    for spacing_mm, shape, strides in (
        ((1, 1, 1), (64, 64, 64), ((2, 2, 2), (2, 2, 2), (2, 2, 2))),
        ((2.5, 2.5, 10), (64, 64, 12), ((2, 2, 1), (2, 2, 1), (2, 2, 2))),
        ((3.2, 3.2, 7.7), (96, 80, 36), ((2, 2, 1), (2, 2, 2), (2, 2, 2))),
        ((1, 1, 1), (5, 16, 64), ((1, 2, 2), (1, 2, 2), (1, 1, 2))),
        ((1, 1, 1), (5, 5, 5), ((1, 1, 1), (1, 1, 1), (1, 1, 1))),
    ):
        assert strides_for(spacing_mm, shape) == strides
