"""Clients for data that has none: split one data set over a number of them, from alike to very different.

Each function takes the labels of all examples and returns, for every client, the rows it gets. Every row goes to
exactly one client.
"""

import numpy as np

from fathom.data.limits import DataError

Rows = list[np.ndarray]


def iid(labels: np.ndarray, clients: int, seed: int = 0) -> Rows:
    """Shuffle, and deal out evenly: all clients alike.

    >>> [len(rows) for rows in iid(np.zeros(10), 3)]
    [4, 3, 3]
    """
    _check(labels, clients, seed)
    return np.array_split(np.random.default_rng(seed).permutation(len(labels)), clients)


def shards(labels: np.ndarray, clients: int, per_client: int = 2, seed: int = 0) -> Rows:
    """Sort by label, cut into equal shards and give each client a few (McMahan et al. 2016).

    >>> [len(rows) for rows in shards(np.arange(12) // 3, 2)]
    [6, 6]
    """
    _check(labels, clients, seed)
    if not 1 <= per_client <= len(labels):
        raise DataError(f"per_client={per_client} is not between 1 and the {len(labels)} examples; choose one that is.")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))  # so that ties between equal labels are broken at random
    pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], clients * per_client)
    dealt = rng.permutation(len(pieces)).reshape(clients, per_client)
    return [np.concatenate([pieces[piece] for piece in hand]) for hand in dealt]


def dirichlet(labels: np.ndarray, clients: int, alpha: float = 0.5, seed: int = 0) -> Rows:
    """Share out every class by a draw from Dirichlet(alpha) (Hsu et al. 2019): the smaller, the more different.

    A client that would be left without examples is given one from the largest.

    >>> sum(len(rows) for rows in dirichlet(np.arange(100) % 10, 7, alpha=0.1))
    100
    """
    _check(labels, clients, seed)
    if not 1e-6 <= alpha <= 1e6:
        raise DataError(f"alpha={alpha} is not between 1e-6 and 1e6; choose one that is.")
    rng = np.random.default_rng(seed)
    given: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.rint(np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(rows)).astype(int)
        for hand, part in zip(given, np.split(rows, cuts), strict=True):
            hand.append(part)
    hands = [np.concatenate(hand) for hand in given]
    for client, hand in enumerate(hands):
        if not len(hand):
            largest = int(np.argmax([len(other) for other in hands]))
            hands[client], hands[largest] = hands[largest][:1], hands[largest][1:]
    return hands


def _check(labels: np.ndarray, clients: int, seed: int) -> None:
    if not 1 <= clients <= max(len(labels), 1):
        raise DataError(f"clients={clients} is not between 1 and the {len(labels)} examples; choose one that is.")
    if seed < 0:
        raise DataError(f"seed={seed} is below 0; choose another.")


PARTITIONS = {"iid": iid, "shards": shards, "dirichlet": dirichlet}
