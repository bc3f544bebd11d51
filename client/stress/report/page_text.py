"""The style and the script of the page."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --bg: #fbfbfa; --ink: #1d1f21; --soft: #5d6166; --line: #d9dadb; --card: #ffffff;
  --ok: #1d7a55; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --bg: #16181a; --ink: #e6e6e4; --soft: #a2a6aa; --line: #34383c;
  --card: #1e2124; --ok: #58c79a; --bad: #ff8a80; } }
body { margin: 0; background: var(--bg); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 24px; }
h1 { margin: 0 0 4px; font-size: 26px; } h2 { margin: 32px 0 4px; font-size: 19px; }
p { margin: 0 0 12px; color: var(--soft); } p.ok { color: var(--ok); } p.bad, li { color: var(--bad); }
table { border-collapse: collapse; margin: 12px 0; background: var(--card); border: 1px solid var(--line); }
th, td { text-align: left; padding: 4px 12px; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; white-space: nowrap; } td { font-variant-numeric: tabular-nums; }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--soft); }
#zooms { max-height: 220px; overflow: auto; display: flex; flex-wrap: wrap; gap: 4px; padding: 8px 0; }
button { font: inherit; font-size: 13px; color: var(--ink); background: var(--card); border: 1px solid var(--line);
  border-radius: 4px; padding: 2px 8px; cursor: pointer; }
button:hover, button:focus-visible { border-color: var(--ink); }
.plotly-graph-div { background: var(--card); border: 1px solid var(--line); }
"""

SCRIPT: Final = """
const dark = matchMedia("(prefers-color-scheme: dark)");
const plots = document.querySelectorAll(".plotly-graph-div");
function paint() {
  const ink = dark.matches ? "#e6e6e4" : "#1d1f21", line = dark.matches ? "#34383c" : "#e4e5e6";
  for (const plot of plots) {
    const change = { "font.color": ink };
    for (const axis of Object.keys(plot.layout).filter(each => /^[xy]axis/.test(each)))
      Object.assign(change, { [axis + ".gridcolor"]: line, [axis + ".zerolinecolor"]: line });
    Plotly.relayout(plot, change);
  }
}
dark.addEventListener("change", paint);
paint();
const run = document.getElementById("run"), whole = run.layout.xaxis.range.slice();
for (const button of document.querySelectorAll("#zooms button"))
  button.addEventListener("click", () => {
    const from = Number(button.dataset.from), length = Math.max(1, Number(button.dataset.ms) / 1000);
    Plotly.relayout(run, { "xaxis.range": button.dataset.all ? whole : [from - 0.5 * length, from + 2 * length] });
    run.scrollIntoView({ behavior: "smooth" });
  });
"""
