"""What the tests of the stages share: SUMO in this process."""

import pytest

from experiments.stages import control as control_stage


@pytest.fixture(autouse=True)
def roads_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for every drive takes seconds to start; `tests/sim/test_loop.py` shows that it drives the same."""
    monkeypatch.setattr(control_stage, "workers_of", lambda args: 0)
