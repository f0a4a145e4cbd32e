"""Small networks of a user, made with SUMO's own tools, for tests that need other roads than a grid."""

import subprocess
from pathlib import Path

from sim.binaries import find_binary

NODES = """<nodes>
  <node id="west" x="{0}" y="{5}"/> <node id="A" x="{1}" y="{5}" type="traffic_light"/>
  <node id="B" x="{3}" y="{5}" type="traffic_light"/> <node id="east" x="{4}" y="{5}"/>
  <node id="north" x="{1}" y="{6}"/> <node id="south" x="{1}" y="{7}"/> <node id="side" x="{3}" y="{7}"/>
</nodes>"""
STREETS = [("west", "A"), ("A", "B"), ("B", "east"), ("north", "A"), ("south", "A"), ("side", "B")]
METRES = ("-300", "0", "150", "300", "600", "0", "300", "-300")
# Around 10.01 E, 50.01 N: 0.004 degrees of longitude are 286 m there, 0.003 of latitude 334 m.
DEGREES = ("10.006", "10.010", "10.012", "10.014", "10.018", "50.010", "50.013", "50.007")


def main_street(folder: Path, is_geographic: bool = False) -> Path:
    """Two signals on one street: A with four legs, B with three, so that B keeps the greens of its own program."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "street.nod.xml").write_text(NODES.format(*(DEGREES if is_geographic else METRES)))
    edges = [(a, b) for pair in STREETS for a, b in (pair, pair[::-1])]
    lanes = [3 if b == "A" else 2 for _, b in edges]  # the third is for left turns
    lines = [
        f'<edge id="{a}-{b}" from="{a}" to="{b}" numLanes="{number}" speed="13.9"/>'
        for (a, b), number in zip(edges, lanes, strict=True)
    ]
    (folder / "street.edg.xml").write_text(f"<edges>{''.join(lines)}</edges>")
    net = folder / "street.net.xml"
    options = ["--node-files", "street.nod.xml", "--edge-files", "street.edg.xml", "--output-file", net.name]
    options += ["--no-turnarounds", "true"]
    options += ["--proj.utm", "true"] if is_geographic else []
    subprocess.run([find_binary("netconvert"), *options], check=True, capture_output=True, cwd=folder)
    return net
