"""Damaged text, images and archives, packed and unpacked."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from fathom.data import disk, download
from fathom.data.partition import PARTITIONS
from fathom.data.single import partitioned
from fathom.experiment import spec as specs
from fuzz_files import LINES, Files, counts, png, put, some_damaged
from fuzz_mutations import as_json, bent, damaged, odd_array
from fuzz_tables import parquet

Image = pytest.importorskip("PIL.Image")


def text(rng: Random) -> Files:
    if rng.random() < 0.4:
        return some_damaged(rng, {"t.csv": b'user,text\nann,the cat\nbob,"sat, dog"\nann,the\n'}, 0.95)
    lines = [{"user": user, "text": line.decode()} for user in "ab" for line in LINES]
    content = b"\n".join(as_json(bent(rng, line) if rng.random() < 0.2 else line) for line in lines)
    return some_damaged(rng, packed(rng, "t.jsonl", content), 0.5)


def packed(rng: Random, name: str, content: bytes) -> Files:
    """A file, maybe packed, and now and then something small that unpacks to gigabytes."""
    suffix, pack = rng.choice(
        (("", bytes), (".gz", gzip.compress), (".xz", partial(lzma.compress, preset=0)), (".bz2", bz2.compress))
    )
    if rng.random() < 0.005:
        return {f"{name}.bz2": bomb()}
    return {name + suffix: pack(content)}


@cache
def bomb() -> bytes:
    return bz2.compress(b" " * (9 << 20)) * 700  # some kilobytes that unpack to more than there is room for


def image(rng: Random) -> bytes:
    out = io.BytesIO()
    kind = rng.choice(("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP"))
    Image.fromarray(np.full((4, 4), rng.randrange(256), np.uint8)).save(out, kind)
    content = out.getvalue()
    if rng.random() < 0.03:
        wide = b"\0\1\0\0" * 2 if rng.random() < 0.5 else b"\0\0\x33\0" * 2
        head = b"IHDR" + wide + b"\x08\x06\0\0\0"
        content = png()[:12] + head + zlib.crc32(head).to_bytes(4, "big") + png()[33:]
    if rng.random() < 0.03:
        content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n%%EOF\n"
    return damaged(rng, content) if rng.random() < 0.5 else content


def images(rng: Random) -> Files:
    return {f"root/{c}/{rng.choice('xy')}/{i}.{rng.choice(('png', 'jpg'))}": image(rng) for c in "ab" for i in range(2)}


def npz(rng: Random, arrays: dict[str, Any]) -> bytes:
    """An .npz file whose members may be damaged before they are packed."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            value = odd_array(rng, np.asarray(array)) if rng.random() < 0.1 else np.asarray(array)
            if rng.random() < 0.01:
                value = np.array([{}], object)
            np.save(member, np.asfortranarray(value) if rng.random() < 0.1 else value)
            content = member.getvalue()
            if rng.random() < 0.04:
                shape = rng.choice(
                    (b"(99999999999999,)", b"(9999999999,)", b"(-5,)", b"(9, 9999999999)", b"(2.5,)", b"(0, 2**63)")
                )
                head = (
                    b"{'descr': '"
                    + rng.choice((b"<f8", b"|S0", b"|u1", b"<U2"))
                    + b"', 'fortran_order': False, 'shape': "
                    + shape
                    + b"}"
                )
                content = b"\x93NUMPY\1\0" + (len(head) + 1).to_bytes(2, "little") + head + b"\n" + content[128:]
            content = damaged(rng, content) if rng.random() < 0.1 else content
            archive.writestr(rng.choice((f"{name}.npy",) * 30 + (name, f"../{name}.npy")), content)
    return out.getvalue()


def femnist(rng: Random) -> Files:
    images = np.random.default_rng(0).integers(0, 256, (4, 28, 28), np.uint8)
    arrays = {
        "images": images,
        "labels": np.arange(4, dtype=np.uint8),
        "client_offsets": [0, 1, 4],
        "client_ids": ["a", "b"],
    }
    files = {"f_train.npz": npz(rng, arrays)}
    if rng.random() < 0.2:
        files["f_test.npz"] = npz(rng, arrays)
    return some_damaged(rng, files)


def stackexchange(rng: Random) -> Files:
    users = [
        {"user": user, "held_out": user == "c", "n_train": 2, "sentences": [line.decode() for line in LINES]}
        for user in "abc"
    ]
    content = b"\n".join(as_json(bent(rng, user) if rng.random() < 0.2 else user) for user in users)
    content = damaged(rng, content) if rng.random() < 0.2 else content
    return some_damaged(rng, {**packed(rng, "users.jsonl", content), "s.word_count": counts(rng)}, 0.5)


def single(rng: Random) -> tuple[Files, str, dict[str, Any]]:
    if rng.random() < 0.2:
        files = parquet(rng)
    else:
        arrays: dict[str, Any] = {"x": np.ones((20, 3), np.float32), "y": np.arange(20) % 4}
        if rng.random() < 0.3:
            arrays |= {"x_test": arrays["x"][:5], "y_test": arrays["y"][:5]}
        files = some_damaged(rng, {"s.npz": npz(rng, arrays)})
    by = rng.choice(list(PARTITIONS))
    options: dict[str, Any] = {"clients": 3, **({"per_client": 2} if by == "shards" else {}), "seed": 0}
    if by == "dirichlet":
        options["alpha"] = rng.choice((0.1, 0.5, 1e-300, 1e300))
    if rng.random() < 0.3:
        key = rng.choice(list(options))
        options[key] = rng.choice((0, 1, -1, 2**64, 10**30) if key != "alpha" else (0.0, -1.0, 1e308, 5e-324, 1e-9))
    return files, by, options


def partitions(case: tuple[Files, str, dict[str, Any]], folder: Path) -> None:
    files, by, options = case
    given = specs.arguments(f"partition {by}", PARTITIONS[by], {"labels": None, **options})
    disk.write("mine", *partitioned(put(files, folder), PARTITIONS[by], given))


# An archive as it is downloaded


def archive(rng: Random) -> Files:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("a.h5", "data/b.h5"):
            bad = rng.random() < 0.3
            member = tarfile.TarInfo(
                rng.choice(("../a.h5", "/dev/shm/a.h5", "x/../../a.h5", "..", "", "a\\b", "é" * 90)) if bad else name
            )
            member.size = 9
            if rng.random() < 0.1:
                member.type, member.linkname = (
                    rng.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)),
                    "../out",
                )
            tar.addfile(member, io.BytesIO(b"some text"))
    content = out.getvalue()[:4096]
    content = damaged(rng, content) if rng.random() < 0.5 else content
    return some_damaged(rng, {"a.tar.bz2": bz2.compress(content)}, 0.3)


def unpacks(files: Files, folder: Path) -> None:
    (path,) = put(files, folder)
    (folder / "into").mkdir()
    download.unpack(path, download.Archive("a.tar.bz2", "", ("a.h5", "b.h5")), folder / "into", lambda *_: None)
