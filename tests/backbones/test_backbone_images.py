"""From a picture to the array that a network sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from expunge.backbones import ImagePreprocessing
from expunge.backbones.base import Options, parsed, written
from expunge.backbones.images import read_image, read_text
from expunge.errors import BackboneError

RAW: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def picture(height: int, width: int) -> np.ndarray[Any, Any]:
    """Pixels that tell where they came from: red is the row, green the column."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows, columns, np.full_like(rows, 200)], axis=2).astype(np.uint8)


def prepared(sample: object, **settings: Any) -> np.ndarray[Any, Any]:
    return ImagePreprocessing(**settings)(sample, 0, extra="onnx")


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))
def test_without_scaling_the_centre_is_cut_out(
    height: int, width: int, above: int, beside: int
) -> None:
    image = picture(height + above, width + beside)
    array = prepared(image, size=(height, width), resize="none", **RAW)
    top, left = round(above / 2), round(beside / 2)
    expected = image[top : top + height, left : left + width].astype(np.float32) / np.float32(255)
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    assert np.array_equal(array, expected.transpose(2, 0, 1))


def test_mean_and_std_are_of_their_channels_in_every_order_and_layout() -> None:
    image = np.array([[[51, 102, 204]]], np.uint8)  # 0.2, 0.4, 0.8
    settings: dict[str, Any] = {"size": (1, 1), "resize": "none"}
    numbers: dict[str, Any] = {"mean": (0.1, 0.2, 0.3), "std": (1.0, 2.0, 4.0)}
    rgb = prepared(image, **settings, **numbers)
    assert np.allclose(rgb.ravel(), [0.1, 0.1, 0.125])
    assert rgb.shape == (3, 1, 1)
    bgr = prepared(image, **settings, **numbers, channels="BGR")
    assert np.allclose(bgr.ravel(), [0.7, 0.1, -0.025])
    assert prepared(image, **settings, **numbers, layout="NHWC").shape == (1, 1, 3)
    grey = prepared(image, **settings, channels="L", mean=(0.0,), std=(1.0,))
    assert grey.shape == (1, 1, 1)
    assert np.allclose(grey, np.asarray(Image.fromarray(image).convert("L")) / 255)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_the_shape_is_always_the_promised_one(
    height: int, width: int, size: int, more: int
) -> None:
    image = picture(height, width)
    for settings in (
        {"resize": "shortest", "resize_to": size + more},
        {"resize": "stretch", "resize_to": size + more},
        {},
    ):
        preprocessing = ImagePreprocessing(size=(size, size), **settings)  # type: ignore[arg-type]
        assert preprocessing(image, 0, extra="onnx").shape == preprocessing.shape == (3, size, size)
    assert prepared(image, size=(size, size + 1)).shape == (3, size, size + 1)
    assert prepared(image, size=(size, size + 1), resize="stretch").shape == (3, size, size + 1)


def test_the_shorter_edge_is_scaled_and_the_ratio_kept() -> None:
    image = Image.fromarray(picture(20, 40))
    array = prepared(image, size=(8, 8), resize_to=10, interpolation="bilinear", **RAW)
    expected = np.asarray(image.resize((20, 10), Image.Resampling.BILINEAR))[1:9, 6:14].astype(
        np.float32
    ) / np.float32(255)
    assert np.array_equal(array, expected.transpose(2, 0, 1))
    stretched = prepared(image, size=(8, 8), resize="stretch", interpolation="bicubic", **RAW)
    expected = np.asarray(image.resize((8, 8), Image.Resampling.BICUBIC)).astype(
        np.float32
    ) / np.float32(255)
    assert np.array_equal(stretched, expected.transpose(2, 0, 1))


def test_a_path_an_image_and_an_array_of_the_same_picture_are_the_same(tmp_path: Path) -> None:
    image = Image.fromarray(picture(20, 30))
    image.save(tmp_path / "a.png")
    arrays = [
        prepared(s, size=(8, 8))
        for s in (image, picture(20, 30), tmp_path / "a.png", str(tmp_path / "a.png"))
    ]
    assert all(np.array_equal(array, arrays[0]) for array in arrays)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_other_kinds_of_eight_bit_pictures_are_converted(mode: str) -> None:
    image = Image.fromarray(picture(6, 6)).convert(mode)
    assert np.array_equal(
        np.asarray(read_image(image, 0, extra="onnx")), np.asarray(image.convert("RGB"))
    )


@pytest.mark.parametrize("mode", ["I", "F", "I;16"])
def test_deep_pictures_are_refused_rather_than_clipped(mode: str, tmp_path: Path) -> None:
    image = Image.new(mode, (4, 4))
    with pytest.raises(BackboneError, match=r"sample 3 has pixels of mode .*clipped"):
        read_image(image, 3, extra="onnx")
    image.save(tmp_path / "deep.tiff")
    with pytest.raises(BackboneError, match=r"deep.tiff\) has pixels of mode"):
        read_image(tmp_path / "deep.tiff", 3, extra="onnx")


