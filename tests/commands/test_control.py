"""The live controller: the pretrained system drives, its log says what it did, and bad input is one sentence."""

import json

from experiments import control


def test_the_pretrained_system_drives_and_logs_every_minute(tmp_path):
    log = tmp_path / "log.jsonl"
    assert control.main(["--minutes", "1", "--log", str(log)]) == 0
    (tick,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(tick["action"]) == 16 and all(abs(value) <= 1 for row in tick["action"] for value in row)
    assert tick["certificate"]["source"] in range(6)
    assert 0 < min(tick["p_value"]) <= max(tick["p_value"]) <= 1


def test_a_folder_without_a_checkpoint_is_named(tmp_path, capsys):
    assert control.main(["--checkpoint", str(tmp_path / "none")]) == 2
    assert "none" in "".join(capsys.readouterr().out.split())


def test_a_network_without_routes_is_refused(capsys):
    assert control.main(["--network", "my.net.xml"]) == 2
    assert "--routes" in capsys.readouterr().out
