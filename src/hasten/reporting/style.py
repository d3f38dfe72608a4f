"""The style of a report: light and dark, and a palette that color-blind readers can tell apart.

Colors after Okabe and Ito (2008, "Color universal design"), darkened for white and lightened for
black. Lines also differ by their dashes.
"""

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #596270; --rule: #dfe3e8;
  --line: #c3c9d1; --back: #f6f7f9; --card: #fff; --link: #0060a0; --bar: #cfe3f2;
  --mark: #fff3cd; --margin: #e3f1e8; --equivalent: #1a7f37; --better: #1a7f37; --worse: #c62f2f;
  --open: #6b7280;
  --c0: #0072b2; --c1: #d55e00; --c2: #00805c; --c3: #b0548c; --c4: #a87600; --c5: #3a8fc4; }
@media (prefers-color-scheme: dark) { :root { --text: #e7e9ec; --soft: #a1a9b4; --rule: #2c323a;
  --line: #444c57; --back: #111418; --card: #1a1e24; --link: #7cc0f0; --bar: #1f4460;
  --mark: #453a14; --margin: #1d3325; --equivalent: #4cc26a; --better: #4cc26a; --worse: #ff7b72;
  --open: #9aa2ad;
  --c0: #56b4e9; --c1: #f0883e; --c2: #2fc49a; --c3: #e39cc8; --c4: #e8c34a; --c5: #a5b4fc; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; margin: 0 auto;
  color: var(--text); background: var(--back); max-width: 72rem; padding: 2rem 1.25rem 4rem;
  overflow-wrap: anywhere; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .25rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 0 0 .75rem; } h3 { font-size: .95rem; margin: 0 0 .15rem; }
p { margin: .4rem 0; max-width: 62rem; } .soft { color: var(--soft); font-size: .9rem; }
header p { margin: 0; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin: 1rem 0 0; font-size: .9rem; }
a { color: var(--link); text-decoration: none; } a:hover { text-decoration: underline; }
section, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
section { padding: 1.25rem 1.25rem 1rem; margin-top: 1.25rem; }
.card { padding: .75rem .9rem; background: none; }
dl { margin: .5rem 0; display: grid; gap: .75rem 1.25rem; }
dl.figures { grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); }
dl.facts { grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); }
dt { color: var(--soft); font-size: .8rem; } dd { margin: 0; }
.figures dd { font-size: 1.5rem; font-weight: 600; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.grid { display: grid; gap: 1rem 1.5rem; margin: .5rem 0 .75rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }
.broad { grid-template-columns: repeat(auto-fit, minmax(min(100%, 32rem), 1fr)); }
.grid > * { min-width: 0; }
.wide { overflow-x: auto; margin: .4rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { overflow-wrap: break-word; text-align: left; padding: .32rem 1.1rem .32rem 0;
  border-bottom: 1px solid var(--rule);
  vertical-align: top; } tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--soft); font-weight: 500; font-size: .8rem; vertical-align: bottom; }
tbody th { font-weight: 400; min-width: 6.5rem; max-width: 24rem; }
td { min-width: 3rem; max-width: 40rem; }
.number { text-align: right; white-space: nowrap; }
.bar { min-width: 7.5rem; } .bar span { display: block; }
.bar i { display: block; height: 4px; margin: 2px 0 1px auto; border-radius: 2px;
  background: var(--c0); opacity: .8; }
.marked > * { background: var(--mark); font-weight: 600; }
.card .wide { margin-bottom: 0; } .card table { width: 100%; } .card tbody th { min-width: 0; }
.card td { min-width: 5rem; }
.card th:first-child { width: 2rem; }
figure { margin: 0; } .chart { max-width: 30rem; } .map { max-width: 46rem; }
caption { text-align: left; } caption, figcaption { font-weight: 600; font-size: .9rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--text); font-size: 12px; } svg .soft { fill: var(--soft); font-size: 11px; }
.figure svg { max-width: 52rem; }
@media (max-width: 40rem) { .figure svg text { font-size: 24px; }
  .figure svg .soft { font-size: 20px; } }
.rule { stroke: var(--rule); }
.axis { stroke: var(--line); } .mark { stroke: var(--soft); stroke-dasharray: 3 3; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.c0 { --color: var(--c0); } .c1 { --color: var(--c1); } .c2 { --color: var(--c2); }
.c3 { --color: var(--c3); } .c4 { --color: var(--c4); } .c5 { --color: var(--c5); }
.line { stroke: var(--color); } .dot { fill: var(--color); }
.points circle { fill: var(--color); fill-opacity: .65; }
.points circle:hover, .dot:hover { stroke: var(--text); stroke-width: 1.5; fill-opacity: 1; }
ul.legend, ul.runs { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem .9rem; padding: 0;
  margin: .15rem 0; font-size: .82rem; color: var(--soft); }
ul.legend svg { display: inline-block; width: 24px; height: 12px; margin-right: .35rem; }
ul.runs { font-size: .95rem; color: var(--text); margin-top: .6rem; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: 3px; margin-right: .4rem;
  background: var(--color); }
.equivalent { color: var(--equivalent); stroke: var(--equivalent); }
.better { color: var(--better); stroke: var(--better); }
.worse { color: var(--worse); stroke: var(--worse); }
.open { color: var(--open); stroke: var(--open); }
details { margin: .6rem 0 .3rem; }
summary { cursor: pointer; color: var(--link); font-size: .9rem; }
@media (max-width: 40rem) { body { padding: 1.25rem .75rem 3rem; } section { padding: 1rem .9rem; }
  .map svg .soft { font-size: 17px; } h1 { font-size: 1.4rem; } .figures dd { font-size: 1.25rem; }
  dl.figures, dl.facts { grid-template-columns: repeat(2, 1fr); } .bar { min-width: 5.5rem; }
  th, td { padding-right: .8rem; } }
@media print { body { background: none; } section { break-inside: avoid; } nav { display: none; } }
"""