@pytest.mark.parametrize("data", [b"", b"no picture", b"\x89PNG\r\n\x1a\n", b"GIF89a"])
def test_a_file_that_is_no_picture_is_named(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(data)
    for sample in (tmp_path / "bad.png", str(tmp_path / "bad.png")):
        with pytest.raises(
            BackboneError, match=r"sample 7 \(.*bad.png\) cannot be read as an image"
        ):
            ImagePreprocessing(size=(2, 2))(sample, 7, extra="onnx")


@given(data=st.data())
def test_a_cut_file_is_refused_or_is_whole(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    ending = data.draw(st.sampled_from(["png", "jpg", "gif", "bmp"]))
    Image.fromarray(picture(40, 40)).save(folder / f"whole.{ending}")
    whole = (folder / f"whole.{ending}").read_bytes()
    (folder / f"cut.{ending}").write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    try:
        found = np.asarray(read_image(folder / f"cut.{ending}", 0, extra="onnx"))
    except BackboneError:
        return
    assert np.array_equal(
        found, np.asarray(read_image(folder / f"whole.{ending}", 0, extra="onnx"))
    )


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.png", tmp_path):
        with pytest.raises(BackboneError, match=path.name):
            read_image(path, 0, extra="onnx")


@pytest.mark.parametrize(
    "sample",
    [
        np.zeros((2, 2, 3)),
        np.zeros((2, 2, 4), np.uint8),
        np.zeros((0, 2, 3), np.uint8),
        np.zeros(4, np.uint8),
        3,
        None,
        b"bytes",
    ],
)
def test_what_is_no_picture_is_refused(sample: object) -> None:
    with pytest.raises(BackboneError, match="sample 1 is a"):
        read_image(sample, 1, extra="onnx")


def test_a_picture_too_small_to_cut_from_is_refused() -> None:
    with pytest.raises(BackboneError, match="4 x 9 pixels, fewer than"):
        prepared(picture(4, 9), size=(5, 5), resize="none")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"size": 4}, "size="),
        ({"size": (4, 0)}, "size=0"),
        ({"size": (4, 4), "resize": "fit"}, "resize='fit'"),
        ({"size": (4, 4), "resize_to": 3}, "nothing to crop"),
        ({"size": (4, 4), "resize": "none", "resize_to": 8}, "no meaning"),
        ({"size": (4, 4), "interpolation": "box"}, "interpolation="),
        ({"size": (4, 4), "channels": "L"}, "must be 1 finite"),
        ({"size": (4, 4), "mean": (0.0, 0.0)}, "must be 3 finite"),
        ({"size": (4, 4), "mean": (0.0, 0.0, float("nan"))}, "finite"),
        ({"size": (4, 4), "std": (1.0, 1.0, -1.0)}, "positive"),
        ({"size": (4, 4), "layout": "CHW"}, "layout="),
    ],
)
def test_a_preprocessing_that_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BackboneError, match=said):
        ImagePreprocessing(**settings)


fine = st.floats(-10, 10, allow_subnormal=False)


@given(
    st.builds(
        ImagePreprocessing,
        size=st.tuples(st.integers(1, 99), st.integers(1, 99)),
        resize=st.sampled_from(["shortest", "stretch"]),
        resize_to=st.none() | st.integers(99, 200),
        interpolation=st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos"]),
        mean=st.tuples(fine, fine, fine),
        std=st.tuples(*[st.floats(1e-3, 10)] * 3),
        channels=st.sampled_from(["RGB", "BGR"]),
        layout=st.sampled_from(["NCHW", "NHWC"]),
    )
)
def test_options_give_back_the_preprocessing(preprocessing: ImagePreprocessing) -> None:
    text = written("onnx", "m", preprocessing.options, {})
    options = Options(text, parsed(text)[2])
    assert ImagePreprocessing.from_options(options) == preprocessing
    options.finish()


def test_texts_are_taken_as_they_are_or_from_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Grüße\n", encoding="utf-8")
    assert read_text("a.txt", 0) == "a.txt"
    assert read_text(tmp_path / "a.txt", 0) == "Grüße\n"
    (tmp_path / "b.txt").write_bytes("Grüße".encode("latin-1"))
    with pytest.raises(BackboneError, match=r"sample 4 \(.*b.txt\) is not UTF-8"):
        read_text(tmp_path / "b.txt", 4)
    with pytest.raises(BackboneError, match=r"c.txt\) cannot be read"):
        read_text(tmp_path / "c.txt", 4)
    with pytest.raises(BackboneError, match="sample 4 is a bytes"):
        read_text(b"bytes", 4)
