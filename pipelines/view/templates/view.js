"use strict";
(async function () {
  const $ = (id) => document.getElementById(id);
  const page = JSON.parse($("data").textContent);
  const radians = Math.PI / 180;
  const SETTINGS = {
    responsive: true, displaylogo: false, plotlyServerURL: "",
    modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]],
  };
  const NAMES = {
    density: "", mean: "mean", p50: "median", std: "std", ratio: "std / mean",
    p2_5: "2.5% quantile", p16: "16% quantile", p84: "84% quantile", p97_5: "97.5% quantile",
  };
  const GREY = page.unmapped, BLUE = "#0072B2", ORANGE = "#D55E00";
  // The view that the address holds.
  const state = { view: "z", array: "mean", level: 0, z: 0, cut: 0, log: false, sky: "", at: -1, field: 0, skylog: false, l: 0, b: 0, cone: 0.5, stars: false, clouds: false, part: 0, surface: 4, seen: true };

  function fail(error) {
    $("fault").hidden = false;
    $("fault").textContent = "A figure could not be drawn: " + (error && error.message || error);
    console.error(error);
  }
  window.addEventListener("unhandledrejection", (event) => fail(event.reason));

  // Arrays: base64, deflated, differences along the first axis, square roots in a byte.
  function bytes(text) {
    const raw = atob(text), found = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) found[i] = raw.charCodeAt(i);
    return found;
  }
  const floats = (text) => new Float32Array(bytes(text).buffer);
  const bit = (bits, i) => (bits[i >> 3] >> (i & 7)) & 1;
  const inflated = (text) => new Response(new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("deflate")));
  async function codes(array, columns) {
    const found = new Uint8Array(await inflated(array.bytes).arrayBuffer());
    for (let i = columns; i < found.length; i++) found[i] += found[i - columns];
    return found;
  }
  function table(signed) {
    const found = new Float32Array(256).fill(NaN);
    for (let q = 0; q < 255; q++) {
      const root = signed ? q / 127 - 1 : q / 254;
      found[q] = Math.sign(root) * root * root;
    }
    return found;
  }
  async function unpacked(array, columns) {
    const look = table(array.signed), found = await codes(array, columns);
    return Float32Array.from(found, (q) => look[q] * array.scale);
  }

  // Directions.
  const vector = (l, b) => [Math.cos(b * radians) * Math.cos(l * radians), Math.cos(b * radians) * Math.sin(l * radians), Math.sin(b * radians)];
  function angles([x, y, z]) {
    const l = Math.atan2(y, x) / radians;
    return [(l + 360) % 360, Math.atan2(z, Math.hypot(x, y)) / radians];
  }
  const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
  const galactic = (ra, dec) => angles(page.icrs.map((row) => dot(row, vector(ra, dec))));
  // HEALPix in RING order (Gorski et al. 2005, ApJ 622, 759).
  function pixelOf(nside, l, b) {
    const z = Math.sin(b * radians), turn = ((l % 360) + 360) % 360 / 90, polar = 2 * nside * (nside - 1);
    if (Math.abs(z) <= 2 / 3) {
      const up = Math.floor(nside * (0.5 + turn - 0.75 * z)), down = Math.floor(nside * (0.5 + turn + 0.75 * z));
      const ring = nside + 1 + up - down, shift = 1 - (ring & 1);
      const along = ((up + down - nside + shift + 1) >> 1) + 4 * nside;
      return polar + (ring - 1) * 4 * nside + along % (4 * nside);
    }
    const part = turn - Math.floor(turn), width = nside * Math.sqrt(3 * (1 - Math.abs(z)));
    const ring = Math.floor(part * width) + Math.floor((1 - part) * width) + 1;
    const along = Math.floor(turn * ring) % (4 * ring);
    return z > 0 ? 2 * ring * (ring - 1) + along : 12 * nside * nside - 2 * ring * (ring + 1) + along;
  }
  function centreOf(nside, pixel) {
    const count = 12 * nside * nside, polar = 2 * nside * (nside - 1), south = pixel >= count - polar;
    if (pixel >= polar && !south) {
      const inside = pixel - polar, ring = Math.floor(inside / (4 * nside)) + nside;
      const shift = (ring + nside) & 1 ? 1 : 0.5;
      const turn = (inside % (4 * nside) + 1 - shift) / nside;
      return [turn * 90, Math.asin((2 * nside - ring) * 2 / (3 * nside)) / radians];
    }
    const from = south ? count - 1 - pixel : pixel;
    const ring = Math.floor((1 + Math.sqrt(1 + 2 * from)) / 2), along = from - 2 * ring * (ring - 1);
    const turn = (south ? 4 * ring - 1 - along + 0.5 : along + 0.5) / ring;
    const b = Math.asin(1 - ring * ring / (3 * nside * nside)) / radians;
    return [turn * 90, south ? -b : b];
  }

  // Numbers and files.
  const signed = (value, digits) => value.toFixed(digits).replace("-", "\u2212");
  const brief = (value) => Number.isFinite(value) ? String(Number(value.toPrecision(3))).replace("-", "\u2212") : "none";
  const place = (l, b) => `l = ${signed(l, 2)}°, b = ${signed(b, 2)}°`;
  function save(name, header, rows) {
    const lines = [...header.map((line) => "# " + line), ...rows.map((row) => row.join(","))];
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
  }
  const written = (value) => Number.isFinite(value) ? Number(value.toPrecision(6)) : "";

  // Colours: linear from low to high, or logarithmic over the values, at most three decades.
  function coloured(rows, colours, low, high, log, label) {
    const positive = log ? rows.flatMap((row) => row.filter((v) => v > 0)).sort((a, b) => a - b) : [];
    const from = log ? Math.min(Math.max(positive[Math.floor(positive.length / 200)] || 0, high / 1000), high / 2) : low, scale = log ? Math.log10 : (v) => v;
    const shown = log ? rows.map((row) => row.map((v) => Math.log10(Math.max(v, from)))) : rows;
    const ticks = [];
    if (log) for (let p = Math.floor(Math.log10(from)); p <= Math.log10(high); p++) for (const m of [1, 3]) if (m * 10 ** p >= from && m * 10 ** p <= high) ticks.push(m * 10 ** p);
    return {
      type: "heatmap", z: shown, zmin: scale(from), zmax: scale(high), zauto: false, hoverinfo: "none",
      colorscale: colours.map((colour, i) => [i / (colours.length - 1), colour]),
      colorbar: {
        orientation: "h", x: 0.5, y: 1.01, yanchor: "bottom", thickness: 11, len: 0.9, tickfont: { size: 11 },
        title: { text: label, side: "top", font: { size: 13 } },
        ...(log ? { tickvals: ticks.map(Math.log10), ticktext: ticks.map(brief) } : { nticks: 7 }),
      },
    };
  }
  // A pale, hatched picture over hidden cells; rows from the bottom.
  function veil(hidden, rows, columns, [x0, x1, y0, y1]) {
    const size = Math.max(1, Math.round(480 / columns)), canvas = document.createElement("canvas");
    canvas.width = columns * size;
    canvas.height = rows * size;
    const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
    let any = false, i = 0;
    for (let y = 0; y < canvas.height; y++) {
      const row = rows - 1 - Math.floor(y / size);
      for (let x = 0; x < canvas.width; x++, i += 4) {
        if (!hidden(row, Math.floor(x / size))) continue;
        any = true;
        const line = (x + y) % 9 === 0;
        image.data.fill(line ? 128 : 255, i, i + 3);
        image.data[i + 3] = line ? 190 : 173;
      }
    }
    if (!any) return [];
    context.putImageData(image, 0, 0);
    return [{ source: canvas.toDataURL(), xref: "x", yref: "y", x: x0, y: y1, sizex: x1 - x0, sizey: y1 - y0, sizing: "stretch", layer: "above" }];
  }
  const lower = { margin: { l: 58, r: 12, t: 80, b: 44 }, showlegend: false, dragmode: "pan", hovermode: "closest", paper_bgcolor: "white", font: { size: 12 } };

  // Planes.
  const cubes = page.cubes || [];
  const VIEWS = { z: "horizontal plane", l: "vertical plane through the Sun", sumz: "from the north pole, through the box", sumy: "edge-on, through the box" };
  for (const cube of cubes) {
    cube.bits = bytes(cube.seen);
    cube.known = {};
    cube.values = async (name) => cube.known[name] || (cube.known[name] = await unpacked(cube.arrays[name], cube.x.length * cube.y.length));
    for (const along of Object.values(cube.columns)) along.bits = bytes(along.seen);
  }
  const cubeNow = () => cubes[state.level];
  const sums = () => cubeNow().columns[state.view[3]];
  const samples = (cube) => Object.keys(cube.arrays).filter((name) => name.startsWith("sample"));
  const index = (axis, value) => (value - axis[0]) / (axis[1] - axis[0]);
  // Trilinear between centres; NaN beyond the outermost by more than the rim [cells].
  function sampled(cube, values, x, y, z, rim = 0.5) {
    const at = [], share = [];
    for (const [axis, value] of [[cube.z, z], [cube.y, y], [cube.x, x]]) {
      const i = index(axis, value);
      if (!(i >= -rim && i <= axis.length - 1 + rim)) return NaN;
      const first = Math.min(Math.max(Math.floor(i), 0), axis.length - 2);
      at.push(first);
      share.push(Math.min(Math.max(i - first, 0), 1));
    }
    let total = 0;
    for (let corner = 0; corner < 8; corner++) {
      let weight = 1, cell = 0;
      [cube.z.length, cube.y.length, cube.x.length].forEach((length, n) => {
        const up = (corner >> n) & 1;
        weight *= up ? share[n] : 1 - share[n];
        cell = cell * length + at[n] + up;
      });
      if (weight > 0) total += weight * values[cell];
    }
    return total;
  }
  const edges = (axis) => [axis[0] - (axis[1] - axis[0]) / 2, axis[axis.length - 1] + (axis[1] - axis[0]) / 2];

  // A plane's numbers: rows of values, and which cells sight lines cross.
  async function plane() {
    const cube = cubeNow(), { x, y, z } = cube, rows = [];
    if (page.served && isDensity() && !state.array.startsWith("sample")) {
      const at = state.view === "z" ? state.z : state.cut;
      const answer = await fetch(`plane?level=${state.level}&array=${state.array}&view=${state.view}&at=${at}`);
      if (!answer.ok) throw new Error(await answer.text());
      const found = await answer.json(), where = state.view === "z" ? `z = ${signed(found.at, 0)} pc` : `l = ${at}° and ${at + 180}°`;
      const names = state.view === "z" ? ["x", "y"] : [`distance towards l = ${at}°`, "z"];
      found.rows = found.rows.map((row) => Float32Array.from(row, (v) => v === null ? NaN : v));
      return { ...found, names, where, entry: cube.arrays[state.array], seen: (j, i) => found.seen[j][i] };
    }
    if (state.view === "z") {
      const values = await cube.values(state.array), level = Math.min(Math.max(Math.round(index(z, state.z)), 0), z.length - 1);
      const first = level * y.length * x.length;
      for (let j = 0; j < y.length; j++) rows.push(values.subarray(first + j * x.length, first + (j + 1) * x.length));
      return { across: x, up: y, names: ["x", "y"], rows, seen: (j, i) => bit(cube.bits, first + j * x.length + i), entry: cube.arrays[state.array], where: `z = ${signed(z[level], 0)} pc` };
    }
    if (state.view === "l") {
      const values = await cube.values(state.array), step = cube.step[0];
      const reach = Math.max(...[x, y].flatMap(edges).map(Math.abs)), count = Math.floor(reach / step);
      const across = Array.from({ length: 2 * count + 1 }, (_, i) => (i - count) * step);
      const [c, s] = [Math.cos(state.cut * radians), Math.sin(state.cut * radians)];
      for (const height of z) rows.push(Float32Array.from(across, (d) => sampled(cube, values, d * c, d * s, height)));
      const seen = (j, i) => {
        const [a, b] = [Math.round(index(x, across[i] * c)), Math.round(index(y, across[i] * s))];
        return a < 0 || b < 0 || a >= x.length || b >= y.length || bit(cube.bits, (j * y.length + b) * x.length + a);
      };
      return { across, up: z, names: [`distance towards l = ${state.cut}°`, "z"], rows, seen, entry: cube.arrays[state.array], where: `l = ${state.cut}° and ${state.cut + 180}°` };
    }
    const along = sums(), entry = along.arrays[state.array], [up, across] = state.view === "sumz" ? [y, x] : [z, x];
    // Columns have the cells of the map, not of the blocks.
    const [high, wide] = along.shape, fine = (axis, n) => { const [a, b] = edges(axis); return Array.from({ length: n }, (_, i) => a + (i + 0.5) * (b - a) / n); };
    along.known = along.known || {};
    const values = along.known[state.array] || (along.known[state.array] = await unpacked(entry, wide));
    for (let j = 0; j < high; j++) rows.push(values.subarray(j * wide, (j + 1) * wide));
    const name = state.view === "sumz" ? "y" : "z";
    return { across: fine(across, wide), up: fine(up, high), names: ["x", name], rows, seen: (j, i) => bit(along.bits, j * wide + i), entry, where: `${signed(along.low, 0)} pc < ${state.view[3]} < ${signed(along.high, 0)} pc` };
  }
  // Coordinates of a place [pc] in the plane, and its distance from it.
  function onPlane([x, y, z]) {
    if (state.view === "l") {
      const [c, s] = [Math.cos(state.cut * radians), Math.sin(state.cut * radians)];
      return [x * c + y * s, z, Math.abs(y * c - x * s)];
    }
    return state.view === "sumy" ? [x, z, 0] : [x, y, state.view === "z" ? Math.abs(z - state.z) : 0];
  }
  function placeOf(across, up) {
    if (state.view === "l") return [across * Math.cos(state.cut * radians), across * Math.sin(state.cut * radians), up];
    return state.view === "sumy" ? [across, 0, up] : [across, up, state.view === "z" ? state.z : 0];
  }
  const isDensity = () => state.view === "z" || state.view === "l";
  const named = (name) => name === "ratio" ? "std / mean of the density" : `${NAMES[name] ?? name} density`.trim();
  const quantity = () => isDensity()
    ? named(state.array) + (state.array === "ratio" ? "" : " [mag/kpc]")
    : `${NAMES[state.array]} extinction${page.band ? " " + page.band : ""} [mag]`;

  let now = null;
  async function drawPlane() {
    if (!cubes.length) return;
    const cube = cubeNow(), found = now = await plane();
    const [left, right] = edges(found.across), [bottom, top] = edges(found.up), entry = found.entry;
    const heat = coloured(found.rows.map((row) => Array.from(row)), entry.colours, ...entry.limits, state.log && entry.limits[1] > 0, `${quantity()}<br>${found.where}`);
    const traces = [{ ...heat, x: found.across, y: found.up }];
    // Flat planes need less height.
    const height = Math.min(36, ($("plane").clientWidth - 70) / 16 * (top - bottom) / (right - left) + 9);
    $("plane").style.height = `${Math.max(height, 14).toFixed(1)}rem`;
    const marks = { mode: "markers", hoverinfo: "text", type: "scatter" };
    if (state.stars && stars) {
      const inside = stars.places.map(onPlane).filter(([a, u, away]) => away <= cube.step[2] / 2 && a > left && a < right && u > bottom && u < top);
      // A browser draws some thousands at once.
      const every = Math.ceil(inside.length / 3000), shown = inside.filter((_, i) => i % every === 0);
      const [x, y] = [0, 1].map((axis) => shown.map((one) => one[axis]));
      traces.push({ ...marks, x, y, hoverinfo: "skip", marker: { size: 2.5, color: "#009E73" } });
    }
    if (state.clouds) {
      const x = [], y = [], text = [], lines = { x: [], y: [] };
      for (const cloud of page.clouds) {
        const towards = vector(cloud.l, cloud.b), at = (d) => onPlane(towards.map((v) => v * d));
        const [a, u, away] = at(cloud.distance);
        // Positions on the sky are known to two degrees.
        if (away > Math.max(cube.step[2], 0.035 * cloud.distance) || a < left || a > right || u < bottom || u > top) continue;
        x.push(a); y.push(u); text.push(`${cloud.name}, ${cloud.distance} ± ${cloud.error} pc`);
        for (const d of [-1, 1]) { const [p, q] = at(cloud.distance + d * cloud.error); lines.x.push(p); lines.y.push(q); }
        lines.x.push(null); lines.y.push(null);
      }
      traces.push({ ...marks, ...lines, mode: "lines", hoverinfo: "skip", line: { color: BLUE, width: 2 } });
      traces.push({ ...marks, x, y, text, marker: { symbol: "diamond-open", size: 9, color: BLUE, line: { width: 2 } } });
    }
    traces.push({ ...marks, x: [0], y: [0], text: ["Sun"], marker: { size: 9, color: "white", line: { color: "black", width: 1.5 } } });
    const reach = Math.max(-left, right), step = [1, 2, 2.5, 5, 10].map((f) => f * 10 ** Math.floor(Math.log10(reach / 4))).find((s) => reach / s <= 4) || reach / 4;
    const shapes = [], bar = left + 0.04 * (right - left), low = bottom + 0.05 * (top - bottom);
    for (let r = step; r < reach * 1.42; r += step) shapes.push({ type: "circle", xref: "x", yref: "y", x0: -r, x1: r, y0: -r, y1: r, line: { color: "rgba(0,0,0,0.35)", width: 0.8, dash: "dash" } });
    shapes.push({ type: "line", x0: bar, x1: bar + step, y0: low, y1: low, line: { color: "black", width: 3 } });
    const layout = {
      ...lower, plot_bgcolor: GREY, shapes, uirevision: `${state.view}${state.level}`,
      images: veil((j, i) => !found.seen(j, i) && Number.isFinite(found.rows[j][i]), found.up.length, found.across.length, [left, right, bottom, top]),
      annotations: [{ x: bar + step / 2, y: low, text: `${brief(step)} pc`, showarrow: false, yshift: 10, bgcolor: "rgba(255,255,255,0.7)", font: { size: 11 } }],
      xaxis: { title: { text: found.names[0] + " [pc]" }, range: [left, right], zeroline: false, showgrid: false, constrain: "domain" },
      yaxis: { title: { text: found.names[1] + " [pc]" }, range: [bottom, top], zeroline: false, showgrid: false, scaleanchor: "x", constrain: "domain", constraintoward: "top" },
    };
    await Plotly.react($("plane"), traces, layout, SETTINGS);
    $("plane").dataset.drawn = `${state.view} ${state.array} ${found.where}`;
  }
  function showPlaneControls() {
    const cube = cubeNow(), options = (id, names, now) => $(id).replaceChildren(...Object.entries(names).map(([value, text]) => new Option(text, value, false, value === String(now))));
    const views = Object.fromEntries(Object.entries(VIEWS).filter(([key]) => key.length === 1 || cube.columns[key[3]]));
    if (!(state.view in views)) state.view = "z";
    const arrays = isDensity() ? cube.arrays : sums().arrays, names = {};
    for (const name of Object.keys(arrays)) names[name] = isDensity() ? named(name) : `${NAMES[name]} extinction`;
    if (!(state.array in names)) [state.array] = Object.keys(names);
    options("plane-view", views, state.view);
    options("plane-array", names, state.array);
    options("plane-level", Object.fromEntries(cubes.map((one, i) => [i, one.title])), state.level);
    $("plane-level").parentElement.hidden = cubes.length < 2;
    const slider = $("plane-at"), isCut = state.view === "l";
    slider.parentElement.hidden = !isDensity();
    [slider.min, slider.max, slider.step] = isCut ? [0, 179, 1] : [cube.z[0], cube.z[cube.z.length - 1], cube.step[2]];
    slider.value = isCut ? state.cut : state.z;
    $("plane-at-name").textContent = isCut ? "l" : "z";
    $("plane-at-text").textContent = isCut ? `${state.cut}°` : `${signed(state.z, 0)} pc`;
    $("plane-play").hidden = !isDensity() || samples(cube).length < 2;
    $("plane-stars").parentElement.hidden = !page.stars;
    for (const [id, key] of [["plane-log", "log"], ["plane-stars", "stars"], ["plane-clouds", "clouds"], ["sky-log", "skylog"], ["sky-clouds", "clouds"]]) $(id).checked = state[key];
  }

  // Stars.
  let stars = null;
  if (page.stars) {
    stars = Object.fromEntries(Object.entries(page.stars.columns).map(([name, { low, step, bytes: text }]) => [name, Float32Array.from(new Uint16Array(bytes(text).buffer), (n) => low + n * step)]));
    stars.count = stars.l.length;
    stars.towards = Array.from(stars.l, (l, i) => vector(l, stars.b[i]));
    stars.places = stars.towards.map((v, i) => v.map((c) => c * stars.distance[i]));
  }

  // Sky.
  const sky = page.sky, curves = {};
  const skyNames = sky ? Object.keys(sky.arrays).filter((name) => ["mean", "p50", "std"].includes(name)) : [];
  const pixels = sky ? 12 * sky.nside ** 2 : 0;
  async function curvesOf(name) {
    return curves[name] || (curves[name] = { codes: await codes(sky.arrays[name], pixels), look: table(sky.arrays[name].signed) });
  }
  const valueOf = (curve, k, pixel) => curve.look[curve.codes[k * pixels + pixel]] * scale[pixel];
  // Projections to the plane of the figure, l to the left; Mollweide's and the gnomonic one.
  function inverse(x, y) {
    if (!state.field) {
      const t = Math.asin(y), l = -Math.PI * x / (2 * Math.cos(t));
      return Math.abs(l) <= Math.PI ? [((l / radians) + 360) % 360, Math.asin((2 * t + Math.sin(2 * t)) / Math.PI) / radians] : null;
    }
    const [east, north, out] = tangent();
    return angles(out.map((o, i) => o + Math.tan(x * radians) * east[i] + Math.tan(y * radians) * north[i]));
  }
  function tangent() {
    const [l, b] = [state.l * radians, state.b * radians];
    return [[-Math.sin(l), Math.cos(l), 0], [-Math.sin(b) * Math.cos(l), -Math.sin(b) * Math.sin(l), Math.cos(b)], vector(state.l, state.b)];
  }
  function projected(l, b) {
    if (!state.field) {
      let t = b * radians;
      const goal = Math.PI * Math.sin(t);
      if (Math.abs(b) < 89.99) for (let i = 0; i < 8; i++) t -= (2 * t + Math.sin(2 * t) - goal) / (2 + 2 * Math.cos(2 * t));
      const turn = ((l + 180) % 360 + 360) % 360 - 180;
      return [-2 * turn / 180 * Math.cos(t), Math.sin(t)];
    }
    const [east, north, out] = tangent(), towards = vector(l, b), deep = dot(towards, out);
    return deep > 0.2 ? [Math.atan(dot(towards, east) / deep) / radians, Math.atan(dot(towards, north) / deep) / radians] : [NaN, NaN];
  }
  let grid = null;
  function skyGrid() {
    const key = state.field ? `${state.field} ${state.l} ${state.b}` : "whole";
    if (grid && grid.key === key) return grid;
    const [w, h, x, y] = state.field ? [240, 240, state.field, state.field] : [480, 240, 2, 1];
    const across = Array.from({ length: w }, (_, i) => -x + (i + 0.5) * 2 * x / w), up = Array.from({ length: h }, (_, j) => -y + (j + 0.5) * 2 * y / h);
    const found = new Int32Array(w * h).fill(-1);
    for (let j = 0; j < h; j++) for (let i = 0; i < w; i++) {
      const at = inverse(across[i], up[j]);
      if (at) found[j * w + i] = pixelOf(sky.nside, ...at);
    }
    return grid = { key, w, h, x, y, across, up, pixels: found };
  }
  // Meridians and parallels, with their names.
  function graticule() {
    const lines = { x: [], y: [] }, names = [], step = state.field ? (state.field > 15 ? 10 : 5) : 30;
    const inside = ([x, y]) => !state.field || (Math.abs(x) <= state.field && Math.abs(y) <= state.field);
    const add = (points) => { for (const [x, y] of points) { const ok = inside([x, y]); lines.x.push(ok ? x : null); lines.y.push(ok ? y : null); } lines.x.push(null); lines.y.push(null); };
    const range = (a, b, n) => Array.from({ length: n + 1 }, (_, i) => a + i * (b - a) / n);
    for (let b = -90 + step; b < 90; b += step) add(state.field ? range(0, 360, 720).map((l) => projected(l, b)) : range(-179.99, 179.99, 120).map((l) => projected(l, b)));
    for (let l = 0; l < 360; l += step) add(range(-89, 89, 178).map((b) => projected(l, b)));
    if (!state.field) { add(range(-90, 90, 90).map((b) => projected(179.999, b))); add(range(-90, 90, 90).map((b) => projected(180.001, b))); }
    const note = (l, b, text) => { const at = projected(l, b); if (inside(at)) names.push({ x: at[0], y: at[1], text, showarrow: false, font: { size: 10 }, bgcolor: "rgba(255,255,255,0.6)" }); };
    if (!state.field) { for (const l of [120, 60, 0, 300, 240]) note(l, 0, `${l}°`); for (const b of [-60, -30, 30, 60]) note(0, b, `${signed(b, 0)}°`); }
    else {
      const near = (v) => Math.round(v / step) * step;
      for (let n = -8; n <= 8; n++) { note(near(state.l) + n * step, near(state.b), `l ${(near(state.l) + n * step + 360) % 360}°`); if (n && Math.abs(near(state.b) + n * step) < 90) note(near(state.l), near(state.b) + n * step, `b ${signed(near(state.b) + n * step, 0)}°`); }
    }
    return [lines, names];
  }
  const last = sky && floats(sky.last), scale = sky && floats(sky.scale);
  async function drawSky() {
    if (!sky) return;
    const curve = await curvesOf(state.sky), { w, h, x, y, across, up, pixels: which } = skyGrid(), distance = sky.distances[state.at];
    const rows = [], some = [];
    for (let j = 0; j < h; j++) {
      const row = new Array(w);
      for (let i = 0; i < w; i++) {
        const pixel = which[j * w + i], value = pixel < 0 ? NaN : valueOf(curve, state.at, pixel);
        row[i] = Number.isFinite(value) ? value : null;
        if (row[i] !== null && (i * 7 + j) % 11 === 0) some.push(value);
      }
      rows.push(row);
    }
    some.sort((a, b) => a - b);
    const high = some.length ? some[Math.floor(0.995 * (some.length - 1))] || 1 : 1;
    const colours = sky.colours[state.sky === "std" ? "error" : "value"];
    const what = `${NAMES[state.sky]} extinction${page.band ? " " + page.band : ""} to ${signed(distance, 0)} pc [mag]`;
    const heat = coloured(rows, colours, 0, high, state.skylog, what), [lines, names] = graticule();
    const flat = { type: "scatter", mode: "lines", hoverinfo: "skip" }, [dx, dy] = projected(state.l, state.b);
    const traces = [{ ...heat, x: across, y: up }, { ...flat, ...lines, line: { color: "rgba(0,0,0,0.4)", width: 0.7 } }];
    if (state.clouds) {
      const here = page.clouds.map((cloud) => [cloud, ...projected(cloud.l, cloud.b)]).filter(([cloud, a, u]) => cloud.distance <= distance && Math.abs(a) <= x && Math.abs(u) <= y);
      traces.push({ ...flat, mode: "markers", hoverinfo: "text", x: here.map((one) => one[1]), y: here.map((one) => one[2]), text: here.map(([cloud]) => `${cloud.name}, ${cloud.distance} ± ${cloud.error} pc`), marker: { symbol: "diamond-open", size: 8, color: BLUE, line: { width: 2 } } });
    }
    traces.push({ ...flat, mode: "markers", x: [dx], y: [dy], marker: { symbol: "cross-thin", size: 13, line: { color: "black", width: 2 } } });
    const whole = !state.field, axis = { visible: !whole, zeroline: false, showgrid: false, constrain: "domain", constraintoward: "center", title: { text: whole ? "" : "offset [deg]" } };
    await Plotly.react($("sky"), traces, {
      ...lower, plot_bgcolor: whole ? "white" : GREY, annotations: names, uirevision: `${state.field}`,
      shapes: whole ? [{ type: "circle", x0: -2, x1: 2, y0: -1, y1: 1, layer: "below", fillcolor: GREY, line: { width: 0 } }] : [],
      images: veil((j, i) => rows[j][i] !== null && last[which[j * w + i]] < distance, h, w, [-x, x, -y, y]),
      xaxis: { ...axis, range: whole ? [-2.02, 2.02] : [x, -x] }, yaxis: { ...axis, range: [-y * 1.01, y * 1.01], scaleanchor: "x", constraintoward: "top" },
      margin: whole ? { l: 8, r: 8, t: 80, b: 12 } : lower.margin,
    }, SETTINGS);
    $("sky").dataset.drawn = `${state.sky} ${distance} ${state.field}`;
  }

  // A direction.
  let ray = null;
  async function rayNow() {
    const names = Object.keys(sky.arrays), arrays = {};
    if (page.served) {
      const answer = await fetch(`curve?l=${state.l}&b=${state.b}`);
      if (!answer.ok) throw new Error(await answer.text());
      return { ...(await answer.json()), l: state.l, b: state.b };
    }
    const pixel = pixelOf(sky.nside, state.l, state.b), [l, b] = centreOf(sky.nside, pixel);
    for (const name of names) { const curve = await curvesOf(name); arrays[name] = sky.distances.map((_, k) => valueOf(curve, k, pixel)); }
    return { l, b, distances: sky.distances, arrays, last: last[pixel] };
  }
  function crossing(distances, curve, level) {
    let [before, value] = [0, 0];
    for (let i = 0; i < distances.length; i++) {
      if (curve[i] >= level) return before + (distances[i] - before) * (level - value) / (curve[i] - value);
      [before, value] = [distances[i], curve[i]];
    }
    return Infinity;
  }
  // Peaks of the rise of the mean curve, of at least a quarter of the largest.
  function peaks({ distances, arrays }, low, high) {
    const curve = arrays.mean, known = curve.filter(Number.isFinite).length, found = [];
    const rise = Array.from({ length: known }, (_, i) => (curve[i] - (i ? curve[i - 1] : 0)) / (distances[i] - (i ? distances[i - 1] : 0)));
    const order = rise.map((_, i) => i).sort((a, b) => rise[b] - rise[a]), taken = new Array(known).fill(false);
    for (const i of order) {
      if (!(rise[i] > 0) || rise[i] < rise[order[0]] / 4 || found.length === 6) break;
      let [from, to] = [i, i];
      while (from > 0 && rise[from - 1] >= rise[i] / 2) from--;
      while (to < known - 1 && rise[to + 1] >= rise[i] / 2) to++;
      const isNew = !taken.slice(from, to + 1).some(Boolean);
      taken.fill(true, from, to + 1);
      if (!isNew) continue;
      const start = from ? curve[from - 1] : 0, level = (start + curve[to]) / 2;
      found.push({ distance: crossing(distances, arrays.p50 || curve, level), near: high && crossing(distances, high, level), far: low && crossing(distances, low, level), rise: curve[to] - start });
    }
    return found.sort((a, b) => a.distance - b.distance);
  }
  async function drawRay() {
    if (!sky) return;
    $("ray-text").value = `${state.l.toFixed(3)} ${state.b.toFixed(3)}`;
    $("ray-cone-text").textContent = `${state.cone.toFixed(1)}°`;
    ray = await rayNow();
    const { distances, arrays } = ray, x = [0, ...distances], from = (curve) => [0, ...curve];
    const normal = (width) => arrays.std && arrays.mean.map((v, i) => v + width * arrays.std[i]);
    const bands = [[arrays.p2_5 || normal(-1.96), arrays.p97_5 || normal(1.96), 0.18], [arrays.p16 || normal(-1), arrays.p84 || normal(1), 0.36]];
    const traces = [], known = distances.filter((_, i) => Number.isFinite(arrays.mean[i])), end = known.length ? known[known.length - 1] : distances[distances.length - 1];
    for (const [low, high, opacity] of bands) if (low) traces.push(
      { x, y: from(low), mode: "lines", line: { width: 0 }, hoverinfo: "skip" },
      { x, y: from(high), mode: "lines", line: { width: 0 }, fill: "tonexty", fillcolor: `rgba(0,114,178,${opacity})`, hoverinfo: "skip" });
    traces.push({ x, y: from(arrays.p50 || arrays.mean), mode: "lines", line: { color: BLUE, width: 2 }, hovertemplate: "%{x:.0f} pc: %{y:.3g} mag<extra></extra>" });
    const near = [], shapes = [], towards = vector(ray.l, ray.b), least = Math.cos(state.cone * radians);
    if (stars) {
      for (let i = 0; i < stars.count; i++) if (dot(towards, stars.towards[i]) >= least) near.push(i);
      const errors = (name) => stars[name] && { type: "data", array: near.map((i) => stars[name][i]), thickness: 0.8, width: 0 };
      if (stars.extinction) traces.push({ x: near.map((i) => stars.distance[i]), y: near.map((i) => stars.extinction[i]), error_x: errors("distance_error"), error_y: errors("extinction_error"), mode: "markers", marker: { color: ORANGE, size: 4 }, opacity: 0.75, hovertemplate: "star, %{x:.0f} pc: %{y:.3g} mag<extra></extra>" });
      const far = near.map((i) => stars.distance[i]);
      for (const d of near.length ? [Math.min(...far), Math.max(...far)] : []) shapes.push({ type: "line", x0: d, x1: d, yref: "paper", y0: 0, y1: 1, line: { color: "#555", width: 1, dash: "dot" } });
    }
    const top = Math.max(...[...(bands[0][1] || []), ...arrays.mean].filter(Number.isFinite), 1e-3) * 1.1;
    if (cubes.length) {
      const cube = cubes[cubes.length - 1], whole = cubes[0], step = cube.step[0] / 2, density = { x: [], y: [] };
      const [fine, coarse] = await Promise.all([cube, whole].map((one) => one.values(Object.keys(one.arrays)[0])));
      for (let d = step; d <= end; d += step) {
        const [px, py, pz] = towards.map((v) => v * d), value = sampled(cube, fine, px, py, pz, cube === whole ? 0.5 : 0);
        density.x.push(d);
        density.y.push(Number.isFinite(value) ? value : sampled(whole, coarse, px, py, pz));
      }
      ray.density = density;
      traces.push({ ...density, yaxis: "y2", mode: "lines", line: { color: "black", width: 1.4 }, hovertemplate: "%{x:.0f} pc: %{y:.3g} mag/kpc<extra></extra>" });
    }
    const [low68, high68] = bands[1], found = ray.peaks = peaks(ray, low68, high68);
    await Plotly.react($("ray"), traces, {
      ...lower, shapes, margin: { l: 58, r: 12, t: 12, b: 44 }, uirevision: `${ray.l} ${ray.b}`,
      xaxis: { title: { text: "distance [pc]" }, range: [0, end * 1.02], anchor: cubes.length ? "y2" : "y" },
      yaxis: { title: { text: `extinction${page.band ? " " + page.band : ""} [mag]` }, range: [Math.min(0, -0.04 * top), top], domain: [cubes.length ? 0.36 : 0, 1] },
      yaxis2: { title: { text: "density<br>[mag/kpc]" }, domain: [0, 0.3], rangemode: "tozero" },
    }, SETTINGS);
    const held = Number.isFinite(ray.last) && ray.last < end ? ` The last star that looks along it is ${ray.last > 0 ? signed(ray.last, 0) + " pc away" : "none"}.` : "";
    const away = page.served ? "" : " (the centre of its pixel)";
    const counted = stars ? ` ${near.length} of ${page.stars.shown < page.stars.of ? "the shown stars" : "the stars"} lie within ${state.cone.toFixed(1)}°.` : "";
    $("ray-read").textContent = `${place(ray.l, ray.b)}${away}: ${brief((arrays.p50 || arrays.mean)[known.length - 1])} mag to ${signed(end, 0)} pc.${counted}${held}`;
    const rows = found.map((peak) => `<tr><td>${signed(peak.distance, 0)} pc</td><td>${low68 ? `${signed(peak.near, 0)} to ${Number.isFinite(peak.far) ? signed(peak.far, 0) : "beyond " + signed(end, 0)} pc` : "not known"}</td><td>${brief(peak.rise)} mag</td></tr>`);
    $("ray-clouds").innerHTML = rows.length ? `<table><caption>Clouds towards this direction</caption><thead><tr><th>distance</th><th>68% interval</th><th>rise</th></tr></thead><tbody>${rows.join("")}</tbody></table>` : "";
    $("ray").dataset.drawn = `${state.l} ${state.b} ${state.cone}`;
  }
  // Surfaces of equal density in space, of which quantiles of the seen cells are the outer ones.
  const QUANTILES = [0.5, 0.7, 0.8, 0.88, 0.93, 0.96, 0.98, 0.99, 0.995, 0.998], FACTORS = [1, 2.5, 4];
  const FLAME = [[0, "#f3b23c"], [0.5, "#c2410c"], [1, "#3b0764"]];
  async function volumeOf(cube) {
    if (cube.volume) return cube.volume;
    const values = await cube.values(Object.keys(cube.arrays)[0]), whole = values.map((v) => Number.isFinite(v) ? v : 0);
    const seen = whole.map((v, i) => bit(cube.bits, i) ? v : 0), known = whole.filter((_, i) => bit(cube.bits, i)).sort();
    const at = (q) => Number((known[Math.floor(q * (known.length - 1))] || 0).toPrecision(3)), most = known.length ? known[known.length - 1] : 0;
    const levels = [...new Set(QUANTILES.map(at))].filter((level) => level > 1e-6 * most);
    const { x, y, z } = cube, place = { x: new Float32Array(whole.length), y: new Float32Array(whole.length), z: new Float32Array(whole.length) };
    let i = 0;
    for (const c of z) for (const b of y) for (const a of x) { place.x[i] = a; place.y[i] = b; place.z[i++] = c; }
    return cube.volume = { seen, whole, place, levels: levels.length ? levels : [1] };
  }
  const far = () => $("volume").clientWidth < 500 ? 1.6 : 1.3;
  const camera = () => ({ eye: { x: -0.4 * far(), y: -1.6 * far(), z: 1.4 * far() }, center: { x: 0, y: 0, z: -0.15 }, up: { x: 0, y: 0, z: 1 } });
  // Surfaces take a browser a second: they are drawn when they come into sight.
  let inSight = false;
  async function drawVolume() {
    if (!inSight) return;
    const cube = cubes[state.part], volume = await volumeOf(cube), { x, y, z } = cube;
    const number = Math.min(state.surface, volume.levels.length - 1), low = volume.levels[number];
    $("volume-surface").max = volume.levels.length - 1;
    $("volume-surface").value = number;
    $("volume-surface-text").textContent = `${brief(low)} mag/kpc`;
    const sides = [x, y, z].map((axis) => axis[axis.length - 1] - axis[0]), share = sides.map((side) => 2.2 * side / Math.hypot(...sides));
    const axis = (text, values, share) => ({ title: { text }, range: [values[0], values[values.length - 1]], nticks: Math.max(2, Math.round(5 * share)), backgroundcolor: "#fafafa", gridcolor: "#ddd" });
    const traces = [{
      type: "isosurface", ...volume.place, value: state.seen ? volume.seen : volume.whole, isomin: low, isomax: FACTORS[2] * low, cmin: low, cmax: FACTORS[2] * low,
      surface: { count: 3 }, caps: { x: { show: false }, y: { show: false }, z: { show: false } }, opacity: 0.45, colorscale: FLAME,
      colorbar: { orientation: "h", x: 0.5, y: 1, yanchor: "top", thickness: 11, len: 0.9, title: { text: "mean density [mag/kpc]", side: "top" }, tickvals: FACTORS.map((f) => f * low), ticktext: FACTORS.map((f) => brief(f * low)) },
      hovertemplate: "x %{x:.0f} pc<br>y %{y:.0f} pc<br>z %{z:.0f} pc<br>%{value:.3g} mag/kpc<extra></extra>",
    }, {
      type: "scatter3d", mode: "markers+text", x: [0], y: [0], z: [0], text: ["Sun"], textposition: "top center", showlegend: false,
      marker: { size: 5, color: "#e69f00", line: { width: 1, color: "black" } }, hovertemplate: "Sun<extra></extra>",
    }];
    await Plotly.react($("volume"), traces, {
      margin: { l: 0, r: 0, t: 0, b: 0 }, paper_bgcolor: "white", font: { size: 12 }, uirevision: state.part,
      scene: {
        xaxis: axis("x [pc]", x, share[0]), yaxis: axis("y [pc]", y, share[1]), zaxis: axis("z [pc]", z, share[2]), aspectmode: "manual",
        aspectratio: { x: share[0], y: share[1], z: share[2] }, camera: camera(), uirevision: state.part,
      },
    }, { ...SETTINGS, modeBarButtons: [["zoom3d", "pan3d", "orbitRotation", "tableRotation", "resetCameraLastSave3d", "toImage"]] });
    $("volume").dataset.drawn = `${state.part} ${low} ${state.seen}`;
  }
  // "l b", "ra RA DEC", or sexagesimal ICRS.
  function parsed(text) {
    const clean = text.replace(/[\u2212\u2013]/g, "-").trim(), isIcrs = /^ra\b/i.test(clean);
    const parts = clean.replace(/\b(ra|dec|l|b)\b\s*=?/gi, " ").trim().split(/[\s,;]+/).filter(Boolean);
    const sexagesimal = (words) => {
      const numbers = words.join(":").split(/[:hdm°'′"″s]+/i).filter(Boolean).map(Number);
      const size = Math.abs(numbers[0]) + (numbers[1] || 0) / 60 + (numbers[2] || 0) / 3600;
      return words[0].startsWith("-") ? -size : size;
    };
    let l, b;
    if (/[:hdm]/i.test(parts.join(" ")) || parts.length === 6) {
      const half = parts.length / 2;
      [l, b] = galactic(15 * sexagesimal(parts.slice(0, half)), sexagesimal(parts.slice(half)));
    } else if (parts.length === 2) {
      [l, b] = parts.map(Number);
      if (Math.abs(b) <= 90 && isIcrs) [l, b] = galactic(l, b);
    }
    return Number.isFinite(l) && Math.abs(l) <= 360 && Math.abs(b) <= 90 ? [(l + 360) % 360, b] : null;
  }

  // Drawing, the address, and what moves them.
  const drawings = { plane: drawPlane, sky: drawSky, ray: drawRay, volume: drawVolume }, waiting = new Set();
  let busy = null;
  function draw(...which) {
    which.forEach((name) => waiting.add(name));
    remember();
    busy = busy || (async () => {
      while (waiting.size) { const [name] = waiting; waiting.delete(name); await drawings[name](); }
    })().catch(fail).finally(() => { busy = null; document.body.dataset.drawn = Number(document.body.dataset.drawn || 0) + 1; });
    return busy;
  }
  function remember() {
    const kept = Object.entries(state).map(([key, value]) => `${key}=${typeof value === "boolean" ? Number(value) : encodeURIComponent(value)}`);
    history.replaceState(null, "", "#" + kept.join("&"));
  }
  function recall() {
    for (const [key, text] of new URLSearchParams(location.hash.slice(1))) {
      if (!(key in state)) continue;
      const kind = typeof state[key];
      if (kind === "string") state[key] = text;
      else if (Number.isFinite(Number(text))) state[key] = kind === "boolean" ? text !== "0" : Number(text);
    }
    [state.l, state.b] = [((state.l % 360) + 360) % 360, Math.min(Math.max(state.b, -90), 90)];
    if (![...$("sky-field").options].some((one) => one.value === String(state.field))) state.field = 0;
    for (const key of ["level", "part"]) state[key] = Math.min(Math.max(Math.round(state[key]), 0), Math.max(cubes.length - 1, 0));
    state.surface = Math.max(Math.round(state.surface), 0);
    if (sky) {
      if (!skyNames.includes(state.sky)) state.sky = skyNames.includes("p50") ? "p50" : "mean";
      if (!(state.at >= 0 && state.at < sky.distances.length)) state.at = sky.first;
    }
    if (cubes.length) state.z = Math.min(Math.max(state.z, cubeNow().z[0]), cubeNow().z.at(-1));
  }
  function towards(l, b) { [state.l, state.b] = [l, b]; return draw("ray", "sky"); }
  const on = (id, kind, act) => $(id).addEventListener(kind, act);
  function choose(id, key, change, act) {
    on(id, change, () => { state[key] = $(id).type === "checkbox" ? $(id).checked : typeof state[key] === "number" ? Number($(id).value) : $(id).value; act(); });
  }
  const planes = () => { stop(); showPlaneControls(); draw("plane"); };
  choose("plane-view", "view", "change", planes);
  choose("plane-array", "array", "change", planes);
  choose("plane-level", "level", "change", () => { recall(); planes(); });
  choose("plane-log", "log", "change", planes);
  choose("plane-stars", "stars", "change", planes);
  for (const id of ["plane-clouds", "sky-clouds"]) choose(id, "clouds", "change", () => { $("plane-clouds").checked = $("sky-clouds").checked = state.clouds; draw("plane", "sky"); });
  on("plane-at", "input", () => { state[state.view === "l" ? "cut" : "z"] = Number($("plane-at").value); showPlaneControls(); draw("plane"); });
  for (const [id, key] of [["volume-part-of", "part"], ["volume-surface", "surface"], ["volume-seen", "seen"]]) choose(id, key, "change", () => draw("volume"));
  on("volume-home", "click", () => Plotly.relayout($("volume"), { "scene.camera": camera() }));
  let playing = 0, kept = "";
  function stop() { clearInterval(playing); playing = 0; $("plane-play").textContent = "Play samples"; }
  on("plane-play", "click", () => {
    if (playing) { stop(); state.array = kept; return planes(); }
    kept = state.array;
    $("plane-play").textContent = "Stop";
    const names = samples(cubeNow());
    let i = 0;
    const next = () => { state.array = names[i++ % names.length]; showPlaneControls(); draw("plane"); };
    next();
    playing = setInterval(next, 400);
  });
  const skyText = () => { $("sky-at-text").textContent = `${signed(sky.distances[state.at], 0)} pc`; };
  choose("sky-array", "sky", "change", () => draw("sky"));
  choose("sky-field", "field", "change", () => draw("sky"));
  choose("sky-log", "skylog", "change", () => draw("sky"));
  choose("sky-at", "at", "input", () => { skyText(); draw("sky"); });
  choose("ray-cone", "cone", "input", () => draw("ray"));
  on("ray-form", "submit", (event) => {
    event.preventDefault();
    const found = parsed($("ray-text").value);
    $("ray-text").setAttribute("aria-invalid", String(!found));
    if (found) towards(...found);
    else $("ray-read").textContent = `“${$("ray-text").value}” is no position: write l b, as 210 -19.4; ra 83.8 -5.4; or 05:35:17 -05:23.`;
  });
  const about = () => [document.title, location.href, ...(page.band ? [`band: ${page.band}`] : [])];
  on("plane-save", "click", () => save("plane.csv", [...about(), `${quantity()}, ${now.where}; columns: across [pc], up [pc], value`], now.rows.flatMap((row, j) => Array.from(row, (v, i) => [written(now.across[i]), written(now.up[j]), written(v)]))));
  on("sky-save", "click", async () => {
    const curve = await curvesOf(state.sky), rows = Array.from({ length: pixels }, (_, p) => [p, ...centreOf(sky.nside, p).map(written), written(valueOf(curve, state.at, p)), last[p] < 1e8 ? written(last[p]) : ""]);
    save("sky.csv", [...about(), `${NAMES[state.sky]} extinction to ${sky.distances[state.at]} pc, HEALPix nside ${sky.nside}, RING, Galactic`, "columns: pixel, l [deg], b [deg], extinction [mag], last star [pc]"], rows);
  });
  on("ray-save", "click", () => {
    const names = Object.keys(ray.arrays);
    const clouds = ray.peaks.map((peak) => `cloud: ${written(peak.distance)} pc (68%: ${written(peak.near) || "unknown"} to ${written(peak.far) || "unknown"} pc), rise ${written(peak.rise)} mag`);
    save("direction.csv", [...about(), `l = ${ray.l} deg, b = ${ray.b} deg`, ...clouds, `columns: distance [pc], ${names.map((name) => `${NAMES[name]} extinction [mag]`).join(", ")}`], ray.distances.map((d, i) => [written(d), ...names.map((name) => written(ray.arrays[name][i]))]));
  });
  on("ray-picture", "click", () => Plotly.downloadImage($("ray"), { format: "png", width: 1000, height: 750, scale: 2, filename: `l${state.l.toFixed(1)}_b${state.b.toFixed(1)}` }));
  function listen() {
    if (cubes.length) {
      $("plane").on("plotly_click", ({ points: [at] }) => towards(...angles(placeOf(at.x, at.y))));
      $("plane").on("plotly_hover", ({ points: [at] }) => {
        if (at.curveNumber !== 0) return;
        const where = placeOf(at.x, at.y), [l, b] = angles(where);
        const away = state.view.startsWith("sum") ? "" : `, ${signed(Math.hypot(...where), 0)} pc away towards ${place(l, b)}`;
        $("plane-read").textContent = `${now.names[0]} ${signed(at.x, 0)} pc, ${now.names[1]} ${signed(at.y, 0)} pc: ${brief(now.rows[at.pointIndex[0]][at.pointIndex[1]])}${away}`;
      });
    }
    if (sky) {
      $("sky").on("plotly_click", ({ points: [at] }) => { const found = inverse(at.x, at.y); if (found) towards(...found); });
      $("sky").on("plotly_hover", ({ points: [at] }) => {
        const found = at.curveNumber === 0 && inverse(at.x, at.y);
        if (found) $("sky-read").textContent = `${place(...found)}: ${brief(valueOf(curves[state.sky], state.at, pixelOf(sky.nside, ...found)))} mag`;
      });
    }
  }
  function start() {
    recall();
    if (cubes.length) {
      showPlaneControls();
      $("volume-part-of").replaceChildren(...cubes.map((cube, i) => new Option(cube.title, i, false, i === state.part)));
      $("volume-part-of").parentElement.hidden = cubes.length < 2;
      $("volume-seen").checked = state.seen;
    }
    if (sky) {
      $("sky-array").replaceChildren(...skyNames.map((name) => new Option(`${NAMES[name]} extinction`, name, false, name === state.sky)));
      $("sky-at").max = sky.distances.length - 1;
      $("sky-at").value = state.at;
      $("sky-field").value = String(state.field);
      $("sky-log").checked = state.skylog;
      $("sky-clouds").checked = state.clouds;
      $("ray-cone").value = state.cone;
      skyText();
    }
    return draw("plane", "sky", "ray", "volume");
  }
  // A plain picture of the plane, until plotly runs a second later.
  async function preview() {
    recall();
    if (!cubes.length) return;
    showPlaneControls();
    const { rows, entry } = await plane(), [low, high] = entry.limits, canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [rows[0].length, rows.length];
    const context = canvas.getContext("2d"), last = entry.colours.length - 1;
    rows.forEach((row, j) => row.forEach((value, i) => {
      context.fillStyle = Number.isFinite(value) ? entry.colours[Math.min(Math.max(Math.round((value - low) / (high - low) * last), 0), last)] : GREY;
      context.fillRect(i, rows.length - 1 - j, 1, 1);
    }));
    $("plane").append(canvas);
    await new Promise((painted) => requestAnimationFrame(() => setTimeout(painted)));
  }
  await preview();
  const script = document.createElement("script");
  script.textContent = await inflated($("plotly").textContent).text();
  document.head.append(script);
  $("plane").replaceChildren();
  window.addEventListener("hashchange", () => location.hash.includes("=") ? start() : remember());
  await start();
  listen();
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    inSight = true;
    draw("volume");
  }, { rootMargin: "300px" }).observe($("volume"));
})();
