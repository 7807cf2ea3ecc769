"""FedAvg and FATHOM in slow, obvious numpy: the specification that every fast path is compared with.

A client's data is a pair (x, y); the model is `logits = x @ w + b` with softmax cross entropy. Everything is
float64 but the hyperparameters, which are float32 as in the engine. Examples are taken in cyclic order.
"""

import numpy as np

F = np.float32


def grad(params, x, y):
    """The gradient of the mean loss of a batch, as one flat vector."""
    features, classes = x.shape[1], len(params) // (x.shape[1] + 1)
    w, b = params[: features * classes].reshape(features, classes), params[features * classes :]
    logits = x @ w + b
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    return np.concatenate([(x.T @ p).ravel(), p.sum(0)])


def loss(params, x, y):
    """The mean loss of a batch."""
    features, classes = x.shape[1], len(params) // (x.shape[1] + 1)
    logits = x @ params[: features * classes].reshape(features, classes) + params[features * classes :]
    top = logits.max(1)
    return float(np.mean(np.log(np.exp(logits - top[:, None]).sum(1)) + top - logits[np.arange(len(y)), y]))


def cosine(a, b):
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    return a @ b / norms if norms > 0 else 0.0


def batch_size(batch):
    return max(int(np.floor(F(batch) + F(0.5))), 1)


