"""Rules of the dataset report alone: tones of tokens, and of what becomes of ids."""

CSS = """
:root { --tone-0: #dbe9f8; --tone-1: #fbe5cf; --tone-2: #dcefe0; --tone-3: #f0e0f3; --tone-4: #f3ebc4; }
@media screen and (prefers-color-scheme: dark) { :root {
  --tone-0: #1d3856; --tone-1: #4d3318; --tone-2: #1f4029; --tone-3: #43294a; --tone-4: #443d14; } }
.fate.kept { background: var(--ink); }
.fate.repeated { background: var(--mix-rule); }
.fate.padded { background: var(--hatched); }
.fate.cut { background: var(--contrary); }
.held-out-ink { fill: var(--contrary); }
.sample { font: .84rem/1.75 ui-monospace, "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  border: 1px solid var(--rule); border-radius: 10px; padding: 12px 14px; max-height: 24rem; overflow-y: auto;
  overflow-wrap: anywhere; direction: ltr; margin: 8px 0 18px; }
.sample span { unicode-bidi: isolate; white-space: pre-wrap; border-radius: 3px; padding: 1.5px 0; }
.sample span:nth-of-type(5n + 1) { background: var(--tone-0); }
.sample span:nth-of-type(5n + 2) { background: var(--tone-1); }
.sample span:nth-of-type(5n + 3) { background: var(--tone-2); }
.sample span:nth-of-type(5n + 4) { background: var(--tone-3); }
.sample span:nth-of-type(5n) { background: var(--tone-4); }
.sample span:hover { outline: 2px solid var(--ink); }
.sample span.special { background: var(--contrary); color: var(--on-ink); padding: 1.5px 5px; }
.sample .rest { color: var(--quiet); font-style: italic; }
.entries { display: flex; flex-wrap: wrap; gap: 5px; margin: 6px 0 14px; padding: 0; list-style: none; }
.entries li { background: var(--wash); border-radius: 5px; padding: 1px 7px; font-size: .84rem; max-width: 100%;
  overflow-wrap: anywhere; white-space: pre-wrap; }
td.token { white-space: pre-wrap; overflow-wrap: anywhere; text-align: left; max-width: 26em; }
.mini { margin-right: 10px; }
@media (min-width: 561px) { .count { min-width: 6.4em; } }
#account th, #sums th[scope=row] { white-space: normal; }
.fate-list small { min-width: 4.5em; }
.facts + p { margin-top: 16px; }
.fails { color: var(--contrary); font-weight: 650; }
@media print { .sample { max-height: none; overflow: visible; } .sample span { print-color-adjust: exact; } }
"""
