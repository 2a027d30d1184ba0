"use strict";
(function () {
  const target = document.getElementById("view");
  const fault = document.getElementById("view-fault");
  const level = document.getElementById("view-level");
  const levelText = document.getElementById("view-level-text");
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

  const data = JSON.parse(document.getElementById("view-data").textContent);
  const density = new Float32Array(bytes(data.density).buffer);
  const bits = bytes(data.seen);
  const seen = density.map((value, i) => (bits[i >> 3] >> (i & 7)) & 1 ? value : 0);
  const [nx, ny, nz] = [data.x.length, data.y.length, data.z.length];
  const place = { x: new Float32Array(density.length), y: new Float32Array(density.length), z: new Float32Array(density.length) };
  for (let k = 0, i = 0; k < nz; k++)
    for (let j = 0; j < ny; j++)
      for (let l = 0; l < nx; l++, i++) {
        place.x[i] = data.x[l];
        place.y[i] = data.y[j];
        place.z[i] = data.z[k];
      }

  // Of the level on the slider: surfaces are evenly spaced in between.
  const FACTORS = [1, 2.5, 4];
  const COLOURS = [[0, "#f3b23c"], [0.5, "#c2410c"], [1, "#3b0764"]];
  const hover = "x %{x:.0f} pc<br>y %{y:.0f} pc<br>z %{z:.0f} pc<br>";
  const far = target.clientWidth < 500 ? 1.5 : 1.05;
  const above = { eye: { x: -0.4 * far, y: -1.6 * far, z: 1.4 * far }, center: { x: 0, y: 0, z: -0.15 }, up: { x: 0, y: 0, z: 1 } };
  const sides = [data.x, data.y, data.z].map((axis) => axis[axis.length - 1] - axis[0]);
  const longest = Math.max(...sides);

  function values() { return seenOnly.checked ? seen : density; }
  function bounds() {
    const low = data.levels[level.value];
    return { isomin: low, isomax: FACTORS[2] * low };
  }
  function surfaces() { return FACTORS.map((factor) => factor * data.levels[level.value]); }
  function tell() { levelText.textContent = data.levels[level.value] + " mag/kpc"; }

  function traces() {
    return [
      {
        type: "isosurface", x: place.x, y: place.y, z: place.z, value: values(), ...bounds(),
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
  const layout = {
    margin: { l: 0, r: 0, t: 0, b: 0 }, paper_bgcolor: "white", uirevision: "kept",
    scene: {
      xaxis: axis("x [pc], to l = 0°", data.x),
      yaxis: axis("y [pc], to l = 90°", data.y),
      zaxis: axis("z [pc], to b = +90°", data.z),
      aspectmode: "manual",
      aspectratio: { x: 1.5 * sides[0] / longest, y: 1.5 * sides[1] / longest, z: 1.5 * sides[2] / longest },
      camera: above,
    },
  };
  // No button that would send the map anywhere.
  const settings = {
    responsive: true, displaylogo: false, plotlyServerURL: "",
    modeBarButtons: [["zoom3d", "pan3d", "orbitRotation", "tableRotation", "resetCameraLastSave3d", "toImage"]],
  };

  function redraw() {
    tell();
    target.dataset.state = "waiting";
    Plotly.react(target, traces(), layout, settings).then(drawn, fail);
  }
  function drawn() {
    target.dataset.state = target.querySelector("canvas") ? "drawn" : "failed";
    if (target.dataset.state === "failed") fail("this browser offers no WebGL");
  }

  try {
    level.max = data.levels.length - 1;
    level.value = data.first;
    level.addEventListener("input", tell);
    level.addEventListener("change", redraw);
    seenOnly.addEventListener("change", redraw);
    document.getElementById("view-home").addEventListener("click", () => Plotly.relayout(target, { "scene.camera": above }));
    redraw();
  } catch (error) {
    fail(error);
  }
})();
