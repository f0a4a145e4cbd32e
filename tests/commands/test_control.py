"""The live controller: the pretrained system drives, its log says what it did, and bad input is one sentence."""

import json

import pytest

from experiments import control
from tests.small_networks import main_street


@pytest.mark.slow
def test_the_pretrained_system_drives_and_logs_every_minute(tmp_path):
    log = tmp_path / "log.jsonl"
    assert control.main(["--minutes", "1", "--log", str(log)]) == 0
    (tick,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(tick["green_s"]) == 16
    # Eight phases in two rings: at most one of a ring is green at a time.
    assert all(len(phases) == 8 and 0 < sum(phases.values()) <= 2 * 60 for phases in tick["green_s"].values())
    assert tick["time"].endswith(":00Z") and tick["sumo_s"] > 0
    assert tick["certificate"]["source"] in range(6)
    assert 0 < min(tick["p_value"]) <= max(tick["p_value"]) <= 1


def test_a_folder_without_a_checkpoint_is_named(tmp_path, capsys):
    assert control.main(["--checkpoint", str(tmp_path / "none")]) == 2
    assert "none" in "".join(capsys.readouterr().out.split())


def sumocfg(folder, departures):
    """A street with two signals from second 600 to 840."""
    main_street(folder)
    trips = (f'<trip id="{at}" depart="{at}" from="west-A" to="B-east"/>' for at in departures)
    (folder / "my.rou.xml").write_text(f"<routes>{''.join(trips)}</routes>")
    files = '<net-file value="street.net.xml"/><route-files value="my.rou.xml"/>'
    path = folder / "my.sumocfg"
    path.write_text(f'<configuration>{files}<begin value="600"/><end value="840"/></configuration>')
    return path


def trips_finished(said):
    """A cell of the table at the end; lines after it are longer or shorter with the folder's name."""
    return [line for line in said.splitlines() if "│" in line][-1].split("│")[4].strip()


@pytest.mark.slow
def test_a_sumocfg_alone_is_driven_from_its_begin_to_its_end(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    path = sumocfg(tmp_path, range(600, 640, 5))
    assert control.main(["--network", str(path), "--log", str(log)]) == 0
    assert len(log.read_text().splitlines()) == 3  # four minutes, the first of which fills the road
    assert trips_finished(capsys.readouterr().out) == "8"


@pytest.mark.slow
def test_routes_beside_a_sumocfg_are_driven_instead_of_its_own(tmp_path, capsys):
    path = sumocfg(tmp_path, [])
    own = tmp_path / "own.rou.xml"
    own.write_text('<routes><trip id="a" depart="601" from="west-A" to="B-east"/></routes>')
    words = ["--network", str(path), "--routes", str(own), "--log", str(tmp_path / "log.jsonl")]
    assert control.main(words) == 0
    assert trips_finished(capsys.readouterr().out) == "1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--network", "my.net.xml"], "my.net.xml has no vehicles to control; give --routes"),
        (["--routes", "my.rou.xml"], "--routes needs the --network"),
        (["--network", "none.sumocfg"], "none.sumocfg does not exist"),
        (["--minutes", "0"], "--minutes 0 is not a positive number"),
        (["--network", "street.net.xml", "--routes", "none.rou.xml"], "There is no route file none.rou.xml"),
        (["--network", "empty.sumocfg"], "names no route-files, so nothing would drive"),
        (["--network", "my.sumocfg"], "no vehicle of"),
    ],
)
def test_bad_input_is_one_sentence(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sumocfg(tmp_path, [10])  # before the begin
    (tmp_path / "empty.sumocfg").write_text('<configuration><net-file value="street.net.xml"/></configuration>')
    assert control.main(words) == 2
    out = capsys.readouterr().out
    assert said in out and out.count("error:") == 1 and "Traceback" not in out


def test_a_controller_without_learning_drives_a_users_network_without_a_checkpoint(tmp_path, capsys):
    net, routes, log = main_street(tmp_path), tmp_path / "t.rou.xml", tmp_path / "log.jsonl"
    ways = [("west-A", "B-east"), ("north-A", "A-south"), ("side-B", "A-west")]
    trips = [f'<trip id="{k}" depart="{3 * k}" from="{a}" to="{b}"/>' for k, (a, b) in enumerate(ways * 10)]
    routes.write_text(f"<routes>{''.join(trips)}</routes>")
    files = ["--network", str(net), "--routes", str(routes), "--checkpoint", str(tmp_path / "none")]
    assert control.main([*files, "--controller", "lookahead", "--minutes", "3", "--log", str(log)]) == 0
    ticks = [json.loads(line) for line in log.read_text().splitlines()]
    assert [tick["minute"] for tick in ticks] == [0, 1, 2]
    assert set(ticks[0]) == {"minute", "sumo_s", "queue", "longest_wait_s", "served", "green_s"}
    assert [tick["sumo_s"] for tick in ticks] == [60, 120, 180]  # the first minute fills the road
    assert set(ticks[0]["green_s"]) == {"A", "B"}
    assert all(0 < sum(phases.values()) for tick in ticks for phases in tick["green_s"].values())
    assert "lookahead" in capsys.readouterr().out


def test_a_checkpoint_whose_controller_sets_something_else_is_refused(capsys):
    assert control.main(["--action", "prices"]) == 2
    assert "sets greens, not prices" in " ".join(capsys.readouterr().out.split())
