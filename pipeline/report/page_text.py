"""The style and the script of the page: the look of the stress report's page, light or dark as the reader's setting is."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root {
  color-scheme: light dark;
  --page: #fbfbfa; --text: #1d1f21; --quiet: #5d6166; --rule: #d9dadb; --panel: #fff; --good: #1d7a55; --warn: #9a5b00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #16181a; --text: #e6e6e4; --quiet: #a2a6aa; --rule: #34383c; --panel: #1e2124; --good: #58c79a; --warn: #f0b357;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 24px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 19px; margin: 36px 0 4px; }
p { margin: 0 0 12px; color: var(--quiet); }
p.warn, li.warn { color: var(--warn); }
p.good { color: var(--good); }
.scroll { overflow-x: auto; margin: 12px 0; }
table { border-collapse: collapse; background: var(--panel); border: 1px solid var(--rule); }
th, td { padding: 4px 12px; text-align: left; vertical-align: top; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; white-space: nowrap; }
td { font-variant-numeric: tabular-nums; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.text { overflow-wrap: anywhere; min-width: 16em; }
td.time { white-space: nowrap; }
details { margin: 6px 0; }
details > summary { cursor: pointer; }
details > summary small { color: var(--quiet); font-size: inherit; }
.story td, .story th { font-size: 13px; padding: 2px 10px; }
.plotly-graph-div { background: var(--panel); border: 1px solid var(--rule); }
"""

SCRIPT: Final = """
const scheme = matchMedia("(prefers-color-scheme: dark)");
function colour() {
  const text = scheme.matches ? "#e6e6e4" : "#1d1f21";
  const grid = scheme.matches ? "#34383c" : "#e4e5e6";
  const panel = scheme.matches ? "#1e2124" : "#ffffff";
  document.querySelectorAll(".plotly-graph-div").forEach(plot => {
    const layout = { "font.color": text, "hoverlabel.bgcolor": panel, "hoverlabel.font.color": text };
    Object.keys(plot.layout).filter(name => /^[xy]axis/.test(name)).forEach(name => {
      layout[name + ".gridcolor"] = grid;
      layout[name + ".zerolinecolor"] = grid;
    });
    Plotly.relayout(plot, layout);
  });
}
scheme.addEventListener("change", colour);
colour();
"""
