"""What a private run gives away: epsilon, from dp-accounting."""

from typing import Any

from fathom.core.aggregate import Privacy
from fathom.experiment.spec import SpecError


def account(privacy: Privacy, clients: int, cohort: int, rounds: int) -> dict[str, Any]:
    """Epsilon after so many rounds, for one trial and one client's whole data.

    Two federations are neighbours if one client is replaced. Cohorts are drawn without replacement, which amplifies
    (Wang, Balle and Kasiviswanathan 2019); the sums then change by up to twice what one client can add.
    """
    try:
        import dp_accounting
        from dp_accounting import rdp
    except ImportError as error:
        raise SpecError(
            "[aggregate] private needs dp-accounting; install it with: pip install 'fathom[private]'."
        ) from error
    gaussian = dp_accounting.GaussianDpEvent(privacy.noise / 2)
    events: list[dp_accounting.DpEvent] = [
        gaussian
    ]  # a bound with or without what sampling adds; the smaller one holds
    if cohort < clients:
        events.append(dp_accounting.SampledWithoutReplacementDpEvent(clients, cohort, gaussian))
    found = []
    for event in events if rounds else ():
        accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
        accountant.compose(event, rounds)
        found.append(float(accountant.get_epsilon(privacy.delta)))
    epsilon = min(found, default=0.0)
    return {
        "epsilon": epsilon,
        "delta": privacy.delta,
        "noise": privacy.noise,
        "rounds": rounds,
        "cohort": cohort,
        "clients": clients,
        "neighbours": "one client replaced",
        "assumes": "the seed, the records and the checkpoints stay secret",
    }
