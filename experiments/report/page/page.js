"use strict";
const data = JSON.parse(document.getElementById("run-data").textContent);
const RAMP = [[236, 241, 246], [160, 198, 224], [86, 150, 198], [40, 99, 158], [16, 47, 92]];
const DARK = [[38, 45, 56], [36, 74, 110], [42, 116, 160], [92, 170, 200], [206, 236, 228]];
const PALETTE = ["#2f7ec4", "#d98a17", "#3f9c6b", "#9b5fc0", "#c8402f", "#6d7885"];
const darkMode = matchMedia("(prefers-color-scheme: dark)");

function color(share) {
  if (share === null || Number.isNaN(share)) return "var(--empty)";
  const stops = darkMode.matches ? DARK : RAMP;
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2), part = place - low;
  return `rgb(${stops[low].map((v, k) => Math.round(v + part * (stops[low + 1][k] - v))).join(",")})`;
}

function node(name, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

function largest(rows, share) {
  const all = rows.flat().filter((v) => v !== null).sort((a, b) => a - b);
  return all.length ? Math.max(all[Math.floor(share * (all.length - 1))], 1e-9) : 1;
}

function player(root, count, draw) {
  const slider = root.querySelector("input[type=range]"), button = root.querySelector("button");
  let timer = null;
  slider.max = count - 1;
  slider.addEventListener("input", () => draw(Number(slider.value)));
  button.addEventListener("click", () => {
    if (timer) { clearInterval(timer); timer = null; button.textContent = "Play"; return; }
    button.textContent = "Pause";
    timer = setInterval(() => { slider.value = (Number(slider.value) + 1) % count; draw(Number(slider.value)); }, 250);
  });
  darkMode.addEventListener("change", () => draw(Number(slider.value)));
  draw(Number(slider.value));
}

function chart(svg, series, options) {
  svg.replaceChildren();
  const width = 420, height = options.height || 210, left = 44, bottom = 24, top = 14;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const values = series.flatMap((one) => one.values.concat(one.low || [], one.high || [])).filter((v) => v !== null);
  if (!values.length) return;
  const high = Math.max(...values), low = options.fromZero ? Math.min(0, ...values) : Math.min(...values);
  const length = Math.max(...series.map((one) => one.values.length));
  const x = (k) => left + (width - left - 8) * (length > 1 ? k / (length - 1) : 0.5);
  const y = (v) => top + (height - top - bottom) * (1 - (v - low) / (high - low || 1));
  for (const v of [low, (low + high) / 2, high]) {
    node("line", { x1: left, x2: width - 8, y1: y(v), y2: y(v), class: "axis" }, svg);
    node("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, svg).textContent = short(v);
  }
  const ticks = options.labels || [];
  for (const k of [0, Math.floor((length - 1) / 2), length - 1]) {
    const anchor = k === 0 ? "start" : k === length - 1 ? "end" : "middle";
    node("text", { x: x(k), y: height - 6, "text-anchor": anchor }, svg).textContent = ticks[k] === undefined ? k : ticks[k];
  }
  for (const one of series) {
    if (one.low) {
      const known = one.low.map((v, k) => k).filter((k) => one.low[k] !== null && one.high[k] !== null);
      const there = known.map((k) => `${x(k)},${y(one.high[k])}`), back = known.map((k) => `${x(k)},${y(one.low[k])}`).reverse();
      node("polygon", { points: there.concat(back).join(" "), fill: one.color, opacity: 0.18 }, svg);
    }
    let path = "", pen = false;
    one.values.forEach((v, k) => { if (v === null) { pen = false; return; } path += `${pen ? "L" : "M"}${x(k)},${y(v)}`; pen = true; });
    node("path", { d: path, class: "line", stroke: one.color, "stroke-dasharray": one.dash || "" }, svg);
  }
  for (const k of options.marks || []) node("line", { x1: x(k), x2: x(k), y1: height - bottom, y2: height - bottom - 9, class: "tick" }, svg);
  if (options.now !== undefined) node("line", { x1: x(options.now), x2: x(options.now), y1: top, y2: height - bottom, stroke: "var(--faint)" }, svg);
}

function short(v) {
  const size = Math.abs(v);
  return size >= 1000 ? `${(v / 1000).toPrecision(3)}k` : size >= 100 ? v.toFixed(0) : size >= 10 ? v.toFixed(1) : v.toFixed(2);
}

function cityMap(root, city) {
  const svg = root.querySelector(".map"), plot = root.querySelector(".plot"), layer = root.querySelector(".layer");
  const rule = root.querySelector(".rule"), clock = root.querySelector("output"), said = root.querySelector(".said");
  svg.setAttribute("viewBox", `0 0 ${city.size[0]} ${city.size[1]}`);
  const shape = (k, attributes) => city.dots ? node("circle", { cx: city.cells[k][0][0], cy: city.cells[k][0][1], r: 5, ...attributes }, svg)
    : node("polygon", { points: city.cells[k].map((p) => p.join(",")).join(" "), ...attributes }, svg);
  const cells = city.cells.map((_, k) => shape(k, { class: "cell", "data-cell": k }));
  const top = { mean: largest(city.mean, 0.98), seen: largest(city.mean, 0.98), width: largest(city.width, 0.98) };
  let chosen = city.busiest, step = 0;
  const draw = (k) => {
    step = k;
    const what = layer.value;
    clock.value = city.clock[k];
    cells.forEach((cell, c) => {
      const v = city[what][k][c];
      cell.style.fill = color(v === null ? null : v / top[what]);
      cell.classList.toggle("chosen", c === chosen);
    });
    svg.querySelectorAll(".mark").forEach((mark) => mark.remove());
    for (const c of (city.labelled[k] || [])) shape(c, { class: "mark label" });
    for (const c of ((city.rejected[rule.value] || [])[k] || [])) shape(c, { class: "mark alarm" });
    root.querySelector(".ramp").style.background = `linear-gradient(to right, ${[0, 0.25, 0.5, 0.75, 1].map(color).join(",")})`;
    root.querySelector(".most").textContent = `${short(top[what])} ${city.unit}`;
    const at = (name) => city[name].map((row) => row[chosen]);
    chart(plot, [
      { values: at("mean"), low: at("lower"), high: at("upper"), color: "var(--accent)" },
      { values: at("seen"), color: "var(--ink)", dash: "2 3" },
    ], { labels: city.clock.map((t) => t.slice(-5)), now: k, fromZero: true });
    const mean = city.mean[k][chosen], seen = city.seen[k][chosen];
    const bounds = city.upper[k][chosen] === null ? "no finite interval" : `[${short(city.lower[k][chosen])}, ${short(city.upper[k][chosen])}]`;
    said.textContent = `Cell ${city.names[chosen]}: forecast ${short(mean)}, interval ${bounds}, observed ${seen === null ? "nothing" : short(seen)}.`;
  };
  cells.forEach((cell, c) => cell.addEventListener("click", () => { chosen = c; draw(step); }));
  layer.addEventListener("change", () => draw(step));
  rule.addEventListener("change", () => draw(step));
  player(root, city.mean.length, draw);
}

function roadMap(root, road) {
  const svg = root.querySelector(".map"), plot = root.querySelector(".plot"), pick = root.querySelector(".layer");
  const clock = root.querySelector("output"), said = root.querySelector(".said");
  svg.setAttribute("viewBox", `0 0 ${road.size[0]} ${road.size[1]}`);
  road.links.forEach(([a, b]) => node("line", { x1: road.place[a][0], y1: road.place[a][1], x2: road.place[b][0], y2: road.place[b][1], stroke: "var(--line)", "stroke-width": 7 }, svg));
  const spots = road.place.map(([x, y]) => node("circle", { cx: x, cy: y, r: 6 }, svg));
  const rings = road.place.map(([x, y]) => node("circle", { cx: x, cy: y, r: 6, class: "mark" }, svg));
  road.runs.forEach((run, k) => pick.append(new Option(`${run.level}: ${run.name}`, k)));
  const most = Math.max(...road.runs.map((run) => largest(run.queue, 1)));
  const draw = (k) => {
    const run = road.runs[Number(pick.value)], at = Math.min(k, run.queue.length - 1);
    clock.value = `minute ${at}`;
    spots.forEach((spot, i) => {
      const share = Math.sqrt(run.queue[at][i] / most);
      spot.setAttribute("r", 5 + 26 * share);
      spot.style.fill = color(0.25 + 0.75 * share);
      rings[i].setAttribute("r", 8 + 26 * share);
      rings[i].setAttribute("class", run.wait[at][i] > run.limit ? "mark alarm" : "mark");
    });
    const total = (one) => one.queue.map((row) => row.reduce((a, b) => a + b, 0));
    chart(plot, road.runs.filter((one) => one.level === run.level).map((one) => ({
      values: total(one), color: one === run ? "var(--accent)" : "var(--faint)", dash: one === run ? "" : "2 3",
    })), { now: at, fromZero: true, marks: (run.source || []).map((s, m) => (s > 0 ? m : -1)).filter((m) => m >= 0) });
    const filter = run.source ? ` Filter: ${road.sources[run.source[at]] || "no decision yet"}.` : "";
    said.textContent = `${short(total(run)[at])} vehicles halt; the longest wait is ${short(Math.max(...run.wait[at]))} s.${filter}`;
  };
  pick.addEventListener("change", () => root.querySelector("input").dispatchEvent(new Event("input")));
  player(root, Math.max(...road.runs.map((run) => run.queue.length)), draw);
}

for (const [kind, build] of [["city", cityMap], ["road", roadMap]]) {
  const root = document.getElementById(`${kind}-map`);
  if (root && data[kind]) build(root, data[kind]);
}
for (const root of document.querySelectorAll("[data-curve]")) {
  const curve = data.curves[Number(root.dataset.curve)];
  const series = curve.series.map((one, k) => ({ ...one, color: PALETTE[k % PALETTE.length] }));
  chart(root.querySelector("svg"), series, { height: 190 });
  root.querySelector(".legend").replaceChildren(...series.map((one) => {
    const made = document.createElement("span");
    made.textContent = one.name;
    made.style.color = one.color;
    return made;
  }));
}
document.documentElement.dataset.ready = "yes";
