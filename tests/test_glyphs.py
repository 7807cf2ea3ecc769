"""The synthetic writers: what they make, that they make it again, and how much they differ."""

import functools

import numpy as np
import pytest

from fathom.data import glyphs


@functools.cache
def writers(heterogeneity: float = 1.0) -> list[dict[str, np.ndarray]]:
    return list(glyphs.make(30, heterogeneity).values())


def spread(heterogeneity: float, measure) -> float:
    """Standard deviation between writers of a mean over a writer's images."""
    return float(np.std([np.mean(measure(writer["x"] / 255)) for writer in writers(heterogeneity)]))


def ink(x: np.ndarray) -> np.ndarray:
    return x.mean((1, 2))


def slant(x: np.ndarray) -> np.ndarray:
    """Slope of column on row, over the ink of each image; positive leans to the right."""
    row, column = np.indices((28, 28)) - 13.5
    total = x.sum((1, 2))
    row_mean, column_mean = (x * row).sum((1, 2)) / total, (x * column).sum((1, 2)) / total
    product = (x * row * column).sum((1, 2)) / total - row_mean * column_mean
    return -product / ((x * row**2).sum((1, 2)) / total - row_mean**2)


def class_distance(heterogeneity: float) -> float:
    """Mean total variation between a writer's classes and those of all writers."""
    counts = np.array([np.bincount(writer["y"], minlength=62) for writer in writers(heterogeneity)])
    shares = counts / counts.sum(1, keepdims=True)
    return float(np.abs(shares - counts.sum(0) / counts.sum()).sum(1).mean() / 2)


def test_same_seed_same_data_and_other_seed_other_data():
    first, again, other = glyphs.make(2, seed=3), glyphs.make(2, seed=3), glyphs.make(2, seed=4)
    for name, data in first.items():
        np.testing.assert_array_equal(data["x"], again[name]["x"])
        np.testing.assert_array_equal(data["y"], again[name]["y"])
        assert data["y"].tolist() != other[name]["y"].tolist()
    assert first["writer_000"]["y"].tolist() != first["writer_001"]["y"].tolist()


def test_a_writer_does_not_depend_on_how_many_there_are():
    few, more = glyphs.make(3), glyphs.make(5)
    assert list(few) == ["writer_000", "writer_001", "writer_002"]
    assert list(more)[:3] == list(few)
    for name, data in few.items():
        np.testing.assert_array_equal(data["x"], more[name]["x"])
        np.testing.assert_array_equal(data["y"], more[name]["y"])


@pytest.mark.parametrize("heterogeneity", [0.0, 1.0, 4.0])
def test_shapes_types_and_ranges(heterogeneity: float):
    sizes = []
    for writer in writers(heterogeneity):
        x, y = writer["x"], writer["y"]
        assert x.dtype == np.uint8
        assert y.dtype == np.int32
        assert x.shape == (len(y), 28, 28)
        assert y.min() >= 0
        assert y.max() < 62
        sizes.append(len(y))
    assert min(sizes) >= 50
    assert max(sizes) <= 400
    assert 130 < np.mean(sizes) < 210
    assert np.std(sizes) > 40


@pytest.mark.parametrize("heterogeneity", [0.0, 1.0, 4.0])
def test_every_image_has_bright_ink_on_dark_paper_and_none_is_cut_off(heterogeneity: float):
    x = np.concatenate([writer["x"] for writer in writers(heterogeneity)])
    assert (x > 100).sum((1, 2)).min() >= 5
    assert (x > 100).mean((1, 2)).max() < 0.6
    assert np.median(x) < 20
    assert np.median(x.max((1, 2))) > 200
    border = np.concatenate([x[:, 0], x[:, -1], x[:, :, 0], x[:, :, -1]], 1)
    assert (border > 100).any(1).mean() < 0.005


def test_all_classes_appear_and_digits_more_often():
    counts = np.bincount(np.concatenate([writer["y"] for writer in writers()]), minlength=62)
    assert counts.min() > 0
    assert counts[:10].mean() > 1.4 * counts[10:].mean()


def test_heterogeneity_sets_how_far_writers_are_apart():
    for measure in (ink, slant):
        assert spread(1.0, measure) > 3 * spread(0.0, measure)
    assert class_distance(0.0) < 0.7 * class_distance(1.0) < 0.7 * class_distance(4.0)


def test_heterogeneity_leaves_the_population_alone():
    pooled = [np.concatenate([writer["x"] for writer in writers(h)]) / 255 for h in (0.0, 1.0)]
    assert pooled[0].mean() == pytest.approx(pooled[1].mean(), rel=0.15)
    assert slant(pooled[0]).std() == pytest.approx(slant(pooled[1]).std(), rel=0.25)


def test_images_of_one_character_by_one_writer_differ():
    for heterogeneity in (0.0, 1.0):
        for writer in writers(heterogeneity)[:5]:
            label = np.bincount(writer["y"]).argmax()
            images = writer["x"][writer["y"] == label]
            assert len(np.unique(images, axis=0)) == len(images)


def test_characters_can_be_told_apart_across_writers():
    x = np.concatenate([writer["x"] for writer in writers()]).reshape(-1, 784) / 255
    y = np.concatenate([writer["y"] for writer in writers()])
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    known = sum(len(writer["y"]) for writer in writers()[:20])
    nearest = (x[known:] @ x[:known].T).argmax(1)
    assert (y[nearest] == y[known:]).mean() > 0.15  # chance is 0.02


def test_negative_heterogeneity_is_refused():
    with pytest.raises(ValueError, match="negative"):
        glyphs.make(1, heterogeneity=-1.0)