def steps(epochs, n, b, form):
    work = float(F(epochs) * F(n))
    return max(int(np.ceil(work / b)) if form == "reference" else int(work // b), 1)


def client(params, x, y, lr, epochs, batch, form="reference", momentum=0.0, mu=0.0, checks=False, reach=4.0):
    """One client's local work: its update x_t - x_i, phi_i and K_i; and what its last step was to bring, and brought.

    With `checks`, no step may promise to lower its batch's loss by more than `reach` times what that is.
    """
    n, b = len(y), batch_size(batch)
    k_i = steps(epochs, n, b, form)
    here, phi, velocity = params.copy(), np.inf, np.zeros_like(params)
    for k in range(k_i):
        rows = (k * b + np.arange(b)) % n
        g = grad(here, x[rows], y[rows])
        before = params - here
        velocity = momentum * velocity + g + mu * (here - params)
        loss_before, foretold = loss(here, x[rows], y[rows]), max(lr * velocity @ g, 0.0)
        cut = min(1.0, reach * loss_before / foretold) if checks and foretold > 0 else 1.0
        here = here - cut * lr * velocity
        phi = min(phi, cosine(g, params - here if form == "reference" else before))
    gained = float(np.clip(loss_before - loss(here, x[rows], y[rows]), -foretold, foretold))
    return params - here, phi, k_i, (foretold, foretold if foretold <= 1e-3 * loss_before else gained)


def verdict(gain, batch, clients):
    """How much longer steps should be, from what they brought over what they promised: the logarithm of a factor."""
    if gain > 0.6:
        return min(np.log(0.4 / max(1 - gain, 1e-30)), 4) * min(clients / 10, 1)  # what few found may be chance
    little = max(0.5 / batch, 0.125)  # to the lowest point of one example, further on larger batches
    return max(gain / little - 1, -1) if gain < little else 0


def likeness(deltas, nu):
    """The cosine of the updates of two clients, on average: over all pairs, each as much as the clients weigh."""
    p, m = nu / nu.sum(), len(deltas)
    pairs = [p[i] * p[j] * deltas[i] @ deltas[j] for i in range(m) for j in range(m) if i != j]
    return sum(pairs) / (m - 1) / sum(p[i] ** 2 * deltas[i] @ deltas[i] for i in range(m))


def sgd(params, update, state):
    """FedAvg's server step."""
    return params - update, state


def run(
    params, clients, cohorts, lr, epochs, batch, *, tune=True, form="reference", server=sgd, rates=(0.01, 0.01, 0.1),
    alpha=0.5, high=(np.inf, np.inf, np.inf), low=(0.0, 0.0, 0.0), **local,
):  # fmt: skip
    """FATHOM (or FedAvg, with tune=False) over the given cohorts; one dict per round.

    With `checks`, and rates=(0.1, 0.5, 2.0) and alpha=0.9, it is `plumb`.
    """
    params = np.asarray(params, np.float64)
    smoothed, state, out = np.zeros_like(params), None, []
    lr, epochs, batch = F(lr), F(epochs), F(batch)
    proposed, most = batch, 0.0  # the last batch before bounds; the most examples that a round's clients had on average
    agreements, alikes, landed = [], [], False  # of the rounds so far; whether any step has brought something
    for done, cohort in enumerate(cohorts):
        reach = 4.0 * min((done + 0.5) / 10, 1.0)  # the first rounds are careful
        results = [client(params, *clients[i], lr, epochs, batch, form, reach=reach, **local) for i in cohort]
        nu = np.array([len(clients[i][1]) for i in cohort], float)
        update = sum(n * delta for n, (delta, *_) in zip(nu, results, strict=True)) / nu.sum()
        c_loc = sum(n * phi for n, (_, phi, *_) in zip(nu, results, strict=True)) / nu.sum()
        c_glob = cosine(update, smoothed)
        used = (lr, epochs, batch)
        foretold, gained = (sum(n * told[j] for n, (*_, told) in zip(nu, results, strict=True)) for j in (0, 1))
        if tune:
            minus_g = c_loc if form == "reference" else lr * c_loc
            longer, more, smaller = rates[0] * c_glob, c_glob + minus_g, minus_g
            if local.get("checks"):
                agreements += [c_glob] if done else []  # the first round has no past to agree with
                alikes.append(likeness([delta for delta, *_ in results], nu))
                agree, alike = (
                    np.average(each, weights=alpha ** np.arange(len(each))[::-1]) if each else 1.0
                    for each in (agreements, alikes)
                )
                alike, m = max(alike, 0.0), len(cohort)
                together = np.sqrt(alike / (alike + (1 - alike) / m))  # the square of one's own is m times less
                calmer = min(rates[0] * max(-agree, 0.0), 1 / (done + 1))
                more = 3 * min(agree, np.sqrt(alike)) - np.log(epochs)
                most = max(most, nu.mean())
                whole = most * max(epochs, 1)  # all of a client's work as one batch
                held, proposed = min(batch, whole), min(proposed, whole)
                smaller = min(c_loc, max(agree, 0.0), together - 0.1) - 2 * calmer / rates[2]
                smaller = min(smaller, np.log(max(held, 1)) / rates[2])
                batch = held if smaller > 0 else batch
                smaller = max(smaller, np.log(batch / (10 * whole)) / rates[2])  # batches grow to ten times all of it
                wider = np.log(min(batch * np.exp(-rates[2] * smaller), whole) / proposed)
                checked = 0.5 * verdict(gained / foretold, max(np.minimum(used[2], nu).mean(), 1), m)
                if not landed:  # from the longest steps that can be to what they really were
                    checked = np.log(min(3 * gained / foretold, 1)) + 2 * max(checked, 0.0) if gained > 0 else 0.0
                landed = landed or gained > 0
                longer = rates[0] * max(agree, 0.0) - calmer + checked + 0.5 * wider
            lr = lr * np.exp(longer)
            epochs = epochs * np.exp(rates[1] * more)
            batch = proposed = batch * np.exp(-rates[2] * smaller)
            lr, epochs, batch = (F(v) for v in np.clip((lr, epochs, batch), low, high))
        params, state = server(params, update, state)
        past = update / np.linalg.norm(update) if local.get("checks") else update
        smoothed = alpha * smoothed + (1 - alpha) * past
        out.append(
            {
                "used": used,
                "next": (lr, epochs, batch),
                "steps": [k for _, _, k, _ in results],
                "phi": [phi for _, phi, *_ in results],
                "foretold": [told[0] for *_, told in results],
                "gained": [told[1] for *_, told in results],
                "gain": gained / foretold if foretold > 0 else None,
                "agreement": c_glob,
                "alignment": c_loc,
                "update": update,
                "params": params,
            }
        )
    return out
