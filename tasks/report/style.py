"""Rules that the pages share, after those of every report: nothing here sets a colour that they do not name."""

CSS = """
.overview { margin: 22px 0 0; }
.fates { display: flex; height: 30px; border-radius: 8px; overflow: hidden; gap: 1px; background: var(--rule); }
.fates .fate { flex-basis: 2px; min-width: 2px; }
.fate { background: var(--quiet); }
.fate-list { list-style: none; margin: 12px 0 0; padding: 0; display: grid; gap: 4px 24px; font-size: .92rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr)); }
.fate-list li { display: grid; grid-template-columns: 14px 1fr auto auto; gap: 0 8px; align-items: baseline; }
.fate-list .fate { width: 12px; height: 12px; border-radius: 3px; margin-top: .3em; align-self: start; }
.fate-list b { font-variant-numeric: tabular-nums; text-align: right; }
.fate-list small { color: var(--quiet); min-width: 8.5em; text-align: right; font-variant-numeric: tabular-nums; }
.worries { list-style: none; margin: 0; padding: 0; }
.worries li { display: grid; grid-template-columns: 8.2em 1fr; gap: 4px 14px; padding: 10px 0;
  border-top: 1px solid var(--rule); align-items: baseline; }
.worries li > div { min-width: 0; }
.worries .remedy { color: var(--quiet); font-size: .92rem; overflow-wrap: anywhere; }
.badge { font-size: .78rem; font-weight: 600; border-radius: 99px; padding: 2px 10px; text-align: center;
  border: 1px solid var(--quiet); color: var(--quiet); white-space: nowrap; }
.badge.lost { background: var(--contrary); border-color: var(--contrary); color: var(--on-ink); }
.badge.check { border-color: var(--contrary); color: var(--contrary); }
.path { font-family: ui-monospace, "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: .86em; unicode-bidi: isolate; overflow-wrap: anywhere; }
td.path, th.path { text-align: left; white-space: normal; min-width: 16em; max-width: 34em; font-weight: 400; }
td.wrap { min-width: 17em; max-width: 30em; overflow-wrap: anywhere; }
h3 { margin-top: 26px; }
.scroll + .scroll { margin-top: 18px; }
.why + h3 { margin-top: 12px; }
.scroll + p { margin-top: 14px; }
section > :last-child { margin-bottom: 0; }
thead th { font-weight: 500; }
th:first-child, td:first-child { padding-left: 0; }
th.name { white-space: normal; overflow-wrap: anywhere; min-width: 7em; max-width: 24em; }
.scroll { background:
  linear-gradient(90deg, var(--card) 40%, transparent) 0 0 / 36px 100% no-repeat local,
  linear-gradient(270deg, var(--card) 40%, transparent) 100% 0 / 36px 100% no-repeat local,
  linear-gradient(90deg, var(--shade), transparent) 0 0 / 12px 100% no-repeat scroll,
  linear-gradient(270deg, var(--shade), transparent) 100% 0 / 12px 100% no-repeat scroll; }
.scroll:not(.tall) thead th { background: none; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 304px), 1fr)); gap: 12px 16px; }
.plots figure { margin: 0; min-width: 0; display: flex; flex-direction: column; }
.plots .scroll { margin-top: auto; }
.plots h3 { margin: 8px 0 0; }
.plots .why { margin: 0 0 4px; font-size: .85rem; }
.dropped-ink { fill: var(--contrary); }
.legend .contrary { --tone: var(--contrary); }
:root { --shade: rgb(0 0 0 / .15);
  --hatched: repeating-linear-gradient(135deg, var(--quiet) 0 1px, var(--paper) 1px 4px);
  --green: #2c7d52; --violet: #86499f; --gold: #8a6d00; --teal: #16808d; }
@media screen and (prefers-color-scheme: dark) { :root {
  --shade: rgb(255 255 255 / .2); --green: #67c795; --violet: #cf9ae6; --gold: #d9bd4a; --teal: #5cc8d6; } }
.line { fill: none; stroke: var(--tone); stroke-width: 1.7; stroke-linejoin: round; pointer-events: none; }
.knot { fill: var(--tone); pointer-events: none; }
.line-0 { --tone: var(--ink); }
.line-1 { --tone: var(--contrary); }
.line-2 { --tone: var(--green); }
.line-3 { --tone: var(--violet); }
.line-4 { --tone: var(--gold); }
.line-5 { --tone: var(--teal); }
.line.line-1 { stroke-dasharray: 7 3; }
.line.line-2 { stroke-dasharray: 2.5 2.5; }
.line.line-3 { stroke-dasharray: 9 3 2 3; }
.line.line-4 { stroke-dasharray: 4 2; }
.line.line-5 { stroke-dasharray: 12 4; }
.pale { opacity: .38; stroke-width: 1.1; }
.mark { fill: none; stroke: var(--quiet); stroke-dasharray: 1 3; }
.marked path:last-child { fill: var(--quiet); }
figure { margin: 0; min-width: 0; }
.if-narrow { display: none; }
@media (max-width: 1060px) { .if-wide { display: none; } .if-narrow { display: block; } }
.target { fill: transparent; }
g:hover > .target { fill: var(--wash); }
@media (max-width: 560px) { .mini { display: none; } .count { min-width: 0; } .fate-list { gap: 8px; }
  .worries li { grid-template-columns: 1fr; } .badge { justify-self: start; }
  .fate-list li { grid-template-columns: 14px 1fr auto; } .fate-list small { grid-column: 2 / -1; text-align: left; } }
@media print { .plots figure { break-inside: avoid; } .fates, .fate { print-color-adjust: exact; } }
"""
