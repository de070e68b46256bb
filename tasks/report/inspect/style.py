"""The page's style sheet: one ink, a second one for its opposite, light and dark, screen and paper."""

CSS = """
:root { color-scheme: light dark;
  --paper: #fbfaf7; --card: #ffffff; --text: #23272f; --quiet: #626a76; --rule: #e4e2dc; --ink: #1f5fa8;
  --contrary: #b4561c; --wash: #eef3f9; --on-ink: #ffffff; --norm: #e6f1ea; --norm-rule: #7fae90; --feed: #fbefdf;
  --feed-rule: #cfa263; --mix: #e7eef8; --mix-rule: #86a7d0; --off: #efede7; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14171c; --card: #1b1f26; --text: #e4e7ec; --quiet: #9aa3b0; --rule: #2e343e; --ink: #6fb1ff;
  --contrary: #f0975a; --wash: #222a35; --on-ink: #0d1420; --norm: #1d2f27; --norm-rule: #4f8465; --feed: #33291b;
  --feed-rule: #93703a; --mix: #1d2a3d; --mix-rule: #4b6f9f; --off: #22262d; } }
* { box-sizing: border-box; }
[hidden] { display: none !important; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body { margin: 0; background: var(--paper); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main, header, footer { max-width: 1080px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 40px; }
h1 { font-size: clamp(1.5rem, 1.1rem + 2vw, 2.2rem); line-height: 1.2; margin: 0 0 10px; font-weight: 650;
  letter-spacing: -.015em; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 0 0 4px; font-weight: 640; letter-spacing: -.01em; }
h3 { font-size: 1rem; margin: 22px 0 6px; font-weight: 620; }
p { margin: 0 0 12px; max-width: 72ch; }
a { color: var(--ink); }
.lead, .why { color: var(--quiet); }
.why { margin-bottom: 16px; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 14px; padding: 24px; margin: 20px 0;
  }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: .9rem; margin: 18px 0 0; }
nav a { text-decoration: none; padding: 3px 0; }
nav a:hover { text-decoration: underline; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 14px 20px;
  margin: 20px 0 0; }
.facts div { border-top: 2px solid var(--rule); padding-top: 6px; }
.facts dt { color: var(--quiet); font-size: .8rem; }
.facts dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
dl { margin: 0; }
.prompt { font-family: ui-monospace, "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: .92rem;
  background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 10px 14px;
  overflow-wrap: anywhere;
  max-height: 11em; overflow-y: auto; }
.token, td.token, th.token, .chip, code {
  font-family: ui-monospace, "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  unicode-bidi: isolate; direction: ltr; white-space: pre; }
code { font-size: .9em; white-space: normal; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; max-width: 100%; padding-bottom: 4px; }
.scroll:focus-visible, button:focus-visible, select:focus-visible, summary:focus-visible, a:focus-visible {
  outline: 2px solid var(--ink); outline-offset: 2px; border-radius: 4px; }
.tall { max-height: 26rem; overflow: auto; }
.split { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); gap: 20px 28px;
  align-items: start; }
.split > * { min-width: 0; }
.beside { display: flex; flex-wrap: wrap; gap: 4px 32px; align-items: start; }
.beside { margin-bottom: 18px; }
.beside > * { max-width: 100%; }
.beside h3 { margin-top: 4px; }
svg { display: block; }
svg text { fill: var(--text); font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
svg .token { font: 12px ui-monospace, "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
svg .small { font-size: 10px; }
svg .note { fill: var(--quiet); font-size: 11.5px; }
svg .name { font-weight: 600; font-size: 13px; }
svg .value { font-size: 10.5px; font-variant-numeric: tabular-nums; pointer-events: none; }
svg .value.strong { fill: var(--on-ink); }
svg .halo { paint-order: stroke; stroke: var(--card); stroke-width: 3px; stroke-linejoin: round; }
.cell, .ink { fill: var(--ink); }
.cell { fill-opacity: 0; }
#mask .cell { fill-opacity: .72; }
.off { fill: var(--off); }
.frame { fill: none; stroke: var(--rule); }
.signed { fill: var(--ink); fill-opacity: 0; }
.signed.minus { fill: var(--contrary); }
.axis, .grid { fill: none; stroke: var(--rule); }
.way { fill: none; stroke: var(--contrary); stroke-width: 1.3; }
.way-tip { fill: var(--contrary); }
.dot { fill: var(--ink); stroke: var(--card); stroke-width: 1.5; }
.series { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.leader { fill: none; stroke-width: 1; opacity: .55; }
.hit { fill: none; stroke: transparent; stroke-width: 12; cursor: pointer; }
.dimmed .series { opacity: .16; }
.dimmed .track.on .series { opacity: 1; stroke-width: 2.8; }
.wire { fill: none; stroke: var(--quiet); stroke-width: 1.4; }
.bypass, .loop { stroke: var(--contrary); stroke-width: 1.8; }
.tip, .joint { fill: var(--quiet); }
.sum { fill: var(--card); stroke: var(--quiet); stroke-width: 1.4; }
.box { fill: var(--card); stroke: var(--quiet); stroke-width: 1.2; }
.box.io { fill: var(--paper); stroke-dasharray: 3 3; }
.box.norm { fill: var(--norm); stroke: var(--norm-rule); }
.box.mix { fill: var(--mix); stroke: var(--mix-rule); }
.box.feed { fill: var(--feed); stroke: var(--feed-rule); }
.box.drop { fill: var(--off); stroke: var(--rule); stroke-dasharray: 4 3; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 10px; border-bottom: 1px solid var(--rule); white-space: nowrap;
  vertical-align: top; }
thead th { color: var(--quiet); font-weight: 550; border-bottom-color: var(--quiet); background: var(--card); }
.tall thead th { position: sticky; top: 0; }
th[scope=row], .left, th.wrap { text-align: left; font-weight: 500; }
td.wrap { white-space: normal; text-align: left; min-width: 12em; }
caption { text-align: left; color: var(--quiet); font-size: .85rem; padding: 4px 0; }
.sum-row td, .sum-row th { font-weight: 650; border-bottom: 0; }
details { border-top: 1px solid var(--rule); padding: 8px 0; }
details:last-child { border-bottom: 0; }
summary { cursor: pointer; padding: 3px 0; }
summary .shape, .shape { color: var(--quiet); font-size: .85rem; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.steps { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 4px 28px;
  align-items: start; }
.gallery { columns: 340px auto; column-gap: 28px; }
.gallery > div { break-inside: avoid; padding-bottom: 14px; }
#diagrams svg { max-width: 100%; height: auto; }
.gallery h3 { margin-top: 8px; }
.step { min-width: 0; padding: 12px 0 14px 14px; border-left: 2px solid var(--rule); margin: 6px 0; }
.step h4 { margin: 0; font-size: .97rem; font-weight: 620; display: inline; }
.step p { color: var(--quiet); margin: 2px 0 8px; }
.controls { display: flex; flex-wrap: wrap; gap: 10px 18px; align-items: center; margin: 0 0 14px; font-size: .92rem;
  }
select, button { font: inherit; color: inherit; background: var(--paper); border: 1px solid var(--rule);
  border-radius: 8px;
  padding: 5px 10px; min-height: 36px; }
button { cursor: pointer; }
.chips { display: flex; flex-wrap: wrap; gap: 5px; margin: 0 0 16px; max-height: 12.5rem; overflow-y: auto;
  padding: 2px; }
.chip { min-height: 32px; padding: 2px 9px; font-size: .86rem; }
.chip[aria-pressed=true] { background: var(--ink); color: var(--on-ink); border-color: var(--ink); }
.status { min-height: 1.6em; color: var(--quiet); font-size: .92rem; margin: 8px 0 4px; }
.heads { display: grid; gap: 4px; width: fit-content; max-width: 100%; margin: 4px 0 0; }
.heads button { padding: 2px; min-height: 0; border-radius: 5px; background: var(--card); line-height: 0;
  min-width: 0; }
.heads button[aria-pressed=true] { outline: 2px solid var(--ink); }
.heads canvas { width: 100%; aspect-ratio: 1; image-rendering: pixelated; display: block; }
.heads .row-name { font-size: .72rem; color: var(--quiet); align-self: center; white-space: nowrap;
  padding-right: 4px; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 14px; font-size: .82rem; color: var(--quiet); margin: 6px 0; }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
.legend i { width: 20px; height: 14px; border-radius: 3px; border: 1px solid var(--rule); position: relative;
  overflow: hidden; }
.legend i::before { content: ""; position: absolute; inset: 0; background: var(--tone, var(--ink));
  opacity: var(--share, 1); }
.legend .ramp::before { display: none; }
.ramp { background: linear-gradient(90deg, transparent, var(--ink)) !important; width: 90px !important; }
.bars { display: grid; grid-template-columns: minmax(3.5em, auto) minmax(90px, 1fr) auto; gap: 5px 10px;
  align-items: center;
  font-size: .88rem; font-variant-numeric: tabular-nums; }
.bars .track { background: var(--wash); border-radius: 4px; height: 16px; position: relative; overflow: hidden; }
.bars .fill { position: absolute; inset: 0 auto 0 0; background: var(--ink); border-radius: 4px; }
.bars .spot { position: absolute; top: 3px; width: 10px; height: 10px; margin-left: -5px; border-radius: 50%;
  background: var(--ink); }
.bars .rod { position: absolute; top: 7px; height: 2px; left: 0; background: var(--ink); opacity: .35; }
.bars .actual { font-weight: 700; }
.bars .actual::after { content: " ◂"; color: var(--contrary); }
.mini { display: inline-block; width: 56px; height: 9px; border-radius: 2px; background: var(--wash); }
.count { display: inline-block; min-width: 4.6em; }
.mini i { display: block; height: 100%; border-radius: 2px; background: var(--ink); }
footer { color: var(--quiet); font-size: .85rem; padding: 10px 20px 50px; }
.skip { position: absolute; left: -999px; }
.skip:focus { left: 10px; top: 10px; background: var(--card); padding: 8px; z-index: 2; }
@media (max-width: 560px) { body { font-size: 15px; } section { padding: 18px 14px; border-radius: 10px;
  margin: 14px -8px; }
  .step { padding-left: 10px; } th, td { padding: 4px 7px; } header { padding-top: 24px; } }
@media print { :root { --paper: #fff; --card: #fff; --text: #111; --quiet: #444; --rule: #ccc; --ink: #1f5fa8;
    --contrary: #b4561c; --wash: #eef3f9; --on-ink: #fff; --norm: #e6f1ea; --norm-rule: #7fae90; --feed: #fbefdf;
    --feed-rule: #cfa263; --mix: #e7eef8; --mix-rule: #86a7d0; --off: #efede7; color-scheme: light; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { font-size: 11pt; } section { border: 0; padding: 0; margin: 18px 0; break-inside: auto; }
  nav, .skip, .heads, .chips, button, select { display: none !important; } h2, h3, .step h4 { break-after: avoid; }
  .scroll, .tall, .prompt { overflow: visible; max-height: none; } svg { max-width: 100%; height: auto;
  break-inside: avoid; }
  tr { break-inside: avoid; } }
"""
