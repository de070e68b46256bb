"""Rules of the corpus report alone: nothing here sets a colour that the shared ones do not name."""

CSS = """
.fate.train { background: var(--ink); }
.fate.validation { background: var(--mix-rule); }
.fate.document, .fate.container { background: var(--norm-rule); }
.fate.duplicate { background: var(--quiet); opacity: .55; }
.fate.dropped { background: var(--feed-rule); }
.fate.skipped { background: var(--hatched); }
.fate.rejected { background: var(--contrary); opacity: .6; }
.fate.failed { background: var(--contrary); }
td.many { white-space: pre-line; }
.tallies { columns: 400px 2; column-gap: 40px; }
.tallies > div { break-inside: avoid; padding-bottom: 22px; }
.tallies h3 { margin-top: 0; }
.tallies .why { margin: 0; }
.bars.counts { grid-template-columns: minmax(0, 11em) minmax(60px, 1fr) auto; }
.bars.counts > span:nth-child(3n) { text-align: right; }
.bar-name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; unicode-bidi: isolate; }
.bars .all { opacity: .35; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(210px, 1fr)); gap: 22px 18px;
  margin-top: 14px; }
.card { margin: 0; min-width: 0; display: flex; flex-direction: column; gap: 4px; font-size: .88rem; }
.picture { height: 250px; background: var(--off); border: 1px solid var(--rule); border-radius: 8px; overflow: hidden;
  display: flex; align-items: center; justify-content: center; }
.picture img { max-width: 100%; max-height: 100%; width: auto; height: auto; object-fit: contain; }
.picture.none { color: var(--quiet); padding: 16px; text-align: center; overflow-wrap: anywhere; height: 250px; }
blockquote { margin: 0; padding-left: 10px; border-left: 2px solid var(--rule); color: var(--quiet); font-size: .82rem;
  overflow-wrap: anywhere; unicode-bidi: isolate; display: -webkit-box; -webkit-box-orient: vertical;
  -webkit-line-clamp: 4; overflow: hidden; }
@media (max-width: 560px) { .cards { grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); } }
@media print { .card { break-inside: avoid; } }
"""
