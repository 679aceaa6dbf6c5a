# SPDX-License-Identifier: Apache-2.0
"""Boxes of global tensors. From plain files: what this rank has itself."""

import pytest


def test_boxes_of_arrays(dlrover):
    numpy = pytest.importorskip("numpy")
    grid = numpy.arange(60, dtype="int32").reshape(5, 12)
    assert dlrover.save(3, {"grid": grid, "single": numpy.array(2.5), "void": numpy.empty((0, 4)), "words": b"abc"})
    with dlrover.GlobalTensors() as tensors:
        assert (tensors.step, tensors.saved_by) == (3, 1)
        infos = tensors.infos()
        name = next(n for n in infos if "grid" in n)
        assert infos[name] == dlrover.TensorInfo("int32", (5, 12))
        assert (tensors.numpy(name) == grid).all()
        part = tensors.numpy(name, (1, 3), (2, 7))
        assert part.dtype == grid.dtype and (part == grid[1:3, 3:10]).all()
        assert (tensors.numpy(name, (4, 0), (1, 12), "int32") == grid[4:]).all()
        scalar = next(n for n in infos if "single" in n)
        assert tensors.numpy(scalar).shape == () and tensors.numpy(scalar) == 2.5
        empty = next(n for n in infos if "void" in n)
        assert tensors.numpy(empty).shape == (0, 4)
        for offset, shape, kind in [((4, 0), (2, 12), None), ((0, 0), (1, 1), "int64"), ((0,), (1,), None), ((-1, 0), (1, 1), None)]:
            with pytest.raises(dlrover.InvalidError):
                tensors.numpy(name, offset, shape, kind)
        with pytest.raises(dlrover.InvalidError):
            tensors.numpy("nobody")
        with pytest.raises(dlrover.NotFoundError):
            tensors.numpy("nobody", (0,), (1,), "int8")
    with pytest.raises(dlrover.InvalidError):
        tensors.infos()
    assert dlrover.load().step == 3


def test_boxes_of_tensors(dlrover):
    torch = pytest.importorskip("torch")
    weight = torch.arange(24).reshape(4, 6).to(torch.bfloat16)
    assert dlrover.save(1, {"w": weight})
    with dlrover.GlobalTensors() as tensors:
        (name,) = tensors.infos()
        assert tensors.infos()[name].dtype == "bfloat16"
        assert torch.equal(tensors.torch(name), weight)
        assert torch.equal(tensors.torch(name, (2, 1), (2, 3)), weight[2:, 1:4])


def test_there_is_none(dlrover):
    with pytest.raises(dlrover.NotFoundError):
        dlrover.GlobalTensors()
