"""What the learned controllers of a run set, prices or greens, and what their rows say about it."""

from collections.abc import Sequence

from data.errors import DataError
from experiments.cli.options import RunOptions
from experiments.stages import final_controllers
from experiments.stages.agents import FOLLOWING
from stream_jax.task import GREENS, PRICES, SPACES, ActionSpace


def chosen_action(args: RunOptions, names: Sequence[str]) -> ActionSpace:
    """What the learned controllers `names` set; refuses a start that is a plan of greens for those that set prices."""
    if args.action is None and args.trained is not None:
        return final_controllers.action_of(args.trained, names)
    action = SPACES[args.action or PRICES.name]
    follows = [name for name in names if name.endswith(FOLLOWING)]
    if follows and action != GREENS:
        raise DataError(f"{follows[0]} begins with a plan of greens; add --action {GREENS.name}.")
    return action


def action_fact(action: ActionSpace) -> dict[str, str]:
    """What rows of learned controllers say about their action: nothing where it is greens, as the first ones were."""
    return {} if action == GREENS else {"action": action.name}
