// Draws the figures of a page from the data that stand in it.
document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".picture-plot")) {
    const figure = JSON.parse(place.querySelector("script").textContent);
    figure.config = { displaylogo: false, displayModeBar: false, responsive: true };
    place.replaceChildren();
    Plotly.newPlot(place, figure);
  }
});
