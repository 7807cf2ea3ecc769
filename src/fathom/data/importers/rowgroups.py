"""Rows of Parquet files by client, wherever in the files they are."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fathom.data.disk import DataError
from fathom.data.importers.checks import drawn
from fathom.data.importers.reading import reading
from fathom.data.limits import check_size

BLOCK = 50_000  # rows that are held at a time


class Rows(NamedTuple):
    """Where the rows of some files are, and whose they are."""

    groups: list[tuple[Path, int]]  # each row group of each file
    starts: np.ndarray  # (groups,) the number of its first row, counted over all files
    clients: np.ndarray  # (rows,) str
    labels: np.ndarray  # (rows,) numbers or str


def find(paths: Sequence[Path], client: str | None, label: str) -> Rows:
    """Read whose the rows are, and nothing else; without a column of clients, each row group counts as one."""
    groups, sizes, columns = [], [], []
    for path in paths:
        with reading(path), pq.ParquetFile(path) as file:
            _check_size(path, file.metadata)
            table = file.read(columns=[client, label] if client else [label])
            for name in table.column_names:
                if table[name].null_count:
                    row = int(np.flatnonzero(table[name].is_null().to_numpy(zero_copy_only=False))[0])
                    raise DataError(f"{path}: row {row} has no {name!r}; fill it in or drop the row.")
            own = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            if client:
                clients = table[client].cast(pa.string()).to_numpy()
            else:
                numbers = np.repeat(np.arange(len(own)) + len(groups), own)
                clients = np.array([f"row group {number:06}" for number in numbers], object)
            columns.append([clients, table[label].to_numpy()])
            groups += [(path, group) for group in range(len(own))]
            sizes += own
    with reading(paths[0]):
        clients, values = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return Rows(groups, np.cumsum([0, *sizes[:-1]]), clients, values)


def _check_size(path: Path, metadata: Any) -> None:
    """Refuse a file that says it holds far more than it could; a number takes up to 8 bytes."""
    # Not asked column by column: some damage there ends the process, for all that pyarrow can do about it.
    size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    check_size(path, max(size, 8 * metadata.num_rows))


def by_client(rows: Rows, columns: list[str], share: float, testing: bool) -> Iterator[tuple[str, np.ndarray, Any]]:
    """Each client with the numbers of its rows and the rows themselves; few clients are held at a time."""
    names, codes = np.unique(rows.clients, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    own = np.split(order, np.cumsum(np.bincount(codes, minlength=len(names)))[:-1]) if len(names) else []
    chosen = [(n, p[drawn(n, len(p), share) == testing]) for n, p in zip(map(str, names), own, strict=True)]
    block: list[tuple[str, np.ndarray]] = []
    for place, item in enumerate(chosen):
        block += [item] if len(item[1]) else []
        if block and (place + 1 == len(chosen) or sum(len(places) for _, places in block) >= BLOCK):
            table, start = _take(rows, np.concatenate([places for _, places in block]), columns), 0
            for client, places in block:
                yield client, places, table.slice(start, len(places))
                start += len(places)
            block = []


def _take(rows: Rows, places: np.ndarray, columns: list[str]) -> Any:
    """These rows of the files, in this order; only the row groups that hold them are read."""
    rising = np.sort(places)
    group = np.searchsorted(rows.starts, rising, "right") - 1
    parts = []
    for number in np.unique(group):
        path, own = rows.groups[number]
        with reading(path, f"row group {own}"), pq.ParquetFile(path) as file:
            table = file.read_row_group(own, columns=columns)
            parts.append(table.take(rising[group == number] - rows.starts[number]))
    return pa.concat_tables(parts).take(np.searchsorted(rising, places))
