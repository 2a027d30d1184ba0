"use strict";
(function () {
  const target = document.getElementById("view");
  const fault = document.getElementById("view-fault");
  const level = document.getElementById("view-level");
  const levelText = document.getElementById("view-level-text");
  const which = document.getElementById("view-box");
  const seenOnly = document.getElementById("view-seen");

  function fail(error) {
    target.dataset.state = "failed";
    fault.hidden = false;
    fault.textContent = "The 3-D view could not be drawn: " + (error && error.message || error);
  }

  function bytes(text) {
    const raw = atob(text);
    const found = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) found[i] = raw.charCodeAt(i);
    return found;
  }

  // One map, or nested ones: whole box first.
  const boxes = JSON.parse(document.getElementById("view-data").textContent).map(unpacked);
  let data = boxes[0];

  function unpacked(box) {
    const density = new Float32Array(bytes(box.density).buffer);
    const bits = bytes(box.seen);
    const seen = density.map((value, i) => (bits[i >> 3] >> (i & 7)) & 1 ? value : 0);
    const place = { x: new Float32Array(density.length), y: new Float32Array(density.length), z: new Float32Array(density.length) };
    let i = 0;
    for (const z of box.z) for (const y of box.y) for (const x of box.x) {
      place.x[i] = x;
      place.y[i] = y;
      place.z[i++] = z;
    }
    return { ...box, density, seen, place };
  }

  // Of the level on the slider: surfaces are evenly spaced in between.
  const FACTORS = [1, 2.5, 4];
  const COLOURS = [[0, "#f3b23c"], [0.5, "#c2410c"], [1, "#3b0764"]];
  const hover = "x %{x:.0f} pc<br>y %{y:.0f} pc<br>z %{z:.0f} pc<br>";
  const far = target.clientWidth < 500 ? 1.5 : 1.05;
  const above = { eye: { x: -0.4 * far, y: -1.6 * far, z: 1.4 * far }, center: { x: 0, y: 0, z: -0.15 }, up: { x: 0, y: 0, z: 1 } };

  function values() { return seenOnly.checked ? data.seen : data.density; }
  function bounds() {
    const low = data.levels[level.value];
    return { isomin: low, isomax: FACTORS[2] * low };
  }
  function surfaces() { return FACTORS.map((factor) => factor * data.levels[level.value]); }
  function tell() { levelText.textContent = data.levels[level.value] + " mag/kpc"; }

  function traces() {
    return [
      {
        type: "isosurface", ...data.place, value: values(), ...bounds(),
        surface: { count: 3 }, caps: { x: { show: false }, y: { show: false }, z: { show: false } },
        opacity: 0.45, colorscale: COLOURS, cmin: bounds().isomin, cmax: bounds().isomax,
        colorbar: {
          orientation: "h", x: 0.01, xanchor: "left", y: 1, yanchor: "top", thickness: 10, len: 0.4,
          title: { text: "density [mag/kpc]", side: "top" }, tickvals: surfaces(), tickformat: ".3g",
        },
        hovertemplate: hover + "%{value:.3g} mag/kpc<extra></extra>",
      },
      {
        type: "scatter3d", mode: "markers+text", x: [0], y: [0], z: [0], text: ["Sun"],
        textposition: "top center", marker: { size: 5, color: "#e69f00", line: { width: 1, color: "black" } },
        hovertemplate: "Sun<extra></extra>", showlegend: false,
      },
    ];
  }

  function axis(text, values) {
    return { title: { text: text }, range: [values[0], values[values.length - 1]], backgroundcolor: "#fafafa", gridcolor: "#ddd" };
  }
  function layout() {
    const sides = [data.x, data.y, data.z].map((axis) => axis[axis.length - 1] - axis[0]);
    // Flat boxes and cubes fill the view alike.
    const [x, y, z] = sides.map((side) => 2.2 * side / Math.hypot(...sides));
    return {
      margin: { l: 0, r: 0, t: 0, b: 0 }, paper_bgcolor: "white", uirevision: data.name,
      scene: {
        xaxis: axis("x [pc], to l = 0°", data.x),
        yaxis: axis("y [pc], to l = 90°", data.y),
        zaxis: axis("z [pc], to b = +90°", data.z),
        aspectmode: "manual", aspectratio: { x, y, z }, camera: above, uirevision: data.name,
      },
    };
  }
  // No button that would send the map anywhere.
  const settings = {
    responsive: true, displaylogo: false, plotlyServerURL: "",
    modeBarButtons: [["zoom3d", "pan3d", "orbitRotation", "tableRotation", "resetCameraLastSave3d", "toImage"]],
  };

  function redraw() {
    tell();
    target.dataset.state = "waiting";
    Plotly.react(target, traces(), layout(), settings).then(drawn, fail);
  }
  function show(box) {
    data = box;
    level.max = data.levels.length - 1;
    level.value = data.first;
    redraw();
  }
  function drawn() {
    target.dataset.state = target.querySelector("canvas") ? "drawn" : "failed";
    if (target.dataset.state === "failed") fail("this browser offers no WebGL");
  }

  try {
    for (const box of boxes) which.add(new Option(box.name));
    which.parentElement.hidden = boxes.length < 2;
    which.addEventListener("change", () => show(boxes[which.selectedIndex]));
    level.addEventListener("input", tell);
    level.addEventListener("change", redraw);
    seenOnly.addEventListener("change", redraw);
    document.getElementById("view-home").addEventListener("click", () => Plotly.relayout(target, { "scene.camera": above }));
    show(data);
  } catch (error) {
    fail(error);
  }
})();
