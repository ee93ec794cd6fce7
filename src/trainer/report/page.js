
// Where the pointer is over a plot, the nearest row of the table below it is shown.
for (const figure of document.querySelectorAll("figure")) {
  const plot = figure.querySelector("svg.plot"), table = figure.querySelector("table"), tip = document.getElementById("tip");
  if (!plot || !table) continue;
  const names = [...table.querySelectorAll("thead th")].map(cell => cell.textContent);
  const rows = [...table.querySelectorAll("tbody tr")], cross = plot.querySelector(".cross");
  const [left, right, from, to, width] = plot.dataset.scale.split(" ").map(Number);
  plot.addEventListener("pointermove", event => {
    const box = plot.getBoundingClientRect();
    const x = from + ((event.clientX - box.left) / box.width * width - left) / (right - left) * (to - from);
    let best = null, distance = Infinity;
    for (const row of rows) {
      const d = Math.abs(Number(row.dataset.x) - x);
      if (d < distance) { best = row; distance = d; }
    }
    if (!best) return;
    const at = left + (Number(best.dataset.x) - from) / (to - from) * (right - left);
    cross.setAttribute("x1", at); cross.setAttribute("x2", at); cross.style.visibility = "visible";
    tip.textContent = [...best.cells].map((cell, i) => names[i] + "  " + cell.textContent).join("\n");
    tip.hidden = false;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4)) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4)) + "px";
  });
  plot.addEventListener("pointerleave", () => { tip.hidden = true; cross.style.visibility = "hidden"; });
}
