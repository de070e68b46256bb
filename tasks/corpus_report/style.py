"""Rules of the corpus report, after those that all reports share: nothing here sets a colour that they do not name."""

CSS = """
.overview { margin: 22px 0 0; }
.fates { display: flex; height: 30px; border-radius: 8px; overflow: hidden; gap: 1px; background: var(--rule); }
.fates .fate { flex-basis: 2px; min-width: 2px; }
.fate { background: var(--quiet); }
.fate.train { background: var(--ink); }
.fate.validation { background: var(--mix-rule); }
.fate.document, .fate.container { background: var(--norm-rule); }
.fate.duplicate { background: var(--quiet); opacity: .55; }
.fate.dropped { background: var(--feed-rule); }
.fate.skipped { background: var(--off); box-shadow: inset 0 0 0 1px var(--rule); }
.fate.rejected { background: var(--contrary); opacity: .6; }
.fate.failed { background: var(--contrary); }
.fate-list { list-style: none; margin: 12px 0 0; padding: 0; display: grid; gap: 4px 24px; font-size: .92rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr)); }
.fate-list li { display: grid; grid-template-columns: 14px 1fr auto auto; gap: 8px; align-items: baseline; }
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
td.many { white-space: pre-line; }
td.wrap { min-width: 17em; max-width: 30em; overflow-wrap: anywhere; }
h3 { margin-top: 26px; }
.scroll + .scroll { margin-top: 18px; }
section > h3:first-of-type { margin-top: 12px; }
.tallies { columns: 400px 2; column-gap: 40px; }
.tallies > div { break-inside: avoid; padding-bottom: 8px; }
.tallies h3 { margin-top: 12px; }
.bars.counts { grid-template-columns: minmax(0, 11em) minmax(60px, 1fr) auto; }
.bars.counts > span:nth-child(3n) { text-align: right; }
.bar-name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; unicode-bidi: isolate; }
.bars .all { opacity: .35; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 304px), 1fr)); gap: 12px 16px; }
.plots figure, .card { margin: 0; min-width: 0; display: flex; flex-direction: column; }
.plots .scroll { margin-top: auto; }
.plots h3 { margin: 8px 0 0; }
.plots .why { margin: 0 0 4px; font-size: .85rem; }
.dropped-ink { fill: var(--contrary); }
.legend .contrary { --tone: var(--contrary); }
.target { fill: transparent; }
g:hover > .target { fill: var(--wash); }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(210px, 1fr)); gap: 22px 18px;
  margin-top: 14px; }
.card { gap: 4px; font-size: .88rem; }
.picture { height: 250px; background: var(--off); border: 1px solid var(--rule); border-radius: 8px; overflow: hidden;
  display: flex; align-items: center; justify-content: center; }
.picture img { max-width: 100%; max-height: 100%; width: auto; height: auto; object-fit: contain; }
.picture.none { color: var(--quiet); padding: 16px; text-align: center; overflow-wrap: anywhere; height: 250px; }
blockquote { margin: 0; padding-left: 10px; border-left: 2px solid var(--rule); color: var(--quiet); font-size: .82rem;
  overflow-wrap: anywhere; unicode-bidi: isolate; display: -webkit-box; -webkit-box-orient: vertical;
  -webkit-line-clamp: 4; overflow: hidden; }
@media (max-width: 560px) { .worries li { grid-template-columns: 1fr; } .badge { justify-self: start; }
  .fate-list li { grid-template-columns: 14px 1fr auto; } .fate-list small { grid-column: 2 / -1; text-align: left; }
  .cards { grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); } }
@media print { .card, .plots figure { break-inside: avoid; } .fates, .fate { print-color-adjust: exact; } }
"""
